"""What has no bound is declined by name, and passes with the caller's word."""

from __future__ import annotations

from typing import Any

import pytest

from budgets.errors import Unbounded, UnknownPrice
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


def _body(**more: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": "hello"}]
    return {"model": MODEL, "max_tokens": 100, "messages": talk, **more}


def _read(body: dict[str, Any] | None = None, /, **words: Any) -> Reading:
    return read_request(body or _body(), context_window=WINDOW, allow=Allowances(**words))


def _with(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return _body(messages=[{"role": "user", "content": list(blocks)}], **more)


# What has no bound: (body, feature, a word that the message must say).
DECLINED: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", _body(turbo=True), "turbo", "fields"),
    ("unknown setting", _body(output_config={"turbo": 1}), "output_config.turbo", "fields"),
    ("tier auto", _body(service_tier="auto"), "service_tier", "standard_only"),
    ("tier unknown", _body(service_tier="gold"), "service_tier", "standard_only"),
    ("unknown tool", _body(tools=[{"type": "oracle_2027"}]), "oracle_2027", "tool_types"),
    (
        "search without limit",
        _body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        "web_search_20250305",
        "max_uses",
    ),
    ("search results", _body(tools=[SEARCH]), "web_search_20250305", "web_search_tokens"),
    (
        "fetch without limit",
        _body(tools=[{"type": "web_fetch_20250910", "max_content_tokens": 9}]),
        "web_fetch_20250910",
        "max_uses",
    ),
    ("fetch without size", _body(tools=[FETCH]), "web_fetch_20250910", "max_content_tokens"),
    (
        "fetch that filters",
        _body(tools=[{"type": "web_fetch_20260318", "max_uses": 1, "max_content_tokens": 9}]),
        "web_fetch_20260318",
        "allowed_callers",
    ),
    (
        "code execution",
        _body(tools=[{"type": "code_execution_20260521", "name": "code_execution"}]),
        "code_execution_20260521",
        "code_execution=",
    ),
    (
        "tool search",
        _body(tools=[{"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"}]),
        "tool_search_tool_bm25",
        "tool_search=",
    ),
    ("mcp servers", _body(mcp_servers=[{"type": "url"}]), "mcp_servers", "mcp="),
    ("mcp toolset", _body(tools=[{"type": "mcp_toolset"}]), "mcp_toolset", "mcp="),
    (
        "advisor uses",
        _body(tools=[{**ADVISOR, "max_uses": None}]),
        "advisor_20260301",
        "max_uses",
    ),
    (
        "advisor output",
        _body(tools=[{**ADVISOR, "max_tokens": None}]),
        "advisor_20260301",
        "max_tokens",
    ),
    ("fallbacks default", _body(fallbacks="default"), "fallbacks", "list them"),
    (
        "fallback field",
        _body(fallbacks=[{"model": MODEL, "turbo": 1}]),
        "fallbacks.turbo",
        "leave it out",
    ),
    ("compaction", _body(compaction={"type": "summarize"}), "compaction", "compaction_tokens"),
    ("compaction mode", _body(compaction={"type": "other"}), "compaction", "leave it out"),
    (
        "compacting edit",
        _body(system="x" * 200_000, context_management={"edits": [{"type": "compact_20260112"}]}),
        "context_management",
        "compaction_tokens",
    ),
    (
        "unknown edit",
        _body(context_management={"edits": [{"type": "dream_2027"}]}),
        "context_management",
        "dream_2027",
    ),
    ("unknown management", _body(context_management={"x": 1}), "context_management", "leave"),
    ("container", _body(container="container_1"), "container", "code_execution="),
    (
        "container upload",
        _with({"type": "container_upload", "file_id": "file_1"}),
        "container_upload",
        "code_execution=",
    ),
    (
        "thread continued",
        _body(thread={"type": "continue", "previous_message_id": "m"}),
        "thread",
        "thread=False",
    ),
    ("thread unknown", _body(thread={"type": "fork"}), "thread", "continue"),
    (
        "inline tool",
        _body(
            messages=[
                {
                    "role": "system",
                    "content": [
                        {
                            "type": "tool_addition",
                            "tool": {"type": "tool_definition", "definition": SEARCH},
                        }
                    ],
                }
            ]
        ),
        "web_search_20250305",
        "web_search_tokens",
    ),
]


@pytest.mark.parametrize(
    ("body", "feature", "says"),
    [row[1:] for row in DECLINED],
    ids=[row[0] for row in DECLINED],
)
def test_what_has_no_bound_is_declined_by_name(
    body: dict[str, Any], feature: str, says: str
) -> None:
    """A decline names the feature and says what to do about it."""
    with pytest.raises(Unbounded) as declined:
        _read(body)
    assert declined.value.feature == feature
    assert says in str(declined.value)
    assert "\n" not in str(declined.value)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (_body(inference_geo="eu"), "inference_geo"),
        (_body(speed="ludicrous"), "speed"),
        (_body(fallbacks=[{"model": MODEL, "speed": "ludicrous"}]), "speed"),
        (_body(cache_control={"type": "ephemeral", "ttl": "24h"}), "24h"),
        (_body(tools=[{**ADVISOR, "caching": {"type": "ephemeral", "ttl": "1w"}}]), "1w"),
    ],
)
def test_a_setting_without_a_price_is_declined(body: dict[str, Any], named: str) -> None:
    """A place, a speed or a lifetime that nobody has a price for stops the call."""
    with pytest.raises(UnknownPrice, match=named):
        _read(body)


ALLOWED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("field", _body(turbo=True), {"fields": frozenset({"turbo"})}),
    (
        "setting",
        _body(output_config={"turbo": 1}),
        {"fields": frozenset({"output_config.turbo"})},
    ),
    ("tool", _body(tools=[{"type": "oracle_2027"}]), {"tool_types": frozenset({"oracle_2027"})}),
    (
        "container",
        _body(container={"skills": []}),
        {"code_execution": Uses(uses=1, tokens=10)},
    ),
    (
        "upload",
        _with({"type": "container_upload", "file_id": "file_1"}),
        {"code_execution": Uses(uses=1, tokens=10)},
    ),
]


@pytest.mark.parametrize(
    ("body", "words"), [row[1:] for row in ALLOWED], ids=[row[0] for row in ALLOWED]
)
def test_the_caller_can_vouch(body: dict[str, Any], words: dict[str, Any]) -> None:
    """The same request passes as soon as the caller vouches for it."""
    with pytest.raises(Unbounded):
        _read(body)
    assert _read(body, **words).shape.output_tokens >= 100
