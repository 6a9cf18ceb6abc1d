"""Rates: what one token of each class costs, in whole pico-dollars, and how rates are derived.

The figures come from ``catalog`` (list prices) and ``price_file`` (the user's own); ``prices``
decides which of them apply, and ``pricing`` multiplies them by tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

#: $1 per million tokens is a millionth of a dollar per token.
PICOS_PER_USD_PER_MTOK = 1_000_000
#: $1 per thousand searches is a tenth of a cent per search.
NANOS_PER_USD_PER_THOUSAND = 1_000_000
#: Documented list price of a web search, $10 per thousand.
WEB_SEARCH_NANOS = 10 * NANOS_PER_USD_PER_THOUSAND

#: Documented multiples of the plain input rate, for prices that name no rate for cache writes.
WRITE_5M_TIMES_INPUT = Fraction(5, 4)
WRITE_1H_TIMES_INPUT = Fraction(2)
#: ... and for cache reads. Some models read for less, none of the current ones for more.
READ_TIMES_INPUT = Fraction(1, 10)
#: Documented: a batch costs half of all token usage. Server tools keep their price.
BATCH_TIMES_STANDARD = Fraction(1, 2)

TOKEN_CLASSES = ("input", "write_5m", "write_1h", "read", "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one unit of each class costs.

    Attributes:
        input, write_5m, write_1h, read, output: pico-dollars per token ($1 per million tokens is
            1,000,000 of them).
        web_search_nanos: nano-dollars per web search.
        source: where the figures come from, for people.
        may_be_free: True where the user wrote the price down, so that a price of 0 is meant.
    """

    input: int
    write_5m: int
    write_1h: int
    read: int
    output: int
    web_search_nanos: int = WEB_SEARCH_NANOS
    source: str = ""
    may_be_free: bool = False

    def times(self, factor: Fraction) -> Rates:
        """The same with every token rate multiplied and rounded up to a pico-dollar."""
        return replace(
            self,
            input=ceil_of(self.input * factor),
            write_5m=ceil_of(self.write_5m * factor),
            write_1h=ceil_of(self.write_1h * factor),
            read=ceil_of(self.read * factor),
            output=ceil_of(self.output * factor),
        )

    def dearest_input(self, ttl: str | None) -> int:
        """Pico-dollars per input token when it is not known which class it will fall in.

        Args:
            ttl: the longest cache lifetime that the request asks for, None if it marks nothing.
        """
        writes = {None: 0, "5m": self.write_5m, "1h": max(self.write_5m, self.write_1h)}[ttl]
        return max(self.input, self.read, writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTier:
    """Rates for prompts longer than ``over`` tokens; they then hold for every token of the call."""

    over: int
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Rates by prompt length.

    Attributes:
        base: rates of short prompts.
        tiers: dearer rates, by rising ``over``.
    """

    base: Rates
    tiers: tuple[PromptTier, ...] = ()

    def at(self, prompt_tokens: int) -> Rates:
        """The rates of a prompt of this many tokens (a cliff: all tokens pay the same rate)."""
        found = self.base
        for tier in self.tiers:
            if prompt_tokens <= tier.over:
                break
            found = tier.rates
        return found

    def times(self, factor: Fraction) -> Scale:
        """The same scale with every token rate multiplied."""
        return Scale(
            base=self.base.times(factor),
            tiers=tuple(
                PromptTier(over=tier.over, rates=tier.rates.times(factor)) for tier in self.tiers
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """All that one model costs on one day: standard, batch, and fast where it exists."""

    standard: Scale
    batch: Scale
    fast: Scale | None = None


def ceil_of(value: Fraction) -> int:
    """The next whole number: amounts that don't come out even are rounded against the spender."""
    return -(-value.numerator // value.denominator)


def picos_of(usd_per_mtok: Decimal) -> int:
    """Pico-dollars per token, from dollars per million tokens.

    Raises:
        ValueError: finer than a pico-dollar per token (more than six decimals).
    """
    picos = usd_per_mtok * PICOS_PER_USD_PER_MTOK
    whole = int(picos)
    if whole != picos:
        msg = f"{usd_per_mtok} has more than six decimals"
        raise ValueError(msg)
    return whole


def nanos_per_search(usd_per_thousand: Decimal) -> int:
    """Nano-dollars per web search, from dollars per thousand searches.

    Raises:
        ValueError: finer than a nano-dollar per search (more than six decimals).
    """
    return picos_of(usd_per_thousand)  # the same million: a thousandth of a dollar in nano-dollars
