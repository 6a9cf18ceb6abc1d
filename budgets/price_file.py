"""The price file: a user's own prices, for contracts and for models that the list does not have.

A TOML file of entries, each for one model and a range of days (UTC)::

    [[price]]
    model = "claude-opus-5-5"
    from = "2026-12-01"          # first day; left out: since ever
    until = "2027-11-30"         # last day, included; left out: for ever
    discount = "0.85"            # 85% of every list price for tokens

    [[price]]
    model = "claude-example-6"
    aliases = ["example-6"]
    input = "4"                  # dollars per million tokens, as strings
    output = "20"
    write_5m = "5"               # left out: 1.25 times input
    write_1h = "8"               # left out: 2 times input
    read = "0.4"                 # left out: 0.1 times input
    web_search_per_1000 = "10"   # left out: 10
    batch = { input = "2", output = "10" }    # or batch_multiplier; left out: half
    fast = { input = "8", output = "40" }     # left out: fast is declined
    context_window = 1000000
    cache_minimum = 1024

    [[price]]
    model = "claude-haiku-5-5"
    input = "0.08"
    output = "0.4"
    long_prompt = { over = 100000, input = "0.4", output = "2" }   # all tokens of longer prompts
    batch_multiplier = "0.45"    # with long_prompt there is no batch or fast table

An entry beats the list for its days. A price of 0 is taken at its word.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from .errors import InvalidPriceFile
from .rates import (
    BATCH_TIMES_STANDARD,
    READ_TIMES_INPUT,
    TOKEN_CLASSES,
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
from .toml_fields import Fields, entries_of, read_toml

_AMOUNT = re.compile(r"\$?(\d{1,7}(?:\.\d+)?|\.\d+)")
_RATE_FIELDS = frozenset(TOKEN_CLASSES)
_NOT_WITH_DISCOUNT = _RATE_FIELDS | {"batch", "batch_multiplier", "fast", "long_prompt"}
_FIELDS = _NOT_WITH_DISCOUNT | {
    "model",
    "aliases",
    "name",
    "from",
    "until",
    "discount",
    "web_search_per_1000",
    "context_window",
    "cache_minimum",
}
_TOKENS_MAX = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrice:
    """One entry of a price file.

    Attributes:
        where: file and entry, for messages.
        model, aliases, name: as written.
        starts, ends: first and last day (UTC), both included; None is open.
        discount: share of the list price that is paid; None where the entry has its own rates.
        own: the entry's own rates; None where it has a discount.
        web_search_nanos: nano-dollars per search; None leaves the list price.
        context_window, cache_minimum: tokens, None where not written.
    """

    where: str
    model: str
    aliases: tuple[str, ...]
    name: str | None
    starts: date | None
    ends: date | None
    discount: Decimal | None
    own: Card | None
    web_search_nanos: int | None
    context_window: int | None
    cache_minimum: int | None

    def covers(self, day: date) -> bool:
        """Whether the entry holds on that UTC day."""
        return (self.starts or date.min) <= day <= (self.ends or date.max)

    @property
    def span(self) -> str:
        """The days for messages: ``from 2026-12-01 until 2027-11-30``."""
        parts = [
            f"from {self.starts}" if self.starts else "",
            f"until {self.ends}" if self.ends else "",
        ]
        return " ".join(filter(None, parts)) or "for ever"

    def card(self, list_card: Card | None) -> Card:
        """The rates of this entry.

        Args:
            list_card: the list prices of the same day, None if the list has none.

        Raises:
            InvalidPriceFile: a discount on a model without a list price.
        """
        if self.own is not None:
            return self.own
        assert self.discount is not None, self
        if list_card is None:
            self.refuse("discount", "the model has no list price; write its input and output")
        return Card(
            standard=self._discounted(list_card.standard),
            batch=self._discounted(list_card.batch),
            fast=self._discounted(list_card.fast) if list_card.fast else None,
        )

    def _discounted(self, scale: Scale) -> Scale:
        assert self.discount is not None, self
        cheaper = scale.times(Fraction(self.discount))
        searches = self.web_search_nanos

        def marked(rates: Rates) -> Rates:
            return replace(
                rates,
                source=f"{rates.source} x {self.discount} ({self.where})",
                web_search_nanos=rates.web_search_nanos if searches is None else searches,
            )

        return Scale(
            base=marked(cheaper.base),
            tiers=tuple(replace(tier, rates=marked(tier.rates)) for tier in cheaper.tiers),
        )

    def refuse(self, field: str, why: str) -> NoReturn:
        """Raise InvalidPriceFile about a field of this entry."""
        Fields(where=self.where, table={}, error=InvalidPriceFile).refuse(field, why)


def read_price_file(path: Path) -> tuple[FilePrice, ...]:
    """Read all entries of a price file, in their order.

    Raises:
        InvalidPriceFile: not readable, not TOML, or an entry that can't be used; names the file,
            the entry and the field.
    """
    data = read_toml(path, what="price file", error=InvalidPriceFile)
    Fields(where=path.name, table=data, error=InvalidPriceFile).only({"price"})
    entries = entries_of(
        data.get("price"), where=path.name, heading="price", error=InvalidPriceFile
    )
    return tuple(_entry(entry) for entry in entries)


def refuse_overlaps(entries: list[FilePrice]) -> None:
    """Refuse two entries of one model that hold on the same day.

    Args:
        entries: all entries of one model, by their first day.

    Raises:
        InvalidPriceFile: names both entries.
    """
    for before, after in itertools.pairwise(entries):
        if before.ends is None or (after.starts or date.min) <= before.ends:
            after.refuse(
                "from",
                f"{before.where} holds {before.span}, and this one {after.span}: "
                "the days overlap; end one before the other starts",
            )


def _entry(fields: Fields) -> FilePrice:
    model = fields.text("model")
    fields = replace(fields, where=f"{fields.where} ({model})")
    fields.only(_FIELDS)
    starts, ends = _day(fields, "from"), _day(fields, "until")
    if starts and ends and ends < starts:
        fields.refuse("until", f"{ends} is before from = {starts}")
    discount = _share(fields, "discount")
    if discount is not None:
        for name in sorted(_NOT_WITH_DISCOUNT & set(fields.table)):
            fields.refuse(name, "can't stand beside discount, which applies to every list price")
    searches = _amount(fields, "web_search_per_1000")
    nanos = None if searches is None else nanos_per_search(searches)
    return FilePrice(
        where=fields.where,
        model=model,
        aliases=_aliases(fields),
        name=fields.text("name") if "name" in fields.table else None,
        starts=starts,
        ends=ends,
        discount=discount,
        own=None if discount is not None else _own_card(fields, nanos),
        web_search_nanos=nanos,
        context_window=_tokens(fields, "context_window"),
        cache_minimum=_tokens(fields, "cache_minimum"),
    )


def _own_card(fields: Fields, searches: int | None) -> Card:
    nanos = WEB_SEARCH_NANOS if searches is None else searches
    base = _rates(fields, nanos)
    long = fields.sub("long_prompt", _RATE_FIELDS | {"over"})
    batch, multiplier = fields.sub("batch", _RATE_FIELDS), _share(fields, "batch_multiplier")
    fast = fields.sub("fast", _RATE_FIELDS)
    if batch is not None and multiplier is not None:
        fields.refuse("batch_multiplier", "write either this or batch, not both")
    if batch is not None and long is not None:
        fields.refuse("batch", "can't stand beside long_prompt; write batch_multiplier instead")
    if fast is not None and long is not None:
        fields.refuse("fast", "can't stand beside long_prompt")
    standard = Scale(base=base, tiers=() if long is None else (_tier(long, base),))
    if batch is not None:
        batch_scale = Scale(base=_rates(batch, nanos))
    else:
        times = BATCH_TIMES_STANDARD if multiplier is None else Fraction(multiplier)
        batch_scale = standard.times(times)
    return Card(
        standard=standard,
        batch=batch_scale,
        fast=None if fast is None else Scale(base=_rates(fast, nanos)),
    )


def _tier(long: Fields, base: Rates) -> PromptTier:
    rates = _rates(long, base.web_search_nanos)
    for name in TOKEN_CLASSES:
        # The bound prices the longest prompt that can be: a cheaper tier above would break it.
        if getattr(rates, name) < getattr(base, name):
            long.refuse(name, "a longer prompt can't be cheaper per token")
    return PromptTier(over=long.count("over", least=1, most=_TOKENS_MAX), rates=rates)


def _rates(fields: Fields, search_nanos: int) -> Rates:
    picos = {
        name: picos_of(amount)
        for name in TOKEN_CLASSES
        if (amount := _amount(fields, name)) is not None
    }
    for name in ("input", "output"):
        if name not in picos:
            fields.refuse(name, "is missing: dollars per million tokens, such as '4'")
    plain = picos["input"]
    return Rates(
        input=plain,
        write_5m=picos.get("write_5m", ceil_of(plain * WRITE_5M_TIMES_INPUT)),
        write_1h=picos.get("write_1h", ceil_of(plain * WRITE_1H_TIMES_INPUT)),
        read=picos.get("read", ceil_of(plain * READ_TIMES_INPUT)),
        output=picos["output"],
        web_search_nanos=search_nanos,
        source=fields.where,
        may_be_free=True,
    )


def _amount(fields: Fields, field: str) -> Decimal | None:
    value = fields.table.get(field)
    if value is None:
        return None
    if isinstance(value, float):
        fields.refuse(field, f"{value!r} is a float, which can't hold money; write '{value}'")
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or _AMOUNT.fullmatch(text.strip()) is None:
        fields.refuse(field, f"{value!r} is not an amount of dollars; write it such as '0.25'")
    amount = Decimal(text.strip().removeprefix("$"))
    try:
        picos_of(amount)
    except ValueError:
        fields.refuse(field, f"{value!r} has more than six decimals; prices end at a millionth")
    return amount


def _share(fields: Fields, field: str) -> Decimal | None:
    amount = _amount(fields, field)
    if amount is not None and not 0 < amount <= 1:
        fields.refuse(field, f"{amount} must be above 0 and at most 1: the share that is paid")
    return amount


def _tokens(fields: Fields, field: str) -> int | None:
    return fields.count(field, least=1, most=_TOKENS_MAX) if field in fields.table else None


def _day(fields: Fields, field: str) -> date | None:
    value = fields.table.get(field)
    if value is None:
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return datetime.strptime(str(value), "%Y-%m-%d").date()  # noqa: DTZ007 - a date only
    except ValueError:
        fields.refuse(field, f"{value!r} is not a day; write it such as '2026-12-01'")


def _aliases(fields: Fields) -> tuple[str, ...]:
    value = fields.table.get("aliases", [])
    if not isinstance(value, list) or not all(isinstance(alias, str) and alias for alias in value):
        fields.refuse("aliases", "write a list of names, such as ['example-6']")
    return tuple(value)
