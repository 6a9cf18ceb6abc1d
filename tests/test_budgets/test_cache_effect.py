"""What the prompt cache saved and what it cost on top: the formula of money with the cache taken out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.pricing import CacheEffect, cache_effect, cost, uncached_cost
from budgets.usage import Usage

from .test_pricing_properties import BOOK, NOW, shapes, usages_within


def test_a_write_and_its_reads_are_worked_out_by_hand() -> None:
    """Sonnet 5.5: a token read saves 1.90 of 2.00 a million; one written costs 0.50 more, or 2.00 for an hour."""
    usage = Usage(
        model="claude-sonnet-5-5",
        input_tokens=100,
        cache_write_5m=20_000,
        cache_write_1h=1_000,
        cache_read=50_000,
        output_tokens=10,
    )

    effect = cache_effect(usage, BOOK, NOW)

    assert effect == CacheEffect(saved_nanos=95_000_000, surcharge_nanos=12_000_000)
    assert uncached_cost(usage, BOOK, NOW) == 142_300_000  # 71,100 at 2.00, 10 at 10.00
    assert cost(usage, BOOK, NOW) == 142_300_000 - 95_000_000 + 12_000_000


@pytest.mark.parametrize(
    ("change", "factor"), [({"geo": "us"}, (11, 10)), ({"tier": "batch"}, (1, 2))]
)
def test_place_and_tier_count(change: dict[str, str], factor: tuple[int, int]) -> None:
    """What is saved in one place or in a batch is saved at that price."""
    usage = Usage(model="claude-sonnet-5-5", cache_read=10_000, cache_write_5m=10_000)
    plain, other = (
        cache_effect(one, BOOK, NOW)
        for one in (usage, replace(usage, **change))  # type: ignore[arg-type]
    )

    assert other.saved_nanos * factor[1] == plain.saved_nanos * factor[0]
    assert other.surcharge_nanos * factor[1] == plain.surcharge_nanos * factor[0]


def test_writes_of_unknown_lifetime_count_as_they_are_priced() -> None:
    """Tokens whose lifetime was not told cost the surcharge of the one they are priced at."""
    usage = Usage(model="claude-sonnet-5-5", cache_write_unsplit=1_000)

    assert cache_effect(usage, BOOK, NOW).surcharge_nanos == 2_000_000
    assert cache_effect(replace(usage, unsplit_ttl="5m"), BOOK, NOW).surcharge_nanos == 500_000


@given(data=st.data(), shape=shapes())
def test_the_cost_is_the_uncached_cost_with_the_effect(data: st.DataObject, shape: object) -> None:
    """For every usage: the real cost is the uncached one, less what was saved, plus the surcharge."""
    usage = data.draw(usages_within(shape))  # type: ignore[arg-type]
    effect = cache_effect(usage, BOOK, NOW)
    worked_out = uncached_cost(usage, BOOK, NOW) - effect.saved_nanos + effect.surcharge_nanos

    assert abs(worked_out - cost(usage, BOOK, NOW)) <= 2
    assert (effect == CacheEffect()) or usage.touches_cache
