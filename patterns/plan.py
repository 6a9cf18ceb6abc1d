"""Plans: the tree of what a pattern would do, with its prices, before anything is spent.

``worst`` is a bound: with the limits that the agents have, it can't cost more. ``likely`` is a forecast and
limits nothing. Where only a cap bounds a step, its worst is the cap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

from budgets.caps import Cap
from budgets.money import format_usd, parse_usd, to_decimal
from orchestrator.outcomes import Outcome
from orchestrator.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node of the tree.

    Attributes:
        name: of the agent or the pattern.
        kind: ``agent``, ``function``, or the name of a pattern.
        model: of an agent.
        times: how often it is done.
        calls: HTTP attempts at most, all times together; None where nothing limits them.
        worst_nanos: the most that all of it can cost; None where neither limits nor a cap bound it.
        likely_nanos: what it will probably cost; None where nothing is known.
        cap_nanos: a cap of its own.
        note: what a reader of the figures must know.
        children: the steps that it is made of.
    """

    name: str
    kind: str
    model: str = ""
    times: int = 1
    calls: int | None = None
    worst_nanos: int | None = None
    likely_nanos: int | None = None
    cap_nanos: int | None = None
    note: str = ""
    children: tuple[Step, ...] = ()

    def capped(self, cap: object) -> Step:
        """The same with a cap of its own, which its figures can't pass."""
        if cap is None:
            return self
        limit = parse_usd(cap)
        return replace(
            self,
            cap_nanos=limit,
            worst_nanos=limit if self.worst_nanos is None else min(self.worst_nanos, limit),
            likely_nanos=None if self.likely_nanos is None else min(self.likely_nanos, limit),
        )


def combined(
    name: str, kind: str, children: tuple[Step, ...], *, cap: object = None, note: str = ""
) -> Step:
    """A step that is its children, one after the other or all at once."""
    return Step(
        name=name,
        kind=kind,
        calls=_sum(child.calls for child in children),
        worst_nanos=_sum(child.worst_nanos for child in children),
        likely_nanos=_sum(child.likely_nanos for child in children),
        note=note,
        children=children,
    ).capped(cap)


def _sum(figures: Iterator[int | None]) -> int | None:
    total = 0
    for figure in figures:
        if figure is None:
            return None
        total += figure
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tree with its prices, and whether the caps can carry it.

    Attributes:
        root: the tree.
        room_nanos: what could still be spent here now; None if no cap applies.
        cap: the cap that leaves the least.
    """

    root: Step
    room_nanos: int | None = None
    cap: Cap | None = None

    @property
    def worst(self) -> Decimal | None:
        """Dollars at worst; None where nothing bounds it."""
        return None if self.root.worst_nanos is None else to_decimal(self.root.worst_nanos)

    @property
    def likely(self) -> Decimal | None:
        """Dollars, probably; None where nothing is known."""
        return None if self.root.likely_nanos is None else to_decimal(self.root.likely_nanos)

    @property
    def fits(self) -> bool:
        """Whether the caps can carry the worst case."""
        return self.room_nanos is None or (
            self.root.worst_nanos is not None and self.root.worst_nanos <= self.room_nanos
        )

    @property
    def likely_fits(self) -> bool:
        """Whether the caps can carry what it will probably cost."""
        return self.room_nanos is None or (
            self.root.likely_nanos is not None and self.root.likely_nanos <= self.room_nanos
        )

    @property
    def sentence(self) -> str:
        """Whether the caps can carry it, in words."""
        if self.room_nanos is None:
            return "no cap applies"
        room = f"{format_usd(self.room_nanos)} can still be spent ({self.cap})"
        if self.fits:
            return f"the caps carry the worst case: {room}"
        if self.root.likely_nanos is None:
            return (
                f"what it will cost is not known; {room}, and no more: what is beyond is declined"
            )
        if self.likely_fits:
            return f"the caps carry the likely cost, not the worst case: {room}; what they don't carry is declined"
        return f"the caps do not even carry the likely cost: {room}"

    def verdict(self) -> dict[str, Any]:
        """The fields ``outcome`` and ``reason`` of the result of a dry run."""
        return {"outcome": Outcome.OK, "reason": "planned only: nothing was sent"}

    def shown(self) -> Self:
        """Print it; returns itself."""
        sys.stdout.write(f"{self}\n")
        return self

    def __str__(self) -> str:
        lines = list(_drawn(self.root, "", ""))
        width = max(len(left) for left, _ in lines)
        return "\n".join([*(f"{left:<{width}}  {right}" for left, right in lines), self.sentence])


def plan_for(run: Run, root: Step) -> Plan:
    """A plan with the room that the caps leave here and now; asks the ledger, changes nothing."""
    balance = run.ledger.balance(run.here)
    return Plan(root=root, room_nanos=balance.remaining_nanos, cap=balance.cap)


def room_here(run: Run, cap: object = None) -> int | None:
    """Nano-dollars that could still be spent here under the caps in force and ``cap``; None if there is none."""
    room = run.ledger.balance(run.here).remaining_nanos
    if cap is None:
        return room
    return parse_usd(cap) if room is None else min(room, parse_usd(cap))


def _drawn(step: Step, first: str, rest: str) -> Iterator[tuple[str, str]]:
    """The lines of a tree: what it is, and what it costs."""
    times = f" x{step.times:,}" if step.times != 1 else ""
    model = f" ({step.model})" if step.model else f" [{step.kind}]"
    calls = "calls not limited" if step.calls is None else f"at most {step.calls:,} calls"
    worst = "unbounded" if step.worst_nanos is None else format_usd(step.worst_nanos, places=4)
    likely = "unknown" if step.likely_nanos is None else format_usd(step.likely_nanos, places=4)
    cap = f", cap {format_usd(step.cap_nanos)}" if step.cap_nanos is not None else ""
    note = f"; {step.note}" if step.note else ""
    yield (
        f"{first}{step.name}{times}{model}",
        f"worst {worst}, likely {likely}, {calls}{cap}{note}",
    )
    for number, child in enumerate(step.children, start=1):
        last = number == len(step.children)
        yield from _drawn(
            child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )
