"""Allowances: the caller's words about what the provider does not bound.

A bound that rests on one of them is marked in ``Shape.word``, and a real cost above it is an
overrun.
"""

from __future__ import annotations

from dataclasses import dataclass

from budgets.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """How often one request may use a server-side tool, and what each use adds to the prompt.

    Attributes:
        uses: the most uses in one request.
        tokens: the most input tokens that one use brings in.
    """

    uses: int
    tokens: int

    def __post_init__(self) -> None:
        _check("uses", self.uses, least=1)
        _check("tokens", self.tokens, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What the caller vouches for. The default vouches for nothing.

    Attributes:
        default_max_tokens: set in a request that names no ``max_tokens`` (thinking gets room on
            top).
        set_service_tier: set ``standard_only`` where the request names no tier, so that Priority
            Tier prices can't apply. Turn it off only if the account has no Priority Tier.
        web_search_tokens: the most input tokens that the results of one web search bring in.
        web_fetch_tokens: the most input tokens that one web fetch brings in; stands in for
            ``max_content_tokens``, which does not hold for PDFs.
        web_max_uses: set as ``max_uses`` in web tools that name none.
        code_execution: server-side code runs. Container hours are not part of any bound: they can't
            be derived from one response (they are free beside web tools of 2026-02-09 and later).
        tool_search: server-side searches among deferred tools.
        mcp: calls of server-side MCP tools (``mcp_servers``).
        compaction_tokens: the most output tokens of one compaction pass.
        unknown_threads: message threads that were begun elsewhere hold no server-side tools.
        fields: further top-level request fields that cost nothing.
        tool_types: further tool types that are run by the caller.
    """

    default_max_tokens: int = 4_096
    set_service_tier: bool = True
    web_search_tokens: int | None = None
    web_fetch_tokens: int | None = None
    web_max_uses: int | None = None
    code_execution: Uses | None = None
    tool_search: Uses | None = None
    mcp: Uses | None = None
    compaction_tokens: int | None = None
    unknown_threads: bool = False
    fields: frozenset[str] = frozenset()
    tool_types: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check("default_max_tokens", self.default_max_tokens, least=1)
        for name in ("web_search_tokens", "web_fetch_tokens", "web_max_uses", "compaction_tokens"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, least=1)
        for name in ("fields", "tool_types"):
            if isinstance(getattr(self, name), str):
                msg = f"{name}: give a set of names, not one string"
                raise InvalidInput(msg)
            object.__setattr__(self, name, frozenset(getattr(self, name)))


def _check(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or value < least:
        msg = f"{name}: {value!r} is not a whole number of at least {least}"
        raise InvalidInput(msg)
