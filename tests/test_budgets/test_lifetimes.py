"""Which lifetime a shared prefix should have: break-even worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from budgets.lifetimes import LIFETIME_S, best_lifetime, prefix_cost
from budgets.prices import default_book
from budgets.rates import Rates
from budgets.shape import Ttl

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def rates_of(model: str) -> Rates:
    return default_book().rates(model, NOW)


@pytest.mark.parametrize(
    ("model", "ttl", "uses", "every_s", "dollars_per_mtok"),
    [
        # Sonnet 5.5: 2 in, 2.50 written for 5m, 4 for 1h, 0.10 read.
        ("claude-sonnet-5-5", None, 3, 0, "6"),
        ("claude-sonnet-5-5", "5m", 3, 0, "2.7"),  # 2.50 + 2 * 0.10
        ("claude-sonnet-5-5", "5m", 3, 240, "2.7"),
        ("claude-sonnet-5-5", "5m", 3, 241, "7.5"),  # written three times
        ("claude-sonnet-5-5", "1h", 3, 241, "4.2"),  # 4 + 2 * 0.10
        ("claude-sonnet-5-5", "1h", 3, 2_881, "12"),
        # Haiku 4.5: 1 in, 1.25, 2, 0.10.
        ("claude-haiku-4-5", "5m", 50, 0, "6.15"),  # 1.25 + 49 * 0.10
        ("claude-haiku-4-5", "1h", 50, 600, "6.9"),
    ],
)
def test_a_prefix_costs_what_its_writes_and_reads_cost(
    model: str, ttl: Ttl | None, uses: int, every_s: int, dollars_per_mtok: str
) -> None:
    """One write and reads where every gap is outlived, a write each time where it is not."""
    cost = prefix_cost(rates_of(model), ttl, uses=uses, every_s=every_s)

    assert cost == int(float(dollars_per_mtok) * 1_000_000)


@pytest.mark.parametrize(
    ("model", "uses", "every_s", "best"),
    [
        ("claude-sonnet-5-5", 1, 0, None),  # 2.00 < 2.50
        ("claude-sonnet-5-5", 2, 0, "5m"),  # 2.60 < 4.00 < 4.10
        ("claude-sonnet-5-5", 2, 600, None),  # 4.00 < 4.10 < 5.00
        ("claude-sonnet-5-5", 3, 600, "1h"),  # 4.20 < 6.00 < 7.50
        ("claude-sonnet-5-5", 3, 3_600, None),  # an hour apart: neither lives so long
        ("claude-sonnet-5-5", None, 30, "5m"),
        ("claude-sonnet-5-5", None, 1_200, "1h"),
        ("claude-haiku-4-5", 2, 600, None),  # 2.00 < 2.10
        ("claude-haiku-4-5", 3, 600, "1h"),  # 2.20 < 3.00
        ("claude-fable-5-2", 2, 0, "5m"),  # 10.20 < 16.00
    ],
)
def test_the_lifetime_is_the_cheapest(
    model: str, uses: int | None, every_s: int, best: Ttl | None
) -> None:
    """Five minutes from the second use on; an hour from the third on, where uses are far apart; else none."""
    assert best_lifetime(rates_of(model), uses=uses, every_s=every_s) == best


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-haiku-5-5", "claude-sonnet-5"])
@pytest.mark.parametrize("every_s", [0, 240, 241, 1_000, 5_000])
@pytest.mark.parametrize("uses", [1, 2, 3, 7, 100])
def test_nothing_is_cheaper_than_the_best(model: str, every_s: int, uses: int) -> None:
    """No other lifetime, and no marker at all, costs less than what is chosen."""
    rates = rates_of(model)
    best = best_lifetime(rates, uses=uses, every_s=every_s)
    chosen = prefix_cost(rates, best, uses=uses, every_s=every_s)

    others: list[Ttl | None] = [None, *LIFETIME_S]
    assert all(chosen <= prefix_cost(rates, ttl, uses=uses, every_s=every_s) for ttl in others)
