"""What the parts of one job share: the run, the job's file, the provider, and the word to stop."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

from budgets.ledger import Ledger
from budgets.records import BatchOf, Hold, HoldRequest, Line
from orchestrator.errors import OrchestratorError
from orchestrator.run import Run

from .job_store import JobStore
from .provider import Provider
from .settings import BatchSettings
from .spool import Spool
from .tables import BatchRow


class JobFault(OrchestratorError):
    """A job can't go on; its batches and holds stay as they are, and it can be taken up again later."""


class Control:
    """The word to stop, and who naps until it comes."""

    def __init__(self) -> None:
        self.is_detached = False
        self.is_cancelled = False
        self._changed = asyncio.Event()

    def detach(self) -> None:
        """Leave everything running at the provider; holds stay."""
        self.is_detached = True
        self._tell()

    def cancel(self) -> None:
        """End everything: what was not begun is neither done nor billed."""
        self.is_cancelled = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def nap(self, seconds: float) -> None:
        """Wait so long, or until the word changes."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()


@dataclass(slots=True, kw_only=True)
class Work:
    """Everything that the parts of one job use."""

    run: Run
    store: JobStore
    spool: Spool
    provider: Provider
    settings: BatchSettings
    session: int
    control: Control = field(default_factory=Control)
    #: Numbers of items that have ended, as they end.
    news: asyncio.Queue[list[int]] = field(default_factory=lambda: asyncio.Queue(maxsize=8))
    #: Why nothing new is sent; ``""`` while it is.
    refusal: tuple[str, str] = ("", "")
    #: Halved when the provider finds a batch too large.
    bytes_max: int = 0

    @property
    def ledger(self) -> Ledger:
        """Where batches are held."""
        return self.run.ledger

    def now(self) -> float:
        """Seconds since 1970, by the job's clock."""
        return self.settings.now().timestamp()

    def journal(self, event: str, row: BatchRow, **facts: Any) -> None:
        """Write a step of a batch into the run's journal."""
        self.run.journal.write(
            event, batch=row.n, id=row.id, items=row.items, hold=row.hold, **facts
        )

    async def tell(self, numbers: list[int]) -> None:
        """Items have ended; waits while nobody has looked at the ones before."""
        if numbers:
            await self.news.put(numbers)

    def refuse_rest(self, outcome: str, reason: str) -> None:
        """Send nothing new: what waits ends so."""
        if not self.refusal[0]:
            self.refusal = (outcome, reason)

    def hold_request(self, row: BatchRow, *, wait: bool) -> HoldRequest:
        """What is asked of the ledger for a batch, by the id that is on record."""
        note: dict[str, Any] = {"via": "batch", "batch": row.n}
        if row.word:
            note["caller_word"] = row.word.split()
        made = self.ledger.request(
            row.bound_nanos,
            scope=self.run.scope,
            model=row.model,
            note=note,
            wait=wait,
            latch=False,
        )
        split = BatchOf(items=row.items, largest_nanos=row.largest_nanos)
        return replace(made, id=row.hold, fresh_id=False, batch=split, replaces=None)

    def lines_of(self, row: BatchRow) -> list[Line]:
        """What the ledger says of a batch's hold."""
        return list(self.ledger.lines(hold=row.hold))

    def hold_of(self, row: BatchRow) -> Hold:
        """The hold of a batch, from the line that began it.

        Raises:
            JobFault: the ledger does not know it.
        """
        lines = self.lines_of(row)
        if not lines:
            raise JobFault(
                f"run {self.run.id}: the ledger {self.ledger.name} does not know the hold of batch {row.n}; "
                "name the ledger that the run was made with"
            )
        first = lines[0]
        return Hold(
            id=first.hold,
            nanos=first.nanos,
            scopes=(first.scope,),
            kinds=(),
            held_at_us=first.held_at_us,
            model=first.model,
            owner=first.owner,
        )
