"""Conversations: every turn of an agent with tools reads what the turns before it wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.outcomes import Outcome
from orchestrator.prefixes import sharing

from .running import Stage, helper, stage

MODEL = "claude-sonnet-5-5"
SYSTEM = "Rules of the house. " * 400  # 2,000 tokens of the simulator


def look(at: str) -> str:
    """Look at a thing."""
    return f"{at}: " + "nothing to see here, move along. " * 20


def looking(turns: int, *, per_turn: int = 1) -> str:
    """A prompt that makes the simulated model use the tool for so many turns."""
    uses = "".join(f'[[sim:tool=look {{"at":"thing {n}"}}]]' for n in range(per_turn))
    return f"Look around {uses}[[sim:turns={turns}]][[sim:output=20]]"


def prompts(scene: Stage) -> list[int]:
    """Tokens of each prompt."""
    return [row.counts.input + row.counts.write_5m + row.counts.read for row in scene.sim.bill.rows]


def agent(**fields: Any) -> Any:
    return helper(
        model=MODEL, system=SYSTEM, tools=[look], same_calls=99, **{"max_turns": 9, **fields}
    )


@pytest.mark.parametrize("per_turn", [1, 15, 30])
async def test_a_turn_reads_all_of_the_turn_before(per_turn: int) -> None:
    """Also where one turn adds 60 blocks, three times what the provider looks back for."""
    async with stage(cache_settle_s=0) as scene:
        result = await agent().run(scene.run, looking(4, per_turn=per_turn))

        assert (result.outcome, result.turns) == (Outcome.OK, 5)
        rows = scene.sim.bill.rows
        assert [row.counts.read for row in rows[1:]] == prompts(scene)[:-1]
        assert rows[0].counts.write_5m == prompts(scene)[0]
        scene.prove_exact()


async def test_the_last_turn_writes_nothing() -> None:
    """Where no other turn may follow, the last one reads and writes no more: nobody would read it."""
    async with stage(cache_settle_s=0) as scene:
        await agent(max_turns=3).run(scene.run, looking(9))

        last = scene.sim.bill.rows[-1].counts
        assert last.write_5m == 0
        assert last.read == prompts(scene)[1]


async def test_an_agent_without_tools_is_not_marked() -> None:
    """One question and one answer: there is nothing to read again."""
    async with stage(cache_settle_s=0) as scene:
        await helper(model=MODEL, system=SYSTEM).run(scene.run, "Hello")

        assert scene.sim.bill.counts.write_5m == 0


async def test_a_conversation_is_not_streamed_and_waits_for_nobody() -> None:
    """An agent that shares its prefix with nobody is called as ever."""
    async with stage(sim={"keep_calls": 9}, cache_settle_s=60) as scene:
        await agent().run(scene.run, looking(2))

        assert not any(json.loads(call.body).get("stream") for call in scene.sim.calls)


async def test_many_conversations_share_their_beginning() -> None:
    """In a fan-out of agents with tools the first turn of one writes tools and system; all read."""
    import asyncio

    async with stage(cache_settle_s=0) as scene:
        with sharing(uses=8):
            work = (agent(name=f"a-{n}").run(scene.run, f"{n} {looking(2)}") for n in range(8))
            results = await asyncio.gather(*work)

        assert {result.outcome for result in results} == {Outcome.OK}
        assert sum(row.counts.read == 0 for row in scene.sim.bill.rows) == 1
        cost = scene.run.caching
        assert cost.saved_nanos > 10 * cost.surcharge_nanos
        assert cost.alarms == 0
        scene.prove_exact()


async def test_a_loop_costs_less_than_without_the_cache() -> None:
    """By the server's bill: ten turns with caching cost less than half of what they would have."""
    async with stage(cache_settle_s=0) as scene:
        result = await agent(max_turns=11).run(scene.run, looking(10))
        tally = result.tally
        uncached = tally.posted_nanos + tally.saved_nanos - tally.surcharge_nanos

        assert result.turns == 11
        assert scene.sim.bill.nanos == tally.posted_nanos
        assert scene.sim.bill.nanos * 2 < uncached
        assert tally.wasted_nanos * 100 < tally.saved_nanos
