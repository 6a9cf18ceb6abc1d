"""Tools that run at the provider, each with a bound on what it can cost, for ``Agent(tools=[...])``.

What the API does not bound itself is the caller's word: the ledger marks it, and a real cost above it is an
overrun. A word counts for the calls of the agent that has the tool, and for no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .wire import Allowances, Uses

#: Input tokens that one web search brings in, at most. The provider names no limit. Public measurements of
#: Claude Code (the data set ai-agent-web-search-tokens on Hugging Face, 2026) show 12,700 to 19,200 input
#: tokens for each search, prompts included; this is a quarter more than the largest of them.
TOKENS_PER_SEARCH = 25_000
#: The newest versions of the tools that ``wire.fields`` knows.
_NEWEST = {
    "web_search": "web_search_20260318",
    "web_fetch": "web_fetch_20260318",
    "code_execution": "code_execution_20260521",
}
#: Called by the model itself, not by code that it writes: the results then need no bound on such code.
_DIRECT = ["direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool that runs at the provider.

    Attributes:
        name: as the model calls it.
        definition: the tool as it stands in a request.
        allow: the caller's word about its cost.
    """

    name: str
    definition: Mapping[str, Any]
    allow: Allowances = field(default_factory=Allowances)


def web_search(
    *,
    max_uses: int,
    tokens_per_search: int = TOKENS_PER_SEARCH,
    allowed_domains: Sequence[str] = (),
    blocked_domains: Sequence[str] = (),
    user_location: Mapping[str, Any] | None = None,
    code: Uses | None = None,
) -> ServerTool:
    """Web search ($10 per 1,000 searches, and its results are input).

    Args:
        max_uses: searches in one request at most; the API keeps to it.
        tokens_per_search: input tokens that one search brings in at most: the caller's word.
        allowed_domains, blocked_domains: only these, or all but these; one of the two.
        user_location: see the API.
        code: lets the model filter results by code that it writes, at most so often and with so many tokens
            each time (the caller's word); None lets it search directly only.

    Raises:
        ConfigError: a bound that is not one, or both lists of domains.
        InvalidInput: ``tokens_per_search`` is not a whole number of at least 1.
    """
    definition = _web_tool(
        "web_search",
        max_uses=max_uses,
        allowed=allowed_domains,
        blocked=blocked_domains,
        code=code,
    )
    if user_location is not None:
        definition["user_location"] = dict(user_location)
    allow = Allowances(web_search_tokens=tokens_per_search, code_execution=code)
    return ServerTool(name="web_search", definition=definition, allow=allow)


def web_fetch(
    *,
    max_uses: int,
    max_content_tokens: int,
    allowed_domains: Sequence[str] = (),
    blocked_domains: Sequence[str] = (),
    citations: bool = True,
    code: Uses | None = None,
) -> ServerTool:
    """Web fetch (free but for its tokens).

    Args:
        max_uses: fetches in one request at most; the API keeps to it.
        max_content_tokens: tokens of one page at most. The API keeps to it roughly, and not at all for PDFs,
            so the bound counts as the caller's word.
        allowed_domains, blocked_domains: only these, or all but these; one of the two.
        citations: have the answer cite passages.
        code: as for ``web_search``.

    Raises:
        ConfigError: a bound that is not one, or both lists of domains.
    """
    definition = _web_tool(
        "web_fetch",
        max_uses=max_uses,
        allowed=allowed_domains,
        blocked=blocked_domains,
        code=code,
    )
    definition["max_content_tokens"] = _count("web_fetch", "max_content_tokens", max_content_tokens)
    if citations:
        definition["citations"] = {"enabled": True}
    return ServerTool(
        name="web_fetch", definition=definition, allow=Allowances(code_execution=code)
    )


def code_execution(*, max_uses: int, tokens_per_use: int) -> ServerTool:
    """Code that the model writes, run in a container at the provider.

    The API has no limit on its runs, so both figures are the caller's word. Hours of the container are in no
    bound (free beside web tools of 2026-02-09 and later, else $0.05 an hour after the free ones).

    Args:
        max_uses: runs in one request at most.
        tokens_per_use: input tokens that the output of one run brings in at most.

    Raises:
        InvalidInput: a figure is not a whole number of at least 1 (tokens: 0).
    """
    return ServerTool(
        name="code_execution",
        definition={"type": _NEWEST["code_execution"], "name": "code_execution"},
        allow=Allowances(code_execution=Uses(uses=max_uses, tokens=tokens_per_use)),
    )


def _web_tool(
    name: str,
    *,
    max_uses: int,
    allowed: Sequence[str],
    blocked: Sequence[str],
    code: Uses | None,
) -> dict[str, Any]:
    if allowed and blocked:
        raise ConfigError(f"{name}: give allowed_domains or blocked_domains, not both")
    definition: dict[str, Any] = {
        "type": _NEWEST[name],
        "name": name,
        "max_uses": _count(name, "max_uses", max_uses),
    }
    if allowed:
        definition["allowed_domains"] = list(allowed)
    if blocked:
        definition["blocked_domains"] = list(blocked)
    if code is None:
        definition["allowed_callers"] = _DIRECT
    return definition


def _count(tool: str, name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{tool}: {name} is {value!r}; it must be a whole number of at least 1")
    return value
