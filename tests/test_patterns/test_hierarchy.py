"""Hierarchy: teams of teams, with caps that nest, results that flow up, and one slot that is enough."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Cue, Faults
from patterns.hierarchy import DEPTH_MOST, Team, hierarchy
from tests.test_orchestrator.running import helper, stage
from tests.test_patterns.leading import FIRST, planned, task


def lead(name: str) -> Any:
    """A lead whose prompts can be told from others' by its system prompt."""
    return helper(name=name, system=f"You are {name}.", max_tokens=400)


def chain(depth: int, *, width: int = 1) -> Team:
    """Teams below one another, with workers in the lowest."""
    members: list[Any] = [helper(name=f"worker-{number}") for number in range(width)]
    for level in range(depth, 0, -1):
        members = [Team(f"team-{level}", lead(f"lead-{level}"), members)]
    return members[0]  # type: ignore[no-any-return]


def gives(who: str, *tasks: Any, times: int = 1) -> Cue:
    """A cue: the plan of this lead."""
    return Cue(match=f"You are {who}.", say=planned(*tasks), times=times)


def house() -> Team:
    heating = Team("heating", lead("heater"), [helper(name="plumber"), helper(name="chemist")])
    return Team("house", lead("director"), [heating, helper(name="surveyor")])


def house_script() -> dict[str, Any]:
    first = (
        Cue(
            match="You are director.",
            say=planned(
                task("Look at the heating", worker="heating"), task("Measure it", worker="surveyor")
            ),
        ),
        Cue(
            match="You are heater.",
            say=planned(
                task("Look at the pipes", worker="plumber"),
                task("Look at the water", worker="chemist"),
            ),
        ),
    )
    return {"cues": first, "keep_calls": 100}


async def test_results_flow_up_through_every_lead() -> None:
    """Each team is planned by its own lead, reported by it, and is a part of the team above."""
    async with stage(sim=house_script()) as st:
        done = await hierarchy(st.run, house(), "What does this house need?")
        assert (done.ok, done.partial, done.calls) == (True, False, 7)
        assert list(done.teams) == ["house", "house/heating"]
        assert [part.name for part in done.parts] == ["heating", "surveyor"]
        below = done.teams["house/heating"]
        assert [part.name for part in below.parts] == ["plumber", "chemist"]
        assert done.parts[0].posted_nanos == below.posted_nanos
        assert done.posted_nanos == st.run.balance.posted_nanos
        bodies = [call.body.decode() for call in st.sim.world.calls]
        assert below.value in bodies[-1].replace("\\n", "\n")
        plans = [body for body in bodies if FIRST in body]
        assert all("plumber" not in body for body in plans if "You are director." in body)
        st.prove_exact()


@pytest.mark.parametrize("width", [1, 3])
async def test_depth_five_with_one_slot_finishes(width: int) -> None:
    """A slot is held for one HTTP call, never while a lead waits for those below it."""
    leads = tuple(gives(f"lead-{level}", f"Go down to {level}") for level in range(1, 5))
    lowest = gives("lead-5", *(task(f"Do {n}", worker=f"worker-{n}") for n in range(width)))
    if width == 1:
        lowest = gives("lead-5", "Do it")
    sim = {"cues": (*leads, lowest)}
    async with stage(sim=sim, gate=Gate(width=1)) as st:
        done = await asyncio.wait_for(hierarchy(st.run, chain(5, width=width), "Dig."), 30)
        assert (done.ok, len(done.teams)) == (True, 5)
        assert done.calls == 5 * 2 + width
        assert st.sim.world.stats.peak == 1
        st.prove_exact()


async def test_a_teams_cap_holds_for_all_below_it() -> None:
    """Whatever the workers and leads below may spend, the team's cap is not passed, nor those around it."""
    sim = {"cues": (gives("lead-1", "Go"), gives("lead-2", "Do"))}
    small = Team("team-2", lead("lead-2"), [helper(name="worker", max_tokens=20_000)], cap="0.005")
    async with stage(sim=sim) as st:
        done = await hierarchy(
            st.run, Team("team-1", lead("lead-1"), [small]), "Dig.", report_bytes=500
        )
        below = done.teams.get("team-1/team-2")
        assert below is not None
        assert below.posted_nanos <= 5_000_000
        assert (done.outcome, done.partial) == (Outcome.BUDGET, True)
        scopes = [scope for line in st.run.ledger.lines() for scope in (line.scope,) if scope]
        assert any(scope.endswith("team-1/task-1.1/team-2/lead-2") for scope in scopes)
        st.prove_exact()


async def test_a_team_that_can_not_report_is_a_part_with_its_reason() -> None:
    """Its cap does not even carry its own report: nothing is spent there, and the director goes on."""
    heating = Team("heating", lead("heater"), [helper(name="plumber")], cap="0.00001")
    top = Team("house", lead("director"), [heating, helper(name="surveyor")])
    async with stage(sim=house_script()) as st:
        done = await hierarchy(st.run, top, "What does this house need?")
        assert [part.outcome.value for part in done.parts] == ["budget", "ok"]
        assert done.parts[0].posted_nanos == 0
        assert done.value is not None
        st.prove_exact()


async def test_a_plan_shows_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    """The tree has all teams with their prices; nothing is spent."""
    async with stage() as st:
        done = await hierarchy(st.run, chain(3), "Dig.", workers_max=2, plan_only=True, cap="9")
        shown = capsys.readouterr().out
        assert done.plan is not None
        assert done.plan.root.worst_nanos is not None
        assert all(name in shown for name in ("hierarchy", "team-2 x2", "team-3 x2", "worker-0 x2"))
        assert st.sim.bill.requests == 0


async def test_cancelling_reaches_the_lowest_level() -> None:
    """Everything below is cancelled, settled or in doubt, and no reserve is left."""
    cues = (
        gives("lead-1", "Go"),
        gives("lead-2", "Do"),
        Cue(match="Objective: Do", say="[[sim:fault=hang]]"),
    )
    async with stage(sim={"cues": cues}) as st:
        work = asyncio.create_task(hierarchy(st.run, chain(2), "Dig."))
        await st.sim.arrived(3)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert st.run.balance.in_doubt_nanos > 0
        st.prove()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Team("x", lead("l"), []), "no members"),
        (lambda: Team("x", "nobody", [helper()]), "give an Agent"),  # type: ignore[arg-type]
        (lambda: Team("x", lead("l"), [helper(), helper()]), "two members"),
        (lambda: Team("x", lead("l"), [3]), "can't work"),  # type: ignore[list-item]
    ],
    ids=["empty", "lead", "twice", "member"],
)
def test_a_team_that_can_not_be_is_refused(make: Any, why: str) -> None:
    """With one sentence that names it."""
    with pytest.raises(ConfigError, match=why):
        make()


async def test_too_deep_is_refused() -> None:
    """Before anything is spent."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="levels"):
            await hierarchy(st.run, chain(DEPTH_MOST + 1), "Dig.")
        done = await hierarchy(st.run, chain(DEPTH_MOST), "Dig.")
        assert len(done.teams) == DEPTH_MOST


@pytest.mark.slow
async def test_overshoot_is_zero_with_500_workers_in_ten_teams_and_failures() -> None:
    """By the server's own bill, under one cap, with faults at every level."""
    teams = [
        Team(f"team-{n}", lead(f"lead-{n}"), [helper(name="worker", max_tokens=300)])
        for n in range(10)
    ]
    plan = [task(f"Team {n}", worker=f"team-{n}") for n in range(10)]
    work = [task(f"Do {n}", title="t", output_format="", boundaries="") for n in range(50)]
    cues = (
        Cue(match="You are director.", say=planned(*plan)),
        *(gives(f"lead-{n}", *work) for n in range(10)),
    )
    faults = Faults([], seed=3, rates={"overloaded": 0.05, "reset": 0.02})
    big = [
        Team(one.name, _talkative(one.lead), one.members, cap="0.2") for one in teams
    ]  # fmt: skip
    async with stage(sim={"cues": cues, "faults": faults}, cap="2") as st:
        top = Team("house", _talkative(lead("director")), big)
        done = await hierarchy(st.run, top, "Dig.", workers_max=50, report_bytes=5_000, cap="0.9")
        parts = [part for result in done.teams.values() for part in result.parts]
        assert len(parts) > 100
        assert sum(part.ok for part in parts) > 0
        st.prove()
        assert done.posted_nanos + done.in_doubt_nanos <= 900_000_000
        assert st.sim.bill.nanos <= 900_000_000


def _talkative(agent: Any) -> Any:
    return replace(agent, max_tokens=8_000)
