"""The formula of money, in both directions."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from budgets.errors import InvalidInput, UnknownPrice
from budgets.prices import PriceBook, default_book
from budgets.pricing import bound, cost
from budgets.rates import Rates
from budgets.shape import Shape, Ttl
from budgets.usage import Usage

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BOOK = default_book()


def usd(amount: str) -> int:
    """Dollars written by hand as nano-dollars."""
    return int(Decimal(amount) * 10**9)


# ---- golden: worked by hand ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "dollars"),
    [
        ("claude-fable-5-2", "0.255"),
        ("claude-fable-5-1", "0.31875"),
        ("claude-opus-5-5", "0.128"),
        ("claude-opus-5", "0.16125"),
        ("claude-opus-4-8", "0.16125"),
        ("claude-sonnet-5-5", "0.064"),
        ("claude-sonnet-5", "0.0645"),
        ("claude-haiku-5-5", "0.003225"),
        ("claude-haiku-4-5", "0.03225"),
    ],
)
def test_the_golden_usage_costs_what_the_bill_says(model: str, dollars: str) -> None:
    """10,000 in, 2,000 out, 3,000 written for 5m, 4,000 for 1h, 5,000 read: all four classes."""
    usage = Usage(
        model=model,
        input_tokens=10_000,
        output_tokens=2_000,
        cache_write_5m=3_000,
        cache_write_1h=4_000,
        cache_read=5_000,
    )

    assert cost(usage, BOOK, NOW) == usd(dollars)
    assert cost(replace(usage, tier="batch"), BOOK, NOW) * 2 == usd(dollars)
    assert cost(replace(usage, geo="us"), BOOK, NOW) == usd(dollars) * 11 // 10
    assert cost(replace(usage, web_searches=3), BOOK, NOW) == usd(dollars) + usd("0.03")


@pytest.mark.parametrize(
    ("prompt", "dollars"),
    [
        pytest.param({"input_tokens": 99_999}, "0.0104999", id="one below"),
        pytest.param({"input_tokens": 100_000}, "0.0105", id="at the border"),
        pytest.param({"input_tokens": 100_001}, "0.0525005", id="one above"),
        pytest.param({"input_tokens": 60_000, "cache_read": 40_000}, "0.0069", id="with reads"),
        pytest.param(
            {"input_tokens": 60_000, "cache_read": 40_001}, "0.03450005", id="reads count"
        ),
        pytest.param({"cache_write_5m": 100_001}, "0.065000625", id="5m writes count"),
        pytest.param({"cache_write_1h": 100_001}, "0.102501", id="1h writes count"),
        pytest.param({"cache_write_unsplit": 100_001}, "0.102501", id="unsplit writes count"),
    ],
)
def test_tiers_turn_exactly_at_their_border(prompt: dict[str, int], dollars: str) -> None:
    """Haiku 5.5 with 1,000 output at 100,000 tokens of prompt -1, 0 and +1, in any class (C-10)."""
    usage = Usage(model="claude-haiku-5-5", output_tokens=1_000, **prompt)

    assert cost(usage, BOOK, NOW) == usd(dollars)


def test_output_does_not_make_a_prompt_long() -> None:
    """Only input decides the tier: 100,000 in and 128,000 out stay in the lower one."""
    usage = Usage(model="claude-haiku-5-5", input_tokens=100_000, output_tokens=128_000)

    assert cost(usage, BOOK, NOW) == usd("0.074")


def test_writes_are_priced_by_their_lifetime() -> None:
    """A million tokens written for 5 minutes cost 1.25 times the input, for an hour 2 (C-06)."""
    million = {
        "cache_write_5m": usd("5"),
        "cache_write_1h": usd("8"),
        "cache_read": usd("0.2"),
        "input_tokens": usd("4"),
    }
    for name, nanos in million.items():
        counts: dict[str, Any] = {name: 1_000_000}
        assert cost(Usage(model="claude-opus-5-5", **counts), BOOK, NOW) == nanos


@pytest.mark.parametrize(("ttl", "dollars"), [("5m", "5"), ("1h", "8")])
def test_unsplit_writes_are_priced_at_the_longest_lifetime_asked_for(
    ttl: Ttl, dollars: str
) -> None:
    """Where the split was not reported, what the request asked for decides."""
    usage = Usage(model="claude-opus-5-5", cache_write_unsplit=1_000_000, unsplit_ttl=ttl)

    assert cost(usage, BOOK, NOW) == usd(dollars)
    assert Usage(model="x").unsplit_ttl == "1h"


def test_classes_of_input_never_overlap() -> None:
    """What was read from the cache is not charged as plain input besides (C-08)."""
    whole = cost(Usage(model="claude-opus-5-5", input_tokens=10_000), BOOK, NOW)
    parts = cost(Usage(model="claude-opus-5-5", input_tokens=4_000, cache_read=6_000), BOOK, NOW)

    assert whole == usd("0.04")
    assert parts == usd("0.0172")


def test_a_charge_is_rounded_up_once() -> None:
    """One read token of Sonnet 5.5 in the US is 110 nano-dollars; half a one in a batch is 55."""
    usage = Usage(model="claude-sonnet-5-5", cache_read=1, geo="us")

    assert cost(usage, BOOK, NOW) == 110
    assert cost(replace(usage, tier="batch"), BOOK, NOW) == 55
    # 5 nano-dollars per read token of Haiku 5.5 in a batch: 5.5 in the US, so two tokens are 11.
    haiku = Usage(model="claude-haiku-5-5", cache_read=1, geo="us", tier="batch")
    assert cost(haiku, BOOK, NOW) == 6
    assert cost(replace(haiku, cache_read=2), BOOK, NOW) == 11
    assert cost(replace(haiku, parts=(haiku, haiku)), BOOK, NOW) == 11


def test_thinking_is_part_of_the_output() -> None:
    """Thinking tokens are not charged a second time, fetches and code runs not at all."""
    usage = Usage(model="claude-opus-5-5", output_tokens=1_000)

    assert cost(
        replace(usage, thinking_tokens=900, web_fetches=7, code_executions=2), BOOK, NOW
    ) == cost(usage, BOOK, NOW)


# ---- parts are the bill --------------------------------------------------------------------------


def test_parts_are_the_bill_each_at_its_own_model() -> None:
    """Top-level tokens are not priced again; an advisor costs its own rate (C-13)."""
    usage = Usage(
        model="claude-sonnet-5-5",
        input_tokens=999_999,
        output_tokens=999_999,
        web_searches=2,
        parts=(
            Usage(model="claude-sonnet-5-5", input_tokens=10_000, output_tokens=1_000),
            Usage(model="claude-opus-5-5", input_tokens=10_000, output_tokens=1_000),
        ),
    )

    assert cost(usage, BOOK, NOW) == usd("0.03") + usd("0.06") + usd("0.02")


def test_each_part_has_its_own_prompt_length() -> None:
    """Two rounds of 60,000 tokens are two short prompts, though together they are 120,000."""
    part = Usage(model="claude-haiku-5-5", input_tokens=60_000)
    whole = Usage(model="claude-haiku-5-5", input_tokens=120_000)

    assert cost(replace(whole, parts=(part, part)), BOOK, NOW) == usd("0.012")
    assert cost(whole, BOOK, NOW) == usd("0.06")


@pytest.mark.parametrize(
    ("whole", "part", "factor"),
    [
        pytest.param({}, {}, "1", id="nothing named"),
        pytest.param({"geo": "us"}, {}, "1.1", id="place from the whole"),
        pytest.param({"geo": "us"}, {"geo": "global"}, "1", id="own place"),
        pytest.param({}, {"geo": "us"}, "1.1", id="only the part's place"),
        pytest.param({"tier": "batch"}, {}, "0.5", id="tier from the whole"),
        pytest.param({"speed": "fast"}, {}, "2", id="speed from the whole"),
        pytest.param({"speed": "fast", "geo": "us"}, {}, "2.2", id="speed and place"),
        pytest.param({"tier": "batch", "geo": "us"}, {}, "0.55", id="tier and place"),
    ],
)
def test_parts_inherit_what_they_do_not_name(
    whole: dict[str, Any], part: dict[str, Any], factor: str
) -> None:
    """The provider's iterations carry no place, tier and speed: those of the whole hold."""
    usage = Usage(
        model="claude-opus-5-5",
        parts=(Usage(model="claude-opus-5-5", input_tokens=1_000_000, **part),),
        **whole,
    )

    assert cost(usage, BOOK, NOW) == usd("4") * Decimal(factor)


def test_a_part_whose_model_has_no_fast_mode_runs_at_standard_speed() -> None:
    """A fast call with a Sonnet advisor is priced, not declined."""
    usage = Usage(
        model="claude-opus-5-5",
        speed="fast",
        parts=(Usage(model="claude-sonnet-5-5", input_tokens=1_000_000),),
    )

    assert cost(usage, BOOK, NOW) == usd("2")


@pytest.mark.parametrize(
    ("whole", "part", "dollars"),
    [("1h", "1h", "8"), ("5m", "1h", "5"), ("1h", "5m", "5"), ("5m", "5m", "5")],
)
def test_unsplit_writes_of_parts_follow_what_is_known(whole: Ttl, part: Ttl, dollars: str) -> None:
    """``1h`` is the word for not known, so a shorter lifetime named on either side holds."""
    usage = Usage(
        model="claude-opus-5-5",
        unsplit_ttl=whole,
        parts=(Usage(model="claude-opus-5-5", cache_write_unsplit=1_000_000, unsplit_ttl=part),),
    )

    assert cost(usage, BOOK, NOW) == usd(dollars)


def test_web_searches_are_charged_once() -> None:
    """On the whole; if only parts report them they are not lost either (C-15)."""
    part = Usage(model="claude-opus-5-5", web_searches=2)
    whole = Usage(model="claude-opus-5-5", web_searches=3, parts=(part,))

    assert cost(whole, BOOK, NOW) == usd("0.03")
    assert cost(replace(whole, web_searches=0), BOOK, NOW) == usd("0.02")


# ---- the bound -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "dollars"),
    [
        pytest.param({}, "26.4", id="plain, place not named"),
        pytest.param({"geo": "us"}, "26.4", id="us"),
        pytest.param({"geo": "global"}, "24", id="global"),
        pytest.param({"geo": "global", "cache_ttl": "5m"}, "25", id="5m writes"),
        pytest.param({"geo": "global", "cache_ttl": "1h"}, "28", id="1h writes"),
        pytest.param({"geo": "global", "tier": "batch"}, "12", id="batch"),
        pytest.param({"geo": "global", "speed": "fast"}, "48", id="fast"),
        pytest.param({"geo": "global", "web_searches": 5}, "24.05", id="searches"),
        pytest.param({"web_searches": 5}, "26.45", id="searches keep their price anywhere"),
        pytest.param({"tier": "batch", "cache_ttl": "1h"}, "15.4", id="all multiples stack"),
    ],
)
def test_the_bound_takes_the_dearest_reading(how: dict[str, Any], dollars: str) -> None:
    """A million in and a million out on Opus 5.5, by what the request leaves open."""
    shape = Shape(model="claude-opus-5-5", input_tokens=1_000_000, output_tokens=1_000_000, **how)

    assert bound(shape, BOOK, NOW) == usd(dollars)


@pytest.mark.parametrize(
    ("input_tokens", "prompt_tokens", "dollars"),
    [
        pytest.param(99_999, None, "0.0099999", id="one below"),
        pytest.param(100_000, None, "0.01", id="at the border"),
        pytest.param(100_001, None, "0.0500005", id="one above"),
        pytest.param(100_000, 100_001, "0.05", id="the prompt may be longer"),
        pytest.param(120_000, 60_000, "0.06", id="rounds may be summed"),
    ],
)
def test_the_bound_assumes_the_upper_tier_if_it_can_be_reached(
    input_tokens: int, prompt_tokens: int | None, dollars: str
) -> None:
    """Which length of several rounds the provider looks at is not known, so the longest counts."""
    shape = Shape(
        model="claude-haiku-5-5",
        input_tokens=input_tokens,
        output_tokens=0,
        prompt_tokens=prompt_tokens,
        geo="global",
    )

    assert bound(shape, BOOK, NOW) == usd(dollars)


def test_parts_add_to_the_bound() -> None:
    """What a request can cause besides is a shape of its own, in the place of the whole."""
    advisor = Shape(model="claude-opus-5-5", input_tokens=1_000_000, output_tokens=0)
    shape = Shape(
        model="claude-sonnet-5-5",
        input_tokens=1_000_000,
        output_tokens=0,
        geo="global",
        parts=(advisor, replace(advisor, geo="us")),
    )

    assert bound(shape, BOOK, NOW) == usd("2") + usd("4") + usd("4.4")


@pytest.mark.parametrize(
    ("whole", "dollars"),
    [
        pytest.param({"geo": "us"}, "4.4", id="place"),
        pytest.param({"geo": "global", "tier": "batch"}, "2", id="tier"),
        pytest.param({"geo": "global", "speed": "fast"}, "8", id="speed"),
    ],
)
def test_parts_of_a_shape_inherit_like_parts_of_a_usage(
    whole: dict[str, Any], dollars: str
) -> None:
    """Both directions read a part alike, else a part could cost more than was held for it."""
    part = Shape(model="claude-opus-5-5", input_tokens=1_000_000, output_tokens=0)
    shape = Shape(model="claude-opus-5-5", input_tokens=0, output_tokens=0, parts=(part,), **whole)
    used = Usage(model="claude-opus-5-5", input_tokens=1_000_000)
    usage = Usage(model="claude-opus-5-5", parts=(used,), **whole)

    assert bound(shape, BOOK, NOW) == cost(usage, BOOK, NOW) == usd(dollars)


def test_an_unknown_model_has_no_bound() -> None:
    """A shape that can't be priced is declined, whether its own model or a part's is unknown."""
    known = Shape(model="claude-opus-5-5", input_tokens=1, output_tokens=1)
    unknown = replace(known, model="claude-opus-9")

    for shape in (unknown, replace(known, parts=(unknown,))):
        with pytest.raises(UnknownPrice, match="claude-opus-9"):
            bound(shape, BOOK, NOW)


# ---- what can't be -------------------------------------------------------------------------------


class LostPrices(PriceBook):
    """A book whose list has lost its rates: no model of the pinned list is free, so it is made."""

    def rates(self, model: str, at: datetime, **how: Any) -> Rates:
        """The rates of the list, all zero."""
        return super().rates(model, at, **how).times(Fraction(0))


def test_a_zero_price_that_nobody_wrote_down_is_an_error() -> None:
    """Tokens that come to $0.00 by the list are never recorded as free (C-04)."""
    usage = Usage(model="claude-opus-5-5", input_tokens=1, output_tokens=1)

    with pytest.raises(UnknownPrice, match=r"2 tokens came to \$0\.00 at the rates of genai"):
        cost(usage, LostPrices(), NOW)


def test_nothing_used_costs_nothing() -> None:
    """A usage of no tokens is $0, without complaint."""
    assert cost(Usage(model="claude-opus-5-5"), BOOK, NOW) == 0
    assert bound(Shape(model="claude-opus-5-5", input_tokens=0, output_tokens=0), BOOK, NOW) == 0


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "web_searches", "cache_read"])
def test_negative_counts_are_refused(name: str) -> None:
    """A count below zero would be a gift; it is a fault of whoever read the response."""
    count: dict[str, Any] = {name: -1}

    with pytest.raises(InvalidInput, match="negative"):
        cost(Usage(model="claude-opus-5-5", **count), BOOK, NOW)


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "web_searches", "prompt_tokens"])
def test_negative_limits_are_refused(name: str) -> None:
    """A limit below zero would lower the bound of the rest."""
    limits: dict[str, Any] = {"input_tokens": 1, "output_tokens": 1} | {name: -1}

    with pytest.raises(InvalidInput, match="negative"):
        bound(Shape(model="claude-opus-5-5", **limits), BOOK, NOW)


@pytest.mark.parametrize("name", ["output_tokens", "web_searches", "input_tokens"])
@pytest.mark.parametrize("limit", [2**63, 10**30, 10**400])
def test_limits_beyond_all_money_are_the_callers_mistake(name: str, limit: int) -> None:
    """What no ledger can hold is refused as the request's fault, in a sentence that can be read."""
    limits: dict[str, Any] = {"input_tokens": 1, "output_tokens": 1} | {name: limit}

    with pytest.raises(InvalidInput, match="more than any amount") as refused:
        bound(Shape(model="claude-opus-5-5", **limits), BOOK, NOW)
    assert len(str(refused.value)) < 250
