"""Answers that come with success and are wrong: each has its word and one sentence, and its money is written down."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from patterns import fan_out, refine

from .answering import answered, message
from .running import MODEL, helper

HALF = "half a character: \ud800"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "no list of content blocks"),
        (message(content=None), "no list of content blocks"),
        (message(content="Hello"), "no list of content blocks"),
        (message(content={"text": "Hello"}), "no list of content blocks"),
        (message(content=["Hello"]), "block 1 is no block"),
        (message(content=[None]), "block 1 is no block"),
        (message(content=[{"text": "Hello"}]), "block 1 is no block"),
        (message(content=[{"type": "text", "text": None}]), "block 1 (text) has no text"),
        (message(content=[{"type": "text", "text": 5}]), "block 1 (text) has no text"),
        (
            message(content=[{"type": "tool_use", "input": {}}], stop_reason="tool_use"),
            "block 1 (tool_use) has no id",
        ),
    ],
)
async def test_what_is_no_message_is_in_doubt(body: Any, said: str) -> None:
    """One sentence says what is wrong with it; no exception of Python's is shown."""
    async with answered(body) as (run, _):
        result = await helper().run(run, "Hello")
        assert result.outcome is Outcome.IN_DOUBT
        assert said in result.reason
        assert "Error" not in result.reason
        assert result.tally.posted_nanos + result.tally.in_doubt_nanos > 0
        assert run.balance.held_nanos == 0


@pytest.mark.parametrize("reason", ["because", "", None, 7])
async def test_an_end_for_an_unknown_reason_is_no_success(reason: Any) -> None:
    """Whatever the API may add: an answer is whole only where it says so in a way that is known."""
    async with answered(message(stop_reason=reason)) as (run, _):
        result = await helper().run(run, "Hello")
        assert (result.outcome, result.value) == (Outcome.INVALID, None)
        assert "not taken for whole" in result.reason
        assert result.text == "Hello"


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
async def test_a_whole_answer_is_a_success(reason: str) -> None:
    """Both known ways to come to an end."""
    async with answered(message(stop_reason=reason)) as (run, _):
        assert (await helper().run(run, "Hello")).outcome is Outcome.OK


@pytest.mark.parametrize("with_text", [True, False])
async def test_blocks_of_a_new_kind_are_passed_over(with_text: bool) -> None:
    """Beside a text they do no harm; an answer of nothing else can't be used."""
    content = [{"type": "hologram", "x": 1}, *([{"type": "text", "text": "Hello"}] * with_text)]
    async with answered(message(content=content)) as (run, _):
        result = await helper().run(run, "Hello")
        assert result.outcome is (Outcome.OK if with_text else Outcome.INVALID)
        assert ("hologram" in result.reason) is not with_text
        assert result.messages[-1]["content"] == content


@pytest.mark.parametrize(
    "usage", [None, {}, {"input_tokens": 10**12, "output_tokens": 1}, {"input_tokens": -1}]
)
async def test_a_usage_beyond_belief_can_be_seen(
    usage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole hold is posted; the line and the journal are marked, and the log says so once (C-01)."""
    with caplog.at_level(logging.WARNING, "earmark"):
        async with answered(message(usage=usage), folder=tmp_path) as (run, _):
            done = await fan_out(run, helper(), ["a", "b", "c"])
            assert done.outcomes == {"ok": 3}
            assert run.ledger.check().unpriced == 3
            holds = [line for line in run.ledger.lines() if line.kind == "hold"]
            assert done.posted_nanos == sum(hold.nanos for hold in holds)
            run.journal.flush()
            settled = [one for one in read_journal(run.journal.path) if one["event"] == "settle"]
    assert [one["unpriced"] for one in settled] == ["no usage"] * 3
    assert caplog.text.count("without a usage that can be believed") == 1


async def test_an_answer_of_an_unpriced_model_is_told_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was sent and is charged in full: nothing says that it was not sent."""
    async with answered(message(model="claude-nonsense-9")) as (run, _):
        await helper().run(run, "Hello")
        *_, settled = run.ledger.lines()
    for said in (caplog.text, settled.note["unpriced"]):
        assert "claude-nonsense-9" in said
        assert "nothing was sent" not in said
    assert "was sent and answered" in caplog.text


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({}, HALF), ({}, [{"type": "text", "text": HALF}]), ({"system": HALF}, "Hello")],
)
async def test_half_a_character_is_a_bad_request(fields: dict[str, Any], prompt: Any) -> None:
    """It can't be sent, is said in a sentence, costs nothing, and is not tried again."""
    async with answered(message()) as (run, arrived):
        result = await helper(**fields).run(run, prompt)
        assert result.outcome is Outcome.BAD_REQUEST
        assert "lone surrogate" in result.reason
        loop = await refine(run, helper(**fields), lambda _: True, prompt)
        assert (loop.outcome, len(loop.parts)) == (Outcome.BAD_REQUEST, 1)
        assert arrived == []
        assert run.balance.posted_nanos == run.balance.in_doubt_nanos == 0


async def test_half_a_character_in_a_tools_result_does_no_harm() -> None:
    """A file's odd name, say: it is replaced, and the loop goes on."""
    uses = [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]

    def look() -> str:
        """Look."""
        return HALF

    async with answered(message(content=uses, stop_reason="tool_use")) as (run, arrived):
        result = await helper(tools=[look], max_turns=2).run(run, "Hello")
        assert result.outcome is Outcome.STALLED
        (told,) = arrived[1]["messages"][-1]["content"]
        assert told["content"] == "half a character: ?"


async def test_half_a_character_in_an_answer_is_read_as_the_sdk_reads_it() -> None:
    """It is settled by its usage, and its text is handed over."""
    async with answered(message(content=[{"type": "text", "text": HALF}])) as (run, _):
        result = await helper().run(run, "Hello")
        assert (result.outcome, result.text) == (Outcome.OK, HALF)
        assert run.balance.in_doubt_nanos == 0
        plain = await run.client.messages.create(
            model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
        )
        assert plain.content[0].text == HALF
        assert run.balance.in_doubt_nanos == 0 < run.balance.posted_nanos


@pytest.mark.parametrize("citations", [[None], "abc", [1, {"title": 2}], {"a": 1}])
async def test_odd_sources_are_passed_over(citations: Any) -> None:
    """Good text with citations that can't be read is an answer."""
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [None, "x"]}
    content = [found, {"type": "text", "text": "Good", "citations": citations}]
    async with answered(message(content=content)) as (run, _):
        result = await helper().run(run, "Hello")
        assert (result.outcome, result.text) == (Outcome.OK, "Good")


async def test_a_number_that_json_does_not_know_is_said_in_words() -> None:
    """A tool call with 1e999 can be read, and can't be sent back."""
    uses = [{"type": "tool_use", "id": "t1", "name": "look", "input": {"far": float("inf")}}]

    def look(far: float) -> str:
        """Look."""
        return str(far)

    async with answered(message(content=uses, stop_reason="tool_use")) as (run, arrived):
        result = await helper(tools=[look], max_turns=3).run(run, "Hello")
        assert result.outcome is Outcome.BAD_REQUEST
        assert "JSON does not know" in result.reason
        assert len(arrived) == 1
        assert run.balance.in_doubt_nanos == 0
