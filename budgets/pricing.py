"""Pricing: one formula in two directions: what a shape may cost, and what a usage did cost.

Rates come from ``prices``. Both directions sum exactly, in tenths of a pico-dollar (so that 1.1
times a rate is a whole number), and round up once, to the next nano-dollar.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from .errors import InvalidInput, UnknownPrice
from .money import MAX_NANOS
from .prices import PriceBook
from .rates import Rates
from .shape import Geo, Shape, Speed, Ttl
from .usage import Usage

#: Tenths of a pico-dollar in a nano-dollar.
_TENTHS_PER_NANO = 10_000
#: Tenths per pico-dollar: inference anywhere, and inference pinned to one place (documented: 1.1
#: times every token class, on top of batch, fast and cache multiples; searches keep their price).
_GLOBAL, _PLACED = 10, 11


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEffect:
    """What the prompt cache did to the price of one usage, in nano-dollars.

    Attributes:
        saved_nanos: tokens read, at the price of plain input, less what they did cost.
        surcharge_nanos: what tokens written cost above plain input.
    """

    saved_nanos: int = 0
    surcharge_nanos: int = 0


def bound(shape: Shape, book: PriceBook, at: datetime) -> int:
    """The most that one attempt of this shape can cost, in nano-dollars.

    Every input token is priced at the dearest class that it can fall in (a cache write of the
    longest lifetime asked for), in the upper price tier if the input might reach it, at 1.1 times
    unless the shape says ``global``. Which prompt length the provider looks at when one request
    samples several rounds is not documented: the longer of ``prompt_tokens`` and ``input_tokens``
    decides here.

    Parts take the place, tier and speed of the whole where they don't name their own.

    Args:
        shape: upper limits.
        book: where rates come from.
        at: when the attempt is made (aware).

    Raises:
        UnknownPrice: the model or a feature of it has no price. Nothing was sent.
        InvalidInput: a negative limit, or one so large that its price is no amount. Nothing was sent.
    """
    nanos = _round_up(_bound_tenths(shape, book, at))
    if nanos > MAX_NANOS:
        raise InvalidInput(
            f"a call of {shape.model} with these limits could cost more than any amount that can be held; lower its "
            "output limit (max_tokens) and the number of its tools' uses (max_uses)"
        )
    return nanos


def cost(usage: Usage, book: PriceBook, at: datetime) -> int:
    """What a usage cost, in nano-dollars.

    Where the usage has parts, they are the bill: each at its own model and its own prompt length;
    the whole's own token counts are not priced again. Parts take the place, tier, speed and
    lifetime of unsplit writes of the whole where they don't name their own. Web searches are
    charged once, on the whole.

    Args:
        usage: disjoint counts as the provider reported them.
        book: where rates come from.
        at: when the attempt was made (aware), not when it was answered.

    Raises:
        UnknownPrice: no price for the model that served, or a price of zero that nobody wrote down.
        InvalidInput: a negative count.
    """
    tenths = _cost_tenths(usage, book, at)
    searches = _searches(usage)
    if searches:
        tenths += searches * _rates_of(usage, book, at).web_search_nanos * _TENTHS_PER_NANO
    return _round_up(tenths)


def uncached_cost(usage: Usage, book: PriceBook, at: datetime) -> int:
    """What a usage would have cost with every input token priced as plain input, in nano-dollars.

    Raises:
        UnknownPrice, InvalidInput: as for ``cost``.
    """
    return cost(_uncached(usage), book, at)


def cache_effect(usage: Usage, book: PriceBook, at: datetime) -> CacheEffect:
    """What the prompt cache saved, and what writing to it cost on top.

    The cost is the uncached cost less what was saved plus the surcharge, but for at most two
    nano-dollars of rounding (what is saved is rounded down, the surcharge up).

    Raises:
        UnknownPrice: as for ``cost``.
    """
    saved, surcharge = _effect_tenths(usage, book, at)
    return CacheEffect(
        saved_nanos=max(saved, 0) // _TENTHS_PER_NANO, surcharge_nanos=_round_up(max(surcharge, 0))
    )


def _uncached(usage: Usage) -> Usage:
    return replace(
        usage,
        input_tokens=usage.prompt_tokens,
        cache_write_5m=0,
        cache_write_1h=0,
        cache_write_unsplit=0,
        cache_read=0,
        parts=tuple(_uncached(part) for part in usage.parts),
    )


def _effect_tenths(usage: Usage, book: PriceBook, at: datetime) -> tuple[int, int]:
    if usage.parts:
        parts = [_effect_tenths(_inherited(p, usage, book, at), book, at) for p in usage.parts]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    rates = _rates_of(usage, book, at)
    writes_5m, writes_1h = _writes(usage)
    place = _PLACED if usage.geo == "us" else _GLOBAL
    saved = usage.cache_read * (rates.input - rates.read) * place
    surcharge = writes_5m * (rates.write_5m - rates.input)
    surcharge += writes_1h * (rates.write_1h - rates.input)
    return saved, surcharge * place


def _writes(usage: Usage) -> tuple[int, int]:
    """Tokens written, by lifetime; those without one at that of ``unsplit_ttl``."""
    if usage.unsplit_ttl == "5m":
        return usage.cache_write_5m + usage.cache_write_unsplit, usage.cache_write_1h
    return usage.cache_write_5m, usage.cache_write_1h + usage.cache_write_unsplit


def _bound_tenths(shape: Shape, book: PriceBook, at: datetime) -> int:
    counts = (shape.input_tokens, shape.output_tokens, shape.web_searches, shape.prompt_tokens or 0)
    if min(counts) < 0:
        msg = f"{shape.model}: a shape can't have a negative limit"
        raise InvalidInput(msg)
    rates = book.rates(
        shape.model,
        at,
        tier=shape.tier,
        speed=shape.speed,
        prompt_tokens=max(shape.input_tokens, shape.prompt_tokens or 0),
    )
    tokens = shape.input_tokens * rates.dearest_input(shape.cache_ttl)
    tokens += shape.output_tokens * rates.output
    place = _GLOBAL if shape.geo == "global" else _PLACED
    tenths = tokens * place + shape.web_searches * rates.web_search_nanos * _TENTHS_PER_NANO
    for part in shape.parts:
        inherited = replace(
            part,
            geo=part.geo or shape.geo,
            tier=shape.tier if part.tier == "standard" else part.tier,
            speed=_speed(part.model, part.speed, shape.speed, book, at),
        )
        tenths += _bound_tenths(inherited, book, at)
    return tenths


def _cost_tenths(usage: Usage, book: PriceBook, at: datetime) -> int:
    if usage.parts:
        return sum(
            _cost_tenths(_inherited(part, usage, book, at), book, at) for part in usage.parts
        )
    _refuse_negative(usage)
    rates = _rates_of(usage, book, at)
    writes_5m, writes_1h = _writes(usage)
    tokens = (
        usage.input_tokens * rates.input
        + writes_5m * rates.write_5m
        + writes_1h * rates.write_1h
        + usage.cache_read * rates.read
        + usage.output_tokens * rates.output
    )
    counted = usage.prompt_tokens + usage.output_tokens
    if tokens == 0 and counted > 0 and not rates.may_be_free:
        msg = (
            f"{usage.model}: {counted:,} tokens came to $0.00 at the rates of {rates.source}; "
            "if the model is free, write a price of 0 into a price file"
        )
        raise UnknownPrice(msg, model=usage.model)
    return tokens * (_PLACED if usage.geo == "us" else _GLOBAL)


def _rates_of(usage: Usage, book: PriceBook, at: datetime) -> Rates:
    return book.rates(
        usage.model, at, tier=usage.tier, speed=usage.speed, prompt_tokens=usage.prompt_tokens
    )


def _inherited(part: Usage, whole: Usage, book: PriceBook, at: datetime) -> Usage:
    """The part with what it does not name taken from the whole."""
    geo: Geo | None = part.geo or whole.geo
    unsplit: Ttl = "5m" if "5m" in (part.unsplit_ttl, whole.unsplit_ttl) else "1h"
    return replace(
        part,
        geo=geo,
        tier=whole.tier if part.tier == "standard" else part.tier,
        speed=_speed(part.model, part.speed, whole.speed, book, at),
        unsplit_ttl=unsplit,
    )


def _speed(model: str, own: Speed, whole: Speed, book: PriceBook, at: datetime) -> Speed:
    """The speed of a part: its own; or the whole's, where the part's model has that speed."""
    if own == "fast" or whole == "standard":
        return own
    return "fast" if book.has_fast(model, at) else "standard"


def _searches(usage: Usage) -> int:
    """Web searches stay on the whole; if only parts report them, they are charged all the same."""
    if not usage.parts:
        return usage.web_searches
    return max(usage.web_searches, sum(_searches(part) for part in usage.parts))


def _refuse_negative(usage: Usage) -> None:
    counts = (
        usage.input_tokens,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.cache_write_unsplit,
        usage.cache_read,
        usage.output_tokens,
        usage.web_searches,
    )
    if min(counts) < 0:
        msg = f"{usage.model}: a usage can't have a negative count"
        raise InvalidInput(msg)


def _round_up(tenths: int) -> int:
    return -(-tenths // _TENTHS_PER_NANO)
