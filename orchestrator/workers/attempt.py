"""One attempt of any worker: its place in the run, its lease, its program under watch, and its lines in the journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.scopes import scope
from orchestrator.context import Tally, calling_as, current_call, with_figures
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.time_limits import within

from .launching import Launch, home
from .leases import Lease, Leases, leased
from .named import Named
from .report import WorkerReport, shares_of
from .stopping import end_at_once, stop, stop_whatever_comes
from .watching import Verdict, Watch, out_of_memory

Keep = Callable[[Mapping[str, Any]], Any] | None
Interrupt = Callable[[], Awaitable[object]] | None
#: Outcomes of a program that was told no by the gateway, for the money's sake.
_MONEY = frozenset({Outcome.SPEND_LIMIT, Outcome.RATE_LIMITED, Outcome.INFRA})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an attempt may take; see ``AgentSdkWorker``."""

    start_s: float
    timeout_s: float | None
    stall_s: float | None
    memory_mb: int | None


class Attempt:
    """One attempt.

    Args:
        run: whose caps, gateway and journal are used.
        name, cap: of the worker.
        folder: where it works.
        bounds: what it may take.
        lender: in place of the run's gateway.
        unit, keep: as for ``Performer.run``.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        *,
        cap: object,
        folder: Path,
        bounds: Bounds,
        lender: Leases | None,
        unit: str,
        keep: Keep,
    ) -> None:
        self.run = run
        self.name = name
        self.bounds = bounds
        self.tally = Tally()
        self.seconds = 0.0
        self.verdict: Verdict | None = None
        #: Its subagents by their ids, as they become known.
        self.names: dict[str, str] = {}
        self._cap = cap
        self._folder = folder
        self._lender = lender
        self._unit = unit
        self._keep = keep
        self._lease: Lease | None = None
        self._launch: Launch | None = None
        self._watch: Watch | None = None
        self.pid = 0
        self._deadline: float | None = None
        self._ended: Mapping[str, Any] = {}

    @property
    def lease(self) -> Lease:
        """Its right to spend."""
        assert self._lease is not None
        return self._lease

    # ---- its place in the run -----------------------------------------------------------------------

    async def carry_out(
        self,
        work: Callable[[], Awaitable[Verdict]],
        *,
        begins: Mapping[str, Any],
        ends: Callable[[], Mapping[str, Any]],
    ) -> Verdict:
        """Do the work, in the worker's scope and with its lease; every failure is an outcome.

        Args:
            work: does it.
            begins, ends: further facts for the lines that it begins and ends with.

        Raises:
            CancelledError: with what was spent so far as its ``tally``.
        """
        begun = time.monotonic()
        if self.bounds.timeout_s is not None:
            self._deadline = begun + self.bounds.timeout_s
        outcome, reason = Outcome.CANCELLED, ""
        with (
            self.run.tracking(),
            scope(self.name, self._cap),
            calling_as(self.name, unit=self._unit, keep=self._keep) as self.tally,
            within(self.bounds.timeout_s),
            with_figures(f"worker {self.name}", self.tally),
        ):
            self.write("begin", **begins)
            try:
                self.run.check()
                await asyncio.to_thread(home)  # the first one looks for what the dead have left
                listener = Named(self.run, self.name, self.names)
                async with leased(self.run, self._lender, listener) as self._lease:
                    outcome, reason = await work()
                outcome, reason = self._by_money(outcome, reason)
            except Exception as error:  # noqa: BLE001 - every failure has an outcome
                outcome, reason = outcome_of(error)
            finally:
                self.seconds = time.monotonic() - begun
                self._note_end(outcome, reason, ends())
        return outcome, reason

    def _by_money(self, outcome: Outcome, reason: str) -> Verdict:
        """A program says what it was told; who told it, and whether it was us, is known here."""
        if outcome not in _MONEY:
            return outcome, reason
        if self.run.spend_limit is not None:
            return Outcome.SPEND_LIMIT, self.run.spend_limit.message or reason
        if self.run.stopped is not None:
            return Outcome.CANCELLED, self.run.stopped
        return (Outcome.BUDGET, reason) if self.declined else (outcome, reason)

    @property
    def declined(self) -> int:
        """Requests that were declined."""
        return 0 if self._lease is None else self._lease.figures().declined

    def write(self, event: str, **facts: Any) -> None:
        """Write an event of this worker into the journal."""
        made_by = current_call()
        self.run.journal.write(
            event,
            agent=self.name,
            parent=made_by.parent,
            unit=made_by.unit,
            scope=self.run.here,
            **facts,
        )

    def _note_end(self, outcome: Outcome, reason: str, facts: Mapping[str, Any]) -> None:
        self.write(
            "outcome",
            outcome=outcome,
            reason=reason,
            calls=self.tally.calls,
            posted_nanos=self.tally.posted_nanos,
            in_doubt_nanos=self.tally.in_doubt_nanos,
            seconds=round(self.seconds, 3),
            **facts,
            **self.tally.tokens,
        )

    # ---- its program ------------------------------------------------------------------------------

    def watch(self, launch: Launch, says: Callable[[], Verdict | None]) -> Watch:
        """The watch over a program that is about to be started.

        Args:
            launch: how it is started.
            says: asked for further reasons to end, None while there is none.
        """
        self._launch = launch
        self._watch = Watch(
            tree=launch.tree,
            folder=self._folder,
            start_s=self.bounds.start_s,
            deadline=self._deadline,
            timeout_s=self.bounds.timeout_s,
            stall_s=self.bounds.stall_s,
            memory_mb=self.bounds.memory_mb,
            says=lambda: self._stopped() or says(),
        )
        return self._watch

    def _stopped(self) -> Verdict | None:
        if self.run.spend_limit is not None:
            limit = self.run.spend_limit
            return Outcome.SPEND_LIMIT, limit.message or limit.reason
        return None if self.run.stopped is None else (Outcome.CANCELLED, self.run.stopped)

    async def supervised(
        self, own: Coroutine[Any, Any, Any], interrupt: Callable[[], Interrupt]
    ) -> asyncio.Task[Any]:
        """Have one task own the program until it is done or must end; then nothing of it is alive.

        Args:
            own: what that task does.
            interrupt: what asks the program to stop its turn, None where it can't be asked.

        Returns:
            The task, which is done unless its session can't be closed. ``verdict`` is why it had to end.

        Raises:
            CancelledError: nothing of it is alive.
        """
        assert self._launch is not None
        assert self._watch is not None
        launch, owner = self._launch, asyncio.create_task(own)
        owner.add_done_callback(_take_note)
        is_ending = False
        try:
            self.verdict = await self._watch.until(owner)
            if self.verdict is not None:
                is_ending = True
                self.write("stopping", outcome=self.verdict[0], reason=self.verdict[1])
                await stop(owner, launch.tree, interrupt())
        except asyncio.CancelledError:
            # Cancelled while it was asked to end already, by a second Ctrl-C, say: then it is ended at once.
            if is_ending:
                await end_at_once(owner, launch.tree)
            else:
                await stop_whatever_comes(owner, launch.tree, interrupt())
            raise
        finally:
            try:
                await launch.tree.end()
            finally:
                self._leave(launch)
        return owner

    def _leave(self, launch: Launch) -> None:
        self.pid = launch.tree.pid
        self._ended = launch.tree.ended or {}
        launch.close()

    @property
    def ended_by(self) -> Verdict | None:
        """Why its supervisor ended it, if that was the supervisor's own doing."""
        if self._ended.get("why") != "memory":
            return None
        return out_of_memory(self.bounds.memory_mb or 0, int(self._ended.get("peak_mb", 0)))

    @property
    def exit_code(self) -> int | None:
        """Of its program, if it ended by itself."""
        code = self._ended.get("code")
        return code if isinstance(code, int) and self._ended.get("why") == "ended" else None

    @property
    def is_started(self) -> bool:
        """Its program was ready for work."""
        return self._watch is not None and self._watch.started_s is not None

    def report(self, **facts: Any) -> WorkerReport:
        """What became of it, with further fields."""
        code = self._ended.get("code")
        return WorkerReport(
            attempt="" if self._launch is None else self._launch.attempt,
            pid=self.pid,
            exit_code=code if isinstance(code, int) else None,
            spawn_s=0.0 if self._watch is None else self._watch.started_s or 0.0,
            peak_mb=int(self._ended.get("peak_mb", 0)),
            shares=() if self._lease is None else shares_of(self._lease.figures(), self.names),
            declined=self.declined,
            posted_nanos=self.tally.posted_nanos,
            **facts,
        )


def _take_note(owner: asyncio.Task[Any]) -> None:
    """Fetch what a program's owner failed with: where it had to end, nobody asks, and asyncio would print it."""
    if not owner.cancelled():
        owner.exception()
