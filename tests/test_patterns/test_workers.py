"""Workers in every pattern: wherever an agent does a task, a program can do it, under the same caps and outcomes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.simulator import Cue
from orchestrator.workers import ShellWorker
from patterns import board, fan_out, handoff, hierarchy, orchestrate, pipeline, refine, route, vote
from patterns.findings import Board
from patterns.hierarchy import Team
from tests.test_orchestrator.running import helper, stage
from tests.test_orchestrator.working import alive, worker
from tests.test_patterns.leading import planned, task

pytest.importorskip("claude_agent_sdk")


def says(folder: Path, name: str, way: str = "good", **fields: Any) -> Any:
    """A worker of this name whose program answers ``done``, or its prompt."""
    own = folder / name
    own.mkdir(exist_ok=True)
    return worker(own, way, name=name, **fields)


async def test_fan_out(tmp_path: Path) -> None:
    """One program for each item; one that fails is a part with its reason."""
    async with stage(folder=tmp_path / "ledger") as at:
        good = await fan_out(at.run, says(tmp_path, "reader"), ["one", "two"], width=2)
        bad = await fan_out(at.run, says(tmp_path, "gone", "gone"), ["one"])

    assert [part.value for part in good.parts] == ["done", "done"]
    assert good.outcome is Outcome.OK
    assert (bad.parts[0].outcome, "out of cheese" in bad.parts[0].reason) == (Outcome.INFRA, True)
    assert alive(tmp_path / "reader") == []


async def test_a_plan_with_workers(tmp_path: Path) -> None:
    """A plan counts a worker by its cap, which is all that bounds it."""
    async with stage() as at:
        done = await fan_out(
            at.run, says(tmp_path, "reader", cap="0.50"), ["one", "two"], plan_only=True
        )

    assert done.plan is not None
    assert done.plan.root.worst_nanos == 500_000_000  # the cap is for all of its tasks together


async def test_pipeline_and_vote_and_route(tmp_path: Path) -> None:
    """Stages, voters and specialists may be programs."""
    async with stage(folder=tmp_path / "ledger") as at:
        line = await pipeline(
            at.run, [says(tmp_path, "first", "prompt"), says(tmp_path, "last")], ["begin"]
        )
        voted = await vote(at.run, [says(tmp_path, "a"), says(tmp_path, "b")], "Are you done?")
        routed = await route(at.run, lambda _: "doer", {"doer": says(tmp_path, "doer")}, "Please")

    assert [part.value for part in line.parts] == ["done"]
    assert (voted.outcome, voted.value) == (Outcome.OK, "done")
    assert (routed.outcome, routed.value) == (Outcome.OK, "done")


async def test_refine(tmp_path: Path) -> None:
    """The writer may be a program."""
    async with stage(folder=tmp_path / "ledger") as at:
        done = await refine(
            at.run, says(tmp_path, "writer"), lambda draft: draft == "done", "Write."
        )

    assert (done.outcome, done.value) == (Outcome.OK, "done")


async def test_orchestrate_and_hierarchy(tmp_path: Path) -> None:
    """A lead gives tasks to programs; a director gives them to team leads that are sessions of their own."""
    plans = [
        Cue(match="You lead this work. Divide", say=planned(task("Do it", worker="doer")), times=2)
    ]
    lead = helper(name="lead", max_tokens=400)
    async with stage(sim={"cues": plans}, folder=tmp_path / "ledger") as at:
        flat = await orchestrate(at.run, lead, {"doer": says(tmp_path, "doer")}, "All of it.")
        deep = await hierarchy(at.run, Team("all", lead, [says(tmp_path, "doer")]), "All of it.")
        at.prove_exact()

    for done in (flat, deep):
        assert done.outcome is Outcome.OK
        assert [(part.name, part.value) for part in done.parts] == [("doer", "done")]


async def test_board_and_handoff(tmp_path: Path) -> None:
    """Patterns that give their agents tools give them to programs as well."""
    async with stage(folder=tmp_path / "ledger") as at:
        shared = Board(at.run)
        sat = await board(at.run, [says(tmp_path, "a"), says(tmp_path, "b")], "Look.", on=shared)
        handed = await handoff(at.run, [says(tmp_path, "c"), says(tmp_path, "d")], "Do it.")

    assert [part.outcome for part in sat.parts] == [Outcome.OK, Outcome.OK]
    assert (handed.outcome, handed.value) == (Outcome.OK, "done")


def plain(folder: Path, name: str, *command: str) -> ShellWorker:
    """A program that is given no tools."""
    own = folder / name
    own.mkdir(exist_ok=True)
    return ShellWorker(name=name, command=command, cwd=own)


async def test_programs_without_tools_sit_around_a_board(tmp_path: Path) -> None:
    """They read the findings in their task, and what they answer is their finding; the same again is nothing new."""
    count = "import sys; print('findings:', sys.stdin.read().count('The cellar is wet'))"
    agents = [plain(tmp_path, "counter", sys.executable, "-c", count)]
    async with stage(folder=tmp_path / "ledger") as at:
        shared = Board(at.run)
        shared.post("cellar", "The cellar is wet", author="somebody")
        sat = await board(at.run, agents, "Look.", on=shared, rounds=5)

    assert (sat.outcome, sat.rounds) == (Outcome.OK, 2)
    assert [(one.author, one.text) for one in sat.findings] == [
        ("somebody", "The cellar is wet"),
        ("counter", "findings: 1"),
    ]


async def test_a_program_is_handed_over_to(tmp_path: Path) -> None:
    """It is told the brief, and what it answers is the end."""
    give = f"[[sim:tool=hand_over {json.dumps({'to': 'printer', 'brief': 'Print two copies'})}]]"
    agents = [helper(name="desk"), plain(tmp_path, "printer", "cat")]
    cue = Cue(match="Print it", say=give, times=1)
    async with stage(sim={"cues": [cue]}, folder=tmp_path / "ledger") as at:
        handed = await handoff(at.run, agents, "Print it")
        at.prove()

    assert (handed.outcome, handed.chain) == (Outcome.OK, ("desk", "printer"))
    assert "Print two copies" in handed.value


@pytest.mark.parametrize("pattern", [board, handoff])
def test_whoever_works_like_an_agent_is_typed_as_one(pattern: Any, tmp_path: Path) -> None:
    """What runs is what type checkers take: both patterns are declared for performers, and workers are such."""
    assert get_type_hints(pattern)["agents"] == Sequence[Performer]
    assert isinstance(says(tmp_path, "a"), Performer)
    assert isinstance(plain(tmp_path, "b", "true"), Performer)


@pytest.mark.parametrize("pattern", [board, handoff])
async def test_what_is_no_agent_is_the_callers_mistake(pattern: Any, tmp_path: Path) -> None:
    """A function can't be given control; it is said before anything is spent."""
    async with stage(folder=tmp_path / "ledger") as at:
        with pytest.raises(ConfigError, match="can't work"):
            await pattern(at.run, [len], "Do it")
