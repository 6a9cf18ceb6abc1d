"""Replies: what a model answered, as plain JSON, whoever handed it back and whatever is in it."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message

from budgets.ledger import Ledger
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.tools import tool

from .answering import answered, message
from .running import KEY, helper


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"nothing at {at}"


async def test_blocks_go_back_as_they_came() -> None:
    """Also with fields that nobody knows here: the next turn sends them again, to the letter."""
    content = [
        {"type": "thinking", "thinking": "well", "signature": "s", "since": 2027},
        {"type": "text", "text": "Let me look.", "citations": None, "mood": ["good"]},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "home"}, "caller": None},
    ]
    async with answered(message(content=content, stop_reason="tool_use")) as (run, arrived):
        result = await helper(tools=[look], max_turns=2).run(run, "Where?")
        assert result.messages[1]["content"] == content
        assert arrived[1]["messages"][1] == {"role": "assistant", "content": content}
        assert arrived[1]["messages"][2]["content"][0]["content"] == "nothing at home"


@pytest.mark.parametrize(
    ("handed_back", "outcome", "told"),
    [
        (Message.model_validate(message()), Outcome.OK, ""),
        ("Hello", Outcome.IN_DOUBT, "something in between has replied"),
        (None, Outcome.IN_DOUBT, "something in between has replied"),
    ],
)
async def test_a_middleware_may_answer_in_its_place(
    handed_back: Any, outcome: Outcome, told: str
) -> None:
    """The caller's own, from a cache, say: with a message that was built already; with nothing else."""

    async def answer(request: Any, call_next: Any) -> Any:
        return handed_back

    client = {"api_key": KEY, "middleware": [answer]}
    with Ledger() as ledger:
        async with Run("work", cap="5", ledger=ledger, kill_switch=False, client=client) as run:
            result = await helper().run(run, "Hello")
            assert result.outcome is outcome
            assert result.text == ("" if told else "Hello")
            assert told in result.reason
            assert list(ledger.lines()) == []


def test_further_tools_are_told_apart_from_its_own() -> None:
    """An agent keeps what it is, its own tools come first, and two of one name are refused."""
    armed = helper(system="Be brief.").with_tools([look])
    assert armed.system == "Be brief."
    assert armed.body([])["tools"] == [look.definition]
    assert "tools" not in helper().body([])
    with pytest.raises(ConfigError, match="look is given twice"):
        armed.with_tools([look])
