"""Fan-out: one part per item, in order, whatever happens to the items, their source or their reader."""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns import SourceFailed, fan_out, stream_out
from tests.test_orchestrator.running import Stage, helper, say, stage


def _hanging() -> dict[str, Any]:
    return {"faults": Faults([Fault(kind="hang", times=0)])}


async def _double(item: int) -> int:
    await asyncio.sleep(0)
    return item * 2


async def _numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        yield number


def _tasks() -> int:
    return sum(task.get_name().startswith("fan_out-") for task in asyncio.all_tasks())


# ---- parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize(
    "items",
    [lambda: list(range(20)), lambda: iter(range(20)), lambda: _numbers(20)],
    ids=["list", "iterator", "async generator"],
)
async def test_one_part_per_item_in_order(items: Any, width: int) -> None:
    """Whatever the items come from and however they overlap."""
    async with stage() as st:
        done = await fan_out(st.run, _double, items(), width=width)
        assert [part.index for part in done.parts] == list(range(20))
        assert [part.item for part in done.parts] == list(range(20))
        assert done.values == [2 * number for number in range(20)]


async def test_order_does_not_depend_on_who_is_first() -> None:
    """Parts are in the order of the items though the first one finishes last."""
    async with stage() as st:
        gates = [asyncio.Event() for _ in range(5)]

        async def backwards(item: int) -> int:
            if item < 4:
                await gates[item].wait()
            if item:
                gates[item - 1].set()
            return item

        finished: list[int] = []
        done = await fan_out(
            st.run, backwards, range(5), width=5, on_part=lambda part: finished.append(part.index)
        )
        assert (done.values, finished) == ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])


async def test_no_items_make_no_parts() -> None:
    """An empty source is an empty result."""
    async with stage() as st:
        done = await fan_out(st.run, _double, [])
        assert (done.parts, done.outcomes, done.posted_nanos) == ((), {}, 0)


async def test_the_width_is_never_exceeded() -> None:
    """At most ``width`` items are under way, and that many are."""
    async with stage() as st:
        at_once = most = 0

        async def count(_: int) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1

        await fan_out(st.run, count, range(40), width=7)
        assert most == 7


@pytest.mark.parametrize("width", [0, -1])
async def test_a_width_below_one_is_the_callers_mistake(width: int) -> None:
    """It is said at once."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="width"):
            await fan_out(st.run, _double, [1], width=width)


async def test_items_are_drawn_as_they_are_needed() -> None:
    """A slow reader slows the source down: what is drawn is at most what is under way and waiting."""
    drawn = 0

    def source() -> Iterator[int]:
        nonlocal drawn
        for number in range(1_000):
            drawn += 1
            yield number

    async with stage() as st:
        async with contextlib.aclosing(stream_out(st.run, _double, source(), width=4)) as parts:
            async for _ in parts:
                break
            await asyncio.sleep(0.01)
        assert drawn <= 10


async def test_agents_are_workers() -> None:
    """Each item is an agent's prompt; its text is the value, its cost the part's."""
    async with stage() as st:
        done = await fan_out(st.run, helper(), ["one", {"two": 2}], width=2)
        assert done.outcomes == {"ok": 2}
        assert all("Simulated answer" in value for value in done.values)
        assert done.posted_nanos == sum(part.posted_nanos for part in done.parts)
        assert done.posted_nanos == st.run.balance.posted_nanos
        assert done.parts[0].tokens["output_tokens"] > 0
        st.prove_exact()


async def test_a_failed_item_is_a_row_and_the_others_go_on() -> None:
    """A worker that raises, or an agent that is refused, has its outcome and reason."""

    async def work(item: str) -> str:
        if item == "bad":
            raise KeyError("no such thing")
        return (await helper().run(st.run, item)).text

    async with stage() as st:
        done = await fan_out(st.run, work, ["good", "bad", "good"])
        assert [part.outcome.value for part in done.parts] == ["ok", "infra", "ok"]
        assert "KeyError" in done.parts[1].reason
        agents = await fan_out(st.run, helper(), ["[[sim:refuse]]", "[[sim:output=900]]"])
        assert [part.outcome.value for part in agents.parts] == ["refusal", "truncated"]
        assert [part.value for part in agents.parts] == [None, None]


async def test_a_worker_that_is_cancelled_by_itself_is_a_row() -> None:
    """An inner cancellation (a time-out of its own, say) ends its item and nothing else."""

    async def work(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return item

    async with stage() as st:
        done = await fan_out(st.run, work, range(4), width=2)
        assert [part.outcome.value for part in done.parts] == ["ok", "cancelled", "ok", "ok"]


# ---- the source ---------------------------------------------------------------------------------------


def _breaking() -> Iterator[int]:
    yield from range(6)
    raise OSError("the disk is gone")


async def _breaking_async() -> AsyncIterator[int]:
    for number in _breaking():
        yield number


@pytest.mark.parametrize("source", [_breaking, _breaking_async])
async def test_a_source_that_raises_loses_no_part(source: Any) -> None:
    """What was drawn is finished and handed back with the exception, whose cause is the source's own."""
    async with stage() as st:
        with pytest.raises(SourceFailed, match="the disk is gone") as caught:
            await fan_out(st.run, _double, source(), width=3)
        assert [part.value for part in caught.value.parts] == [0, 2, 4, 6, 8, 10]
        assert isinstance(caught.value.__cause__, OSError)
        streamed = []
        with pytest.raises(SourceFailed):  # noqa: PT012
            async for part in stream_out(st.run, _double, source(), width=3):
                streamed.append(part.index)
        assert sorted(streamed) == list(range(6))
        assert _tasks() == 0


# ---- reduce -------------------------------------------------------------------------------------------


async def _total_async(parts: list[Any]) -> int:
    await asyncio.sleep(0)
    return sum(part.value for part in parts)


@pytest.mark.parametrize(
    "reduce", [lambda parts: sum(part.value for part in parts), _total_async], ids=["sync", "async"]
)
async def test_parts_are_reduced_to_one_value(reduce: Any) -> None:
    """The reducer sees all parts in order, and may be async."""
    async with stage() as st:
        done = await fan_out(st.run, _double, range(5), reduce=reduce)
        assert (done.reduced, done.reduce_outcome) == (20, Outcome.OK)


async def test_a_reducer_that_raises_loses_no_part() -> None:
    """Its failure is an outcome of the result."""

    def fail(_: list[Any]) -> None:
        raise ZeroDivisionError("nothing to divide by")

    async with stage() as st:
        done = await fan_out(st.run, _double, range(3), reduce=fail)
        assert done.values == [0, 2, 4]
        assert done.reduce_outcome is Outcome.INFRA
        assert "ZeroDivisionError" in done.reduce_reason


# ---- stopping early -----------------------------------------------------------------------------------


def _prove_left(st: Stage) -> None:
    assert _tasks() == 0
    st.prove()
    assert st.run.tally.in_doubt_nanos == st.run.balance.in_doubt_nanos


async def test_closing_a_stream_early_cancels_and_settles() -> None:
    """No task, no slot and no hold is left; what was sent is in doubt."""
    async with stage(
        gate=Gate(width=4), sim={"faults": Faults([None, Fault(kind="hang", times=0)])}
    ) as st:
        parts = stream_out(st.run, helper(), ["a"] * 10, width=2)
        first = await anext(parts)
        await st.sim.arrived(2)
        await parts.aclose()
        assert first.outcome is Outcome.OK
        assert st.run.balance.in_doubt_nanos > 0
        _prove_left(st)


async def test_cancelling_the_caller_leaks_nothing() -> None:
    """Its workers are cancelled and settled before the cancellation is passed on."""
    async with stage(sim=_hanging()) as st:
        work = asyncio.create_task(fan_out(st.run, helper(), ["a"] * 10, width=3))
        await st.sim.arrived(1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert st.run.balance.in_doubt_nanos > 0
        _prove_left(st)


async def test_a_listener_that_raises_stops_the_spending() -> None:
    """``on_part`` is the caller's code: its exception is passed on, and no worker goes on alone."""

    def fail(_: Any) -> None:
        raise RuntimeError("no")

    async with stage() as st:
        with pytest.raises(RuntimeError, match="no"):
            await fan_out(st.run, helper(), ["a"] * 100, width=2, on_part=fail)
        assert st.sim.stats.arrived <= 5
        _prove_left(st)


async def test_items_after_a_stop_are_parts_too() -> None:
    """A stopped run makes no call; each item says so."""
    async with stage() as st:
        st.run.stop("enough")
        done = await fan_out(st.run, helper(), ["a", "b"])
        assert done.outcomes == {"cancelled": 2}
        assert "enough" in done.parts[0].reason
        assert st.sim.stats.arrived == 0


# ---- money --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 8, 64])
async def test_children_draw_on_the_parents_account(width: int) -> None:
    """Overshoot is nothing at any width, and what does not fit ends as ``budget``."""
    async with stage(cap="0.004", gate=Gate(width=width)) as st:
        done = await fan_out(st.run, helper(), ["Hello [[sim:output=150]]"] * 60, width=width)
        assert set(done.outcomes) == {"ok", "budget"}
        assert done.posted_nanos == st.run.balance.posted_nanos <= 4_000_000
        st.prove_exact()


async def test_the_rest_after_a_cap_is_quick() -> None:
    """Thousands of items beyond the cap end as ``budget`` without a request each."""
    async with stage(cap="0.0005") as st:
        begun = time.monotonic()
        done = await fan_out(st.run, lambda item: say(st.run, f"{item}"), range(2_000), width=16)
        assert done.outcomes["budget"] > 1_900
        assert st.sim.stats.arrived < 100
        assert time.monotonic() - begun < 10
        st.prove_exact()


async def test_nested_fan_outs_need_no_second_slot() -> None:
    """With one slot and five levels nobody starves: a slot is held for one HTTP call only."""
    async with stage(gate=Gate(width=1)) as st:

        async def level(depth: int) -> int:
            if depth == 0:
                await say(st.run)
                return 1
            inner = await fan_out(st.run, level, [depth - 1] * 2)
            await say(st.run)
            return sum(inner.values)

        done = await asyncio.wait_for(fan_out(st.run, level, [4, 4]), 20)
        assert done.values == [16, 16]
        assert done.posted_nanos == st.run.balance.posted_nanos
        st.prove_exact()


async def test_ten_thousand_items_keep_memory_flat() -> None:
    """A stream keeps no parts."""

    async def work(item: int) -> bytes:
        return bytes(1_000)

    async with stage() as st:
        tracemalloc.start()
        count = 0
        async with contextlib.aclosing(stream_out(st.run, work, range(10_000), width=8)) as parts:
            async for _ in parts:
                count += 1
                if count == 500:
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 10_000
        assert peak - before < 500_000
