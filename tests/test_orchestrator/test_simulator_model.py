"""The simulated model: labels, schemas, tools, limits of output, directives and tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.simulator.api_errors import ApiError
from orchestrator.simulator.directives import read_directives, strip_directives
from orchestrator.simulator.model import Answer, answer
from orchestrator.simulator.request import MessageRequest, read_request
from orchestrator.simulator.schema import fill, pick_label
from orchestrator.simulator.tokens import estimate, part_tokens, text_tokens

TOOL = {
    "name": "lookup",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
        "required": ["city"],
    },
}
OTHER = {**TOOL, "name": "other"}


def request(text: str = "Hello", **fields: Any) -> MessageRequest:
    body = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 1_000,
        "messages": [{"role": "user", "content": text}],
        **fields,
    }
    return read_request(body, version="2026-10-21")


def say(text: str = "Hello", **fields: Any) -> Answer:
    return answer(request(text, **fields), number=1, prompt_tokens=10)


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": value}}}


@pytest.mark.parametrize(
    ("document", "label"),
    [
        ("Your invoice is attached.", "invoice"),
        ("The parties agree on these terms.", "contract"),
        ("Dear Ann, greetings from the sea.", "personal_letter"),
        ("A personal note", "personal_letter"),
        ("Nothing that fits", "invoice"),
    ],
)
def test_labels(document: str, label: str) -> None:
    """The label sharing most words wins, by its name or its rubric; of equals, the first."""
    rubric = "Choose one.\n- invoice: asks to pay\n* contract: parties, terms\n"
    rubric += "2. `personal_letter`: greetings to a person"

    labels = ["invoice", "contract", "personal_letter"]
    assert pick_label(labels, document=document, rubric=rubric) == label


def test_rubric_in_a_prefix_block() -> None:
    """A rubric may stand in a block before the document instead of in the system prompt."""
    blocks = [
        {"type": "text", "text": "red: sunsets and roses\nblue: oceans"},
        {"type": "text", "text": "We saw roses."},
    ]
    wanted = {"type": "object", "properties": {"c": {"enum": ["blue", "red"]}}}
    said = say(messages=[{"role": "user", "content": blocks}], **schema(wanted))

    assert json.loads(said.content[0]["text"]) == {"c": "red"}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ({"const": 5}, 5),
        ({"enum": [3, 4]}, 3),
        ({"type": "integer", "minimum": 4}, 4),
        ({"type": "integer", "description": "{minimum: 2, maximum: 9}"}, 2),
        ({"type": "number", "maximum": 0.25}, 0.25),
        ({"type": "boolean", "description": "mentions payment"}, True),
        ({"type": "boolean", "description": "about dogs"}, False),
        ({"type": "null"}, None),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "string", "maxLength": 9}, "Simulated"),
        ({"type": ["string", "null"], "maxLength": 9}, "Simulated"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        (
            {"allOf": [{"type": "string"}, {"format": "uuid"}]},
            "00000000-0000-4000-8000-000000000000",
        ),
        ({"type": "array", "items": {"enum": ["b", "a"]}}, ["b"]),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [None, None]),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, []),
        ({"type": "object", "properties": {"a": {"const": 1}}}, {"a": 1}),
    ],
)
def test_fill(part: dict[str, Any], value: object) -> None:
    """Every type of a schema gets a value that fits it, the same each time."""
    assert fill(part, document="The payment is due") == value


def test_recursive_schema_ends() -> None:
    """A schema that contains itself is filled to a bounded depth."""
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["name"],
    }
    filled = fill({"$ref": "#/$defs/Node", "$defs": {"Node": node}}, document="tree")

    assert isinstance(filled, dict)
    assert len(json.dumps(filled)) < 2_000_000


@pytest.mark.parametrize(
    ("text", "fields", "names"),
    [
        ("Hello", {}, []),
        ("please use tool other now", {}, ["other"]),
        ("Hello", {"tool_choice": {"type": "any"}}, ["lookup"]),
        ("Hello", {"tool_choice": {"type": "tool", "name": "other"}}, ["other"]),
        ("use tool other", {"tool_choice": {"type": "none"}}, []),
        ('[[sim:tool=other {"city": "Rome"}]][[sim:tool=lookup]]', {}, ["other", "lookup"]),
        ("[[sim:turns=2]]", {}, ["lookup"]),
    ],
)
def test_tools_are_called_only_if_asked(
    text: str, fields: dict[str, Any], names: list[str]
) -> None:
    """Tools are called by choice, by words or by directive, and otherwise not."""
    said = say(text, tools=[TOOL, OTHER], **fields)

    calls = [block["name"] for block in said.content if block["type"] == "tool_use"]
    assert calls == names
    assert said.stop_reason == ("tool_use" if names else "end_turn")


def test_tool_input() -> None:
    """An input fits the tool's schema, or is exactly what the directive says."""
    said = say('[[sim:tool=other {"x": "[[sim:refuse]]"}]] use tool', tools=[TOOL, OTHER])
    made_up = say("use tool lookup", tools=[TOOL, OTHER])

    assert said.content[0]["input"] == {"x": "[[sim:refuse]]"}
    assert made_up.content[0]["input"].keys() == {"city"}


def test_after_a_result_the_model_speaks() -> None:
    """Once a tool result is there, the model answers with text, even if the choice is forced."""
    conversation = [
        {"role": "user", "content": "use tool lookup"},
        {"role": "assistant", "content": say("use tool lookup", tools=[TOOL]).content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "1"}]},
    ]
    said = say(messages=conversation, tools=[TOOL], tool_choice={"type": "any"})

    assert (said.stop_reason, said.content[0]["type"]) == ("end_turn", "text")


def test_structured_output_tool() -> None:
    """The Agent SDK's own tool is called at the end of the work, once."""
    tool = {**TOOL, "name": "StructuredOutput"}
    first = say("Anything", tools=[TOOL, tool])
    result = {"type": "tool_result", "tool_use_id": first.content[0]["id"], "content": "ok"}
    conversation = [
        {"role": "user", "content": "Anything"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = say(messages=conversation, tools=[TOOL, tool])

    assert first.content[0]["name"] == "StructuredOutput"
    assert second.content[0]["type"] == "text"


def test_output_limit() -> None:
    """An answer longer than ``max_tokens`` is cut there and says so (J-01)."""
    said = say("[[sim:output=500]]", max_tokens=100)
    natural = say("Hello there " * 20, max_tokens=3)
    document = say("Hello", max_tokens=2, **schema({"type": "string"}))

    assert (said.stop_reason, said.output_tokens) == ("max_tokens", 100)
    assert len(said.content[0]["text"]) == 400
    assert (natural.stop_reason, natural.output_tokens) == ("max_tokens", 3)
    with pytest.raises(json.JSONDecodeError):
        json.loads(document.content[0]["text"])


def test_thinking_eats_the_output_limit() -> None:
    """Thinking counts as output and can leave no room for the answer (J-04)."""
    roomy = say("[[sim:thinking=50]][[sim:output=20]]")
    tight = say("[[sim:thinking=50]][[sim:output=20]]", max_tokens=40)

    assert (roomy.output_tokens, roomy.thinking_tokens, roomy.stop_reason) == (70, 50, "end_turn")
    assert [block["type"] for block in roomy.content] == ["thinking", "text"]
    assert (tight.output_tokens, tight.thinking_tokens, tight.stop_reason) == (40, 40, "max_tokens")
    assert [block["type"] for block in tight.content] == ["thinking"]


def test_context_limit() -> None:
    """Where prompt and answer don't fit the context, the answer ends at its edge."""
    said = answer(request("[[sim:output=500]]"), number=1, prompt_tokens=999_900)

    assert (said.stop_reason, said.output_tokens) == ("model_context_window_exceeded", 100)


def test_stop_sequence() -> None:
    """An answer ends in front of the first stop sequence in it."""
    said = say("[[sim:text=one. two! three?]]", stop_sequences=["!", "?"])

    assert said.content == [{"type": "text", "text": "one. two"}]
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "!")


def test_directives_are_not_part_of_the_document() -> None:
    """What steers the model doesn't show up in what it says."""
    text = '[[sim:output=3]]before [[sim:tool=x {"a": "]]"}]]after'

    assert strip_directives(text) == "before after"
    found = read_directives(text)
    assert (found.output, found.tools) == (3, (("x", {"a": "]]"}),))


@pytest.mark.parametrize(
    "text",
    ["[[sim:output]]", "[[sim:output=x]]", "[[sim:output=-1]]", "[[sim:output=1", "[[sim:]]",
     "[[sim:nothing=1]]", "[[sim:tool=]]", "[[sim:tool=a {]]", "[[sim:compaction=1]]"],
)  # fmt: skip
def test_bad_directives(text: str) -> None:
    """A directive that means nothing is refused rather than ignored."""
    with pytest.raises(ApiError) as caught:
        read_directives(text)

    assert caught.value.status == 400


@given(st.text())
def test_tokens_never_exceed_bytes(text: str) -> None:
    """No text has more tokens than UTF-8 bytes, so that a bound by bytes always holds."""
    assert text_tokens(text) <= len(text.encode(errors="surrogatepass"))


@given(st.integers(min_value=1, max_value=1_000_000))
def test_estimates_are_within_one_percent(tokens: int) -> None:
    """A count differs from the bill by at most one percent."""
    assert abs(estimate(tokens) - tokens) <= max(1, tokens / 100)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image", "source": {}}, 1_600),
        ({"type": "tool_result", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}, 1_601),
        ({"type": "document", "source": {"type": "text", "data": "x" * 40}}, 10),
        ({"type": "document", "source": {"type": "base64", "data": "x" * 70_000}}, 3_000),
        ({"type": "document", "source": {"type": "url", "url": "https://x"}}, 3_000),
        ({"type": "tool_result", "content": None}, 1),
    ],
)  # fmt: skip
def test_tokens_of_blocks(part: dict[str, Any], tokens: int) -> None:
    """Images and remote documents cost a flat number of tokens, in tool results too (F-11)."""
    assert part_tokens(part) == tokens
