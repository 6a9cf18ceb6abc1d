"""Closing calls: what a run set aside for them is there, whatever everybody else spends and the provider says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from budgets import Cap, Ledger
from budgets.errors import BudgetExceeded, InvalidAmount, Unbounded
from budgets.money import format_usd, to_decimal
from budgets.reserves import drawing_on
from budgets.scopes import scope
from orchestrator.errors import ConfigError
from orchestrator.journal import read_journal
from orchestrator.retry import Retry
from orchestrator.run_reserves import RunReserves
from orchestrator.simulator import Fault

from .metering import ask, rig, sync_rig
from .running import MODEL, QUICK, Stage, say, stage

CLOSING: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Sum up. [[sim:output=60]]"}],
}


async def eat(st: Stage) -> int:
    """Call until the cap says no; how many calls that were."""
    count = 0
    while True:
        try:
            await say(st.run)
        except BudgetExceeded:
            return count
        count += 1


def aside(st: Stage) -> int:
    """Nano-dollars that open reserves hold."""
    return sum(hold.nanos for hold in st.run.ledger.open_holds() if hold.reserve is not None)


@pytest.mark.parametrize("kind", ["overloaded", "rate_limited", "server_error"])
async def test_the_closing_call_goes_though_another_task_eats_all_the_rest(kind: str) -> None:
    """It is tried again and again, and between two tries nobody else gets a cent of it."""
    async with stage(cap="0.003") as st:
        reserve = await st.run.reserve_for(CLOSING)
        assert await eat(st) > 0
        st.sim.faults.extend([Fault(kind=kind, retry_after=0)] * 3)

        async def closing() -> Any:
            with drawing_on(reserve):
                return await st.run.client.messages.create(**CLOSING)

        task = asyncio.create_task(closing())
        while not task.done():
            await eat(st)
            await asyncio.sleep(0)
        assert (await task).usage.output_tokens == 60
        lines = list(st.run.ledger.lines())
        drawn = [line for line in lines if "draws" in line.note]
        assert [line.kind for line in drawn] == ["hold", "void"] * 3 + ["hold", "settle"]
        between = lines[drawn[0].id : drawn[-1].id]
        assert all("draws" in line.note or "reserve" in line.note for line in between)
    assert aside(st) == 0
    st.prove_exact()


def test_blocking_closing_calls_draw_too() -> None:
    """The sync client, its retries and its streams."""
    with sync_rig(cap="0.01", retry=Retry(**QUICK)) as on:
        reserve = on.ledger.reserve(6_500_000, scope="app")
        on.ledger.settle(on.ledger.hold(on.ledger.request(3_500_000)), 3_500_000)
        with pytest.raises(BudgetExceeded):
            on.client.messages.create(**ask(max_tokens=200))
        on.sim.call(lambda sim: sim.faults.extend([Fault(kind="overloaded")] * 2))
        with drawing_on(reserve):
            on.client.messages.create(**ask(max_tokens=200))
            with on.client.messages.stream(**ask(max_tokens=200)) as stream:
                assert stream.get_final_message().usage.output_tokens == 50
        assert on.kinds().count("settle") == 3
        on.ledger.release(reserve)
        on.prove()


async def test_a_stream_that_fails_before_any_output_puts_the_money_back() -> None:
    """Its void is written as it ends, so the next try finds the reserve."""
    async with stage(cap="0.003") as st:
        reserve = await st.run.reserve_for(CLOSING)
        before = aside(st)
        await eat(st)
        st.sim.faults.extend([Fault(kind="sse_error", after_events=0)])
        with drawing_on(reserve):
            with pytest.raises(anthropic.APIStatusError):
                async with st.run.client.messages.stream(**CLOSING) as stream:
                    await stream.get_final_message()
            assert aside(st) == before
            async with st.run.client.messages.stream(**CLOSING) as stream:
                assert (await stream.get_final_message()).usage.output_tokens == 60
        drawn = [line.kind for line in st.run.ledger.lines() if "draws" in line.note]
        assert drawn == ["hold", "void", "hold", "settle"]
    assert st.run.ledger.check().findings == []
    assert aside(st) == 0


async def test_what_is_not_drawn_is_given_back_at_the_end_of_the_run(tmp_path: Path) -> None:
    """And both are in its journal."""
    async with stage(folder=tmp_path, cap="1") as st:
        reserve = await st.run.reserve("0.25")
        with scope("writer"):
            other = await st.run.reserve("0.10")
        assert st.run.balance.held_nanos == 350_000_000
        assert other.scope == f"{st.run.scope}/writer"
        room = st.run.room().now
        assert room is not None
        assert room.nanos == 650_000_000
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.balance().held_nanos == 0
        assert ledger.check().findings == []
    assert st.run.folder.journal is not None
    events = list(read_journal(st.run.folder.journal))
    assert [(e["reserve"], e["nanos"]) for e in events if e["event"] == "reserve"] == [
        (reserve.id, 250_000_000),
        (other.id, 100_000_000),
    ]
    assert sum(e["nanos"] for e in events if e["event"] == "release") == 350_000_000


async def test_a_reserve_pays_for_as_many_calls_as_it_was_made_for() -> None:
    """Three calls of this request, each under its own part of it."""
    async with stage(cap="0.003") as st:
        once = await st.run.reserve_for(CLOSING)
        reserve = await st.run.reserve_for(CLOSING, times=3)
        assert reserve.nanos == 3 * once.nanos
        await eat(st)
        with drawing_on(reserve):
            for _ in range(3):
                await st.run.client.messages.create(**CLOSING)
    st.prove_exact()


async def test_what_cannot_be_reserved_is_said_at_once() -> None:
    """More than the cap, no amount, no bound, no calls: nothing is set aside and nothing is shut."""
    async with stage(cap="0.01") as st:
        with pytest.raises(BudgetExceeded):
            await st.run.reserve("0.02")
        with pytest.raises(InvalidAmount):
            await st.run.reserve(0.5)
        with pytest.raises(Unbounded):
            await st.run.reserve_for(
                {**CLOSING, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
            )
        with pytest.raises(ConfigError, match="1 or more"):
            await st.run.reserve_for(CLOSING, times=0)
        assert aside(st) == 0
        await say(st.run)
    st.prove_exact()


async def test_the_counter_is_asked_where_the_bound_by_bytes_is_more_than_the_reserve() -> None:
    """Though the cap is shut: the tighter bound may fit into what was set aside."""
    ledger = Ledger(caps=[Cap("1", scope="app")], fallback=())
    async with rig(ledger=ledger) as on:
        body = ask("word " * 4000 + "[[sim:output=50]]", max_tokens=100)
        by_bytes = RunReserves(on.meter, None).bound_of(body)  # type: ignore[arg-type]
        reserve = ledger.reserve(by_bytes // 2, scope="app")
        rest = 1_000_000_000 - reserve.nanos - 1
        ledger.settle(ledger.hold(ledger.request(rest, scope="app")), rest)
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(reserve.nanos + 2, scope="app"))
        with pytest.raises(BudgetExceeded, match="stays so until"):
            await on.client.messages.create(**body)
        with drawing_on(reserve):
            message = await on.client.messages.create(**body)
        assert message.usage.output_tokens == 50
        (hold,) = [
            line for line in ledger.lines() if line.kind == "hold" and line.note.get("draws")
        ]
        assert hold.nanos <= reserve.nanos, format_usd(hold.nanos)
        assert reserve.amount == to_decimal(by_bytes // 2)
        ledger.release(reserve)
        on.prove()
