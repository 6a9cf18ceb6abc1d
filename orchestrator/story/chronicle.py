"""A chronicle: the tree of a run and its calls, put together event by event from the journal.

It is fed while the run goes on (``watcher``) or from the file when it is over (``telling``). It takes whatever
a journal holds: unknown events are counted, unknown and missing fields passed over. It is not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from budgets.errors import BudgetError
from budgets.money import parse_usd

from .branches import Branch, Piece
from .records import Call, CallState, Moment, Sum, Tokens

#: Kinds of events that are told as moments, and the fields that name who it is about.
MOMENTS = frozenset(
    (
        *("decline", "retry", "trip", "approval", "cache_alarm", "cache_choice", "stop"),
        *("spend_limit", "control", "finding", "batch_lost", "batch_found"),
    )
)
_STATES: dict[str, CallState] = {"settle": "settled", "void": "void", "doubt": "in doubt"}
#: A batch is one hold, and is told as one call.
_OF_BATCH = {
    "batch": "hold",
    "batch_settled": "settle",
    "batch_void": "void",
    "batch_doubt": "doubt",
}
#: Fields that every line has, or that stand elsewhere in a moment.
_PLAIN = frozenset(("at", "run", "event", "agent", "scope", "reason"))


@dataclass(slots=True)
class OpenCall:
    """A call as far as it is known by now."""

    id: str
    branch: Branch
    agent: str
    parent: str
    unit: str
    model: str
    began: datetime | None
    bound: int
    state: CallState = "under way"
    ended: datetime | None = None
    posted: int = 0
    held: int = 0
    in_doubt: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    stop_reason: str = ""
    reason: str = ""
    status: int = 0
    request_id: str = ""
    latency_ms: int = 0

    @property
    def sum(self) -> Sum:
        """What it came to."""
        unpriced = int(self.state == "not priced")
        return Sum(1, self.posted, self.held, self.in_doubt, self.tokens, unpriced)

    def freeze(self) -> Call:
        """The record of it."""
        return Call(
            id=self.id,
            scope=self.branch.scope,
            agent=self.agent,
            parent=self.parent,
            unit=self.unit,
            model=self.model,
            state=self.state,
            began=self.began,
            ended=self.ended,
            bound_nanos=self.bound,
            sum=self.sum,
            stop_reason=self.stop_reason,
            reason=self.reason,
            status=self.status,
            request_id=self.request_id,
            latency_ms=self.latency_ms,
        )


class Chronicle:
    """What a journal says, so far.

    Args:
        run, name, scope: of the run, if they are known before the journal says so.
        keeps_calls: keep every call and unit (a report needs them); False forgets them when they have ended,
            so that memory stays flat.

    Attributes:
        outcome: of the run; empty until its end.
        sessions: how often the run was begun (more than once when it was resumed).
        kinds: events by kind.
    """

    def __init__(
        self, *, run: str = "", name: str = "", scope: str = "", keeps_calls: bool = True
    ) -> None:
        self.run, self.name, self.scope = run, name, scope
        self.ledger = ""
        self.outcome = ""
        self.sessions = 0
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.kinds: Counter[str] = Counter()
        self.moments: list[Moment] = []
        self.calls: dict[str, OpenCall] = {}
        self.root = Branch(scope, name=name or run, kind="run")
        self._keeps_calls = keeps_calls
        self._branches: dict[str, Branch] = {scope: self.root}
        self._of_agent: dict[str, Branch] = {}
        self._hearers = {
            "run": self._run,
            "hold": self._hold,
            "settle": self._end_of_call,
            "void": self._end_of_call,
            "doubt": self._end_of_call,
            "begin": self._begin,
            "outcome": self._outcome,
            "node": self._node,
            "node_end": self._node_end,
            "part": self._part,
            "tool": self._tool,
            "end": self._end,
        }

    # ---- hearing ----------------------------------------------------------------------------------

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event in. Never raises on what it holds."""
        kind = text(event, "event")
        self.kinds[kind] += 1
        at = instant(event.get("at"))
        if at is not None:
            self.started = at if self.started is None else min(self.started, at)
            self.ended = at if self.ended is None else max(self.ended, at)
        if kind in _OF_BATCH:
            event, kind = _as_call(event, _OF_BATCH[kind]), _OF_BATCH[kind]
        hearer = self._hearers.get(kind)
        if hearer is not None:
            hearer(event, at)
        elif kind in MOMENTS:
            self.moments.append(_moment(kind, event, at))

    def _run(self, event: Mapping[str, Any], at: datetime | None) -> None:
        del at
        self.sessions += 1
        self.outcome = ""
        self.run = text(event, "run") or self.run
        self.name = text(event, "name") or self.name
        self.ledger = text(event, "ledger") or self.ledger
        scope = text(event, "scope")
        if scope and scope != self.scope:
            self.scope = self.root.scope = scope
            self._branches = {scope: self.root}
        self.root.name = self.name or self.run
        self.root.outcomes.clear()  # it is gone on with: the end that it had is none
        self.root.ended = 0

    def _end(self, event: Mapping[str, Any], at: datetime | None) -> None:
        del at
        self.outcome = text(event, "outcome")
        self.root.end(self.outcome, text(event, "reason"))

    # ---- calls ------------------------------------------------------------------------------------

    def _hold(self, event: Mapping[str, Any], at: datetime | None) -> None:
        hold = text(event, "hold")
        if not hold or hold in self.calls:
            return
        branch = self._place(event)
        branch.see(at)
        nanos = number(event, "nanos")
        call = OpenCall(
            id=hold,
            branch=branch,
            agent=text(event, "agent"),
            parent=text(event, "parent"),
            unit=text(event, "unit"),
            model=text(event, "model"),
            began=at,
            bound=nanos,
            held=nanos,
        )
        self.calls[hold] = call
        branch.open_calls += 1
        if call.agent:
            branch.is_agent()
            self._of_agent[call.agent] = branch
        if not self._keeps_calls:
            branch.count(call.model, Sum(calls=1, held_nanos=nanos))

    def _end_of_call(self, event: Mapping[str, Any], at: datetime | None) -> None:
        hold = text(event, "hold")
        call = self.calls.get(hold)
        if call is None:  # its beginning was torn off
            self._hold({**event, "nanos": 0}, at)
            call = self.calls.get(hold)
            if call is None:
                return
        if call.state == "under way":
            call.branch.open_calls -= 1
        kind, held, nanos = text(event, "event"), call.held, number(event, "nanos")
        call.state = _STATES[kind]
        call.ended = at
        call.posted = nanos if kind == "settle" else 0
        call.in_doubt = (call.bound or nanos) if kind == "doubt" else 0
        call.held = 0
        call.model = text(event, "model") or call.model
        call.tokens = Tokens(
            number(event, "input_tokens"),
            number(event, "cache_write_tokens"),
            number(event, "cache_read_tokens"),
            number(event, "output_tokens"),
        )
        call.stop_reason, call.reason = text(event, "stop_reason"), text(event, "reason")
        call.status, call.latency_ms = number(event, "status"), number(event, "latency_ms")
        call.request_id = text(event, "request_id")
        call.branch.see(at)
        if not self._keeps_calls:
            call.branch.count(call.model, Sum(0, call.posted, -held, call.in_doubt, call.tokens))
            del self.calls[hold]

    # ---- who works --------------------------------------------------------------------------------

    def _begin(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        branch.is_agent()
        branch.begun += 1
        branch.cap = cap_of(event) or branch.cap
        branch.note_model(text(event, "model"))
        if agent := text(event, "agent"):
            self._of_agent[agent] = branch

    def _outcome(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        branch.is_agent()
        branch.end(text(event, "outcome"), text(event, "reason"))
        if unit := text(event, "unit"):
            branch.add_piece(_piece(unit, event), keep=self._keeps_calls)

    def _node(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        branch.kind = text(event, "pattern") or "pattern"
        branch.begun += 1
        branch.cap = cap_of(event) or branch.cap
        if "items" in event:
            branch.items = (branch.items or 0) + number(event, "items")

    def _node_end(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        branch.end(text(event, "outcome"), text(event, "reason"))

    def _part(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        index = event.get("index")
        name = text(event, "label") or text(event, "agent") or text(event, "name")
        label = f"{'' if index is None else index} {name}".strip()
        number = str(branch.piece_words.total())
        branch.add_piece(_piece(label or number, event), keep=self._keeps_calls)

    def _tool(self, event: Mapping[str, Any], at: datetime | None) -> None:
        branch = self._place(event)
        branch.see(at)
        branch.tools[text(event, "tool") or "tool"] += 1

    # ---- places -----------------------------------------------------------------------------------

    def _place(self, event: Mapping[str, Any]) -> Branch:
        """Where an event belongs: by its scope, else where its agent was last seen, else below the run."""
        scope = text(event, "scope")
        if scope:
            return self.branch(scope)
        agent = text(event, "agent")
        if not agent:
            return self.root
        found = self._of_agent.get(agent)
        return found or self.branch(f"{self.scope}/{agent}" if self.scope else agent)

    def branch(self, scope: str) -> Branch:
        """The branch of a scope, made with all branches above it."""
        found = self._branches.get(scope)
        if found is not None:
            return found
        inside = self.scope and scope.startswith(self.scope + "/")
        above, at = (self.root, self.scope + "/") if inside else (self.root, "")
        for segment in scope[len(at) :].split("/"):
            at += segment
            below = self._branches.get(at)
            if below is None:
                below = self._branches[at] = Branch(at, name=segment)
                above.children.append(below)
            above, at = below, at + "/"
        return above


def _as_call(event: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    unit = f"batch {text(event, 'batch')}, {number(event, 'items'):,} items"
    return {**event, "event": kind, "agent": "batch", "unit": unit}


def _piece(label: str, event: Mapping[str, Any]) -> Piece:
    seconds = event.get("seconds")
    has_money = "posted_nanos" in event
    return Piece(
        label=label,
        outcome=text(event, "outcome"),
        reason=text(event, "reason"),
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        sum=Sum(
            posted_nanos=number(event, "posted_nanos"),
            in_doubt_nanos=number(event, "in_doubt_nanos"),
        )
        if has_money
        else None,
    )


def _moment(kind: str, event: Mapping[str, Any], at: datetime | None) -> Moment:
    rest = [
        f"{name} {value}"
        for name, value in event.items()
        if name not in _PLAIN and isinstance(value, str | int | float)
    ]
    said = [one for one in (text(event, "reason"), ", ".join(rest)) if one]
    return Moment(
        kind=kind, at=at, who=text(event, "agent") or text(event, "scope"), text="; ".join(said)
    )


def cap_of(event: Mapping[str, Any]) -> int | None:
    """The cap that an event names, in nano-dollars: ``cap_nanos``, or ``cap_usd`` or ``cap`` in dollars."""
    nanos = event.get("cap_nanos")
    if isinstance(nanos, int):
        return nanos
    said = event.get("cap_usd") or event.get("cap")
    if not isinstance(said, str | int) or isinstance(said, bool):
        return None
    try:
        return parse_usd(said)
    except BudgetError:
        return None


def text(event: Mapping[str, Any], name: str) -> str:
    """A field as text; empty if it is missing or no plain value."""
    value = event.get(name)
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def number(event: Mapping[str, Any], name: str) -> int:
    """A field as a whole number; 0 if it is none."""
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def instant(value: object) -> datetime | None:
    """A moment: ISO 8601, or seconds or milliseconds since 1970; None if it is none. UTC without an offset."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if value > _IN_MILLISECONDS else value
            at = datetime.fromtimestamp(seconds, UTC)
        else:
            return None
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at if _FIRST < at < _LAST else None


#: Numbers above are milliseconds: as seconds they would be thousands of years from now.
_IN_MILLISECONDS = 100_000_000_000
#: Beyond these, adding and drawing would overflow; no journal is from then.
_FIRST = datetime(1971, 1, 1, tzinfo=UTC)
_LAST = datetime(9000, 1, 1, tzinfo=UTC) - timedelta(days=1)
