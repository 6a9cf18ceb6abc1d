"""Progress: where a job stands, in numbers, while it runs and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic_core import from_json

from budgets.money import format_usd, to_decimal
from orchestrator.outcomes import Outcome

from .bills import FourBills, four_bills
from .job_store import JobStore
from .tables import BatchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a job stands.

    Attributes:
        items: taken in so far.
        waiting: not sent yet; ``sent``: in a batch, or on their way directly.
        done: ended, by outcome.
        posted_nanos: what the ended items cost; ``held_nanos``: set aside for batches under way.
        batches: all of the job, in order.
        seconds: since this process took the job up.
        choices: what was decided about marking prefixes, one sentence each.
        all_taken_in: False if the process that brought the items was stopped before it had brought all.
    """

    items: int
    waiting: int
    sent: int
    done: Mapping[str, int]
    posted_nanos: int
    held_nanos: int
    batches: tuple[BatchRow, ...]
    seconds: float
    choices: tuple[str, ...] = field(default=())
    all_taken_in: bool = True

    @property
    def ended(self) -> int:
        """Items that have ended."""
        return sum(self.done.values())

    @property
    def failed(self) -> int:
        """Items that have ended without an answer, or with one that is no success."""
        return self.ended - self.done.get(Outcome.OK.value, 0)

    @property
    def is_complete(self) -> bool:
        """Nothing is under way and nothing waits, of what was taken in."""
        return not self.waiting and not self.sent

    @property
    def posted(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.posted_nanos)

    @property
    def held(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.held_nanos)

    @property
    def bills(self) -> FourBills:
        """What the batches came to, beside what they would have otherwise."""
        return four_bills(self.batches, (from_json(row.usage) for row in self.batches))

    def counts(self) -> dict[str, Any]:
        """Counts and dollars, for whoever is told of it; never content."""
        return {
            "items": self.items,
            "waiting": self.waiting,
            "sent": self.sent,
            "done": dict(self.done),
            "batches": len(self.batches),
            "posted_usd": format_usd(self.posted_nanos).removeprefix("$"),
            "held_usd": format_usd(self.held_nanos).removeprefix("$"),
            "seconds": round(self.seconds, 1),
        }


def progress_of(store: JobStore, seconds: float = 0.0, choices: tuple[str, ...] = ()) -> Progress:
    """Where a job stands by its file."""
    done: dict[str, int] = {}
    by_state: dict[str, int] = {}
    posted = 0
    for (state, outcome), (count, nanos) in store.counts().items():
        by_state[state] = by_state.get(state, 0) + count
        posted += nanos
        if state == "done":
            done[outcome] = done.get(outcome, 0) + count
    batches = tuple(store.batches())
    waiting = by_state.get("waiting", 0)
    items = sum(by_state.values())
    return Progress(
        items=items,
        waiting=waiting,
        sent=items - waiting - by_state.get("done", 0),
        done=done,
        posted_nanos=posted,
        held_nanos=sum(row.bound_nanos for row in batches if row.state.is_open),
        batches=batches,
        seconds=seconds,
        choices=choices,
        all_taken_in=store.fact("taken_in", "yes") == "yes",
    )
