"""A request is fixed so that its hold binds: limits, tiers, lifetimes, rounds and parts."""

from __future__ import annotations

from typing import Any

import pytest

from budgets.errors import InvalidInput, Unbounded
from budgets.shape import Shape
from orchestrator.wire import Allowances, Reading, Uses, read_request

WINDOW = 1_000_000
MODEL = "claude-sonnet-5-5"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2}
ADVISOR = {
    "type": "advisor_20260301",
    "name": "advisor",
    "model": "claude-opus-5-5",
    "max_uses": 2,
    "max_tokens": 500,
}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD" * 200},
}
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 200},
}


def _body(**more: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": "hello"}]
    return {"model": MODEL, "max_tokens": 100, "messages": talk, **more}


def _read(body: dict[str, Any] | None = None, /, **words: Any) -> Reading:
    return read_request(body or _body(), context_window=WINDOW, allow=Allowances(**words))


def _with(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return _body(messages=[{"role": "user", "content": list(blocks)}], **more)


def test_a_plain_request_is_one_round() -> None:
    """A plain request is its prompt, its output limit and nothing else."""
    reading = _read(_body(stream=True, inference_geo="global"))
    shape = reading.shape
    assert shape == Shape(
        model=MODEL, input_tokens=shape.input_tokens, output_tokens=100, geo="global"
    )
    assert reading.changes == {"service_tier": "standard_only"}
    assert (reading.model, reading.stream, reading.max_tokens) == (MODEL, True, 100)
    assert 0 < reading.estimate_input < shape.input_tokens < 1_000
    assert not reading.needs_count


def test_the_body_is_left_alone() -> None:
    """Reading never changes the caller's body; what must change comes back as changes."""
    tool = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": MODEL, "messages": [], "tools": [tool]}
    reading = _read(body, web_max_uses=3, web_search_tokens=10)
    assert body == {"model": MODEL, "messages": [], "tools": [tool]}
    assert reading.changes["tools"] == [{**tool, "max_uses": 3}]
    assert reading.shape.web_searches == 3


@pytest.mark.parametrize(
    ("more", "max_output", "expected"),
    [
        ({}, None, 4_096),
        ({"max_tokens": None}, None, 4_096),
        ({}, 1_000, 1_000),
        ({"thinking": {"type": "disabled"}}, None, 4_096),
        ({"thinking": {"type": "adaptive"}}, None, 8_192),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, None, 14_096),
    ],
)
def test_an_output_limit_is_always_set(
    more: dict[str, Any], max_output: int | None, expected: int
) -> None:
    """H-04, J-04: without a limit we set one, with room for thinking, never 'whatever is left'."""
    body = {"model": MODEL, "messages": [], **more}
    reading = read_request(body, context_window=WINDOW, max_output=max_output)
    assert reading.changes["max_tokens"] == expected
    assert reading.shape.output_tokens == reading.max_tokens == expected


def test_a_limit_of_zero_is_a_limit() -> None:
    """Warming the cache asks for no output at all."""
    reading = _read(_body(max_tokens=0))
    assert reading.shape.output_tokens == 0
    assert "max_tokens" not in reading.changes


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": []}, "model"),
        ({"model": "", "messages": []}, "model"),
        ({"model": 3, "messages": []}, "model"),
        ({"model": MODEL}, "messages"),
        ({"model": MODEL, "messages": "hello"}, "messages"),
        ({"model": MODEL, "messages": ["hello"]}, r"messages\[0\]"),
        (_body(max_tokens=-1), "max_tokens"),
        (_body(max_tokens=True), "max_tokens"),
        (_body(max_tokens=1.5), "max_tokens"),
        (_body(max_tokens="100"), "max_tokens"),
        (_body(tools={"name": "x"}), "tools"),
        (_body(tools=["x"]), r"tools\[0\]"),
        (_body(tools=[{"type": 3}]), r"tools\[0\]\.type"),
        (_body(tools=[{**SEARCH, "max_uses": 0}]), r"tools\[0\]\.max_uses"),
        (_body(tools=[{**SEARCH, "max_uses": "5"}]), r"tools\[0\]\.max_uses"),
        (_body(tools=[{**ADVISOR, "model": None}]), r"tools\[0\]\.model"),
        (_body(fallbacks={"model": MODEL}), "fallbacks"),
        (_body(fallbacks=[{}]), r"fallbacks\[0\]"),
        (_body(fallbacks=[{"model": MODEL, "max_tokens": -1}]), r"fallbacks\[0\]\.max_tokens"),
        (_body(context_management={"edits": ["x"]}), "context_management"),
        (_body(metadata={"user_id": object()}), "JSON"),
    ],
)
def test_what_is_no_request_is_refused(body: dict[str, Any], named: str) -> None:
    """A mistake is named before anything is held or sent."""
    with pytest.raises(InvalidInput, match=named):
        _read(body, web_search_tokens=10)


def test_web_search_is_held_for_every_round_and_every_fee() -> None:
    """C-15: the hold has the fee of each search and the prompt again for each round."""
    shape = _read(_body(tools=[SEARCH]), web_search_tokens=2_000).shape
    assert shape.web_searches == 5
    assert shape.word == ("web_search_tokens",)
    # Five uses, one that may be refused, and the answer.
    assert shape.output_tokens == 7 * 100
    first = shape.input_tokens - sum(range(7)) * 100 - (1 + 2 + 3 + 4 + 5 + 5) * 2_000
    assert first % 7 == 0
    assert shape.prompt_tokens == first // 7 + 6 * 100 + 5 * 2_000


def test_web_fetch_rests_on_a_word_even_with_a_limit() -> None:
    """``max_content_tokens`` is approximate and void for PDFs, so the hold says so."""
    shape = _read(_body(tools=[{**FETCH, "max_content_tokens": 1_000}])).shape
    assert shape.word == ("web_fetch_tokens",)
    assert shape.web_searches == 0
    assert shape.output_tokens == 4 * 100
    larger = _read(_body(tools=[FETCH]), web_fetch_tokens=9_000).shape
    assert larger.input_tokens > shape.input_tokens


def test_web_tools_that_filter_need_a_word_or_direct_calls() -> None:
    """From 2026-02-09 on, search runs code in rounds of its own unless it is only called directly."""
    tool = {**SEARCH, "type": "web_search_20260209"}
    with pytest.raises(Unbounded, match="allowed_callers"):
        _read(_body(tools=[tool]), web_search_tokens=10)
    direct = _read(_body(tools=[{**tool, "allowed_callers": ["direct"]}]), web_search_tokens=10)
    code = Uses(uses=4, tokens=50)
    filtering = _read(_body(tools=[tool]), web_search_tokens=10, code_execution=code)
    assert filtering.shape.output_tokens == direct.shape.output_tokens + 4 * 100
    assert filtering.shape.word == ("web_search_tokens", "code_execution")


def test_code_execution_is_counted_once() -> None:
    """Two reasons to run code are one allowance, not two."""
    tools = [
        {"type": "code_execution_20260521", "name": "code_execution"},
        {**SEARCH, "type": "web_search_20260318"},
    ]
    shape = _read(
        _body(tools=tools), web_search_tokens=10, code_execution=Uses(uses=3, tokens=10)
    ).shape
    assert shape.output_tokens == (3 + 5 + 2) * 100


def test_tools_of_mcp_servers_are_held_at_the_context_window() -> None:
    """Their definitions come from elsewhere, so every round may be as long as it can be."""
    for body in (
        _body(mcp_servers=[{"type": "url", "name": "x", "url": "https://x"}]),
        _body(tools=[{"type": "mcp_toolset", "mcp_server_name": "x"}]),
    ):
        reading = _read(body, mcp=Uses(uses=2, tokens=10))
        assert reading.shape.input_tokens == 4 * WINDOW
        assert reading.shape.word == ("mcp",)
        assert reading.countable is None


def test_an_advisor_is_a_part_at_its_own_model() -> None:
    """Each consultation reads the whole conversation at the advisor's price."""
    body = _body(tools=[{**ADVISOR, "caching": {"type": "ephemeral", "ttl": "1h"}}])
    shape = _read(body).shape
    (part,) = shape.parts
    assert part.model == "claude-opus-5-5"
    assert part.output_tokens == 2 * 500
    assert part.cache_ttl == "1h"
    assert shape.prompt_tokens is not None
    assert part.prompt_tokens is not None
    assert part.input_tokens == 2 * part.prompt_tokens
    assert part.prompt_tokens >= shape.prompt_tokens
    assert shape.output_tokens == 4 * 100


def test_each_fallback_is_a_part_that_reads_everything() -> None:
    """A fallback model reads the prompt and what was written before it, at its own limits."""
    hops = [
        {"model": "claude-opus-5", "max_tokens": 50, "speed": "standard"},
        {"model": "claude-haiku-5-5"},
    ]
    shape = _read(_body(fallbacks=hops, speed="fast")).shape
    first, second = shape.parts
    assert [first.model, second.model] == ["claude-opus-5", "claude-haiku-5-5"]
    assert [first.output_tokens, second.output_tokens] == [50, 100]
    assert [first.speed, second.speed] == ["standard", "fast"]
    assert first.input_tokens >= shape.input_tokens + 100
    assert second.input_tokens >= first.input_tokens + 50


def test_compaction_is_a_part() -> None:
    """A compaction pass reads the conversation and writes what the caller says at most."""
    body = _body(compaction={"type": "summarize"})
    shape = _read(body, compaction_tokens=3_000).shape
    (part,) = shape.parts
    assert part.model == MODEL
    assert part.output_tokens == 3_000
    assert part.input_tokens > shape.input_tokens
    assert shape.word == ("compaction_tokens",)


def test_a_compacting_edit_costs_only_where_it_can_fire() -> None:
    """A prompt below the trigger can't be compacted, so nothing has to be said about it."""
    edit = {"type": "compact_20260112"}
    short = _body(context_management={"edits": [edit]})
    assert _read(short).shape.parts == ()
    low = {**edit, "trigger": {"type": "input_tokens", "value": 200}}
    with pytest.raises(Unbounded, match="compaction_tokens"):
        _read(_body(context_management={"edits": [low]}))
    odd = {**edit, "trigger": {"type": "moon", "value": 10**9}}
    with pytest.raises(Unbounded, match="compaction_tokens"):
        _read(_body(context_management={"edits": [odd]}))
    shape = _read(_body(context_management={"edits": [low]}), compaction_tokens=500).shape
    assert shape.parts[0].output_tokens == 500


def test_what_the_cli_sends_passes() -> None:
    """Edits that only clear, adaptive thinking, effort, task budgets and system messages are free."""
    body = {
        "model": "claude-opus-5-5",
        "max_tokens": 128_000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium", "task_budget": {"type": "tokens", "total": 20_000}},
        "context_management": {
            "edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]
        },
        "metadata": {"user_id": "{}"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [
            {"name": "Bash", "description": "d", "input_schema": {"type": "object"}},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "memory_20250818", "name": "memory"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "system", "content": "<total_tokens>1</total_tokens>"},
        ],
        "temperature": 1,
    }
    shape = _read(body).shape
    assert (shape.output_tokens, shape.cache_ttl, shape.parts) == (128_000, "5m", ())
    assert shape.word == ()


@pytest.mark.parametrize(
    ("named", "setting", "changes", "word"),
    [
        ({}, True, {"service_tier": "standard_only"}, ()),
        ({"service_tier": None}, True, {"service_tier": "standard_only"}, ()),
        ({"service_tier": "standard_only"}, True, {}, ()),
        ({}, False, {}, ("service_tier",)),
    ],
)
def test_priority_prices_are_shut_out(
    named: dict[str, Any], setting: bool, changes: dict[str, Any], word: tuple[str, ...]
) -> None:
    """Priority Tier has prices of its own: it is excluded, or its absence is the caller's word."""
    reading = _read(_body(**named), set_service_tier=setting)
    assert reading.changes == changes
    assert reading.shape.word == word


def test_a_request_of_a_batch_keeps_its_tier() -> None:
    """Batch requests are priced as such and get no service tier set."""
    reading = read_request(_body(), context_window=WINDOW, tier="batch")
    assert reading.shape.tier == "batch"
    assert reading.changes == {}


@pytest.mark.parametrize(
    ("body", "ttl"),
    [
        (_body(), None),
        (_body(cache_control=None), None),
        (_body(cache_control={"type": "ephemeral"}), "5m"),
        (_body(cache_control={"type": "ephemeral", "ttl": "5m"}), "5m"),
        (_body(cache_control={"ttl": "1h", "type": "ephemeral"}), "1h"),
        (
            _body(tools=[{"name": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]),
            "1h",
        ),
        (
            _with(
                {
                    "type": "tool_result",
                    "content": [
                        {
                            "type": "text",
                            "text": "x",
                            "cache_control": {"type": "ephemeral", "ttl": "1h"},
                        }
                    ],
                },
                cache_control={"type": "ephemeral"},
            ),
            "1h",
        ),
        (_with({"type": "text", "text": '"cache_control": {"ttl": "1h"}'}), None),
        (_body(cache_control={"type": "ephemeral", "scope": {"x": 1}}), "1h"),
    ],
)
def test_the_longest_lifetime_anywhere_counts(body: dict[str, Any], ttl: str | None) -> None:
    """C-06: writes are held at the longest lifetime that any marker asks for."""
    assert _read(body).shape.cache_ttl == ttl


@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        PDF,
        {"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]},
        {"type": "document", "source": {"type": "content", "content": [IMAGE]}},
        {
            "type": "web_fetch_tool_result",
            "content": {"type": "web_fetch_result", "url": "u", "content": PDF},
        },
        {"type": "hologram", "data": "x"},
        {"type": "image", "source": {"type": "hologram"}},
        {"type": "image"},
    ],
)
def test_what_is_no_text_is_held_at_the_context_window(block: dict[str, Any]) -> None:
    """F-11, F-06: pictures and PDFs, in tool results too, are never bounded by their bytes."""
    reading = _read(_with(block))
    assert reading.shape.input_tokens == WINDOW
    assert reading.needs_count
    assert reading.countable is not None
    assert reading.tighten(1_000).input_tokens == 1_100 + 256
    assert reading.estimate_input < 5_000


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "file"}}]},
    ],
)
def test_what_the_provider_fetches_is_not_tightened(block: dict[str, Any]) -> None:
    """It can change between the count and the call, so no count bounds it."""
    reading = _read(_with(block))
    assert reading.shape.input_tokens == WINDOW
    assert not reading.needs_count
    assert reading.countable is None
    assert reading.tighten(5) == reading.shape


def test_documents_of_text_are_text() -> None:
    """A text document is bounded by its bytes like any other text."""
    source = {"type": "text", "media_type": "text/plain", "data": "x" * 1_000}
    inner = {"type": "content", "content": [{"type": "text", "text": "x"}]}
    for given in (source, inner, {"type": "content", "content": "x"}):
        reading = _read(_with({"type": "document", "source": given}))
        assert reading.shape.input_tokens < 2_500
        assert not reading.needs_count


def test_only_what_the_counter_takes_is_counted() -> None:
    """The counter's body is the request without what it would refuse or what lowers the count."""
    body = _body(
        stream=True,
        metadata={},
        context_management={"edits": [{"type": "clear_thinking_20251015"}]},
        thread={"type": "create"},
        system="s",
        inference_geo="us",
    )
    counted = _read(body).countable
    assert counted == {"model": MODEL, "messages": body["messages"], "system": "s"}


def test_unknown_threads_are_held_at_their_worst() -> None:
    """With the caller's word a thread from elsewhere holds a whole window at the longest lifetime."""
    body = _body(thread={"type": "continue", "previous_message_id": "m"})
    reading = _read(body, unknown_threads=True)
    assert reading.shape.input_tokens == WINDOW
    assert reading.shape.cache_ttl == "1h"
    assert reading.shape.word == ("unknown_threads",)


@pytest.mark.parametrize(
    "words",
    [
        {"default_max_tokens": 0},
        {"web_search_tokens": 0},
        {"web_search_tokens": 1.5},
        {"web_max_uses": True},
        {"fields": "turbo"},
    ],
)
def test_a_word_that_says_nothing_is_refused(words: dict[str, Any]) -> None:
    """An allowance is a whole number of tokens or uses, or a set of names."""
    with pytest.raises(InvalidInput):
        Allowances(**words)


@pytest.mark.parametrize(("uses", "tokens"), [(0, 1), (1, -1), (True, 1), (1, 2.0)])
def test_uses_are_whole_numbers(uses: Any, tokens: Any) -> None:
    """No use at all is no allowance, and tokens are never negative."""
    with pytest.raises(InvalidInput):
        Uses(uses=uses, tokens=tokens)
