"""A node: one pattern at work, as a scope with a cap of its own, a place in the journal and a sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from budgets.money import format_usd, parse_usd
from budgets.scopes import join_scope, scope
from orchestrator.context import Tally, calling_as, carry_figures
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.trips import Policy
from orchestrator.trips import on_trip as tripping

from .parts import Part, figures_of

#: In place of a context that changes nothing.
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class Node:
    """One pattern at work.

    Attributes:
        run: the run that it is part of.
        pattern: the name of the pattern.
        tally: what its calls came to so far, all children included.
        outcome, reason: set by the pattern before its node ends, for the journal.
        parts: that were noted so far.
    """

    run: Run
    pattern: str
    scope: str
    tally: Tally
    begun: float
    outcome: Outcome = Outcome.CANCELLED
    reason: str = ""
    parts: list[Part[Any]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The fields of ``Figures`` up to now."""
        return figures_of(self.tally, self.begun)

    def note(self, part: Part[Any]) -> None:
        """Write a part that has ended into the journal, and keep it for whoever handles an exception."""
        self.parts.append(part)
        self.run.journal.write(
            "part",
            scope=self.scope,
            pattern=self.pattern,
            index=part.index,
            agent=part.name,
            outcome=part.outcome.value,
            reason=part.reason,
            posted_nanos=part.posted_nanos,
            seconds=round(part.seconds, 3),
        )

    def hears(self, on_part: Callable[[Part[Any]], Any] | None) -> Callable[[Part[Any]], Any]:
        """What to call with each part that ends: it is noted, and the user's function hears of it."""
        if on_part is None:
            return self.note

        def heard(part: Part[Any]) -> None:
            self.note(part)
            on_part(part)

        return heard

    def ends(self, outcome: Outcome, reason: str = "") -> dict[str, Any]:
        """How it ends; returns the fields ``outcome`` and ``reason`` and the figures of its result."""
        self.outcome, self.reason = outcome, reason
        return {"outcome": outcome, "reason": reason, **self.figures()}


def check_run(pattern: str, run: object) -> None:
    """Check that a pattern was given a run.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(run, Run):
        raise ConfigError(
            f'{pattern}: run is {run!r:.80}; give a Run, as in \'async with Run("name", cap="1") as run\''
        )


@contextmanager
def node(
    run: Run,
    pattern: str,
    *,
    name: str = "",
    cap: object = None,
    on_trip: Policy | None = None,
    **facts: Any,
) -> Iterator[Node]:
    """Enter a pattern: its scope and cap, its policy for caps that trip, its journal entry, its tally.

    Args:
        run: the run that it is part of.
        pattern: the name of the pattern, ``fan_out``.
        name: the segment of its scope; the pattern's name by default.
        cap: dollars for everything inside; None sets none of its own. A second node of the same name and place
            gets a number, so that each has a cap of its own.
        on_trip: what a decline inside does; None keeps what is in force around it.
        facts: further fields for the journal.

    Raises:
        InvalidScope, InvalidAmount: the name or the cap can't be used; nothing was entered.
        Whatever is raised inside, with the figures so far as its ``tally`` (and as a note), and the parts that
            had ended, in order, as its ``parts``: what is paid for is not lost.
    """
    begun = time.monotonic()
    with (
        scope(_segment(run, name or pattern, cap), cap, kind="part"),
        calling_as() as tally,
        _NOTHING if on_trip is None else tripping(on_trip),
    ):
        here = run.here
        entered = Node(run, pattern, here, tally, begun)
        cap_usd = None if cap is None else format_usd(parse_usd(cap))
        run.journal.write("node", pattern=pattern, scope=here, cap_usd=cap_usd, **facts)
        try:
            yield entered
        except BaseException as error:
            entered.reason = entered.reason or type(error).__name__
            error.parts = tuple(sorted(entered.parts, key=_index))  # type: ignore[attr-defined]
            carry_figures(error, f"{pattern} {here}", tally)
            raise
        finally:
            run.journal.write(
                "node_end",
                pattern=pattern,
                scope=here,
                outcome=entered.outcome.value,
                reason=entered.reason,
                posted_nanos=tally.posted_nanos,
                in_doubt_nanos=tally.in_doubt_nanos,
                seconds=round(time.monotonic() - begun, 3),
            )


def _index(part: Part[Any]) -> int:
    return part.index


def _segment(run: Run, name: str, cap: object) -> str:
    """The name, with a number where that is needed: a cap belongs to one node, which nobody else enters."""
    here, entered = run.here, run.entered
    path = join_scope(here, name)
    number = 1
    # Taken: by anybody for a node with a cap, by a node with a cap for all others.
    while path in entered and (cap is not None or entered[path]):
        number += 1
        path = join_scope(here, f"{name}-{number}")
    entered[path] = cap is not None
    return name if number == 1 else f"{name}-{number}"
