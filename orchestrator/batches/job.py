"""A job: any number of items through batches, in as many waves as the money needs, each ending exactly once.

``intake`` takes items in, ``packing`` chooses what goes together, ``following`` takes each batch through its
life. Here is the order: draw, prime, hold, send, wait, and again, until all is done or posted money ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Self

from pydantic_core import from_json

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.wire.prefixes import of_json

from .cancelling import heed, is_asked
from .following import Follower, Gone
from .intake import Draw, Intake
from .item_store import Ended
from .items import Done, Item
from .job_file import FILE
from .job_store import JobStore
from .notify import tell
from .progress import Progress, progress_of
from .provider import Provider
from .settings import BatchSettings
from .spool import FILE as BODIES
from .spool import Spool
from .stragglers import finish_directly
from .tables import BatchLife
from .waves import Waves
from .work import JobFault, Work

logger = logging.getLogger("earmark")

#: How often a job looks whether its run was stopped.
_LOOK_S = 0.25
_PROGRESS_S = 0.2
_READ_AT_ONCE = 1_000
#: Turns without anything under way.
_IDLE_TURNS_MAX = 100


class BatchJob:
    """One job of a run.

    Args:
        run: whose caps, client, ledger and folder are used. A run has one job; the same run taken up again
            goes on with it.
        settings: how it is done; None takes the defaults, and of a job that is taken up again what it was
            begun with.
        on_progress: hears where it stands, a few times a second at most.

    Raises:
        ConfigError: the run has no folder, or its job can't be read.

    Use it as ``async with BatchJob(run) as job: async for done in job.results(items)``.
    """

    def __init__(
        self,
        run: Run,
        settings: BatchSettings | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if run.folder.path is None:
            raise ConfigError(
                f"run {run.id}: batches outlive their process, so the run needs a folder: give it a ledger in a "
                "file, or folder="
            )
        self.run = run
        self._on_progress = on_progress
        self._store = JobStore(run.folder.path / FILE)
        self.settings = settings or remembered(self._store)
        self._spool = Spool(run.folder.path / BODIES, self._store.spooled_bytes())
        session = int(self._store.fact("session", "0")) + 1
        self._store.note(
            session=str(session),
            job=self._store.fact("job") or secrets.token_hex(8),
            end="",
            tries=str(self.settings.tries),
            failed_direct="yes" if self.settings.failed_direct else "",
        )
        self._work = Work(
            run=run,
            store=self._store,
            spool=self._spool,
            provider=Provider(run.client, run._passes),
            settings=self.settings,
            session=session,
            bytes_max=self.settings.bytes_max,
        )
        self._follower = Follower(self._work)
        self._waves = Waves(self._work)
        self._lives: dict[asyncio.Task[None], int] = {}
        self._told: set[int] = set()
        self._began = time.monotonic()
        self._looked = 0.0
        self._is_running = self._was_run = False
        self._idle_turns = 0

    # ---- from outside -------------------------------------------------------------------------------

    def detach(self) -> None:
        """Stop waiting; batches go on at the provider, and their holds stay."""
        self._work.control.detach()

    def cancel(self) -> None:
        """End the job: batches are cancelled, and what was answered by then is settled and handed out."""
        self._work.control.cancel()
        self._work.refuse_rest(Outcome.CANCELLED.value, "the job was cancelled")

    @property
    def is_to_be_cancelled(self) -> bool:
        """Whether it was cancelled, or another process asks for that; see ``cancelling``."""
        return self.is_cancelled or is_asked(self._store, self.run)

    @property
    def is_detached(self) -> bool:
        """Whether it was left while batches were under way."""
        return self._work.control.is_detached

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled: nothing is asked any more."""
        return self._work.control.is_cancelled

    def ended(self) -> Iterator[Done]:
        """How all items ended that have, those of earlier processes included; nothing is sent for it."""
        numbers = self._store.ended_numbers()
        for start in range(0, len(numbers), _READ_AT_ONCE):
            for one in self._store.ended(numbers[start : start + _READ_AT_ONCE]):
                yield _as_done(one, reused=True)

    def progress(self) -> Progress:
        """Where it stands."""
        return progress_of(self._store, time.monotonic() - self._began, tuple(self._waves.choices))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._tell(error)
        finally:
            self.close()

    async def _tell(self, error: BaseException | None) -> None:
        """Whoever wants to know of the end is told, once: not of a job that was left and will be taken up again."""
        folder = self.run.folder.path
        if not self._was_run or folder is None:
            return
        progress = self.progress()
        is_over = progress.is_complete and progress.all_taken_in and not self.is_detached
        if not isinstance(error, Exception) and (error is not None or not is_over):
            return
        end = "complete" if error is None else "fault"
        facts = {"run": self.run.id, "end": end, **progress.counts()}
        await tell(folder, self.settings.notify, facts)

    def close(self) -> None:
        """Close the job's files; may be called twice."""
        self._spool.close()
        self._store.close()

    # ---- the work -----------------------------------------------------------------------------------

    async def results(self, items: Iterable[Item] | None = None) -> AsyncGenerator[Done]:
        """Do the job, and hand out how each item ended, as it ends.

        Args:
            items: drawn as needed, in a thread; those that were there before are known by identity. None
                goes on with what was taken in before.

        Raises:
            ConfigError: an identity came twice.
            JobFault: a person is needed. Batches and holds stay as they are; the job can be taken up again.
            LedgerUnavailable: the ledger can't be written.
        """
        if self._is_running:
            raise ConfigError(f"run {self.run.id}: its job is under way already")
        self._is_running = self._was_run = True
        work = self._work
        # What was taken in by an earlier process, and is not given any more, is not paid for either.
        self._store.since = 0 if items is None else work.session
        if items is not None:
            self._store.note(taken_in="")
        intake = Intake(
            self._store,
            self._spool,
            items or (),
            session=work.session,
            told=self._told,
            prices=self.run.prices,
            allow=self.run.meter.allow,
            settings=self.settings,
        )
        heeding = asyncio.create_task(heed(work, self.cancel))
        try:
            self._take_up()
            async with aclosing(self._drive(intake)) as ends:
                async for done in ends:
                    yield done
        finally:
            heeding.cancel()
            await asyncio.gather(heeding, return_exceptions=True)
            await self._leave()

    def _take_up(self) -> None:
        """Go on with the batches of an earlier process."""
        for row in self._store.batches():
            if row.state is BatchLife.PACKED:
                lines = self._work.lines_of(row)
                if any(line.kind == "hold" for line in lines) and len(lines) == 1:
                    self._store.advance(row.n, BatchLife.HELD)
                else:  # killed before its hold was made (or right after it was given back)
                    self._store.unpack(row.n, BatchLife.VOID, "it was never held")
                    continue
            if row.state.is_open:
                if row.primes:
                    self._waves.resume(row.n)
                self._follow(row.n)

    def _follow(self, n: int) -> None:
        task = asyncio.create_task(self._life(n), name=f"earmark-batch-{n}")
        self._lives[task] = n

    async def _life(self, n: int) -> None:
        try:
            await self._follower.follow(n)
        except Gone as gone:
            await self._follower.give_up(n, gone)

    async def _drive(self, intake: Intake) -> AsyncGenerator[Done]:
        while not self._is_over(intake):  # each turn draws, sends, or waits for something to end
            self._heed_the_run()
            async for done in self._draw(intake):
                yield done
            for done in await self._send():
                yield done
            async for done in self._news():
                yield done
            self._look()
            await self._notice_standstill()
        async for done in self._finish_directly():
            yield done
        if self._work.control.is_cancelled:
            self._store.note(taken_in="yes")
        if intake.exhausted and not self._work.control.is_detached:
            self._store.end_unasked(Outcome.CANCELLED.value, "the job was taken up without it")
        if self._on_progress is not None:
            self._on_progress(self.progress())

    async def _notice_standstill(self) -> None:
        """A job makes progress or ends: it never turns for ever."""
        self._idle_turns = 0 if self._lives else self._idle_turns + 1
        if self._idle_turns > 1:
            await self._work.control.nap(_LOOK_S)
        if self._idle_turns > _IDLE_TURNS_MAX:
            waiting = self._store.waiting_size()[0]
            raise JobFault(
                f"run {self.run.id}: {waiting} items wait and none can be held for, though no cap says no; "
                "other programs take the money as it comes free: try again later"
            )

    def _is_over(self, intake: Intake) -> bool:
        """Nothing is under way, and nothing is left that could be sent."""
        if self._lives:
            return False
        if self._work.control.is_detached:
            return True
        return not self._store.waiting_size()[0] and (intake.exhausted or self._stops())

    async def _send(self) -> list[Done]:
        """Send what can be sent; or, once nothing may be any more, end what waits."""
        if not self._stops() and not self._work.refusal[0]:
            for n in await self._waves.send(len(self._lives)):
                self._follow(n)
        if self._work.refusal[0]:
            return self._done(self._store.end_items("waiting", *self._work.refusal))
        return []

    def _stops(self) -> bool:
        return self._work.control.is_detached or self._work.control.is_cancelled

    def _heed_the_run(self) -> None:
        """A run that was told to stop leaves its batches running."""
        if self.run.stopped is not None and not self._work.control.is_cancelled:
            self.detach()
        limit = self.run.spend_limit
        if limit is not None:
            self._work.refuse_rest(Outcome.SPEND_LIMIT.value, limit.message or limit.reason)

    async def _draw(self, intake: Intake) -> AsyncGenerator[Done]:
        """Take in items until a whole batch waits."""
        count, size = (0, 0) if intake.exhausted else self._store.waiting_size()
        while not intake.exhausted and not self._stops() and not self._is_full(count, size):
            draw: Draw = await asyncio.to_thread(intake.draw)
            count, size = count + draw.added, size + draw.added_bytes
            for done in self._done(draw.ended, reused=set(draw.ended) - draw.fresh):
                yield done
            self._heed_the_run()
            self._look()
        if self._store.since and intake.exhausted and not self._store.fact("taken_in"):
            self._store.note(taken_in="yes")

    def _is_full(self, count: int, size: int) -> bool:
        """A whole batch waits."""
        return count >= self.settings.requests_max or size >= self._work.bytes_max

    async def _news(self) -> AsyncGenerator[Done]:
        """What has ended meanwhile; waits a moment for the first if there is something to wait for."""
        news = self._work.news
        if news.empty() and self._lives:
            getter = asyncio.create_task(news.get())
            done, _ = await asyncio.wait(
                {getter, *self._lives}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
            if getter in done:
                for one in self._done(getter.result()):
                    yield one
            else:
                getter.cancel()
                with suppress(asyncio.CancelledError):
                    await getter
        while not news.empty():
            for one in self._done(news.get_nowait()):
                yield one
        self._reap()

    def _reap(self) -> None:
        """Lives that are over; a fault of one is the job's."""
        for task in [task for task in self._lives if task.done()]:
            if not self._work.news.empty():
                return  # what it said last is handed out first
            n = self._lives.pop(task)
            self._waves.over(n)
            if not task.cancelled():
                task.result()

    def _done(self, numbers: list[int], reused: set[int] | None = None) -> list[Done]:
        fresh = [n for n in numbers if n not in self._told]
        self._told.update(fresh)
        return [
            _as_done(ended, reused=reused is not None and ended.n in reused)
            for ended in self._store.ended(fresh)
        ]

    async def _finish_directly(self) -> AsyncGenerator[Done]:
        work = self._work
        if work.control.is_detached:
            return
        if work.control.is_cancelled:
            for done in self._done(self._store.end_items("direct", *work.refusal)):
                yield done
        task = asyncio.create_task(finish_directly(work))
        self._lives[task] = 0
        while self._lives:
            self._heed_the_run()
            async for done in self._news():
                yield done
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        if self._on_progress is not None and now > self._looked:
            self._on_progress(self.progress())
            # Adding up a hundred thousand items takes a moment: it may take a tenth of the time, no more.
            took = time.monotonic() - now
            self._looked = now + max(_PROGRESS_S, 10 * took)

    async def _leave(self) -> None:
        """Nobody waits any more: lives stop where they are, each at a step that is on disk."""
        for task in self._lives:
            task.cancel()
        if self._lives:
            await asyncio.gather(*self._lives, return_exceptions=True)
        self._lives.clear()
        progress = self.progress()
        end = "complete" if progress.is_complete else "left"
        if progress.is_complete:  # documents do not stay on disk longer than they are needed
            self._store.forget_bodies()
            self._spool.clear()
        self._store.note(end=end)
        self.run.journal.write("job", end=end, **progress.counts())
        self._is_running = False


def remembered(store: JobStore) -> BatchSettings:
    """Settings of a job that is taken up again: what is tried again, and how, is as it was."""
    return BatchSettings(
        tries=int(store.fact("tries", str(BatchSettings().tries))),
        failed_direct=bool(store.fact("failed_direct")),
    )


def _as_done(ended: Ended, *, reused: bool) -> Done:
    return Done(
        identity=ended.identity,
        outcome=Outcome(ended.outcome),
        message=None if ended.message is None else of_json(ended.message),
        reason=ended.reason,
        posted_nanos=ended.posted_nanos,
        in_doubt_nanos=ended.in_doubt_nanos,
        usage={} if ended.usage is None else from_json(ended.usage),
        tries=ended.tries,
        via=ended.via,
        reused=reused,
    )


async def run_batches(
    run: Run,
    items: Iterable[Item],
    settings: BatchSettings | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncGenerator[Done]:
    """Send items through batches under a run's caps; each one's end is handed out as it comes.

    The same run taken up again (``Run(id=...)``) goes on where it stopped, whatever stopped it: no item is
    paid for twice.

    Args:
        run: has a folder.
        items: drawn as needed.
        settings, on_progress: as for ``BatchJob``.

    Raises:
        ConfigError, JobFault, LedgerUnavailable: as ``BatchJob.results``.
    """
    async with (
        BatchJob(run, settings, on_progress=on_progress) as job,
        aclosing(job.results(items)) as ends,
    ):
        async for done in ends:
            yield done


__all__ = ["BatchJob", "JobFault", "run_batches"]
