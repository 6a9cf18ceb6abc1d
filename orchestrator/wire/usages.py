"""Usages: what a response says was used, read into disjoint classes of tokens.

A usage that can't be true (missing, negative, absurd) reads as None: then the whole hold is posted, and marked.
So is one that an answer says twice: which of the two is billed can't be known, and the hold is what neither exceeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from budgets.shape import Geo, Shape, Speed, Tier, Ttl
from budgets.usage import Usage

#: No single response uses a thousand million of anything.
_ABSURD = 1_000_000_000


#: What decides a bill. Where each of them stands once in a body, none can stand twice in one object.
_DECIDING = (
    b'"usage"',
    b'"model"',
    b'"stop_reason"',
    b'"input_tokens"',
    b'"output_tokens"',
    b'"cache_creation_input_tokens"',
    b'"cache_read_input_tokens"',
    b'"web_search_requests"',
    b'"iterations"',
)
#: How an escape begins that can spell any of them otherwise.
_ESCAPE = b"\\u00"


class Counted(NamedTuple):
    """Tokens that count against the provider's rate limits."""

    input_tokens: int
    output_tokens: int


def counted_for_limits(usage: Usage) -> Counted:
    """What a usage counts against the rate limits: uncached input and writes; output."""
    parts = usage.parts
    if not parts:
        return Counted(usage.prompt_tokens - usage.cache_read, usage.output_tokens)
    return Counted(
        input_tokens=sum(part.prompt_tokens - part.cache_read for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
    )


def read_usage(message: Mapping[str, Any], *, requested: Shape | None) -> Usage | None:
    """The usage of a response message.

    Args:
        message: the message as JSON: of a call, of a batch result, or put together from a stream.
        requested: the shape that was held for it; says what a response leaves open (the longest
            cache lifetime, the place, the speed). None if it is not known.

    Returns:
        The usage, or None if the response does not say in a believable way what was used.
    """
    raw = message.get("usage")
    model = message.get("model") or (requested.model if requested else None)
    if not isinstance(raw, Mapping) or not isinstance(model, str):
        return None
    try:
        return _read(raw, model, message.get("stop_reason") == "refusal", requested)
    except _UnbelievableError:
        return None


def said_once(body: bytes) -> bytes:
    """A response's body as it can be settled by: the very same, or without a usage if it contradicts itself.

    Of a key that stands twice in one object a reader takes the first or the last, so what was billed is not known.

    Args:
        body: the JSON of a message, unpacked.
    """
    for name in _DECIDING:  # no generator: this is done for every answer
        if body.count(name) > 1:
            break
    else:
        if _ESCAPE not in body:
            return body
    message = doubting_json(body)
    if not isinstance(message, Doubting) or not message.is_doubted(within=("usage",)):
        return body
    return json.dumps({**message, "usage": None}).encode()


class Doubting(dict[str, Any]):
    """A JSON object that knows whether one of its keys stood there twice."""

    __slots__ = ("_twice",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._twice = len(self) != len(pairs)

    def is_doubted(self, *, within: Sequence[str] | None = None) -> bool:
        """Whether it, or an object in those fields of it (None: in all), has a key twice."""
        left = list(self.values()) if within is None else [self.get(name) for name in within]
        is_doubted = self._twice
        while left and not is_doubted:  # as many passes as it has values; it may be nested deeply
            one = left.pop()
            if isinstance(one, list):
                left += one
            elif isinstance(one, Doubting):
                is_doubted = one._twice
                left += one.values()
        return is_doubted


def doubting_json(data: bytes) -> object:
    """JSON with its objects as ``Doubting``; None if it can't be read."""
    try:
        return json.loads(data, object_pairs_hook=Doubting)
    except (ValueError, RecursionError):
        return None


class _UnbelievableError(Exception):
    """A count that can't be true."""


class _Setting(NamedTuple):
    """What holds for every part of one response."""

    tier: Tier
    geo: Geo | None
    speed: Speed
    unsplit_ttl: Ttl


def _read(raw: Mapping[str, Any], model: str, refused: bool, requested: Shape | None) -> Usage:
    setting = _setting(raw, requested)
    whole = _tokens(raw, model, setting)
    tools = _mapping(raw.get("server_tool_use"))
    searches = _count(tools.get("web_search_requests"))
    parts = _parts(raw.get("iterations"), whole, refused, setting)
    if refused and whole.output_tokens == 0 and not parts:
        # Declined before any output: reported, but not charged.
        whole = _nothing(model, setting)
    elif not refused and not (whole.prompt_tokens or whole.output_tokens or parts):
        # A real answer is never free: somebody in between has emptied the counts.
        raise _UnbelievableError
    if not parts and not tools and not raw.get("output_tokens_details"):
        return whole
    return Usage(
        model=model,
        input_tokens=whole.input_tokens,
        cache_write_5m=whole.cache_write_5m,
        cache_write_1h=whole.cache_write_1h,
        cache_write_unsplit=whole.cache_write_unsplit,
        cache_read=whole.cache_read,
        output_tokens=whole.output_tokens,
        thinking_tokens=_thinking(raw),
        web_searches=searches,
        web_fetches=_count(tools.get("web_fetch_requests")),
        code_executions=_count(tools.get("code_execution_requests")),
        tier=setting.tier,
        geo=setting.geo,
        speed=setting.speed,
        parts=parts,
        unsplit_ttl=setting.unsplit_ttl,
    )


def _setting(raw: Mapping[str, Any], requested: Shape | None) -> _Setting:
    geo = raw.get("inference_geo")
    if geo is None or geo == "not_available":
        geo = requested.geo if requested else None
    elif geo not in ("global", "us"):
        # A place without a price of its own: the dearer of those that have one.
        geo = "us"
    speed = raw.get("speed")
    if speed not in ("standard", "fast"):
        speed = requested.speed if requested else "standard"
    return _Setting(
        tier="batch" if raw.get("service_tier") == "batch" else "standard",
        geo=cast("Geo | None", geo),
        speed=cast("Speed", speed),
        unsplit_ttl=(requested.cache_ttl if requested else None) or "1h",
    )


def _tokens(raw: Mapping[str, Any], model: str, setting: _Setting) -> Usage:
    """The token classes of a usage or of one of its iterations."""
    if raw.get("input_tokens") is None or raw.get("output_tokens") is None:
        raise _UnbelievableError
    split = _mapping(raw.get("cache_creation"))
    five = _count(split.get("ephemeral_5m_input_tokens"))
    hour = _count(split.get("ephemeral_1h_input_tokens"))
    written = _count(raw.get("cache_creation_input_tokens"))
    return Usage(
        model=model,
        input_tokens=_count(raw.get("input_tokens")),
        cache_write_5m=five,
        cache_write_1h=hour,
        # A split larger than the total is believed: it is the dearer reading.
        cache_write_unsplit=max(0, written - five - hour),
        cache_read=_count(raw.get("cache_read_input_tokens")),
        output_tokens=_count(raw.get("output_tokens")),
        tier=setting.tier,
        geo=setting.geo,
        speed=setting.speed,
        unsplit_ttl=setting.unsplit_ttl,
    )


def _parts(iterations: object, whole: Usage, refused: bool, setting: _Setting) -> tuple[Usage, ...]:
    """Iterations as parts, without those that declined before any output (not charged)."""
    if not iterations:
        return ()
    if not isinstance(iterations, (list, tuple)):
        raise _UnbelievableError
    kinds = [_mapping(item).get("type") for item in iterations]
    served_by_fallback = "fallback_message" in kinds
    charged: list[Usage] = []
    sampled: list[Usage] = []
    for kind, item in zip(kinds, iterations, strict=True):
        raw = _mapping(item)
        model = raw.get("model") or whole.model
        if not isinstance(model, str):
            raise _UnbelievableError
        part = _tokens(raw, model, setting)
        if kind not in ("compaction", "advisor_message"):
            sampled.append(part)
        declined = kind == "message" and part.output_tokens == 0 and (refused or served_by_fallback)
        if not declined:
            charged.append(part)
    if not refused or whole.output_tokens:
        charged.extend(_unlisted(whole, sampled))
    return tuple(charged) or (_nothing(whole.model, setting),)


def _unlisted(whole: Usage, sampled: list[Usage]) -> list[Usage]:
    """What the whole has beyond its iterations: a list with a gap must not make a bill smaller."""
    rest = Usage(
        model=whole.model,
        input_tokens=max(0, whole.input_tokens - sum(one.input_tokens for one in sampled)),
        cache_write_unsplit=max(0, _written(whole) - sum(_written(one) for one in sampled)),
        cache_read=max(0, whole.cache_read - sum(one.cache_read for one in sampled)),
        output_tokens=max(0, whole.output_tokens - sum(one.output_tokens for one in sampled)),
        tier=whole.tier,
        geo=whole.geo,
        speed=whole.speed,
        unsplit_ttl=whole.unsplit_ttl,
    )
    return [rest] if rest.prompt_tokens or rest.output_tokens else []


def _written(usage: Usage) -> int:
    return usage.cache_write_5m + usage.cache_write_1h + usage.cache_write_unsplit


def _nothing(model: str, setting: _Setting) -> Usage:
    return Usage(
        model=model,
        tier=setting.tier,
        geo=setting.geo,
        speed=setting.speed,
        unsplit_ttl=setting.unsplit_ttl,
    )


def _thinking(raw: Mapping[str, Any]) -> int:
    """Information only, so a bad figure is no reason to doubt the rest."""
    try:
        return _count(_mapping(raw.get("output_tokens_details")).get("thinking_tokens"))
    except _UnbelievableError:
        return 0


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _UnbelievableError
    return value


def _count(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _ABSURD:
        raise _UnbelievableError
    return value
