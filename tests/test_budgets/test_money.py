"""Reading and writing amounts of money."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.errors import InvalidAmount
from budgets.money import MAX_NANOS, NANOS_PER_DOLLAR, format_usd, parse_usd, to_decimal

nanos = st.integers(min_value=0, max_value=MAX_NANOS // NANOS_PER_DOLLAR * NANOS_PER_DOLLAR)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param("5", 5_000_000_000, id="whole"),
        pytest.param("$5.00", 5_000_000_000, id="dollar sign"),
        pytest.param(" $ 0.25 ", 250_000_000, id="spaces"),
        pytest.param("1,000.50", 1_000_500_000_000, id="thousands"),
        pytest.param(".5", 500_000_000, id="no leading zero"),
        pytest.param("0.000000001", 1, id="one nano-dollar"),
        pytest.param("0", 0, id="zero"),
        pytest.param(Decimal("1.4568"), 1_456_800_000, id="decimal"),
        pytest.param(Decimal("1E+2"), 100_000_000_000, id="decimal with exponent"),
        pytest.param(3, 3_000_000_000, id="int of dollars"),
        pytest.param("9223372036", 9_223_372_036_000_000_000, id="the most that fits"),
    ],
)
def test_amounts_are_read_exactly(amount: object, expected: int) -> None:
    """Every accepted spelling of an amount is the same whole number of nano-dollars."""
    assert expected == parse_usd(amount)


@pytest.mark.parametrize(
    ("amount", "says"),
    [
        pytest.param(0.1, "float", id="float"),
        pytest.param(True, "True is not an amount", id="bool"),
        pytest.param(None, "None is not an amount", id="none"),
        pytest.param("", "is not an amount of dollars", id="empty"),
        pytest.param("$", "is not an amount of dollars", id="only a sign"),
        pytest.param("five", "is not an amount of dollars", id="word"),
        pytest.param("1,00", "is not an amount of dollars", id="comma for a point"),
        pytest.param("1e3", "is not an amount of dollars", id="exponent"),
        pytest.param("-1", "is not an amount of dollars", id="negative text"),
        pytest.param(-1, "is negative", id="negative int"),
        pytest.param(Decimal("NaN"), "is not an amount of dollars", id="nan"),
        pytest.param(Decimal("Infinity"), "is not an amount of dollars", id="infinity"),
        pytest.param("0.0000000001", "finer than a nano-dollar", id="ten decimals"),
        pytest.param("9223372037", "more than a ledger can hold", id="too much"),
        pytest.param([], "a list is not an amount", id="other type"),
    ],
)
def test_what_is_not_an_amount_is_refused_by_name(amount: object, says: str) -> None:
    """A refusal names the setting that it is about and says what is wrong with the amount."""
    with pytest.raises(InvalidAmount, match=says) as refused:
        parse_usd(amount, what="cap of run")

    assert str(refused.value).startswith("cap of run: ")


@given(nanos)
@settings(deadline=None)
def test_an_amount_survives_text_and_decimal(amount: int) -> None:
    """Formatting an amount and reading it again gives the same amount, to the nano-dollar."""
    assert amount == parse_usd(format_usd(amount))
    assert amount == parse_usd(to_decimal(amount))


@given(nanos, st.integers(min_value=0, max_value=9))
@settings(deadline=None)
def test_rounding_for_display_is_off_by_half_a_unit_at_most(amount: int, places: int) -> None:
    """An amount shown with fewer decimals differs by no more than half of the last one shown."""
    shown = parse_usd(format_usd(amount, places=places))

    assert 2 * abs(shown - amount) <= 10 ** (9 - places)


@pytest.mark.parametrize(
    ("amount", "places", "expected"),
    [
        (1_500_000_000, None, "$1.50"),
        (125_000, None, "$0.000125"),
        (0, None, "$0.00"),
        (1_234_567_000_000_000, None, "$1,234,567.00"),
        (-2_500_000_000, None, "-$2.50"),
        (640_992_000_000, 2, "$640.99"),
        (29_136_000_000, 2, "$29.14"),
        (5_000_000, 2, "$0.01"),
        (7_691_904_000_000, 2, "$7,691.90"),
    ],
)
def test_amounts_are_shown_as_people_write_them(
    amount: int, places: int | None, expected: str
) -> None:
    """Amounts show cents at least, every digit by default, and half a unit rounds up."""
    assert expected == format_usd(amount, places=places)
