"""Lost answers, other keys, old batches: looked into before anything is sent again, and said in one sentence."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from orchestrator.batches import BatchJob, BatchLife, JobFault
from orchestrator.simulator import Fault, Simulator

from .batching import KEY, MODEL, item, quick, stage

DAY_S = 86_400.0
#: Only the request that makes a batch has this in its body.
MAKES = '"requests"'


async def strangers(sim: Simulator, count: int, size: int) -> None:
    """Batches of somebody else in the same workspace, as large as ours."""
    params: Any = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    async with AsyncAnthropic(base_url=sim.url, api_key=KEY, max_retries=0) as client:
        for _ in range(count):
            await client.messages.batches.create(
                requests=[{"custom_id": f"theirs-{n}", "params": params} for n in range(size)]
            )


@pytest.mark.parametrize("kind", ["reset", "invalid_json"])
async def test_a_lost_answer_to_a_batch_that_was_made(kind: str, tmp_path: Path) -> None:
    """A batch whose answer was lost is found among others alike, and not sent again."""
    async with stage(tmp_path, sim={"batch_seconds": 0.1}) as made:
        await strangers(made.sim, 3, 4)
        theirs = 4 * 3
        made.sim.faults.extend([Fault(kind=kind, on="batches", match=MAKES, billed=True)])
        await made.do(item(n) for n in range(4))
        bill = made.sim.bill
        ours = sum(done.posted_nanos for done in made.ends.values())
        assert made.run.balance.posted_nanos == ours
        assert made.run.balance.held_nanos == 0
        events = made.events

    assert made.outcomes == {"ok": 4}
    assert bill.requests == theirs + 4
    assert "batch_lost" in events
    assert "batch_found" in events
    assert [row.state for row in made.progress.batches] == [BatchLife.SETTLED]


@pytest.mark.parametrize("kind", ["reset", "server_error", "gateway_timeout"])
async def test_a_lost_answer_to_a_batch_that_was_not_made(kind: str, tmp_path: Path) -> None:
    """If none of the batches alike is ours it is sent again, under the same hold."""
    async with stage(tmp_path, sim={"batch_seconds": 0.1}) as made:
        await strangers(made.sim, 2, 4)
        made.sim.faults.extend([Fault(kind=kind, on="batches", match=MAKES)])
        await made.do(item(n) for n in range(4))
        lines = [line.kind for line in made.run.ledger.lines()]
        bill = made.sim.bill.requests
        assert made.run.ledger.check().findings == []

    assert made.outcomes == {"ok": 4}
    assert bill == 8 + 4
    assert lines == ["hold", "settle"]


async def test_a_batch_alike_that_has_not_ended_is_waited_for(tmp_path: Path) -> None:
    """While a batch that may be ours is under way nothing is sent; when it ends its ids decide."""
    async with stage(tmp_path, sim={"batch_seconds": None, "keep_calls": 400}) as made:
        made.sim.faults.extend([Fault(kind="reset", on="batches", match=MAKES, billed=True)])
        async with BatchJob(made.run, quick(grace_s=0.05)) as job:

            async def end_it() -> None:
                lists = 0
                while lists < 4:  # it was looked for more than once, and not sent again
                    await asyncio.sleep(0.01)
                    lists = sum("limit=" in call.path for call in made.sim.calls)
                await made.sim.finish_batches()

            task = asyncio.create_task(end_it())
            async for done in job.results(item(n) for n in range(4)):
                made.ends[done.identity] = done
            await task
            posts = [c for c in made.sim.calls if c.method == "POST" and c.path.endswith("batches")]
        made.prove()

    assert made.outcomes == {"ok": 4}
    assert len(posts) == 1


async def test_rate_limits_and_overload_are_waited_out(tmp_path: Path) -> None:
    """A batch that is refused for a while is sent again; a ``retry-after`` is honoured."""
    faults = [
        Fault(kind="rate_limited", on="batches", match=MAKES, retry_after=0.3),
        Fault(kind="overloaded", on="batches", match=MAKES),
    ]
    async with stage(tmp_path) as made:
        made.sim.faults.extend(faults)
        began = time.monotonic()
        await made.do([item(0)])
        made.prove()
        assert time.monotonic() - began >= 0.3

    assert made.outcomes == {"ok": 1}


async def test_another_key(tmp_path: Path) -> None:
    """With another key the job says which one made the batch; with the right one it goes on (B-10)."""
    async with Simulator(batch_seconds=None) as sim:
        await left_behind(tmp_path, sim)
        async with stage(tmp_path, sim=sim, key="sk-ant-another") as other:
            with pytest.raises(JobFault, match=r"another API key \(label [0-9a-f]{8}") as caught:
                await other.do(None)
            assert other.run.balance.held_nanos > 0
        assert KEY not in str(caught.value)
        await sim.finish_batches()
        async with stage(tmp_path, sim=sim) as back:
            await back.do(None)
            back.prove()

    assert back.outcomes == {"ok": 3}


async def test_results_that_are_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After 29 days the results are gone: the hold is in doubt, and a person is told how to resolve it (B-15)."""
    shift = [0.0]
    async with Simulator(batch_seconds=None, wall=lambda: time.time() + shift[0]) as sim:
        await left_behind(tmp_path, sim)
        await sim.finish_batches()
        shift[0] = 30 * DAY_S
        async with stage(tmp_path, sim=sim) as back:
            await back.do(None, quick(now=later(30)))
            doubt = back.run.balance.in_doubt_nanos
            (hold,) = back.run.ledger.open_holds()
            assert (doubt, back.run.balance.held_nanos) == (hold.nanos, 0)
            assert back.run.ledger.check().findings == []

    assert back.outcomes == {"in_doubt": 3}
    assert sum(done.in_doubt_nanos for done in back.ends.values()) == hold.nanos
    assert "29 days" in back.ends["doc-0"].reason
    assert f"earmark ledger resolve {hold.id}" in caplog.text


@pytest.mark.parametrize("where", ["/batches/", "/results"], ids=["the batch", "its results"])
async def test_not_found_is_looked_at_again(where: str, tmp_path: Path) -> None:
    """A server that does not know a batch yet does not put it in doubt: what it answered is fetched."""
    async with stage(tmp_path, sim={"batch_seconds": 0.1}) as made:
        unknown = Fault(kind="error", on="batches", status=404, match=where, times=3)
        made.sim.faults.extend([unknown])
        await made.do(item(n) for n in range(3))
        made.prove()
        assert made.sim.faults.pending == 0

    assert made.outcomes == {"ok": 3}


@pytest.mark.parametrize(("late", "word"), [(3, "ok"), (50, "in_doubt")])
async def test_results_that_are_nowhere_yet(late: int, word: str, tmp_path: Path) -> None:
    """An ended batch without a place of its results is looked at again, and in doubt if that stays so."""
    async with stage(tmp_path, sim={"results_late": late}) as made:
        await made.do(item(n) for n in range(3))
        assert made.run.balance.held_nanos == 0
        assert made.run.ledger.check().findings == []

    assert made.outcomes == {word: 3}


async def test_old_batches_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before day 29 it is said that results will be dropped; they are still there (B-15)."""
    shift = [0.0]
    async with Simulator(batch_seconds=None, wall=lambda: time.time() + shift[0]) as sim:
        await left_behind(tmp_path, sim)
        await sim.finish_batches()
        shift[0] = 27 * DAY_S
        async with stage(tmp_path, sim=sim) as back:
            await back.do(None, quick(now=later(27)))
            back.prove()

    assert back.outcomes == {"ok": 3}
    assert "27 days old" in caplog.text


async def test_a_batch_that_does_not_end_is_a_matter_for_a_person(tmp_path: Path) -> None:
    """A batch that has not ended within its bound ends the waiting, not the hold (B-11)."""
    async with Simulator(batch_seconds=None) as sim:
        await left_behind(tmp_path, sim)
        async with stage(tmp_path, sim=sim) as back:
            with pytest.raises(JobFault, match="has not ended in 30 hours"):
                await back.do(None, quick(now=later(2)))
            assert back.run.balance.held_nanos > 0


async def test_doubt_is_resolved_by_a_person(tmp_path: Path) -> None:
    """What is in doubt is not sent again, however often the job is taken up."""
    shift = [0.0]
    async with Simulator(batch_seconds=None, wall=lambda: time.time() + shift[0]) as sim:
        await left_behind(tmp_path, sim)
        await sim.finish_batches()
        shift[0] = 30 * DAY_S
        for _ in range(2):
            async with stage(tmp_path, sim=sim) as back:
                await back.do((item(n) for n in range(3)), quick(now=later(30)))
            assert back.outcomes == {"in_doubt": 3}
        assert sim.bill.requests == 3


async def left_behind(folder: Path, sim: Simulator) -> None:
    """A job of three items that was left while its batch was under way."""
    async with stage(folder, sim=sim) as made, BatchJob(made.run, quick()) as job:

        async def leave() -> None:
            while not any(row.id for row in job.progress().batches):
                await asyncio.sleep(0.01)
            job.detach()

        task = asyncio.create_task(leave())
        assert [done async for done in job.results(item(n) for n in range(3))] == []
        await task


def later(days: float) -> Any:
    """A clock that is ahead."""
    from datetime import UTC, datetime, timedelta

    return lambda: datetime.now(UTC) + timedelta(days=days)
