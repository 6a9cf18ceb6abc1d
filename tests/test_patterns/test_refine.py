"""Refine: until accepted, at most so many rounds, at most a cap; the best draft is never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns import Verdict, refine
from tests.test_orchestrator.running import helper, stage


class Drafts:
    """A writer whose drafts are numbered; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        return f"draft {len(self.asked)} " + "x" * 1_000


def _verdict(score: float, *, accepted: bool = False) -> Verdict:
    return Verdict.model_validate(
        {
            "accepted": accepted,
            "score": score,
            "criteria": [
                {"name": "dates", "met": accepted, "evidence": "line 1", "advice": "add dates"}
            ],
        }
    )


async def _refined(says: list[Any], rounds: int = 3) -> tuple[Any, Drafts]:
    writer, said = Drafts(), iter(says)
    async with stage() as st:
        return await refine(st.run, writer, lambda _: next(said), "A memo", rounds=rounds), writer


async def test_it_ends_when_the_critic_accepts() -> None:
    """The accepted draft is the value."""
    done, writer = await _refined([_verdict(0.2), _verdict(0.9, accepted=True)])
    assert (done.outcome, done.accepted, done.rounds) == (Outcome.OK, True, 2)
    assert done.value.startswith("draft 2")
    assert "add dates" in writer.asked[1]
    assert writer.asked[0] == "A memo"


async def test_the_best_draft_is_returned_when_the_rounds_are_over() -> None:
    """Not the last one; and it is marked as not accepted."""
    done, _ = await _refined([_verdict(0.2), _verdict(0.7), _verdict(0.4)])
    assert (done.outcome, done.accepted) == (Outcome.INVALID, False)
    assert done.value.startswith("draft 2")
    assert done.verdict is not None
    assert done.verdict.score == 0.7
    assert "after 3 rounds" in done.reason


async def test_rounds_do_not_grow() -> None:
    """Each carries the task, one draft and one list of complaints, however many came before."""
    done, writer = await _refined([_verdict(n / 10) for n in range(8)], rounds=8)
    lengths = [len(prompt) for prompt in writer.asked[1:]]
    assert max(lengths) - min(lengths) < 10
    assert all(
        prompt.count("draft ") == 1
        for prompt in (p.replace("last draft", "") for p in writer.asked[1:])
    )
    assert done.rounds == 8


@pytest.mark.parametrize(
    ("said", "accepted"),
    [(True, True), (None, True), (False, False), ("no dates", False), ({"accepted": True}, True)],
)
async def test_a_plain_function_can_be_the_critic(said: Any, accepted: bool) -> None:
    """True, None, False, a sentence, or a verdict."""
    done, writer = await _refined([said, said], rounds=2)
    assert done.accepted is accepted
    if said == "no dates":
        assert "no dates" in writer.asked[1]


async def test_a_critic_that_says_nothing_usable_is_a_mistake_in_the_result() -> None:
    """The draft is kept."""
    done, _ = await _refined([42])
    assert done.outcome is Outcome.BAD_REQUEST
    assert done.value.startswith("draft 1")
    assert "accepted" in done.reason


async def test_agents_write_and_judge_and_the_verdict_is_structured() -> None:
    """An agent without an output of its own is given the schema of a verdict."""
    async with stage() as st:
        done = await refine(
            st.run, helper(), helper(name="critic", max_tokens=900), "A memo", rounds=2
        )
        assert isinstance(done.verdict, Verdict)
        assert done.value
        assert [part.name for part in done.parts][:2] == ["helper", "critic"]
        assert done.posted_nanos == sum(part.posted_nanos for part in done.parts)
        st.prove_exact()


async def test_when_money_ends_the_best_draft_so_far_is_returned() -> None:
    """Marked as not accepted, with the reason; nothing is overspent."""
    async with stage() as st:
        one_round = helper(max_tokens=1_000)
        done = await refine(
            st.run, one_round, lambda _: "no", "Write [[sim:output=900]]", rounds=50, cap="0.02"
        )
        assert (done.outcome, done.accepted) == (Outcome.BUDGET, False)
        assert 0 < done.rounds < 50
        assert done.value
        assert "the writer" in done.reason
        assert st.sim.bill.nanos <= 20_000_000
        st.prove_exact()


async def test_a_draft_that_fails_is_a_round_and_the_next_may_be_better() -> None:
    """The writer is told; a failed draft is never judged."""
    calls = 0

    async def shaky(_: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise TimeoutError("slow")
        return "good"

    async with stage() as st:
        done = await refine(st.run, shaky, lambda _: True, "A memo")
        assert (done.outcome, done.value, done.rounds) == (Outcome.OK, "good", 1)
        assert [part.outcome.value for part in done.parts] == ["timeout", "ok", "ok"]


async def test_a_plan_counts_all_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Two calls each, at most."""
    async with stage() as st:
        done = await refine(
            st.run, helper(), helper(name="critic"), "A memo", rounds=4, plan_only=True
        )
        assert done.plan is not None
        assert done.plan.root.calls == 8
        assert "critic x4" in capsys.readouterr().out
        assert st.sim.bill.nanos == 0


async def test_no_rounds_are_a_mistake() -> None:
    """It is said at once."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="rounds"):
            await refine(st.run, helper(), lambda _: True, "x", rounds=0)


async def test_each_node_has_a_cap_of_its_own() -> None:
    """A second loop of the same name doesn't draw on the first one's cap, nor one without a cap on any."""
    async with stage() as st:
        ends = []
        for cap in ("0.0008", None, "0.0008", None):
            done = await refine(st.run, helper(), lambda _: False, "x", rounds=4, cap=cap)
            ends.append(done.outcome.value)
        assert ends == ["invalid"] * 4
        found = {line.scope.split("/")[2] for line in st.run.ledger.lines()}
        assert found == {"refine", "refine-2", "refine-3"}
        st.prove_exact()


async def test_cancelling_the_run_ends_the_loop_with_the_best_draft() -> None:
    """The pattern itself goes on to its end: its caller gets a result, not an exception."""

    async def writes_once(_: str) -> str:
        return "a draft"

    async with stage(sim={"faults": Faults([Fault(kind="hang")])}) as st:
        task = asyncio.create_task(refine(st.run, writes_once, helper(name="critic"), "A memo"))
        await st.sim.arrived(1)
        st.run.cancel()
        done = await asyncio.wait_for(task, 10)
        assert (done.outcome, done.accepted, done.value) == (Outcome.CANCELLED, False, "a draft")
        st.prove()
