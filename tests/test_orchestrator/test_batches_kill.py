"""Jobs of batches in processes that are killed: the same results, every nano-dollar, nothing paid twice."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.batches import BatchJob
from orchestrator.simulator import SimulatorThread, running_simulator

from .batch_child import POINTS, work
from .batching import ENDS, items, quick, stage_at

COUNT = 100
#: All but the invalid ones and the refusals before any output are billed, once.
BILLED = COUNT * 18 // 20
DIRECT = "before a direct answer is written"

#: Forked from a process that has imported everything: most of a child's life would be imports else.
forking = multiprocessing.get_context("forkserver")
forking.set_forkserver_preload(["tests.test_orchestrator.batch_child"])


def begin(where: Path, server: SimulatorThread, **how: Any) -> tuple[BaseProcess, Connection]:
    """A process that is at work on the job."""
    ours, its = forking.Pipe()
    process = forking.Process(target=work, args=(its, where, server.url, COUNT), kwargs=how)
    process.start()
    its.close()
    assert ours.recv() == "ready"
    return process, ours


def run_into(where: Path, server: SimulatorThread, **how: Any) -> bool:
    """Let it kill itself at a step; True if it came there."""
    process, pipe = begin(where, server, **how)
    process.join(50)
    pipe.close()
    assert process.exitcode in {-9, 0}
    return process.exitcode == -9


def finish(where: Path, server: SimulatorThread, **how: Any) -> None:
    """Let it run to its end, and prove it."""
    process, pipe = begin(where, server, **how)
    facts: dict[str, Any] = pipe.recv()
    process.join(50)
    pipe.close()
    outcomes = [end[0] for end in facts["ends"].values()]
    assert {word: outcomes.count(word) for word in set(outcomes)} == {
        word: COUNT * number // 20 for word, number in ENDS.items()
    }
    assert facts["findings"] == []
    assert (facts["held"], facts["in_doubt"]) == (0, 0)
    assert facts["posted"] == server.bill.nanos
    assert sum(end[1] for end in facts["ends"].values()) == server.bill.nanos
    assert len([row for row in server.bill.rows if row.nanos]) == BILLED


@pytest.mark.slow
def test_killed_at_every_step(tmp_path: Path) -> None:
    """A SIGKILL at any step and a restart lead to the same results, and no document is paid twice."""
    with running_simulator(batch_seconds=0.05) as server:
        died = [point for point in POINTS if run_into(tmp_path, server, point=point)]
        finish(tmp_path, server)

    assert set(POINTS) - set(died) <= {"after it is settled", DIRECT}


@pytest.mark.slow
def test_killed_between_a_direct_answer_and_its_record(tmp_path: Path) -> None:
    """Stragglers' answers that were paid for come from the ledger; calls that were cut off are not made again."""
    with running_simulator() as server:
        assert run_into(tmp_path, server, direct=True, point=DIRECT)
        process, pipe = begin(tmp_path, server, direct=True)
        facts: dict[str, Any] = pipe.recv()
        process.join(50)
        pipe.close()
        outcomes = [end[0] for end in facts["ends"].values()]
        answered = [row for row in server.bill.rows if row.nanos]

        assert facts["findings"] == []
        assert facts["posted"] + facts["in_doubt"] >= server.bill.nanos >= facts["posted"]
        assert outcomes.count("ok") + outcomes.count("in_doubt") == COUNT * 16 // 20
        # Whatever was in the air when it was killed, nothing was asked for a second time.
        assert len(answered) <= BILLED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_killed_later_at_any_steps(seed: int, tmp_path: Path) -> None:
    """Killed at steps in any order, in the middle of things: the ledger is the server's bill (Z-02)."""
    chance = random.Random(seed)
    points = chance.sample(sorted(POINTS), 6)
    with running_simulator(batch_seconds=0.05, seed=seed) as server:
        for point in points:
            run_into(tmp_path, server, point=point, nth=chance.randint(1, 3))
        finish(tmp_path, server)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_killed_three_times_at_any_moment(seed: int, tmp_path: Path) -> None:
    """Killed three times whenever it comes, and resumed: the same results and the same money (B-11)."""
    chance = random.Random(seed)
    with running_simulator(batch_seconds=0.2) as server:
        for _ in range(3):
            process, pipe = begin(tmp_path, server)
            process.join(chance.uniform(0.1, 1.0))
            process.kill()
            process.join()
            pipe.close()
        finish(tmp_path, server)


@pytest.mark.slow
def test_killed_three_times_resumed_and_cancelled_in_the_middle(tmp_path: Path) -> None:
    """With items of all kinds, three kills and a cancel halfway the ledger is the server's bill to the nano-dollar."""

    async def resume_and_cancel(server: SimulatorThread) -> dict[str, Any]:
        ends = []
        async with stage_at(tmp_path, server.url) as run:
            async with BatchJob(run, quick(requests_max=25)) as job:

                async def end_the_first() -> None:
                    while sum(row.id is not None for row in job.progress().batches) < 2:
                        await asyncio.sleep(0.01)
                    # Others are still under way when it is cancelled.
                    server.call(lambda simulator: simulator.finish_first_batch())

                task = asyncio.create_task(end_the_first())
                async for done in job.results(items(COUNT)):
                    ends.append(done)
                    if len(ends) == 15:
                        job.cancel()
                await task
            run.ledger.flush()
            balance, check = run.balance, run.ledger.check()
        assert check.findings + check.overruns == []
        assert (balance.held_nanos, balance.in_doubt_nanos) == (0, 0)
        assert len({done.identity for done in ends}) == len(ends)
        return {
            "posted": balance.posted_nanos,
            "of_items": sum(done.posted_nanos for done in ends),
            "outcomes": {done.outcome.value for done in ends},
        }

    with running_simulator(batch_seconds=None) as server:
        for served in (7, 11, 25):
            process, pipe = begin(tmp_path, server)
            process.join(0.6)
            process.kill()
            process.join()
            pipe.close()
            server.call(lambda simulator, served=served: simulator.process_batches(served))
        facts = asyncio.run(resume_and_cancel(server))

        assert facts["posted"] == facts["of_items"] == server.bill.nanos > 0
        assert facts["outcomes"] >= {"ok", "refusal", "truncated", "bad_request", "cancelled"}
        rows = [row for row in server.bill.rows if row.nanos]
        assert len(rows) <= BILLED
