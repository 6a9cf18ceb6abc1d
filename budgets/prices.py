"""Prices: which rates apply to a model at a moment, strictly by its known names.

The figures are list prices (``catalog``) and, where the user has a price file (``price_file``), the
user's own. What isn't known is declined with the nearest known names; nothing is ever guessed.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

from .catalog import (
    CHECKED_ON,
    CURRENT,
    FACTS,
    LARGEST_CACHE_MINIMUM,
    LARGEST_CONTEXT,
    NO_FACTS,
    SOURCE,
    Facts,
    Listed,
    listed,
    undated,
)
from .errors import InvalidInput, UnknownPrice
from .price_file import FilePrice, read_price_file, refuse_overlaps
from .rates import Card, Rates, Scale
from .shape import Speed, Tier

__all__ = ["ModelPrices", "PriceBook", "Rates", "default_book"]

#: Entries of the cache of scales. Reached only by a program that prices many days in one life.
_CACHE_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrices:
    """All that is known about one model, for tables.

    Attributes:
        id, name: the canonical id, and the name for people.
        context_window: tokens of input that fit.
        cache_minimum: tokens that a prefix needs to be cached.
        card: rates on the day asked for; standard, batch, and fast where it exists.
        retired_on: the day from which requests fail, None while it serves.
        retired_exactly: False where only a latest possible day of retirement is known.
        retires_on: announced day of retirement.
        source: ``genai-prices`` with its version, or the name of the price file.
    """

    id: str
    name: str
    context_window: int
    cache_minimum: int
    card: Card
    retired_on: date | None
    retired_exactly: bool
    retires_on: date | None
    source: str


class PriceBook:
    """List prices and, for its dates, the user's own price file.

    Safe to share between threads: its caches only gain entries that anyone would compute alike.
    """

    def __init__(self, price_file: Path | None = None) -> None:
        """Read the price file, if there is one.

        Raises:
            InvalidPriceFile: it can't be read or used; names the file, the entry and the field.
        """
        self._file = price_file
        self._ids: dict[str, str] = {}
        self._scales: dict[tuple[str, str, str, date], Scale] = {}
        self._own: dict[str, list[FilePrice]] = {}
        self._own_names: dict[str, str] = {}
        if price_file is not None:
            self._adopt(price_file)

    def resolve(self, model: str) -> str:
        """The canonical id of a model's name.

        Exact ids and documented aliases are known, with or without a snapshot date
        (``-YYYYMMDD`` or ``@YYYYMMDD``). Anything else is unknown, however much it looks alike.

        Raises:
            UnknownPrice: no such name; carries the nearest known ones. Nothing was sent.
        """
        found = self._ids.get(model)
        if found is None:
            found = self._find(model)
            if found is None:
                raise self._unknown(model)
            if len(self._ids) < _CACHE_MAX:
                self._ids[model] = found
        return found

    def rates(
        self,
        model: str,
        at: datetime,
        *,
        tier: Tier = "standard",
        speed: Speed = "standard",
        prompt_tokens: int = 0,
    ) -> Rates:
        """What one token of each class costs.

        Args:
            model: any known name of the model.
            at: when the request is made (aware); prices change at midnight UTC.
            tier: ``standard`` or ``batch``. Batch halves tokens, not web searches.
            speed: ``standard`` or ``fast``.
            prompt_tokens: length of the prompt; above a model's threshold every token is dearer.

        Raises:
            UnknownPrice: unknown model, or no price for that tier, speed or day. Nothing was sent.
        """
        day = _utc_day(at)
        key = (model, tier, speed, day)
        scale = self._scales.get(key)
        if scale is None:
            scale = self._scale(model, tier, speed, day)
            if len(self._scales) < _CACHE_MAX:
                self._scales[key] = scale
        return scale.at(prompt_tokens)

    def has_fast(self, model: str, at: datetime) -> bool:
        """Whether the model has a fast mode with a price on that day."""
        return self._card(self.resolve(model), model, _utc_day(at)).fast is not None

    def models(self, at: datetime | None = None) -> tuple[ModelPrices, ...]:
        """Every model with a price at the moment (default: now), in the order of their ids."""
        day = _utc_day(at or datetime.now(UTC))
        found = []
        for canonical in sorted({*listed(), *self._own}):
            try:
                card = self._card(canonical, canonical, day)
            except UnknownPrice:
                continue  # the price file has it for other days only
            found.append(self._describe(canonical, card))
        return tuple(found)

    def context_window(self, model: str) -> int:
        """Tokens of input that fit; 1,000,000, the most that any model takes, if not known."""
        canonical = self.resolve(model)
        for own in self._own.get(canonical, ()):
            if own.context_window is not None:
                return own.context_window
        known = listed().get(canonical)
        return (known and known.context_window) or LARGEST_CONTEXT

    def cache_minimum(self, model: str) -> int:
        """Tokens that a prefix needs to be cached; a shorter one is silently not.

        Where no figure is documented this is that of the nearest relative (4,096 for Haiku 5.5,
        1,024 for Opus 5.5 and Sonnet 5.5, 512 for Fable 5.2), and 4,096, the largest there is, for
        any other model.
        """
        canonical = self.resolve(model)
        for own in self._own.get(canonical, ()):
            if own.cache_minimum is not None:
                return own.cache_minimum
        return _facts(canonical).cache_minimum or LARGEST_CACHE_MINIMUM

    def retired_on(self, model: str) -> date | None:
        """The day from which requests to the model fail, None while it serves.

        Retired models keep their price. Where the day itself was not found, it is the day by which
        the model was gone at the latest (``ModelPrices.retired_exactly`` tells).
        """
        canonical = self.resolve(model)
        known = _facts(canonical).retired_on
        return known or (None if canonical in CURRENT or canonical not in listed() else CHECKED_ON)

    def retires_on(self, model: str) -> date | None:
        """The announced day of a model's retirement, None if none is announced."""
        return _facts(self.resolve(model)).retires_on

    def _adopt(self, price_file: Path) -> None:
        for entry in read_price_file(price_file):
            canonical = self._find(entry.model) or entry.model
            for name in (entry.model, *entry.aliases):
                taken = self._find(name)
                if taken is not None and taken != canonical:
                    entry.refuse("aliases", f"{name!r} is a name of {taken} already")
                self._own_names[name] = canonical
            self._own.setdefault(canonical, []).append(entry)
        for canonical, entries in self._own.items():
            entries.sort(key=lambda entry: entry.starts or date.min)
            refuse_overlaps(entries)
            for entry in entries:
                self._refuse_holes(entry, listed().get(canonical))

    def _refuse_holes(self, entry: FilePrice, known: Listed | None) -> None:
        """Refuse what would price long prompts as short ones, or can't be priced at all."""
        list_card = known.card(entry.starts or CHECKED_ON) if known else None
        card = entry.card(list_card)
        if list_card and list_card.standard.tiers and not card.standard.tiers:
            over = list_card.standard.tiers[0].over
            entry.refuse(
                "long_prompt",
                f"is missing: this model's list price is higher for prompts over {over:,} tokens; "
                f"write long_prompt = {{ over = {over}, input = ..., output = ... }}",
            )

    def _find(self, model: str) -> str | None:
        for name in (model, undated(model)):
            if name is None:
                continue
            if name in self._own_names:
                return self._own_names[name]
            if name in _known_names():
                return _known_names()[name]
        return None

    def _unknown(self, model: str) -> UnknownPrice:
        names = sorted({*_known_names(), *self._own_names})
        near = tuple(difflib.get_close_matches(model.lower(), names, n=3, cutoff=0.6))
        hint = f"; the nearest known names are {', '.join(near)}" if near else ""
        msg = (
            f"no price is known for model {model!r}, so nothing was sent{hint}. "
            "Correct the name, or add the model to a price file"
        )
        return UnknownPrice(msg, model=model, nearest=near)

    def _scale(self, model: str, tier: Tier, speed: Speed, day: date) -> Scale:
        canonical = self.resolve(model)
        card = self._card(canonical, model, day)
        if speed == "standard":
            return card.batch if tier == "batch" else card.standard
        if tier == "batch":
            msg = f"{model}: speed 'fast' is not available in a batch; leave it out"
            raise UnknownPrice(msg, model=model)
        if card.fast is not None:
            return card.fast
        facts = _facts(canonical)
        if facts.fast_over(day):
            msg = f"{model}: speed 'fast' ended on {facts.fast_ends}; leave it out"
        else:
            msg = f"{model}: no price is known for speed 'fast' on this model; leave it out"
        raise UnknownPrice(msg, model=model)

    def _card(self, canonical: str, model: str, day: date) -> Card:
        known: Listed | None = listed().get(canonical)
        entries = self._own.get(canonical, [])
        for own in entries:
            if own.covers(day):
                return own.card(known.card(day) if known else None)
        if known is not None:
            return known.card(day)
        if not entries:
            raise self._unknown(model)
        spans = "; ".join(own.span for own in entries)
        msg = f"no price is known for model {model!r} on {day}: {self._file} has it {spans}"
        raise UnknownPrice(msg, model=model, nearest=(canonical,))

    def _describe(self, canonical: str, card: Card) -> ModelPrices:
        known = listed().get(canonical)
        names = [own.name for own in self._own.get(canonical, ()) if own.name]
        return ModelPrices(
            id=canonical,
            name=names[0] if names else (known.name if known else canonical),
            context_window=self.context_window(canonical),
            cache_minimum=self.cache_minimum(canonical),
            card=card,
            retired_on=self.retired_on(canonical),
            retired_exactly=_facts(canonical).retired_on is not None,
            retires_on=self.retires_on(canonical),
            source=card.standard.base.source or SOURCE,
        )


@cache
def default_book() -> PriceBook:
    """The book of list prices alone, made once."""
    return PriceBook()


@cache
def _known_names() -> dict[str, str]:
    """Every undated name with a list price, to its canonical id."""
    names = {}
    for canonical, model in listed().items():
        for name in (canonical, *model.facts.aliases):
            names[name] = canonical
    return names


def _facts(canonical: str) -> Facts:
    return FACTS.get(canonical, NO_FACTS)


def _utc_day(at: datetime) -> date:
    if at.tzinfo is None:
        msg = f"{at.isoformat()} has no time zone; pass an aware datetime such as datetime.now(UTC)"
        raise InvalidInput(msg)
    return at.date() if at.tzinfo is UTC else at.astimezone(UTC).date()
