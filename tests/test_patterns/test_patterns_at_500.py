"""Every pattern at 500: no overshoot by the server's own bill, whatever fails and whoever cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orchestrator.errors import RunStopped
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.simulator import Faults
from patterns.fan_out import fan_out
from patterns.pipeline import Stage as Step
from patterns.pipeline import pipeline
from patterns.refine import refine
from patterns.result import Result
from patterns.route import route
from patterns.vote import vote
from tests.test_orchestrator.running import MODEL, Stage, helper, stage

COUNT = 500
#: Each kind of failure, for each request: refused for a moment, done but lost, silent, and streams that break.
RATES = {
    "overloaded": 0.04,
    "server_error": 0.03,
    "reset": 0.02,
    "hang": 0.006,
    "cut": 0.03,
    "sse_error": 0.02,
    "no_stop": 0.02,
}
Work = Callable[[Run, str], Coroutine[Any, Any, Result[Any]]]


def asked(number: int) -> str:
    """What is asked about an item; some are refused, free of charge or not. The stand-in's critic accepts by a word."""
    word = "accepted" if number % 3 else "Matter"
    way = {3: "[[sim:refuse]]", 7: "[[sim:refuse=20]]"}.get(number % 25, "[[sim:output=40]]")
    return f"Number {number} {word} {way}"


def worker(**fields: Any) -> Any:
    return helper(**{"max_tokens": 60, "timeout_s": 1.5, **fields})


def streaming(run: Run) -> Callable[[Any], Coroutine[Any, Any, str]]:
    """A worker of the user's own that streams."""

    async def work(item: Any) -> str:
        messages: Any = [{"role": "user", "content": str(item)}]
        asks = {"model": MODEL, "max_tokens": 60, "messages": messages}
        async with asyncio.timeout(1.5), run.client.messages.stream(**asks) as stream:
            return await stream.get_final_text()

    return work


async def fanned_out(run: Run, cap: str) -> Result[Any]:
    """Half of the items by agents, half by streams."""
    stream = streaming(run)

    async def half(number: int) -> Any:
        text = asked(number)
        return await (stream(text) if number % 2 else worker().run(run, text))

    return await fan_out(run, half, range(COUNT), width=24, cap=cap)


async def voted(run: Run, cap: str) -> Result[Any]:
    """One question to 500 voters, of whom some refuse; the judge is a function, so that all are asked."""
    stream = streaming(run)

    def voter(number: int) -> Any:
        async def vote_of(_: str) -> Any:
            return await (stream if number % 2 else worker_of(run))(asked(number))

        return vote_of

    return await vote(run, [voter(n) for n in range(COUNT)], "Yes?", judge=len, width=24, cap=cap)


def worker_of(run: Run) -> Callable[[str], Coroutine[Any, Any, Any]]:
    async def work(text: str) -> Any:
        return await worker().run(run, text)

    return work


async def piped(run: Run, cap: str) -> Result[Any]:
    """250 inputs in two stages, one of them a stream, with a gate that sends some back once and stops some."""

    def gate(text: str) -> bool | str:
        return "Once more, please." if " 1" in text[:32] else " 2" not in text[:32]

    stages: list[Any] = [Step(worker(), gate=gate), streaming(run)]
    return await pipeline(run, stages, [asked(n) for n in range(COUNT // 2)], width=24, cap=cap)


async def routed(run: Run, cap: str) -> Result[Any]:
    """250 requests, each with a call that chooses and one of a specialist, a stream for every second."""
    routes = {"agent": worker(name="agent"), "stream": streaming(run)}
    chooses = worker(name="router")

    async def request(number: int) -> Any:
        async def by(text: str) -> Any:
            said = await chooses.run(run, text)
            return said if not said.ok else ("stream" if number % 2 else "agent")

        return await route(run, by, routes, asked(number), fallback="agent")

    return await fan_out(run, request, range(COUNT // 2), width=24, cap=cap)


async def refined(run: Run, cap: str) -> Result[Any]:
    """125 drafts, each judged by an agent, up to twice: 500 calls."""
    critic = worker(name="critic", max_tokens=150)
    writer = worker(name="writer")

    async def draft(number: int) -> Any:
        return await refine(run, writer, critic, asked(number), rounds=2)

    return await fan_out(run, draft, range(COUNT // 4), width=24, cap=cap)


#: Each pattern with a cap that pays for about half of its work.
WORKS = [
    pytest.param(fanned_out, "0.0075", id="fan_out"),
    pytest.param(voted, "0.0075", id="vote"),
    pytest.param(piped, "0.0055", id="pipeline"),
    pytest.param(routed, "0.0075", id="route"),
    pytest.param(refined, "0.009", id="refine"),
]


def sim(**fields: Any) -> dict[str, Any]:
    return {"faults": Faults(rates=RATES, seed=500), "latency_s": 0.002, **fields}


def prove(st: Stage, cap: str) -> None:
    """Nothing is left, and what was billed is covered by what is posted or in doubt, which is below the cap."""
    most = round(float(cap) * 1e9)
    balance = st.run.balance
    st.prove()
    assert 0 < st.sim.bill.nanos <= balance.posted_nanos + balance.in_doubt_nanos <= most
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("fan_out-")]


@pytest.mark.slow
@pytest.mark.parametrize(("work", "cap"), WORKS)
async def test_overshoot_is_zero_whatever_fails(work: Work, cap: str) -> None:
    """Every item ends in one part; failures and the cap end some, and nobody is billed beyond the cap."""
    async with stage(sim=sim()) as st:
        done = await work(st.run, cap)
        assert [part.index for part in done.parts] == list(range(len(done.parts)))
        assert len(done.parts) >= COUNT // 4
        assert {"ok", "budget", "refusal"} <= set(done.outcomes)
        assert 0.25 < done.outcomes["budget"] / len(done.parts) < 0.75
        assert done.posted_nanos == st.run.balance.posted_nanos
        assert done.in_doubt_nanos == st.run.balance.in_doubt_nanos
        prove(st, cap)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "cap"), WORKS)
async def test_cancelling_the_task_in_the_middle_leaks_nothing(
    work: Work, cap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who awaits it hears of the cancellation, with the figures; what was on its way is in doubt."""
    async with stage(sim=sim(latency_s=0.02)) as st:
        working = asyncio.create_task(work(st.run, cap))
        await st.sim.arrived(100)
        working.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await working
        tally = caught.value.tally  # type: ignore[attr-defined]
        balance = st.run.balance
        prove(st, cap)
        assert tally.posted_nanos == balance.posted_nanos
        assert tally.in_doubt_nanos == balance.in_doubt_nanos > 0
        assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("work", "cap"), WORKS)
async def test_cancelling_the_run_in_the_middle_keeps_what_is_done(
    work: Work, cap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is there with every part; nothing new was sent, and the run is stopped."""
    async with stage(sim=sim(latency_s=0.02)) as st:
        working = asyncio.create_task(work(st.run, cap))
        await st.sim.arrived(100)
        st.run.cancel()
        arrived = st.sim.stats.arrived
        done = await asyncio.wait_for(working, 20)
        assert len(done.parts) >= COUNT // 4
        assert {"ok", "cancelled"} <= set(done.outcomes)
        assert st.sim.stats.arrived <= arrived + 24
        with pytest.raises(RunStopped):
            st.run.check()
        prove(st, cap)
        assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("width", [1, 2])
async def test_five_deep_with_one_slot_finishes(width: int) -> None:
    """Fan-outs in a fan-out in a refinement in a pipeline: nobody waits with a slot in hand for those below."""
    async with stage(gate=Gate(width=width)) as st:
        run, agent = st.run, worker(timeout_s=None)

        async def lowest(number: int) -> Any:
            return await fan_out(run, agent, [asked(0)] * 2, name="fifth")

        async def middle(number: int) -> Any:
            await agent.run(run, asked(0))
            return await fan_out(run, lowest, range(2), name="fourth")

        async def write(prompt: str) -> Any:
            return await fan_out(run, middle, range(2), name="third")

        drafts: list[Any] = []

        async def mended(item: str) -> Any:
            judged: Any = iter(["Once more.", True])

            def judge(draft: Any) -> Any:
                drafts.append(draft)
                return next(judged)

            return await refine(run, write, judge, item, rounds=2, name="second")

        stages = [mended, agent]
        done = await asyncio.wait_for(pipeline(run, stages, ["One", "Two"], name="first"), 60)
        assert (done.outcome, [part.ok for part in done.parts]) == (Outcome.OK, [True, True])
        assert len(drafts) == 4
        assert done.calls == 4 * (2 + 2 * 2 * 2) + 2
        assert st.sim.stats.peak <= width
        st.prove_exact()
