"""Workers in every pattern: wherever an agent does a task, a program can do it, under the same caps and outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.outcomes import Outcome
from orchestrator.simulator import Cue
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
