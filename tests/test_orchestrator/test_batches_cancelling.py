"""A job is cancelled by the process that is at it when another one asks, and by no later one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from orchestrator.batches import BatchJob, ask_to_cancel
from orchestrator.batches.progress import Progress
from orchestrator.simulator import Simulator

from .batching import item, quick, stage


async def test_a_job_heeds_who_asks_and_settles(tmp_path: Path) -> None:
    """What was answered by then is handed out and paid, the rest is cancelled; nothing stays held."""
    async with Simulator(batch_seconds=None) as sim, stage(tmp_path, sim=sim) as made:
        run = made.run
        assert run.folder.path is not None
        folder, started = run.folder.path, run.started_at.isoformat(timespec="seconds")
        is_asked = asyncio.Event()

        def ask(seen: Progress) -> None:
            if not is_asked.is_set() and any(batch.id for batch in seen.batches):
                is_asked.set()
                sim.process_batches(2)
                ask_to_cancel(folder, pid=os.getpid(), started=started)

        async with BatchJob(run, quick(), on_progress=ask) as job:
            ends = [done async for done in job.results(item(n) for n in range(5))]
            assert job.is_cancelled
        outcomes = sorted(done.outcome.value for done in ends)
        assert outcomes == ["cancelled"] * 3 + ["ok"] * 2
        run.ledger.flush()
        assert (run.balance.held_nanos, run.balance.posted_nanos) == (0, sim.bill.nanos)

        def end(seen: Progress) -> None:
            if seen.batches[-1].id and seen.batches[-1].state.is_open:
                sim.finish_first_batch()

        async with BatchJob(run, quick(), on_progress=end) as later:
            more = [done async for done in later.results([item(7)])]
        assert [done.outcome.value for done in more] == ["ok"]


async def test_what_an_earlier_process_was_asked_is_not_heeded(tmp_path: Path) -> None:
    """A process that was killed before it heeded leaves nothing behind that ends the job later."""
    async with stage(tmp_path) as made:
        assert made.run.folder.path is not None
        async with BatchJob(made.run, quick()):
            ask_to_cancel(
                made.run.folder.path, pid=os.getpid(), started="2026-01-01T00:00:00+00:00"
            )
        async with BatchJob(made.run, quick()) as job:
            ends = [done async for done in job.results([item(0)])]
            assert not job.is_to_be_cancelled
    assert [done.outcome.value for done in ends] == ["ok"]
