"""Repricing: bounds of items that still wait when prices change, which they do at midnight UTC.

A hold binds at the prices of its own day, and items may have been priced on an earlier one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, time

from budgets.errors import BudgetError
from budgets.prices import PriceBook
from budgets.pricing import bound
from budgets.shape import Shape
from orchestrator.wire import read_request
from orchestrator.wire.prefixes import MARK_TOKENS, join, of_json

from .work import Work

_DAY = "priced_on"
#: Rates are compared for short prompts and for the longest.
_LENGTHS = (0, 10_000_000)
_CHUNK = 500


def bounds_of(shape: Shape, prices: PriceBook, at: datetime) -> tuple[int, int]:
    """The worst case as it is, and with its prefix marked for an hour, in nano-dollars.

    Raises:
        UnknownPrice: as ``pricing.bound``.
    """
    nanos = bound(shape, prices, at)
    if shape.cache_ttl == "1h":
        return nanos, nanos
    with_mark = replace(shape, cache_ttl="1h", input_tokens=shape.input_tokens + MARK_TOKENS)
    return nanos, bound(with_mark, prices, at)


async def reprice(work: Work) -> None:
    """Price what waits anew, if the day has turned and a price with it."""
    now = work.settings.now()
    today, before = now.astimezone(UTC).date().isoformat(), work.store.fact(_DAY)
    if before == today:
        return
    if before:
        then = datetime.combine(datetime.fromisoformat(before), time(12), UTC)
        for model in work.store.waiting_models():
            if not _are_equal(work.run.prices, model, then, now):
                await _reprice_model(work, model, now)
    work.store.note(**{_DAY: today})


def _are_equal(prices: PriceBook, model: str, then: datetime, now: datetime) -> bool:
    try:
        return all(
            prices.rates(model, then, tier="batch", prompt_tokens=length)
            == prices.rates(model, now, tier="batch", prompt_tokens=length)
            for length in _LENGTHS
        )
    except BudgetError:
        return False


async def _reprice_model(work: Work, model: str, now: datetime) -> None:
    after = 0
    while rows := work.store.waiting_bodies(model, after, _CHUNK):
        after = rows[-1][0]
        prefixes = work.store.prefixes(row[1] for row in rows)
        bounds = []
        for n, prefix, at, length in rows:
            body = of_json(join(prefixes[prefix].plain, work.spool.get(at, length)))
            reading = read_request(
                body,
                allow=work.run.meter.allow,
                context_window=work.run.prices.context_window(model),
                tier="batch",
            )
            bounds.append((*bounds_of(reading.shape, work.run.prices, now), n))
        work.store.set_bounds(bounds)
        await asyncio.sleep(0)
