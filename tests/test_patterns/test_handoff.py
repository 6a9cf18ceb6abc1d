"""Handoff: control passes by a tool with a written brief, going in circles is seen, and who had it is known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Cue, Fault, Faults
from patterns.handoff import handoff
from patterns.ring import BRIEF_CHARS
from tests.test_orchestrator.running import helper, stage


def agent(name: str, **fields: Any) -> Any:
    return helper(**{"name": name, "system": f"You are {name}.", **fields})


def three() -> list[Any]:
    return [agent("reception"), agent("billing"), agent("technician")]


def hands(who: str, to: str, brief: str = "Please go on.", times: int = 1) -> Cue:
    """A cue: this agent hands over."""
    given = json.dumps({"to": to, "brief": brief})
    return Cue(
        match=f"You are {who}.", say=f"[[sim:turns=9]][[sim:tool=hand_over {given}]]", times=times
    )


def says(who: str, text: str) -> Cue:
    return Cue(match=f"You are {who}.", say=f"[[sim:text={text}]]", times=0)


def bodies(st: Any) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in st.sim.world.calls]


async def test_control_passes_with_a_brief_until_somebody_answers() -> None:
    """The next one gets task and brief, not the conversation; its answer is the value."""
    cues = (hands("reception", "billing", "Invoice 7 is wrong."), says("billing", "Corrected."))
    async with stage(sim={"cues": cues, "keep_calls": 10}) as st:
        done = await handoff(st.run, three(), "My invoice is wrong.")
        assert (done.outcome, done.value) == (Outcome.OK, "Corrected.")
        assert done.chain == ("reception", "billing")
        assert [part.ok for part in done.parts] == [True, True]
        assert (done.controls[1].given_by, done.controls[1].brief) == (
            "reception",
            "Invoice 7 is wrong.",
        )
        assert done.controls[0].posted_nanos + done.controls[1].posted_nanos == done.posted_nanos
        first, second = bodies(st)
        prompt = second["messages"][0]["content"]
        assert len(second["messages"]) == 1
        assert "My invoice is wrong." in prompt
        assert "Invoice 7 is wrong." in prompt
        offered = first["tools"][-1]["input_schema"]["properties"]["to"]["enum"]
        assert offered == ["billing", "technician"]
        st.prove_exact()


async def test_all_that_was_said_can_be_carried() -> None:
    """With ``carry="all"`` the next one reads the conversation as well, tools and results included."""

    def look_up(number: int) -> str:
        """Look an invoice up."""
        return f"invoice {number} is 40 EUR"

    cues = (
        Cue(match="You are reception.", say='[[sim:tool=look_up {"number": 7}]]'),
        hands("reception", "billing"),
        says("billing", "Corrected."),
    )
    agents = [agent("reception", tools=[look_up]), agent("billing")]
    async with stage(sim={"cues": cues, "keep_calls": 10}) as st:
        done = await handoff(st.run, agents, "My invoice is wrong.", carry="all")
        assert done.chain == ("reception", "billing")
        told = bodies(st)[-1]["messages"][0]["content"]
        assert "invoice 7 is 40 EUR" in told
        assert 'reception called look_up({"number":7})' in told


@pytest.mark.parametrize(
    ("cues", "chain", "why"),
    [
        (
            (hands("reception", "billing", times=0), hands("billing", "reception", times=0)),
            3,
            "the same brief again",
        ),
        (
            tuple(
                hands(who, to, f"Brief {number}.")
                for number in range(9)
                for who, to in (("reception", "billing"), ("billing", "reception"))
            ),
            5,
            "3 times",
        ),
    ],
    ids=["same brief", "same way"],
)
async def test_going_in_circles_is_stalled_with_the_chain(
    cues: tuple[Cue, ...], chain: int, why: str
) -> None:
    """The same brief the same way again, or the same way too often."""
    async with stage(sim={"cues": cues}) as st:
        done = await handoff(st.run, three(), "My invoice is wrong.")
        assert (done.outcome, done.value) == (Outcome.STALLED, None)
        assert why in done.reason
        assert "reception -> billing -> reception" in done.reason
        assert len(done.controls) == chain
        st.prove_exact()


async def test_control_is_passed_on_so_many_times_at_most() -> None:
    """The last one in control may not pass it on any more."""
    ring = [agent(f"agent-{number}") for number in range(5)]
    cues = tuple(hands(f"agent-{n}", f"agent-{n + 1}") for n in range(4))
    async with stage(sim={"cues": cues}) as st:
        done = await handoff(st.run, ring, "Go on.", handoffs_max=2)
        assert (done.outcome, done.chain) == (Outcome.STALLED, ("agent-0", "agent-1", "agent-2"))
        assert "handoffs_max" in done.reason
        st.prove_exact()


async def test_peers_limit_the_way() -> None:
    """Who is not named may hand over to nobody, and has no tool for it."""
    cues = (hands("reception", "billing"), hands("billing", "technician"))
    async with stage(sim={"cues": cues, "keep_calls": 10}) as st:
        done = await handoff(st.run, three(), "Help.", peers={"reception": ["billing"]})
        assert done.chain == ("reception", "billing")
        first, second = bodies(st)
        assert first["tools"][-1]["input_schema"]["properties"]["to"]["enum"] == ["billing"]
        assert "tools" not in second


@pytest.mark.parametrize(
    "bad",
    [
        hands("reception", "billing", "x" * (BRIEF_CHARS + 1)),
        hands("reception", "billing", " "),
        hands("reception", "nobody"),
        hands("reception", "reception"),
    ],
    ids=["long", "empty", "nobody", "itself"],
)
async def test_a_call_that_can_not_be_is_sent_back(bad: Cue) -> None:
    """The model is told what is wrong, and may mend it."""
    cues = (bad, hands("reception", "billing"), says("billing", "Corrected."))
    async with stage(sim={"cues": cues}) as st:
        big = [agent("reception", max_tokens=20_000), agent("billing")]
        done = await handoff(st.run, big, "Help.")
        assert (done.chain, done.value, done.calls) == (("reception", "billing"), "Corrected.", 3)


async def test_control_is_in_the_journal(tmp_path: Path) -> None:
    """Who had it, from whom, and how long the brief was; never the brief itself."""
    cues = (hands("reception", "technician", "It drips."), says("technician", "Mended."))
    async with stage(sim={"cues": cues}, folder=tmp_path) as st:
        await handoff(st.run, three(), "Water!")
        path = st.run.folder.journal
        assert path is not None
        st.run.journal.flush()
        events = [event for event in read_journal(path) if event["event"] == "control"]
        assert [(event.get("from"), event["to"], event["chars"]) for event in events] == [
            (None, "reception", 0),
            ("reception", "technician", 9),
        ]
        assert "It drips." not in path.read_text()
        tools = [event for event in read_journal(path) if event["event"] == "tool"]
        assert all("failed" not in event for event in tools)


async def test_a_failed_agent_ends_it() -> None:
    """Its outcome is that of the whole; what was passed on before stays."""
    cues = (hands("reception", "billing"), Cue(match="You are billing.", say="[[sim:refuse]]"))
    async with stage(sim={"cues": cues}) as st:
        done = await handoff(st.run, three(), "Help.")
        assert (done.outcome, done.value, len(done.parts)) == (Outcome.REFUSAL, None, 2)


async def test_the_cap_holds_over_all_in_control() -> None:
    """Once it is used up, whoever is in control ends as ``budget``."""
    cues = tuple(hands(f"agent-{n}", f"agent-{n + 1}") for n in range(30))
    ring = [agent(f"agent-{number}") for number in range(31)]
    async with stage(sim={"cues": cues}) as st:
        done = await handoff(st.run, ring, "Go on.", handoffs_max=30, cap="0.002")
        assert done.outcome is Outcome.BUDGET
        assert 1 < len(done.parts) < 31
        assert st.sim.bill.nanos == done.posted_nanos <= 2_000_000
        st.prove_exact()


async def test_cancelling_leaks_nothing() -> None:
    """The call under way is in doubt; whoever was in control is cancelled."""
    sim = {"cues": (hands("reception", "billing"),), "faults": Faults([None, Fault(kind="hang")])}
    async with stage(sim=sim) as st:
        work = asyncio.create_task(handoff(st.run, three(), "Help."))
        await st.sim.arrived(2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert st.run.balance.in_doubt_nanos > 0
        st.prove()


async def test_a_plan_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The dearest agent each time, as often as control can be passed on."""
    async with stage() as st:
        done = await handoff(st.run, three(), "Help.", handoffs_max=3, plan_only=True)
        assert "x4" in capsys.readouterr().out
        assert done.plan is not None
        assert done.plan.root.worst_nanos is not None
        assert st.sim.bill.requests == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"agents": []}, "at least one"),
        ({"agents": [agent("a"), agent("a")]}, "name of its own"),
        ({"start": "nobody"}, "start"),
        ({"peers": {"reception": ["nobody"]}}, "nobody"),
        ({"about": {"nobody": "x"}}, "nobody"),
        ({"handoffs_max": -1}, "handoffs_max"),
    ],
    ids=["none", "twice", "start", "peers", "about", "max"],
)
async def test_a_callers_mistake_is_one_sentence(fields: dict[str, Any], why: str) -> None:
    """It is said before anything is spent."""
    given = {"agents": three(), **fields}
    async with stage() as st:
        with pytest.raises(ConfigError, match=why):
            await handoff(st.run, given.pop("agents"), "Help.", **given)
        assert st.sim.bill.requests == 0


@pytest.mark.slow
async def test_overshoot_is_zero_with_500_at_once_and_failures() -> None:
    """By the server's own bill, under one cap that carries some of them only."""
    faults = Faults([], seed=11, rates={"overloaded": 0.05, "reset": 0.03})
    cues = (hands("reception", "billing", times=300),)
    async with stage(sim={"cues": cues, "faults": faults}, cap="0.02") as st:
        pair = [agent("reception"), agent("billing")]
        many = [handoff(st.run, pair, "Help.", name=f"case-{number}") for number in range(500)]
        done = await asyncio.gather(*many)
        ends = {result.outcome for result in done}
        assert {Outcome.OK, Outcome.BUDGET} <= ends
        st.prove()
        assert st.sim.bill.nanos <= 20_000_000
        assert st.run.balance.posted_nanos + st.run.balance.in_doubt_nanos <= 20_000_000
