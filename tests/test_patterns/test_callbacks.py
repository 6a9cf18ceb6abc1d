"""What users' functions raise: the work ends or goes on as is said, and nothing that is paid for is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.outcomes import Outcome
from patterns import board, fan_out, handoff, orchestrate, pipeline, stream_out, vote
from patterns.stops import Stop
from tests.test_orchestrator.running import helper, stage

from .leading import FIRST, cues, names, planned


class Mine(Exception):
    """What a user's function raises."""


class Fatal(BaseException):
    """What nothing here may take for an outcome."""


def _third(parts: list[Any]) -> bool:
    if len(parts) == 3:
        raise Mine("the third")
    return False


def _raising_at(number: int) -> Callable[[Any], None]:
    seen: list[Any] = []

    def hear(part: Any) -> None:
        seen.append(part)
        if len(seen) == number:
            raise Mine(f"part {number}")

    return hear


def _always(*_: Any) -> Any:
    raise Mine("always")


@pytest.mark.parametrize(
    ("work", "ended"),
    [
        (lambda run: fan_out(run, helper(), ["a"] * 6, width=1, stop_when=_third), 3),
        (lambda run: fan_out(run, helper(), ["a"] * 6, width=1, on_part=_raising_at(2)), 2),
        (lambda run: pipeline(run, [helper()], ["a"] * 6, width=1, on_part=_raising_at(2)), 2),
        (lambda run: board(run, [helper()], "Why?", done=_always), 1),
        (lambda run: board(run, [helper()], "Why?", on_part=_always), 1),
        (lambda run: handoff(run, [helper()], "Mine", on_part=_always), 1),
    ],
    ids=["stop_when", "on_part", "pipeline", "done", "board", "handoff"],
)
async def test_what_ends_a_pattern_carries_the_parts_so_far(work: Any, ended: int) -> None:
    """The parts that had ended, in order, and what was spent, are on the exception."""
    async with stage() as st:
        with pytest.raises(Mine) as caught:
            await work(st.run)
        parts, tally = caught.value.parts, caught.value.tally  # type: ignore[attr-defined]
        assert [part.index for part in parts] == list(range(ended))
        assert all(part.ok for part in parts)
        assert sum(part.posted_nanos for part in parts) == tally.posted_nanos
        st.prove_exact()


async def test_the_outermost_pattern_has_its_own_parts() -> None:
    """What leaves two patterns carries the parts of the outer one."""
    async with stage() as st:

        async def inner(_: str) -> Any:
            raise Fatal

        async def outer(item: str) -> Any:
            return item if item == "a" else await fan_out(st.run, inner, ["x"], width=1)

        with pytest.raises(Fatal) as caught:
            await fan_out(st.run, outer, ["a", "b"], width=1)
        assert [part.item for part in caught.value.parts] == ["a"]  # type: ignore[attr-defined]


async def test_a_stream_hands_out_what_is_there_before_it_raises() -> None:
    """Also the part at which ``stop_when`` raised is handed out."""
    async with stage() as st:
        got = []

        async def read() -> None:
            stream = stream_out(st.run, helper(), ["a"] * 6, width=1, stop=Stop(when=_third))
            async with contextlib.aclosing(stream) as parts:
                async for part in parts:
                    got.append(part.index)

        with pytest.raises(Mine):
            await read()
        assert got == [0, 1, 2]
        st.prove_exact()


async def test_a_voter_whose_answer_can_not_be_compared_has_no_vote() -> None:
    """Its part says so and is paid for; the others decide."""
    said = iter(["odd", "Yes", "yes"])

    async def voter(_: str) -> str:
        return next(said)

    def key(answer: str) -> str:
        if answer == "odd":
            raise Mine("what is that")
        return answer.casefold()

    async with stage() as st:
        done = await vote(st.run, voter, "Well?", n=3, width=1, key=key)
        assert (done.outcome, done.value, done.counts) == (Outcome.OK, "Yes", {"yes": 2})
        assert done.outcomes == {"invalid": 1, "ok": 2}
        assert "Mine: what is that" in done.parts[0].reason


@pytest.mark.parametrize("key", [_always, lambda _: "\ud800", lambda _: {1: object}])
async def test_a_key_that_is_useless_is_an_outcome(key: Any) -> None:
    """Whatever it raises or returns: the votes are paid for, and the result is there."""
    async with stage() as st:
        done = await vote(st.run, helper(), "Well?", n=3, key=key)
        assert done.posted_nanos == st.run.balance.posted_nanos > 0
        assert len(done.parts) >= 2
        st.prove_exact()


async def test_a_lead_that_ends_early_leaves_its_parts() -> None:
    """An orchestration that its ``on_part`` ends has the tasks that were done."""
    async with stage(sim={"cues": cues((FIRST, planned(*names(2))))}) as st:
        lead = helper(name="lead", max_tokens=1_000)
        with pytest.raises(Mine) as caught:
            await orchestrate(st.run, lead, helper(), "Work", on_part=_always)
        parts = caught.value.parts  # type: ignore[attr-defined]
        assert len(parts) == 1
        assert parts[0].ok
