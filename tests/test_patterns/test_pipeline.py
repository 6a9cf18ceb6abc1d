"""Pipeline: stages feed each other, gates pass, stop or send back once, inputs don't wait for each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns import Halt, SourceFailed, Stage, pipeline
from tests.test_orchestrator.running import helper, stage


async def _up(value: Any) -> Any:
    await asyncio.sleep(0)
    return f"{value}>"


async def test_each_stage_gets_what_the_one_before_made() -> None:
    """In order, for every input."""
    async with stage() as st:
        done = await pipeline(st.run, [_up, Stage(_up, name="second"), _up], ["a", "b"])
        assert done.values == ["a>>>", "b>>>"]
        assert [step.value for step in done.parts[0].steps] == ["a>", "a>>", "a>>>"]
        assert [step.name for step in done.parts[0].steps] == ["_up", "second", "_up"]
        assert (done.value, done.outcome) == (done.values, Outcome.OK)


async def test_agents_as_stages_cost_what_the_server_billed() -> None:
    """A passage's figures are those of its stages."""
    async with stage() as st:
        first, second = helper(name="outline"), helper(name="draft")
        done = await pipeline(st.run, [first, Stage(second, prompt=lambda v: f"Go on: {v}")], ["x"])
        part = done.parts[0]
        assert part.posted_nanos == sum(step.posted_nanos for step in part.steps)
        assert done.posted_nanos == st.run.balance.posted_nanos > 0
        st.prove_exact()


async def test_stage_two_of_one_input_runs_beside_stage_one_of_another() -> None:
    """The first input is at its second stage while the second input is at its first."""
    both = asyncio.Barrier(2)

    async def first(item: int) -> int:
        if item == 1:
            await both.wait()
        return item

    async def second(item: int) -> int:
        if item == 0:
            await both.wait()
        return item

    async with stage() as st:
        done = await asyncio.wait_for(pipeline(st.run, [first, second], [0, 1], width=2), 10)
        assert done.values == [0, 1]


@pytest.mark.parametrize(
    ("answers", "calls", "outcome", "word"),
    [
        pytest.param([True], 1, Outcome.OK, "", id="passes"),
        pytest.param([None], 1, Outcome.OK, "", id="None passes"),
        pytest.param([False], 1, Outcome.INVALID, "said no", id="stops"),
        pytest.param([Halt("too odd")], 1, Outcome.INVALID, "too odd", id="stops with a reason"),
        pytest.param(["too short", True], 2, Outcome.OK, "", id="sends back once"),
        pytest.param(["too short", "still"], 2, Outcome.INVALID, "still", id="but not twice"),
    ],
)
async def test_a_gate_passes_stops_or_sends_back_once(
    answers: list[Any], calls: int, outcome: Outcome, word: str
) -> None:
    """The next stage sees only what passed."""
    said = iter(answers)
    seen: list[Any] = []

    async def work(item: Any) -> Any:
        seen.append(item)
        return "made"

    async with stage() as st:
        line = [Stage(work, gate=lambda _: next(said), name="draft"), _up]
        part = (await pipeline(st.run, line, ["task"])).parts[0]
        assert (len(seen), part.outcome) == (calls, outcome)
        assert word in part.reason
        assert len(part.steps) == calls + (outcome is Outcome.OK)
        assert ("after draft" in part.reason) is (outcome is not Outcome.OK)


async def test_a_stage_that_is_sent_back_is_told_why_and_not_given_its_answer() -> None:
    """An agent's second prompt is its first with the reason; it doesn't hold the answer that was wrong."""
    said = iter(["name the year", True])
    async with stage() as st:
        line = [Stage(helper(), gate=lambda _: next(said))]
        done = await pipeline(st.run, line, ["Write [[sim:text=WRONG ANSWER]]"])
        steps = done.parts[0].steps
        again = steps[1].answer.messages[0]["content"]  # type: ignore[union-attr]
        assert "name the year" in str(again)
        assert str(again).count("WRONG ANSWER") == 1  # the directive that asked for it


async def test_a_failed_input_is_a_part_and_the_others_go_on() -> None:
    """Its reason names the stage; a gate that raises stops its input alone."""

    def gate(value: Any) -> bool:
        if value == "b>":
            raise ZeroDivisionError("odd")
        return True

    async def fails_on_c(value: Any) -> Any:
        if value == "c>":
            raise KeyError("c")
        return value

    async with stage() as st:
        done = await pipeline(st.run, [Stage(_up, gate=gate), fails_on_c], ["a", "b", "c", "d"])
        assert [part.outcome.value for part in done.parts] == ["ok", "invalid", "infra", "ok"]
        assert "ZeroDivisionError" in done.parts[1].reason
        assert done.parts[2].reason.startswith("fails_on_c: ")
        assert done.outcome is not Outcome.OK


async def test_inputs_beyond_the_cap_are_budget_and_nothing_is_overspent() -> None:
    """What fits is done."""
    async with stage() as st:
        line, inputs = [helper(), helper(name="b")], ["x [[sim:output=190]]"] * 40
        done = await pipeline(st.run, line, inputs, cap="0.002", width=2)
        assert {part.outcome for part in done.parts} == {Outcome.OK, Outcome.BUDGET}
        assert done.outcome is Outcome.BUDGET
        assert st.sim.bill.nanos <= 2_000_000
        st.prove_exact()


async def test_cancelling_it_cancels_what_is_under_way() -> None:
    """Nothing goes on behind its back, and the exception carries the figures."""
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def hangs(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with stage() as st:
        task = asyncio.create_task(pipeline(st.run, [helper(), hangs], ["x"]))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert ended.is_set()
        assert caught.value.tally.posted_nanos == st.run.balance.posted_nanos > 0  # type: ignore[attr-defined]
        st.prove_exact()


async def test_a_source_that_fails_keeps_what_is_done() -> None:
    """The passages are in the exception."""

    def source() -> Any:
        yield "a"
        raise OSError("gone")

    async with stage() as st:
        with pytest.raises(SourceFailed) as caught:
            await pipeline(st.run, [_up], source())
        assert [part.value for part in caught.value.parts] == ["a>"]


async def test_a_plan_adds_up_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """For all inputs, without spending."""
    async with stage() as st:
        done = await pipeline(st.run, [helper(), helper(name="b")], ["x"] * 3, plan_only=True)
        assert done.plan is not None
        assert [step.times for step in done.plan.root.children] == [3, 3]
        assert st.sim.bill.nanos == 0
        assert "helper x3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stages", "inputs", "word"),
    [([], ["x"], "stages"), ([_up], "text", "single str"), ([_up], 3, "int")],
)
async def test_mistakes_are_said_at_once(stages: Any, inputs: Any, word: str) -> None:
    """One sentence."""
    async with stage() as st:
        with pytest.raises(ConfigError, match=word):
            await pipeline(st.run, stages, inputs)
