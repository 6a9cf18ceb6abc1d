"""Who is told of a job's end: once, when it is really over, and not of a job that was left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.batches import BatchJob, BatchSettings, JobFault, Notify
from orchestrator.simulator import Simulator

from .batching import item, quick, stage


def telling(folder: Path) -> BatchSettings:
    """Settings by which each telling is a line of a file."""
    told = str(folder / "told.jsonl")
    save = f"import sys; open({told!r}, 'ab').write(sys.stdin.buffer.read() + b'\\n')"
    return quick(notify=Notify(command=(sys.executable, "-c", save)))


def told(folder: Path) -> list[dict[str, Any]]:
    """What was told, each time."""
    file = folder / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_told_when_the_caller_is_done_with_it_too(tmp_path: Path) -> None:
    """Not when the last result is handed out: what the caller does with the job comes first."""
    async with stage(tmp_path) as made, BatchJob(made.run, telling(tmp_path)) as job:
        ends = [done async for done in job.results(item(n) for n in range(3))]
        assert (len(ends), told(tmp_path)) == (3, [])
    (once,) = told(tmp_path)
    assert (once["end"], once["done"], once["held_usd"]) == ("complete", {"ok": 3}, "0.00")


async def test_told_of_an_end_by_a_cap(tmp_path: Path) -> None:
    """A job whose money is gone is over."""
    async with stage(tmp_path, cap="0.0004") as made:
        await made.do((item(n, "[[sim:output=60]]") for n in range(60)), telling(tmp_path))
    (once,) = told(tmp_path)
    assert once["end"] == "complete"
    assert once["done"]["budget"] > 0


async def test_a_job_that_was_left_is_told_of_when_it_is_over(tmp_path: Path) -> None:
    """Nobody is told of a detour; whoever takes it up to its end tells."""
    async with Simulator(batch_seconds=None) as sim:
        async with stage(tmp_path, sim=sim) as made:
            async with BatchJob(made.run, telling(tmp_path)) as job:
                job._on_progress = lambda seen: any(b.id for b in seen.batches) and job.detach()
                assert [done async for done in job.results([item(0)])] == []
            async with BatchJob(made.run, telling(tmp_path)) as job:
                assert told(tmp_path) == []  # nor of one that was only looked at
        assert told(tmp_path) == []
        await sim.finish_batches()
        async with stage(tmp_path, sim=sim) as again:
            await again.do([item(0)], telling(tmp_path))
    (once,) = told(tmp_path)
    assert (once["end"], once["done"]) == ("complete", {"ok": 1})


async def test_told_of_a_fault(tmp_path: Path) -> None:
    """A job that needs a person says so."""
    async with Simulator(batch_seconds=None) as sim:
        async with stage(tmp_path, sim=sim) as made, BatchJob(made.run, quick()) as job:
            job._on_progress = lambda seen: any(b.id for b in seen.batches) and job.detach()
            assert [done async for done in job.results([item(0)])] == []
        async with stage(tmp_path, sim=sim, key="sk-ant-another") as other:
            with pytest.raises(JobFault):
                await other.do([item(0)], telling(tmp_path))
    (once,) = told(tmp_path)
    assert (once["end"], once["sent"]) == ("fault", 1)


async def test_the_same_end_is_told_once_and_another_one_again(tmp_path: Path) -> None:
    """A finished job that is taken up again has come to no other end; with more to do it comes to another."""
    for count, times in ((2, 1), (2, 1), (3, 2), (3, 2)):
        async with stage(tmp_path) as made:
            await made.do((item(n) for n in range(count)), telling(tmp_path))
        assert len(told(tmp_path)) == times
    assert [one["done"] for one in told(tmp_path)] == [{"ok": 2}, {"ok": 3}]


async def test_who_did_not_take_it_is_told_again(tmp_path: Path) -> None:
    """A command that fails has not been told, and the next one who touches the job tells it."""
    fails = quick(notify=Notify(command=(sys.executable, "-c", "raise SystemExit(1)")))
    for settings in (fails, telling(tmp_path), telling(tmp_path)):
        async with stage(tmp_path) as made:
            await made.do([item(0)], settings)
    assert len(told(tmp_path)) == 1
