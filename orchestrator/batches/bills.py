"""Bills: what results cost, and what they would have cost without a cache, or sent directly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from budgets.money import to_decimal
from budgets.prices import PriceBook
from budgets.pricing import cost, uncached_cost
from budgets.usage import Usage

from .tables import BatchRow


def directly(usage: Usage) -> Usage:
    """The same work outside a batch."""
    return replace(usage, tier="standard", parts=tuple(directly(part) for part in usage.parts))


def other_costs(usage: Usage, prices: PriceBook, at: datetime) -> dict[str, int]:
    """What a usage would have cost otherwise, nano-dollars, by the columns of a batch.

    Raises:
        UnknownPrice: as ``pricing.cost``.
    """
    return {
        "without_cache": uncached_cost(usage, prices, at),
        "direct": cost(directly(usage), prices, at),
        "direct_without": uncached_cost(directly(usage), prices, at),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FourBills:
    """What a job's batches came to, beside what they would have: all for the same answers.

    Attributes:
        batch_nanos: this bill.
        batch_without_nanos: batches without a cache.
        direct_nanos: direct calls that hit the cache as often.
        direct_without_nanos: direct calls without a cache.
        results: answers that were billed; ``hits``: those of them that read from the cache.
        read_tokens, prompt_tokens: tokens read from the cache, of all prompt tokens.
    """

    batch_nanos: int
    batch_without_nanos: int
    direct_nanos: int
    direct_without_nanos: int
    results: int
    hits: int
    read_tokens: int
    prompt_tokens: int

    @property
    def dollars(self) -> dict[str, Decimal]:
        """The four bills in dollars."""
        return {
            "batch": to_decimal(self.batch_nanos),
            "batch_without_cache": to_decimal(self.batch_without_nanos),
            "direct": to_decimal(self.direct_nanos),
            "direct_without_cache": to_decimal(self.direct_without_nanos),
        }


def four_bills(batches: Iterable[BatchRow], usages: Iterable[dict[str, int]]) -> FourBills:
    """Add up the batches of a job.

    Args:
        batches: of the job.
        usages: their totals of token classes.
    """
    rows, counts = list(batches), list(usages)
    read = sum(one.get("cache_read_tokens", 0) for one in counts)
    written = sum(one.get("cache_write_tokens", 0) for one in counts)
    return FourBills(
        batch_nanos=sum(row.posted_nanos for row in rows),
        batch_without_nanos=sum(row.without_cache_nanos for row in rows),
        direct_nanos=sum(row.direct_nanos for row in rows),
        direct_without_nanos=sum(row.direct_without_nanos for row in rows),
        results=sum(row.billed for row in rows),
        hits=sum(row.hits for row in rows),
        read_tokens=read,
        prompt_tokens=read + written + sum(one.get("input_tokens", 0) for one in counts),
    )
