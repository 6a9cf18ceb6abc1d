"""The catalog: every model with a list price, from genai-prices and what it does not say.

genai-prices (pinned) has the figures. It matches names by prefix, knows no retirements and no
cache minimums, and dates most of its batch prices to October 2026; this file adds what is
documented elsewhere. Its updater is never used: prices of a hard budget change with a release,
not by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from .errors import UnknownPrice
from .rates import (
    BATCH_TIMES_STANDARD,
    WEB_SEARCH_NANOS,
    WRITE_1H_TIMES_INPUT,
    WRITE_5M_TIMES_INPUT,
    Card,
    PromptTier,
    Rates,
    Scale,
    ceil_of,
    nanos_per_search,
    picos_of,
)

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

#: Names the list prices wherever a source is shown. A test compares it with the pin.
SOURCE = "genai-prices 0.2.3"
#: The day on which names and dates below were last compared with what Anthropic publishes.
CHECKED_ON = date(2026, 11, 29)
#: What the largest known context holds: the conservative answer for a model that says nothing.
LARGEST_CONTEXT = 1_000_000
#: The largest documented minimum of a cacheable prefix: the conservative answer likewise.
LARGEST_CACHE_MINIMUM = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is documented about a model beside its price.

    Attributes:
        aliases: further documented names, besides dated ones.
        cache_minimum: tokens that a prefix needs to be cached; None where it was not found.
        retired_on: the day from which requests fail.
        retires_on: an announced day of the same kind.
        fast_ends: the first day without fast mode.
    """

    aliases: tuple[str, ...] = ()
    cache_minimum: int | None = None
    retired_on: date | None = None
    retires_on: date | None = None
    fast_ends: date | None = None

    def fast_over(self, on: date) -> bool:
        """Whether the model's fast mode has ended by that day."""
        return self.fast_ends is not None and on >= self.fast_ends


NO_FACTS = Facts()

#: By canonical id. Cache minimums of the 5.5 family were not found: Haiku 5.5 takes that of Haiku
#: 4.5 (4,096), Sonnet 5.5 that of Sonnet 5 (1,024), Opus 5.5 the larger of Opus 4.8 and 5 (1,024),
#: and Fable 5.2 and Mythos 5.x the 512 that Fable 5, Fable 5.1 and Mythos 5 have.
FACTS: Mapping[str, Facts] = {
    "claude-fable-5-2": Facts(cache_minimum=512),
    "claude-fable-5-1": Facts(cache_minimum=512),
    "claude-fable-5": Facts(cache_minimum=512),
    "claude-mythos-5-2": Facts(cache_minimum=512),
    "claude-mythos-5-1": Facts(cache_minimum=512),
    "claude-mythos-5": Facts(cache_minimum=512),
    "claude-mythos-preview": Facts(retired_on=date(2026, 6, 30)),
    "claude-opus-5-5": Facts(cache_minimum=1024),
    "claude-opus-5": Facts(aliases=("claude-opus-5-latest",), cache_minimum=512),
    "claude-opus-4-8": Facts(cache_minimum=1024, fast_ends=date(2026, 11, 30)),
    "claude-opus-4-7": Facts(cache_minimum=2048),
    "claude-opus-4-6": Facts(cache_minimum=4096),
    "claude-opus-4-5": Facts(cache_minimum=4096, retires_on=date(2027, 1, 22)),
    "claude-opus-4-1": Facts(retired_on=date(2026, 8, 5)),
    "claude-opus-4-0": Facts(
        aliases=("claude-opus-4", "claude-4-opus"),
        retired_on=date(2026, 6, 15),
    ),
    "claude-sonnet-5-5": Facts(cache_minimum=1024),
    "claude-sonnet-5": Facts(cache_minimum=1024),
    "claude-sonnet-4-6": Facts(cache_minimum=1024),
    "claude-sonnet-4-5": Facts(cache_minimum=1024, retires_on=date(2026, 11, 30)),
    "claude-sonnet-4-0": Facts(
        aliases=("claude-sonnet-4", "claude-4-sonnet"),
        retired_on=date(2026, 6, 15),
    ),
    "claude-haiku-5-5": Facts(cache_minimum=4096),
    "claude-haiku-4-5": Facts(cache_minimum=4096),
    "claude-3-7-sonnet": Facts(aliases=("claude-3-7-sonnet-latest",), retired_on=date(2026, 2, 19)),
    "claude-3-5-sonnet": Facts(
        aliases=("claude-3-5-sonnet-latest", "claude-3-5-sonnet-v2"),
        retired_on=date(2025, 10, 28),
    ),
    "claude-3-5-haiku": Facts(aliases=("claude-3-5-haiku-latest",), retired_on=date(2026, 2, 19)),
    "claude-3-opus": Facts(aliases=("claude-3-opus-latest",), retired_on=date(2026, 1, 5)),
    "claude-3-sonnet": Facts(retired_on=date(2025, 7, 21)),
    "claude-3-haiku": Facts(),
    "claude-2": Facts(aliases=("claude-2.0", "claude-2.1"), retired_on=date(2025, 7, 21)),
    "claude-v1": Facts(retired_on=date(2024, 11, 6)),
}

#: Ids with a list price that the official client's list of models still names. What is missing here
#: is retired, by the day of the comparison at the latest.
CURRENT = frozenset(
    {
        "claude-fable-5-2",
        "claude-fable-5-1",
        "claude-fable-5",
        "claude-mythos-5-2",
        "claude-mythos-5-1",
        "claude-mythos-5",
        "claude-mythos-preview",
        "claude-opus-5-5",
        "claude-opus-5",
        "claude-opus-4-8",
        "claude-opus-4-7",
        "claude-opus-4-6",
        "claude-opus-4-5",
        "claude-sonnet-5-5",
        "claude-sonnet-5",
        "claude-sonnet-4-6",
        "claude-sonnet-4-5",
        "claude-haiku-5-5",
        "claude-haiku-4-5",
    }
)

_DATED = re.compile(r"(?P<base>.+?)[-@](?P<date>\d{8})")


def undated(name: str) -> str | None:
    """The name without its snapshot date (``-YYYYMMDD`` or ``@YYYYMMDD``); None if it has none."""
    match = _DATED.fullmatch(name)
    if match is None:
        return None
    try:
        snapshot = datetime.strptime(match["date"], "%Y%m%d").date()  # noqa: DTZ007 - a date only
    except ValueError:
        return None
    return match["base"] if snapshot.year >= 2023 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One model with a list price.

    Attributes:
        id: canonical id.
        name: for people.
        context_window: tokens of input that fit; None if the list does not say.
        facts: what is documented beside the price.
    """

    id: str
    name: str
    context_window: int | None
    facts: Facts
    _info: ModelInfo = field(repr=False, compare=False)

    def card(self, on: date) -> Card:
        """What the model costs on a UTC day, retired or not.

        Raises:
            UnknownPrice: the list has no price that can be used for it.
        """
        at = datetime.combine(on, time(), tzinfo=UTC)
        standard = self._info.get_prices(at)
        has_fast = not self.facts.fast_over(on) and any(
            variant.when == {"speed": "fast"} for variant in self._info.price_variants or ()
        )
        scale = self._scale(standard)
        batch = self._info.get_prices(at, {"processing": "batch"})
        # Before a batch price is listed, the documented half applies all the same.
        listed_batch = self._scale(batch) if batch != standard else None
        return Card(
            standard=scale,
            batch=listed_batch or scale.times(BATCH_TIMES_STANDARD),
            fast=self._scale(self._info.get_prices(at, {"speed": "fast"})) if has_fast else None,
        )

    def _scale(self, price: ModelPrice) -> Scale:
        starts = sorted({start for _, value in _entries(price) for start in _starts(value)})
        return Scale(
            base=self._rates(price, 0),
            tiers=tuple(
                PromptTier(over=start, rates=self._rates(price, start + 1)) for start in starts
            ),
        )

    def _rates(self, price: ModelPrice, prompt_tokens: int) -> Rates:
        usd = {key: _usd(value, prompt_tokens) for key, value in _entries(price)}
        if not usd.get("input_mtok") or not usd.get("output_mtok"):
            msg = f"{self.id}: {SOURCE} has no price above zero for its input or output"
            raise UnknownPrice(msg, model=self.id)
        plain = picos_of(usd["input_mtok"])

        def picos(key: str, otherwise: int) -> int:
            return picos_of(usd[key]) if key in usd else otherwise

        searches = usd.get("web_searches_kcount")
        return Rates(
            input=plain,
            write_5m=picos("cache_write_mtok", ceil_of(plain * WRITE_5M_TIMES_INPUT)),
            write_1h=picos("cache_write_1h_mtok", ceil_of(plain * WRITE_1H_TIMES_INPUT)),
            read=picos("cache_read_mtok", plain),
            output=picos_of(usd["output_mtok"]),
            web_search_nanos=WEB_SEARCH_NANOS if searches is None else nanos_per_search(searches),
            source=SOURCE,
        )


@cache
def listed() -> Mapping[str, Listed]:
    """All models with a list price, by canonical id."""
    # Imported here: a million and a half bytes of tables that a program needs only when it prices.
    from genai_prices.data import providers

    models = next(provider for provider in providers if provider.id == "anthropic").models
    found = {}
    for info in models:
        canonical = info.id.removesuffix("-latest")
        found[canonical] = Listed(
            id=canonical,
            name=info.name or canonical,
            context_window=info.context_window,
            facts=FACTS.get(canonical, NO_FACTS),
            _info=info,
        )
    return found


def _entries(price: ModelPrice) -> Iterable[tuple[str, object]]:
    return ((key, value) for key, value in vars(price).items() if value is not None)


def _starts(value: object) -> Iterable[int]:
    from genai_prices.types import TieredPrices

    return [tier.start for tier in value.tiers] if isinstance(value, TieredPrices) else ()


def _usd(value: object, prompt_tokens: int) -> Decimal:
    from genai_prices.types import TieredPrices

    if isinstance(value, TieredPrices):
        above = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
        return above[-1] if above else value.base
    assert isinstance(value, Decimal), value
    return value
