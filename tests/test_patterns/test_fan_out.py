"""Fan-out: one part per item, in order, whatever happens to the items, their source or their reader."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns import SourceFailed, fan_out, pipeline, stream_out
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
    """At most ``width`` items are under way, and that many are (O-19)."""
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
    """A worker that raises, or an agent that is refused, has its outcome and reason (R-06)."""

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


def _cancel(_: Any) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("callback", ["on_part", "stop_when"])
async def test_a_callback_that_raises_a_cancellation_ends_the_work(callback: str) -> None:
    """It is neither asked again for ever nor taken for a cancellation of the item."""
    async with stage() as st:
        given: dict[str, Any] = {callback: _cancel}
        with pytest.raises(asyncio.CancelledError):
            await fan_out(st.run, _double, range(3), width=2, **given)
        assert _tasks() == 0


async def _cancelled_async() -> AsyncIterator[int]:
    yield 0
    raise asyncio.CancelledError


class _Fatal(BaseException):
    pass


async def _fatal(_: int) -> None:
    raise _Fatal


@pytest.mark.parametrize(
    ("worker", "items", "raised"),
    [(_fatal, range(3), _Fatal), (_double, _cancelled_async(), SourceFailed)],
    ids=["worker", "source"],
)
async def test_a_stream_never_waits_for_a_worker_that_is_gone(
    worker: Any, items: Any, raised: type[BaseException]
) -> None:
    """Whatever ended it is raised to the reader of the stream."""
    async with stage() as st, asyncio.timeout(5):
        with pytest.raises(raised):
            async for _ in stream_out(st.run, worker, items, width=2):
                pass
        assert _tasks() == 0


async def _at_once(item: int) -> int:
    return item


async def test_work_that_takes_no_time_can_be_cancelled() -> None:
    """A source without an end never keeps the event loop to itself."""
    async with stage() as st:
        work = asyncio.create_task(fan_out(st.run, _at_once, itertools.count(), width=2))
        await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert _tasks() == 0


@pytest.mark.parametrize("how", ["cap", "agent's cap", "stop_when", "stop", "spend limit"])
@pytest.mark.parametrize("pattern", [fan_out, pipeline])
async def test_an_endless_source_is_left_alone_once_nothing_starts(pattern: Any, how: str) -> None:
    """After the width and a hundred items in a row that could not start, and the reason says so."""
    if pattern is pipeline and how == "stop_when":
        return
    faults = Faults([Fault(kind="billing", times=0)]) if how == "spend limit" else None
    async with stage(cap="0.004" if how == "cap" else "5", sim={"faults": faults}) as st:
        agent = helper(cap="0.004" if how == "agent's cap" else None)
        options: dict[str, Any] = {"width": 3}
        if how == "stop_when":
            options["stop_when"] = lambda parts: len(parts) == 5
        elif how == "stop":
            options["on_part"] = lambda part: st.run.stop("enough") if part.index == 4 else None
        texts = (f"Item {n} [[sim:output=150]]" for n in itertools.count())
        worker = [agent] if pattern is pipeline else agent
        done = await asyncio.wait_for(pattern(st.run, worker, texts, **options), 30)
        assert "not drawn further" in done.reason
        assert not done.ok
        not_started = [part for part in done.parts if not part.calls]
        assert 100 <= len(not_started) < (1_200 if how == "agent's cap" else 120)
        st.prove()


async def test_a_list_has_a_part_for_each_item_whatever_happens() -> None:
    """However many can't start."""
    async with stage(cap="0.0005") as st:
        done = await fan_out(st.run, helper(), ["Hello"] * 400, width=2)
        assert len(done.parts) == 400
        assert "not drawn further" not in done.reason


async def test_items_that_start_again_keep_the_source_going() -> None:
    """Only an unbroken row of items that can't start ends it: a smaller one may fit where large ones did not."""
    async with stage(cap="0.004") as st:
        large = "x" * 200_000
        items = (large if n % 150 else "Hello [[sim:output=5]]" for n in range(1, 601))
        done = await fan_out(st.run, helper(), items, width=1)
        assert done.outcomes == {"budget": 596, "ok": 4}


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


# ---- what a fan-out may be asked besides ---------------------------------------------------------------


async def test_a_splitter_makes_the_items() -> None:
    """Of whatever it is given, async or not."""

    async def lines(text: str) -> list[str]:
        return text.splitlines()

    async def length(line: str) -> int:
        return len(line)

    async with stage() as st:
        done = await fan_out(st.run, length, "a\nbb\nccc", split=lines)  # type: ignore[arg-type]
        assert (done.values, done.value) == ([1, 2, 3], [1, 2, 3])
        done = await fan_out(st.run, length, "a\nbb", split=str.splitlines)  # type: ignore[arg-type]
        assert done.values == [1, 2]


async def test_an_agent_can_be_the_reducer() -> None:
    """It is given the values, and its cost is in the result's."""
    async with stage() as st:
        editor = helper(name="editor")
        done = await fan_out(st.run, helper(), ["one", "two"], reduce=editor)
        assert done.reduce_outcome is Outcome.OK
        assert "Simulated answer" in done.value
        assert done.value == done.reduced
        assert done.calls == 3
        assert done.posted_nanos == st.run.balance.posted_nanos
        st.prove_exact()


async def test_failed_parts_are_told_to_the_reducer_as_failed() -> None:
    """And a failed reducer is an outcome; the parts are kept."""
    heard: list[Any] = []

    async def work(item: int) -> int:
        if item == 1:
            raise KeyError("one")
        return item

    def reduce(parts: list[Any]) -> None:
        heard.extend(part.outcome.value for part in parts)
        raise ZeroDivisionError("odd")

    async with stage() as st:
        done = await fan_out(st.run, work, [0, 1, 2], reduce=reduce)
        assert heard == ["ok", "infra", "ok"]
        assert (done.reduce_outcome, done.values) == (Outcome.INFRA, [0, 2])
        assert not done.ok


@pytest.mark.parametrize(
    ("stop_when", "most"),
    [
        pytest.param(0.5, 12, id="a share"),
        pytest.param(lambda parts: len(parts) >= 3, 5, id="a function"),
    ],
)
async def test_it_stops_once_a_share_has_failed(stop_when: Any, most: int) -> None:
    """What is not started ends as cancelled with the reason; every item has its part (R-05)."""
    worked: list[int] = []

    async def fails(item: int) -> None:
        worked.append(item)
        raise KeyError(item)

    async with stage() as st:
        done = await fan_out(st.run, fails, range(200), width=2, stop_when=stop_when)
        assert 3 <= len(worked) <= most
        assert len(done.parts) == 200
        assert done.outcomes == {"infra": len(worked), "cancelled": 200 - len(worked)}
        assert "stop_when" in done.parts[-1].reason


async def test_a_share_that_is_not_reached_stops_nothing() -> None:
    """One in ten is less than half."""

    async def work(item: int) -> int:
        if item % 10 == 0:
            raise KeyError(item)
        return item

    async with stage() as st:
        done = await fan_out(st.run, work, range(1, 101), width=2, stop_when=0.5)
        assert done.outcomes == {"ok": 90, "infra": 10}


@pytest.mark.parametrize("admit", ["trim", "all"])
async def test_a_set_is_trimmed_or_declined_before_it_starts(admit: Any) -> None:
    """What the caps don't carry at worst is never sent; the others are all done (rule 14) (O-07)."""
    async with stage(cap="0.001") as st:
        done = await fan_out(st.run, helper(), ["x"] * 30, admit=admit)
        if admit == "all":
            assert done.outcomes == {"budget": 30}
            assert st.sim.bill.nanos == 0
        else:
            started = done.outcomes["ok"]
            assert 0 < started < 30
            assert done.outcomes["budget"] == 30 - started
            assert [part.ok for part in done.parts] == [True] * started + [False] * (30 - started)
            assert f"only {started}" in done.parts[-1].reason
        st.prove_exact()


async def test_a_set_that_fits_is_admitted() -> None:
    """Trimming takes nothing away where there is room."""
    async with stage() as st:
        done = await fan_out(st.run, helper(), ["x"] * 5, admit="all", cap="1")
        assert done.outcomes == {"ok": 5}


async def test_a_cap_of_its_own_holds_for_everything_inside() -> None:
    """By the server's own bill."""
    async with stage() as st:
        items = ["x [[sim:output=190]]"] * 60
        done = await fan_out(st.run, helper(), items, cap="0.002", reduce=helper(name="editor"))
        assert {part.outcome for part in done.parts} == {Outcome.OK, Outcome.BUDGET}
        assert 0 < st.sim.bill.nanos <= 2_000_000
        st.prove_exact()


async def test_a_plan_spends_nothing_and_says_whether_the_caps_carry_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Worst and likely cost, as a tree."""
    async with stage(cap="0.001") as st:
        small = await fan_out(st.run, helper(), ["x"] * 2, plan_only=True)
        assert small.plan is not None
        assert small.plan.fits
        large = await fan_out(
            st.run, helper(), ["x"] * 500, plan_only=True, reduce=helper(name="r")
        )
        assert large.plan is not None
        assert not large.plan.fits
        assert large.plan.worst is not None
        assert large.plan.likely is not None
        assert large.plan.worst > large.plan.likely
        told = capsys.readouterr().out
        assert "helper x500" in told
        assert "do not even carry" in told or "not the worst case" in told
        assert (st.sim.bill.nanos, len(list(st.run.ledger.lines()))) == (0, 0)


async def test_the_worst_case_of_a_plan_is_never_passed() -> None:
    """Whatever the agents do, tools and repairs included."""

    async def look(word: str) -> str:
        """Look a word up."""
        return word * 5

    async with stage() as st:
        agent = helper(tools=[look], max_turns=4, repairs=1, output={"type": "object"})
        items = ["a [[sim:turns=9]]", "b [[sim:output=199]]", "c [[sim:text=no json]]"]
        plan = (await fan_out(st.run, agent, items, plan_only=True)).plan
        assert plan is not None
        done = await fan_out(st.run, agent, items)
        assert plan.root.worst_nanos is not None
        assert 0 < done.posted_nanos <= plan.root.worst_nanos
        assert plan.root.calls is not None
        assert done.calls <= plan.root.calls


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}, 5])
async def test_items_that_are_one_thing_are_a_mistake(items: Any) -> None:
    """A text would otherwise be worked on letter by letter."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="give a list"):
            await fan_out(st.run, _double, items)


async def test_a_node_is_in_the_journal_with_its_parts(tmp_path: Any) -> None:
    """Where it stood, what became of each part, what it came to."""
    async with stage(folder=tmp_path) as st:
        await fan_out(st.run, helper(), ["x", "y"], name="readers", cap="0.5")
        path = st.run.journal.path
    events = [
        event for event in read_journal(path) if event["event"] in {"node", "part", "node_end"}
    ]
    assert [event["event"] for event in events] == ["node", "part", "part", "node_end"]
    assert events[0]["scope"].endswith("/readers")
    assert (events[0]["cap_usd"], events[0]["items"]) == ("$0.50", 2)
    assert (events[-1]["outcome"], events[-1]["posted_nanos"] > 0) == ("ok", True)
