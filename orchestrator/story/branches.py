"""Branches: the tree of a run while it grows, one branch per scope, and how it is frozen into nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from .records import Node, Sum, Unit

_NOTHING = Sum()


@dataclass(slots=True)
class Piece:
    """A unit of work that has ended; ``sum`` is None where the journal gives no amount."""

    label: str
    outcome: str
    reason: str
    seconds: float
    sum: Sum | None


@dataclass(slots=True, eq=False)
class Branch:
    """One scope of a run.

    ``models`` has what each model cost right here, ``all_models`` here and below (set by ``freeze``).
    ``money`` is what was called right here.
    """

    scope: str
    name: str
    kind: str = "scope"
    begun: int = 0
    ended: int = 0
    items: int | None = None
    cap: int | None = None
    reason: str = ""
    open_calls: int = 0
    first: datetime | None = None
    last: datetime | None = None
    money: Sum = field(default_factory=Sum)
    models: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    pieces: list[Piece] = field(default_factory=list)
    piece_words: Counter[str] = field(default_factory=Counter)
    children: list[Branch] = field(default_factory=list)
    all_models: Counter[str] = field(default_factory=Counter)

    def see(self, at: datetime | None) -> None:
        """Something happened here."""
        if at is not None:
            self.first = self.first or at
            self.last = at

    def is_agent(self) -> None:
        """An agent works here; a pattern or the run itself stays what it is."""
        if self.kind == "scope":
            self.kind = "agent"

    def end(self, outcome: str, reason: str) -> None:
        """One of those who began here has ended."""
        self.ended += 1
        self.outcomes[outcome or "?"] += 1
        if reason and outcome != "ok":
            self.reason = reason

    def add_piece(self, piece: Piece, *, keep: bool) -> None:
        """A unit of work has ended; it is counted, and kept if it will be told of."""
        self.piece_words[piece.outcome or "?"] += 1
        if keep:
            self.pieces.append(piece)

    def note_model(self, model: str) -> None:
        """A model is used here, whether or not it has cost anything yet."""
        if model:
            self.models[model] += 0

    def count(self, model: str, amount: Sum) -> None:
        """Add what a call came to."""
        self.money = self.money + amount
        if model:
            self.models[model] += amount.posted_nanos

    def freeze(self, *, is_over: bool, units: dict[str, dict[str, Sum]] | None = None) -> Node:
        """The branch and all below as records.

        Args:
            is_over: the run has ended, or its process is gone: nothing is running any more.
            units: what each unit of each scope came to, where calls are known.
        """
        children = tuple(child.freeze(is_over=is_over, units=units) for child in self.children)
        self.all_models = Counter(self.models)
        total, open_calls = self.money, self.open_calls
        last, first = self.last, self.first
        for branch, node in zip(self.children, children, strict=True):
            total = total + node.sum
            open_calls += node.open_calls
            first = _earlier(first, branch.first)
            last = _later(last, branch.last)
            self.all_models.update(branch.all_models)
        self.first, self.last = first, last
        known = (units or {}).get(self.scope, {})
        return Node(
            scope=self.scope,
            name=self.name,
            kind=self.kind,
            models=tuple(name for name, _ in self.all_models.most_common()),
            outcome=self._word(is_over=is_over, open_calls=open_calls),
            outcomes=dict(self.outcomes),
            reason=self.reason,
            begun=max(self.begun, self.ended),
            ended=self.ended,
            items=self.items,
            cap_nanos=self.cap,
            sum=total,
            own=self.money,
            open_calls=open_calls,
            seconds=0.0
            if first is None or last is None
            else max((last - first).total_seconds(), 0.0),
            tools=dict(self.tools),
            units=tuple(_unit(piece, known) for piece in self.pieces),
            unit_outcomes=dict(self.piece_words),
            children=children,
        )

    def _word(self, *, is_over: bool, open_calls: int) -> str:
        if self.begun > self.ended or (open_calls and not self.ended):
            return "not ended" if is_over else "running"
        if len(self.outcomes) == 1:
            return next(iter(self.outcomes))
        if self.outcomes:
            return "mixed"
        if self.kind == "run":
            return "not ended" if is_over else "running"
        return ""


def _unit(piece: Piece, known: dict[str, Sum]) -> Unit:
    amount = known.get(piece.label) if piece.sum is None else piece.sum
    return Unit(
        label=piece.label,
        outcome=piece.outcome or "?",
        reason=piece.reason,
        sum=amount or _NOTHING,
        seconds=piece.seconds,
    )


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min(one, other) if one and other else one or other


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max(one, other) if one and other else one or other
