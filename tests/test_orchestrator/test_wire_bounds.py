"""The bound of the input is never below what any tokenizer could make of the request."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.errors import BudgetError, InvalidInput
from budgets.usage import Usage
from orchestrator.wire import Allowances, Uses, read_request
from orchestrator.wire.fields import PLAIN_FIELDS, RULED_FIELDS
from orchestrator.wire.rounds import totals

WINDOW = 10_000_000

texts = st.text(st.characters(codec=None), max_size=80)
markers = st.sampled_from([{}, {"cache_control": {"type": "ephemeral"}}])


def _text_block(text: str, marker: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": text, **marker}


blocks = st.one_of(
    st.builds(_text_block, texts, markers),
    st.builds(lambda text: {"type": "tool_result", "tool_use_id": "t", "content": text}, texts),
    st.builds(
        lambda key, value: {"type": "tool_use", "id": "t", "name": "n", "input": {key: value}},
        texts,
        texts,
    ),
    st.builds(
        lambda text, title: {
            "type": "document",
            "title": title,
            "source": {"type": "text", "media_type": "text/plain", "data": text},
        },
        texts,
        texts,
    ),
)
messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system"]),
        st.one_of(texts, st.lists(blocks, max_size=4)),
    ),
    max_size=5,
)
tools = st.lists(
    st.builds(
        lambda name, description, field: {
            "name": name,
            "description": description,
            "input_schema": {"type": "object", "properties": {field: {"type": "string"}}},
        },
        texts,
        texts,
        texts,
    ),
    max_size=2,
)
bodies = st.builds(
    lambda system, talk, kit: {
        "model": "claude-sonnet-5-5",
        "max_tokens": 10,
        "system": system,
        "messages": talk,
        "tools": kit,
    },
    texts,
    messages,
    tools,
)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in (key, *_leaves(inner))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner)]
    return []


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@given(bodies)
def test_the_bound_holds_for_a_tokenizer_of_one_token_per_byte(body: dict[str, Any]) -> None:
    """No byte-level tokenizer makes more tokens than all text has bytes, as it is or normalised."""
    bound = read_request(body, context_window=WINDOW).shape.input_tokens
    leaves = _leaves(body)
    assert bound > sum(_size(leaf) for leaf in leaves)
    assert bound > sum(_size(unicodedata.normalize("NFKC", leaf)) for leaf in leaves)


@given(bodies)
def test_the_bound_holds_however_json_is_shown_to_the_model(body: dict[str, Any]) -> None:
    """Tool definitions may be shown with spaces and with every sign written out."""
    bound = read_request(body, context_window=WINDOW).shape.input_tokens
    assert bound > len(json.dumps(body["tools"]))


@given(bodies, blocks)
def test_more_content_never_lowers_the_bound(body: dict[str, Any], more: dict[str, Any]) -> None:
    """A longer request never holds less."""
    before = read_request(body, context_window=WINDOW).shape
    longer = {**body, "messages": [*body["messages"], {"role": "user", "content": [more]}]}
    after = read_request(longer, context_window=WINDOW).shape
    assert after.input_tokens > before.input_tokens


@given(bodies, st.integers(0, 20_000))
def test_the_counter_tightens_and_never_loosens(body: dict[str, Any], count: int) -> None:
    """A count gives a shape with a margin above the count, and never above the bound by bytes."""
    reading = read_request(body, context_window=WINDOW)
    tight = reading.tighten(count)
    assert tight.input_tokens <= reading.shape.input_tokens
    assert tight.input_tokens == reading.shape.input_tokens or tight.input_tokens >= count * 1.1
    assert tight.output_tokens == reading.shape.output_tokens


@given(
    prompt=st.integers(0, 5_000),
    window=st.integers(1, 6_000),
    max_tokens=st.integers(0, 2_000),
    uses=st.lists(
        st.builds(Uses, uses=st.integers(1, 4), tokens=st.integers(0, 1_500)), max_size=3
    ),
    data=st.data(),
)
def test_no_order_of_uses_costs_more_than_the_totals(
    prompt: int, window: int, max_tokens: int, uses: list[Uses], data: st.DataObject
) -> None:
    """However the model spreads its uses over rounds, sums stay within the bound."""
    bound = totals(prompt=prompt, window=window, max_tokens=max_tokens, uses=tuple(uses))
    waiting = [one.tokens for one in uses for _ in range(one.uses)]
    length, spent, written = prompt, min(prompt, window), max_tokens
    while waiting:
        side_by_side = data.draw(st.integers(1, len(waiting)))
        taken = [
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1))) for _ in range(side_by_side)
        ]
        length += max_tokens + sum(taken)
        spent += min(length, window)
        written += max_tokens
    assert spent <= bound.input_tokens
    assert written <= bound.output_tokens
    assert min(length, window) <= bound.longest <= window


def test_the_largest_results_are_taken_to_come_first() -> None:
    """Results that come early are sent again in every later round, so that order is the bound."""
    uses = (Uses(uses=1, tokens=0), Uses(uses=1, tokens=900), Uses(uses=1, tokens=90))
    bound = totals(prompt=10, window=WINDOW, max_tokens=1, uses=uses)
    # Five prompts, grown by one token of output each, with 900, 990, 990 and 990 of results.
    assert bound.input_tokens == 5 * 10 + (1 + 2 + 3 + 4) + 900 + 990 + 990 + 990
    assert (bound.rounds, bound.longest) == (5, 10 + 4 + 990)


def test_very_many_uses_are_bounded_without_counting_them_out() -> None:
    """A huge number of uses takes no time and is held at the context window for each round."""
    started = time.perf_counter()
    bound = totals(
        prompt=10, window=1_000, max_tokens=1, uses=(Uses(uses=2_000_000_000, tokens=5),)
    )
    assert time.perf_counter() - started < 1
    assert bound.input_tokens == bound.rounds * 1_000


def _body(**more: Any) -> dict[str, Any]:
    content = [{"role": "user", "content": "hello"}]
    return {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": content, **more}


def test_cached_input_is_held_like_any_other() -> None:
    """O-16: marking a prefix for the cache lowers nothing, since a miss must be expected."""
    plain = read_request(
        _body(system=[{"type": "text", "text": "x" * 9_000}]), context_window=WINDOW
    )
    marked = read_request(
        _body(
            system=[{"type": "text", "text": "x" * 9_000, "cache_control": {"type": "ephemeral"}}]
        ),
        context_window=WINDOW,
    )
    assert marked.shape.input_tokens >= plain.shape.input_tokens
    assert marked.shape.cache_ttl == "5m"
    assert plain.shape.cache_ttl is None


def test_a_prompt_is_never_longer_than_the_context_window() -> None:
    """A longer prompt is refused by the provider, so it is not held for."""
    long = _body(system="x" * 500_000)
    assert read_request(long, context_window=200_000).shape.input_tokens == 200_000
    betas = ("context-1m-2025-08-07",)
    wider = read_request(long, context_window=200_000, betas=betas).shape
    assert 500_000 < wider.input_tokens < 510_000


def test_text_that_grows_when_normalised_is_bounded() -> None:
    """One ligature of three bytes becomes 33 bytes in tokenizers that normalise first."""
    body = _body(system="\ufdfa" * 1_000)
    assert read_request(body, context_window=WINDOW).shape.input_tokens > 33_000


def test_a_schema_is_counted_twice() -> None:
    """The provider uses the schema of a structured answer as grammar and as prompt."""
    schema = {"type": "object", "properties": {"a" * 5_000: {"type": "string"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    body = _body(output_config=config)
    assert read_request(body, context_window=WINDOW).shape.input_tokens > 10_000


def test_a_reference_shows_the_whole_tool_again() -> None:
    """Forty bytes that name a deferred tool bring its whole definition into the prompt."""
    tool = {"name": "t", "description": "d" * 4_000, "input_schema": {}, "defer_loading": True}
    references = [{"type": "tool_reference", "tool_name": "t"}] * 10
    result = {"type": "tool_result", "tool_use_id": "x", "content": references}
    body = _body(tools=[tool], messages=[{"role": "user", "content": [result]}])
    assert read_request(body, context_window=WINDOW).shape.input_tokens > 11 * 4_000


def test_citations_mark_every_sentence() -> None:
    """A document of many tiny sentences has more marks than text."""
    source = {"type": "text", "media_type": "text/plain", "data": "A. " * 1_000}
    block = {"type": "document", "source": source, "citations": {"enabled": True}}
    body = _body(messages=[{"role": "user", "content": [block]}])
    assert read_request(body, context_window=WINDOW).shape.input_tokens > 16_000


def test_tools_of_the_provider_have_room_for_their_hidden_definition() -> None:
    """One line of JSON can bring in thousands of tokens that the caller never sees."""
    bare = read_request(_body(), context_window=WINDOW).shape.input_tokens
    tool = {"type": "computer_toolset_20260801", "name": "computer"}
    full = read_request(_body(tools=[tool]), context_window=WINDOW).shape.input_tokens
    assert full - bare > 16_384


@pytest.mark.parametrize("count", [-1, True, 1.5, "7", None])
def test_what_is_no_count_is_refused(count: Any) -> None:
    """A count that is none is the caller's mistake, not a bound."""
    with pytest.raises(InvalidInput, match="count"):
        read_request(_body(), context_window=WINDOW).tighten(count)


def test_parts_for_other_models_stay_bounded_by_bytes() -> None:
    """A fallback model has a tokenizer of its own, so the count says nothing about it."""
    body = _body(system="x" * 9_000, fallbacks=[{"model": "claude-opus-4-8"}])
    reading = read_request(body, context_window=WINDOW)
    tight = reading.tighten(100)
    assert tight.input_tokens < 1_000
    assert tight.parts == reading.shape.parts
    assert tight.parts[0].input_tokens > 9_000


def test_a_thread_is_bounded_by_what_its_last_turn_used() -> None:
    """The next prompt is at most the last one, its answer, and what the new turn sends."""
    first = read_request(_body(thread={"type": "create"}), context_window=WINDOW)
    usage = Usage(model="claude-sonnet-5-5", input_tokens=50_000, output_tokens=700)
    later = _body(thread={"type": "continue", "previous_message_id": "msg_1"})
    after = read_request(later, context_window=WINDOW, history=first.history(usage))
    assert 50_700 < after.shape.input_tokens < 52_000
    assert after.countable is None
    assert after.tighten(1) == after.shape
    unknown = read_request(later, context_window=WINDOW, history=first.history(None))
    assert unknown.shape.input_tokens == WINDOW


def test_a_thread_keeps_its_server_tools_and_its_cache_lifetime() -> None:
    """A turn whose body names no tools can still search, and still writes the long cache."""
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    marked = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    allow = Allowances(web_search_tokens=1_000)
    first = read_request(
        _body(thread={"type": "create"}, tools=[tool], system=marked),
        context_window=WINDOW,
        allow=allow,
    )
    usage = Usage(model="claude-sonnet-5-5", input_tokens=500, output_tokens=7)
    history = first.history(usage)
    for _ in range(2):
        later = read_request(
            _body(thread={"type": "continue", "previous_message_id": "msg_1"}),
            context_window=WINDOW,
            allow=allow,
            history=history,
        )
        assert later.shape.web_searches == 3
        assert later.shape.cache_ttl == "1h"
        assert later.shape.input_tokens > 5 * 500
        history = later.history(usage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "source", "text", "model", "edits", "name", "ttl"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(sorted(PLAIN_FIELDS | RULED_FIELDS)), json_values, max_size=6),
    st.lists(st.dictionaries(st.sampled_from(["role", "content"]), json_values), max_size=3),
)
def test_any_json_is_read_or_declined(fields: dict[str, Any], talk: list[Any]) -> None:
    """Whatever a program sends, the answer is a bound or an error of ours, never a crash."""
    body = {**fields, "model": "claude-sonnet-5-5", "messages": talk}
    try:
        reading = read_request(body, context_window=WINDOW)
    except BudgetError:
        return
    assert reading.shape.input_tokens > 0
    assert reading.shape.output_tokens >= 0
    assert reading.tighten(10).input_tokens <= reading.shape.input_tokens


def test_reading_is_fast_and_linear() -> None:
    """Reading is on the way of every call: a big body takes no more than its size asks for."""
    big = _body(messages=[{"role": "user", "content": "word " * 400} for _ in range(1_000)])
    started = time.perf_counter()
    read_request(big, context_window=WINDOW)
    assert time.perf_counter() - started < 1
