"""Tools: what the tools of a request can cost beyond the text of their definitions.

A client tool costs its definition. A server tool makes the provider sample again and again inside
one request, so its number of uses and what each use brings in must be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from budgets.errors import InvalidInput, Unbounded
from budgets.shape import Ttl

from .allowances import Allowances, Uses
from .caching import ttl_of
from .fields import FILTERING_TOOLS, TOOL_TYPES, Family

#: A tool type that only the caller vouches for may hide as much as a whole toolset.
_VOUCHED_OVERHEAD = 16_384
#: What the provider adds to the prompt as soon as there is a tool (its documentation lists 159 to
#: 804 tokens, by model and tool choice).
TOOL_PROMPT = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisor:
    """A second model that the provider may consult: at most ``uses`` times ``tokens`` of output."""

    model: str
    uses: int
    tokens: int
    caching: Ttl | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTerms:
    """What the tools of one request can cause.

    Attributes:
        uses: server-side uses, each of which is one more round of sampling.
        searches: web searches that can be charged.
        advisors: models that can be consulted.
        overhead: input tokens of hidden definitions and prompts, at most.
        word: names of the caller's words that this rests on.
        open_ended: definitions come from somewhere else, so that the request's bytes bound nothing.
        held: the tools that are not run by the caller; a message thread goes on having them.
    """

    uses: tuple[Uses, ...] = ()
    searches: int = 0
    advisors: tuple[Advisor, ...] = ()
    overhead: int = 0
    word: tuple[str, ...] = ()
    open_ended: bool = False
    held: tuple[Mapping[str, Any], ...] = ()


NO_TOOLS = ToolTerms()


def fill_uses(tools: Sequence[Any], allow: Allowances) -> list[Any] | None:
    """Tools with ``max_uses`` set where a web tool names none; None if nothing has to change."""
    if allow.web_max_uses is None:
        return None
    filled = [
        {**tool, "max_uses": allow.web_max_uses}
        if isinstance(tool, Mapping)
        and tool.get("max_uses") is None
        and _family_or_none(tool) in {"web_search", "web_fetch"}
        else tool
        for tool in tools
    ]
    return None if all(new is old for new, old in zip(filled, tools, strict=True)) else filled


def read_tools(tools: Sequence[Any], allow: Allowances, *, where: str = "tools") -> ToolTerms:
    """What these tools can cause.

    Raises:
        Unbounded: a tool of an unknown type, or one whose cost has no bound. Nothing was sent.
        InvalidInput: a tool or a limit that is not one. Nothing was sent.
    """
    reading = _Tools(allow=allow)
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            msg = f"{where}[{index}]: {type(tool).__name__} is not a tool definition"
            raise InvalidInput(msg)
        reading.add(tool, f"{where}[{index}]")
    return reading.terms()


def read_mcp_servers(servers: object, allow: Allowances) -> None:
    """Check that server-side MCP was allowed; its uses are counted with the toolsets.

    Raises:
        Unbounded: no allowance for it. Nothing was sent.
    """
    if servers and allow.mcp is None:
        feature = "mcp_servers"
        raise _no_uses(feature, feature, "calls of MCP tools on the server", "mcp")


@dataclass(slots=True)
class _Tools:
    allow: Allowances
    loops: dict[str, Uses] = field(default_factory=dict)
    searches: int = 0
    advisors: list[Advisor] = field(default_factory=list)
    overhead: int = TOOL_PROMPT
    word: list[str] = field(default_factory=list)
    open_ended: bool = False
    held: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, tool: Mapping[str, Any], where: str) -> None:
        kind, family, overhead = _look_up(tool, self.allow, where)
        self.overhead += overhead
        if family == "client":
            return
        self.held.append(tool)
        if family == "web_search":
            self._web_search(tool, kind, where)
        elif family == "web_fetch":
            self._web_fetch(tool, kind, where)
        elif family == "advisor":
            self._advisor(tool, kind, where)
        else:
            self._vouched(family, kind, where)

    def _web_search(self, tool: Mapping[str, Any], kind: str, where: str) -> None:
        uses = _max_uses(tool, kind, where, "searches")
        if self.allow.web_search_tokens is None:
            msg = (
                f"{where}: {kind} results have no bound; pass "
                "Allowances(web_search_tokens=...), the most tokens that one search brings in"
            )
            raise Unbounded(msg, feature=kind)
        self.searches += uses
        self.loops[where] = Uses(uses=uses, tokens=self.allow.web_search_tokens)
        self.word.append("web_search_tokens")
        self._filtering(tool, kind, where)

    def _web_fetch(self, tool: Mapping[str, Any], kind: str, where: str) -> None:
        uses = _max_uses(tool, kind, where, "fetches")
        tokens = self.allow.web_fetch_tokens
        if tokens is None:
            named = _limit(tool.get("max_content_tokens"), f"{where}.max_content_tokens")
            if named is None:
                msg = (
                    f"{where}: {kind} has no max_content_tokens, so its results have no bound; "
                    "set it on the tool, or pass Allowances(web_fetch_tokens=...)"
                )
                raise Unbounded(msg, feature=kind)
            # The provider calls this limit approximate.
            tokens = named + named // 4 + 256
        self.loops[where] = Uses(uses=uses, tokens=tokens)
        # ... and it does not hold for PDFs, so either way it is only the caller's word.
        self.word.append("web_fetch_tokens")
        self._filtering(tool, kind, where)

    def _filtering(self, tool: Mapping[str, Any], kind: str, where: str) -> None:
        """Web tools from 2026-02-09 on may run code on their results, beyond ``max_uses``."""
        if kind not in FILTERING_TOOLS or tool.get("allowed_callers") == ["direct"]:
            return
        if self.allow.code_execution is None:
            msg = (
                f"{where}: {kind} may run code on its results, any number of times; set "
                'allowed_callers to ["direct"] on the tool, or pass '
                "Allowances(code_execution=Uses(uses=..., tokens=...))"
            )
            raise Unbounded(msg, feature=kind)
        self._vouched("code_execution", kind, where)

    def _advisor(self, tool: Mapping[str, Any], kind: str, where: str) -> None:
        uses = _max_uses(tool, kind, where, "consultations")
        tokens = _limit(tool.get("max_tokens"), f"{where}.max_tokens")
        if tokens is None:
            msg = (
                f"{where}: {kind} has no max_tokens, so the advice has no bound; set it on the tool"
            )
            raise Unbounded(msg, feature=kind)
        model = tool.get("model")
        if not isinstance(model, str) or not model:
            msg = f"{where}.model: {model!r} is not the name of a model"
            raise InvalidInput(msg)
        caching = ttl_of(tool.get("caching"))
        self.advisors.append(Advisor(model=model, uses=uses, tokens=tokens, caching=caching))
        # The advice is read by the asking model too.
        self.loops[where] = Uses(uses=uses, tokens=tokens)

    def _vouched(self, family: Family, kind: str, where: str) -> None:
        """Tools that carry no limit of their own: the caller's word, once for each family."""
        uses: Uses | None = getattr(self.allow, family)
        if uses is None:
            raise _no_uses(kind, where, "uses on the server", family)
        self.open_ended = self.open_ended or family == "mcp"
        self.loops[family] = uses
        if family not in self.word:
            self.word.append(family)

    def terms(self) -> ToolTerms:
        return ToolTerms(
            uses=tuple(self.loops.values()),
            searches=self.searches,
            advisors=tuple(self.advisors),
            overhead=self.overhead,
            word=tuple(dict.fromkeys(self.word)),
            open_ended=self.open_ended,
            held=tuple(self.held),
        )


def _family_or_none(tool: Mapping[str, Any]) -> Family | None:
    kind = tool.get("type")
    known = TOOL_TYPES.get(kind) if isinstance(kind, str) else None
    return known[0] if known else None


def _look_up(tool: Mapping[str, Any], allow: Allowances, where: str) -> tuple[str, Family, int]:
    kind = tool.get("type")
    kind = "custom" if kind is None else kind
    if not isinstance(kind, str):
        msg = f"{where}.type: {kind!r} is not the name of a tool type"
        raise InvalidInput(msg)
    known = TOOL_TYPES.get(kind)
    if known is not None:
        return kind, known[0], known[1]
    if kind in allow.tool_types:
        return kind, "client", _VOUCHED_OVERHEAD
    msg = (
        f"{where}: it is not known what a tool of type {kind!r} costs; if it is run by the caller, "
        f"pass Allowances(tool_types={{{kind!r}}})"
    )
    raise Unbounded(msg, feature=kind)


def _max_uses(tool: Mapping[str, Any], kind: str, where: str, what: str) -> int:
    uses = _limit(tool.get("max_uses"), f"{where}.max_uses")
    if uses is None:
        hint = "" if kind.startswith("advisor") else ", or pass Allowances(web_max_uses=...)"
        msg = (
            f"{where}: {kind} has no max_uses, so the number of {what} has no bound; "
            f"set it on the tool{hint}"
        )
        raise Unbounded(msg, feature=kind)
    return uses


def _limit(value: object, where: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        msg = f"{where}: {value!r} is not a whole number of at least 1"
        raise InvalidInput(msg)
    return value


def _no_uses(feature: str, where: str, what: str, allowance: str) -> Unbounded:
    msg = (
        f"{where}: {feature} has no limit on its {what}; "
        f"pass Allowances({allowance}=Uses(uses=..., tokens=...))"
    )
    return Unbounded(msg, feature=feature)
