"""Vote: asked no oftener than it takes, decided by a rule or a judge, failed voters have no vote."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns import vote
from tests.test_orchestrator.running import MODEL, helper, stage


def _voters(*answers: str) -> list[Any]:
    """Agents that answer so, in this order."""
    return [helper(name=f"v{n}", system=f"[[sim:text={word}]]") for n, word in enumerate(answers)]


def _say(word: str) -> str:
    return f"Which? [[sim:text={word}]]"


async def test_a_majority_asks_no_more_than_it_takes() -> None:
    """Three of five that say the same decide it; the other two are never asked, and cost nothing."""
    async with stage() as st:
        done = await vote(st.run, helper(), _say("yes"), n=5)
        assert (done.outcome, done.value, done.counts) == (Outcome.OK, "yes", {"yes": 3})
        assert (len(done.parts), done.calls, done.agreement) == (3, 3, 1.0)
        assert done.posted_nanos == st.run.balance.posted_nanos
        st.prove_exact()


async def _answers(*words: str) -> Any:
    """Voters as functions that answer so."""

    def voter(word: str) -> Any:
        async def ask(_: Any) -> str:
            return word

        return ask

    async with stage() as st:
        return await vote(st.run, [voter(word) for word in words], "?")


@pytest.mark.parametrize(
    ("words", "value", "asked"),
    [
        pytest.param("aab", "a", 2, id="decided early"),
        pytest.param("aba", "a", 3, id="decided by the last"),
        pytest.param("abc", None, 3, id="undecided"),
        pytest.param("abba", None, 4, id="a tie is no majority"),
        pytest.param("abcd", None, 3, id="over once no majority can come about"),
    ],
)
async def test_a_majority_is_more_than_half_of_all_voters(
    words: str, value: str | None, asked: int
) -> None:
    """Not merely the most frequent answer; what can't be decided any more ends at once."""
    done = await _answers(*words)
    assert (done.value, len(done.parts)) == (value, asked)
    assert done.outcome is (Outcome.OK if value else Outcome.INVALID)
    assert ("no majority" in done.reason) is (value is None)


async def test_text_is_compared_without_case_and_space() -> None:
    """The first answer of the winning kind is the value, as it was said."""
    done = await _answers(" Yes", "yes ")
    assert (done.value, done.counts) == (" Yes", {"yes": 2})


async def test_unanimous_ends_at_the_first_dissent() -> None:
    """One at a time, the third voter need not be asked."""

    async def yes(_: Any) -> str:
        return "yes"

    async def no(_: Any) -> str:
        return "no"

    async with stage() as st:
        done = await vote(st.run, [yes, no, yes], "?", rule="unanimous", width=1)
        assert (done.outcome, len(done.parts)) == (Outcome.INVALID, 2)
        done = await vote(st.run, [yes, yes, yes], "?", rule="unanimous", name="again")
        assert (done.outcome, done.value) == (Outcome.OK, "yes")


async def test_a_failed_voter_has_no_vote_and_is_a_part() -> None:
    """The others decide."""

    async def broken(_: Any) -> str:
        raise KeyError("nothing")

    async def yes(_: Any) -> str:
        return "yes"

    async with stage() as st:
        done = await vote(st.run, [broken, yes, yes], "?")
        assert (done.outcome, done.value, done.outcomes) == (
            Outcome.OK,
            "yes",
            {"infra": 1, "ok": 2},
        )
        nobody = await vote(st.run, [broken] * 2, "?", name="again")
        assert (nobody.outcome, nobody.value) == (Outcome.INFRA, None)


async def test_a_judge_reads_all_answers_and_decides() -> None:
    """An agent as judge is given every answer; its cost is in the result's."""
    async with stage() as st:
        judge = helper(name="judge", system="[[sim:text=the second]]")
        done = await vote(st.run, helper(), _say("maybe"), n=2, judge=judge)
        assert done.verdict is not None
        assert done.outcome is Outcome.OK
        assert [part.name for part in done.parts] == ["helper", "helper"]
        assert done.posted_nanos == done.verdict.posted_nanos + sum(
            part.posted_nanos for part in done.parts
        )
        st.prove_exact()


def _longest(parts: Any) -> str:
    return str(max((part.value for part in parts), key=len))


async def _longest_awaited(parts: Any) -> str:
    return _longest(parts)


@pytest.mark.parametrize("longest", [_longest, _longest_awaited], ids=["plain", "async"])
async def test_a_function_can_be_the_judge(longest: Any) -> None:
    """It is given the parts; async or not."""

    async def yes(word: str) -> str:
        return word

    async with stage() as st:
        done = await vote(st.run, yes, "some answer", n=2, judge=longest)
        assert done.value == "some answer"


async def test_the_same_question_to_several_models() -> None:
    """Each model is asked once."""
    async with stage() as st:
        models = [MODEL, "claude-sonnet-5-5", "claude-opus-5-5"]
        done = await vote(st.run, helper(), _say("no"), models=models, rule="unanimous")
        assert done.value == "no"
        used = {line.model for line in st.run.ledger.lines() if line.kind == "settle"}
        assert used == set(models)


async def test_a_cap_of_its_own_holds() -> None:
    """Voters beyond it are declined; the parts say so."""
    async with stage() as st:
        done = await vote(st.run, helper(), _say("yes"), n=5, cap="0.0000001")
        assert done.outcome is Outcome.BUDGET
        assert st.run.balance.posted_nanos == 0
        assert "vote" in done.reason


async def test_a_plan_spends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the tree with its prices."""
    async with stage() as st:
        done = await vote(
            st.run, helper(), "Which?", n=3, judge=helper(name="judge"), plan_only=True
        )
        assert done.plan is not None
        assert done.plan.fits
        assert done.plan.worst is not None
        assert st.sim.bill.nanos == 0
        assert "judge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"voters": [], "n": None}, "no voters"),
        ({"voters": [helper()], "n": 3}, "one voter"),
        ({"voters": helper(), "n": 0}, "n is 0"),
        ({"voters": helper(), "rule": "most"}, "majority"),
        ({"voters": helper(), "n": 2, "models": [MODEL]}, "models"),
    ],
)
async def test_mistakes_are_said_before_anything_is_sent(fields: dict[str, Any], word: str) -> None:
    """One sentence."""
    async with stage() as st:
        with pytest.raises(ConfigError, match=word):
            await vote(st.run, question="?", **fields)
