"""Which names have a price, and which price they have on which day."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from importlib.metadata import version
from typing import get_args

import pytest
from anthropic._data import DEPRECATED_MODELS
from anthropic.types.model import Model
from genai_prices.data import providers

from budgets.catalog import CURRENT, SOURCE, listed
from budgets.errors import InvalidInput, UnknownPrice
from budgets.prices import PriceBook, default_book
from budgets.rates import TOKEN_CLASSES, Rates

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BOOK = PriceBook()


def usd(rates: Rates) -> tuple[str, ...]:
    """Dollars per million tokens: input, 5m write, 1h write, read, output."""
    return tuple(f"{getattr(rates, name) / 1_000_000:g}" for name in TOKEN_CLASSES)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-opus-5-5-20260915", "claude-opus-5-5"),
        ("claude-opus-5-5@20260915", "claude-opus-5-5"),
        ("claude-opus-5-latest", "claude-opus-5"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-opus-4-20250514", "claude-opus-4-0"),
        ("claude-opus-4-0", "claude-opus-4-0"),
        ("claude-opus-4-1-20250805", "claude-opus-4-1"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4-0"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("claude-3-7-sonnet-20250219", "claude-3-7-sonnet"),
        ("claude-3-5-sonnet-20241022", "claude-3-5-sonnet"),
        ("claude-3-5-sonnet-v2@20241022", "claude-3-5-sonnet"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("claude-3-opus-20240229", "claude-3-opus"),
        ("claude-3-haiku-20240307", "claude-3-haiku"),
        ("claude-2.1", "claude-2"),
    ],
)
def test_known_names_resolve(name: str, canonical: str) -> None:
    """Ids, documented aliases and dated snapshots all lead to one canonical id."""
    assert canonical == BOOK.resolve(name)
    assert BOOK.rates(name, NOW) == BOOK.rates(canonical, NOW)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        pytest.param("claude-opus-4-8-turbo", "claude-opus-4-8", id="suffix that a prefix matches"),
        pytest.param("claude-haiku-4-5-mini", "claude-haiku-4-5", id="another suffix"),
        pytest.param("claude-sonet-5-5", "claude-sonnet-5-5", id="typo (C-03)"),
        pytest.param("Claude-Opus-5-5", "claude-opus-5-5", id="upper case"),
        pytest.param("claude-opus-5.5", "claude-opus-5-5", id="dot"),
        pytest.param("claude-opus-5-5-20261399", "claude-opus-5-5", id="no such day"),
        pytest.param("claude-opus-5-5-19990101", "claude-opus-5-5", id="before there was one"),
        pytest.param("claude-opus-5-5 ", "claude-opus-5-5", id="trailing space"),
        pytest.param("claude-opus-6", "claude-opus-5", id="new model (C-02)"),
        pytest.param("anthropic.claude-opus-4-8", "claude-opus-4-8", id="another platform's name"),
    ],
)
def test_unknown_names_are_declined_with_the_nearest_known_ones(name: str, near: str) -> None:
    """A name that only looks like a known one has no price; the message offers the right one."""
    with pytest.raises(UnknownPrice, match=near) as declined:
        BOOK.rates(name, NOW)

    assert name == declined.value.model
    assert near in declined.value.nearest


@pytest.mark.parametrize("name", ["", "gpt-9", "claude"])
def test_names_that_resemble_nothing_are_declined_too(name: str) -> None:
    """Without a near name the message still says what to do."""
    with pytest.raises(UnknownPrice, match="add the model to a price file"):
        BOOK.resolve(name)


@pytest.mark.parametrize("name", ["claude-mythos-5", "claude-mythos-5-1", "claude-mythos-preview"])
def test_models_without_a_list_price_are_declined(name: str) -> None:
    """Real models that the list lacks are declined rather than priced like their neighbours."""
    with pytest.raises(UnknownPrice, match=name):
        BOOK.rates(name, NOW)


@pytest.mark.parametrize(
    ("model", "standard", "fast"),
    [
        ("claude-fable-5-2", ("8", "10", "16", "0.2", "40"), ("16", "20", "32", "0.4", "80")),
        ("claude-mythos-5-2", ("8", "10", "16", "0.2", "40"), ("16", "20", "32", "0.4", "80")),
        ("claude-fable-5-1", ("10", "12.5", "20", "0.25", "50"), None),
        ("claude-fable-5", ("10", "12.5", "20", "1", "50"), None),
        ("claude-opus-5-5", ("4", "5", "8", "0.2", "20"), ("8", "10", "16", "0.4", "40")),
        ("claude-opus-5", ("5", "6.25", "10", "0.5", "25"), ("10", "12.5", "20", "1", "50")),
        ("claude-opus-4-8", ("5", "6.25", "10", "0.5", "25"), ("10", "12.5", "20", "1", "50")),
        ("claude-sonnet-5-5", ("2", "2.5", "4", "0.1", "10"), None),
        ("claude-sonnet-5", ("2", "2.5", "4", "0.2", "10"), None),
        ("claude-haiku-5-5", ("0.1", "0.125", "0.2", "0.01", "0.5"), None),
        ("claude-haiku-4-5", ("1", "1.25", "2", "0.1", "5"), None),
        ("claude-opus-4-1", ("15", "18.75", "30", "1.5", "75"), None),
        ("claude-3-haiku", ("0.25", "0.3", "0.5", "0.03", "1.25"), None),
        ("claude-2", ("8", "10", "16", "8", "24"), None),
    ],
)
def test_rates_are_those_of_the_list(
    model: str, standard: tuple[str, ...], fast: tuple[str, ...] | None
) -> None:
    """Each token class has its published rate; cache writes that the list lacks are derived."""
    assert standard == usd(BOOK.rates(model, NOW))
    if fast is not None:
        assert fast == usd(BOOK.rates(model, NOW, speed="fast"))
    else:
        with pytest.raises(UnknownPrice, match="'fast'"):
            BOOK.rates(model, NOW, speed="fast")
    assert (fast is not None) == BOOK.has_fast(model, NOW)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (0, ("0.1", "0.125", "0.2", "0.01", "0.5")),
        (99_999, ("0.1", "0.125", "0.2", "0.01", "0.5")),
        (100_000, ("0.1", "0.125", "0.2", "0.01", "0.5")),
        (100_001, ("0.5", "0.625", "1", "0.05", "2.5")),
        (1_000_000, ("0.5", "0.625", "1", "0.05", "2.5")),
    ],
)
def test_long_prompts_pay_the_upper_tier_for_every_token(
    prompt: int, expected: tuple[str, ...]
) -> None:
    """Above 100,000 tokens Haiku 5.5 is five times as dear, in all classes at once (C-10)."""
    assert expected == usd(BOOK.rates("claude-haiku-5-5", NOW, prompt_tokens=prompt))


@pytest.mark.parametrize("model", sorted(listed()))
@pytest.mark.parametrize("prompt", [0, 100_001, 200_001])
@pytest.mark.parametrize("day", [date(2026, 1, 1), date(2026, 10, 13), date(2026, 10, 14)])
def test_a_batch_costs_half_of_every_token_on_every_day(model: str, prompt: int, day: date) -> None:
    """Half price holds before and after the day that the list gives it; searches keep theirs."""
    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    standard = BOOK.rates(model, at, prompt_tokens=prompt)
    batch = BOOK.rates(model, at, tier="batch", prompt_tokens=prompt)

    for name in TOKEN_CLASSES:
        assert getattr(standard, name) == 2 * getattr(batch, name)
    assert standard.web_search_nanos == batch.web_search_nanos == 10_000_000


def test_fast_is_declined_in_a_batch() -> None:
    """There is no fast batch, so nothing can be priced."""
    with pytest.raises(UnknownPrice, match="not available in a batch"):
        BOOK.rates("claude-opus-5-5", NOW, tier="batch", speed="fast")


def test_fast_ends_with_its_announced_day() -> None:
    """Fast mode of Opus 4.8 has a price until 29 November 2026 and none from the 30th, in UTC."""
    last = datetime(2026, 11, 29, 23, 59, 59, tzinfo=UTC)

    assert BOOK.rates("claude-opus-4-8", last, speed="fast").input == 10_000_000
    with pytest.raises(UnknownPrice, match="ended on 2026-11-30"):
        BOOK.rates("claude-opus-4-8", last + timedelta(seconds=1), speed="fast")
    assert not BOOK.has_fast("claude-opus-4-8", last + timedelta(seconds=1))
    assert BOOK.rates("claude-opus-4-8", last + timedelta(days=30)).input == 5_000_000


def test_prices_change_at_midnight_utc() -> None:
    """The long-context surcharge of Opus 4.6 ended on 13 March 2026, whatever the caller's zone."""
    before = datetime(2026, 3, 12, 23, 59, tzinfo=UTC)
    for zone in (UTC, timezone(timedelta(hours=13)), timezone(timedelta(hours=-11))):
        dear = BOOK.rates("claude-opus-4-6", before.astimezone(zone), prompt_tokens=200_001)
        cheap = BOOK.rates(
            "claude-opus-4-6",
            (before + timedelta(minutes=1)).astimezone(zone),
            prompt_tokens=200_001,
        )
        assert (dear.input, cheap.input) == (10_000_000, 5_000_000)


def test_a_datetime_without_zone_is_refused() -> None:
    """A naive datetime could fall on either side of a price change."""
    with pytest.raises(InvalidInput, match="has no time zone"):
        BOOK.rates("claude-opus-5-5", datetime(2026, 11, 29))  # noqa: DTZ001 - the point


def test_every_model_that_the_client_names_is_priced_or_declined_on_purpose() -> None:
    """A model added to or dropped from the official client's list is noticed here."""
    literal, _ = get_args(Model)
    names = set(get_args(literal))
    unpriced = set()
    for name in names:
        try:
            BOOK.resolve(name)
        except UnknownPrice:
            unpriced.add(name)

    assert unpriced == {"claude-mythos-5", "claude-mythos-5-1", "claude-mythos-preview"}
    assert {BOOK.resolve(name) for name in names - unpriced} == CURRENT & set(listed())


def test_retired_models_stay_priced_with_their_day() -> None:
    """A model that is gone keeps its price, so that a cap can't silently stop counting (C-05)."""
    gone = {model.id: model for model in BOOK.models(NOW) if model.id not in CURRENT}

    assert gone.keys() == set(listed()) - CURRENT
    assert all(model.retired_on is not None for model in gone.values())
    assert all(model.retired_on <= NOW.date() for model in gone.values() if model.retired_on)
    assert {name for name, model in gone.items() if not model.retired_exactly} == {"claude-3-haiku"}


@pytest.mark.parametrize(
    ("model", "retired"),
    [
        ("claude-2.1", date(2025, 7, 21)),
        ("claude-3-sonnet-20240229", date(2025, 7, 21)),
        ("claude-3-5-sonnet-latest", date(2025, 10, 28)),
        ("claude-3-opus-latest", date(2026, 1, 5)),
        ("claude-3-5-haiku-latest", date(2026, 2, 19)),
        ("claude-3-7-sonnet-20250219", date(2026, 2, 19)),
        ("claude-opus-4-20250514", date(2026, 6, 15)),
        ("claude-opus-4-1", date(2026, 8, 5)),
        ("claude-3-haiku-20240307", date(2026, 11, 29)),
        ("claude-opus-5-5", None),
        ("claude-sonnet-4-5", None),
    ],
)
def test_retirements_are_known_by_any_name(model: str, retired: date | None) -> None:
    """The day of retirement is found by alias and dated name too."""
    assert retired == BOOK.retired_on(model)


def test_announced_retirements_are_those_of_the_client() -> None:
    """The days of announced retirements agree with the official client's own notices."""
    ours = {
        model.id: f"{model.retires_on:%B %d}, {model.retires_on.year}".replace(" 0", " ")
        for model in BOOK.models(NOW)
        if model.retires_on
    }
    theirs = {
        BOOK.resolve(name): day.replace("th,", ",").replace("nd,", ",")
        for name, day in DEPRECATED_MODELS.items()
        if name != "claude-mythos-preview"
    }

    assert theirs == ours


@pytest.mark.parametrize(
    ("model", "window", "minimum"),
    [
        ("claude-opus-5-5", 1_000_000, 1024),
        ("claude-sonnet-5-5-20260901", 1_000_000, 1024),
        ("claude-haiku-5-5", 1_000_000, 4096),
        ("claude-haiku-4-5", 200_000, 4096),
        ("claude-opus-4-7", 1_000_000, 2048),
        ("claude-fable-5-2", 1_000_000, 512),
        ("claude-3-opus", 200_000, 4096),
        ("claude-v1", 1_000_000, 4096),
    ],
)
def test_limits_of_models_are_known_or_conservative(model: str, window: int, minimum: int) -> None:
    """What isn't documented is answered with the largest that any model has."""
    assert (window, minimum) == (BOOK.context_window(model), BOOK.cache_minimum(model))


def test_the_table_of_models_is_complete() -> None:
    """Every model with a list price has a line, with its source, in the order of ids."""
    models = BOOK.models(NOW)

    assert [model.id for model in models] == sorted(listed())
    assert {model.source for model in models} == {SOURCE}
    fast = {model.id for model in models if model.card.fast}
    assert fast == {
        "claude-fable-5-2",
        "claude-mythos-5-2",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-opus-5-5",
    }


def test_the_source_is_the_installed_pin() -> None:
    """The version that messages and tables name is the one that is installed."""
    assert f"genai-prices {version('genai-prices')}" == SOURCE


def test_no_listed_model_is_free_or_cheaper_for_longer_prompts() -> None:
    """What the bound and the check against zero costs rest on holds for the whole list (C-04)."""
    for model in BOOK.models(NOW):
        scales = [model.card.standard, model.card.batch, *filter(None, [model.card.fast])]
        for scale in scales:
            steps = [scale.base, *(tier.rates for tier in scale.tiers)]
            for name in TOKEN_CLASSES:
                rates = [getattr(step, name) for step in steps]
                assert rates[0] > 0
                assert rates == sorted(rates)


def test_every_model_of_the_provider_is_listed() -> None:
    """No model of the list gets lost under a canonical id that two share."""
    anthropic = next(provider for provider in providers if provider.id == "anthropic")

    assert len(anthropic.models) == len(listed())


def test_importing_the_book_does_not_load_the_price_tables() -> None:
    """The tables (1.5 MB of code) load when the first price is asked for, not at import."""
    code = (
        "import sys, budgets.prices, budgets.pricing, budgets.estimate\n"
        "assert 'genai_prices' not in sys.modules\n"
        "budgets.prices.default_book().resolve('claude-opus-5-5')\n"
        "assert 'genai_prices.data' in sys.modules\n"
        "assert 'genai_prices.update_prices' not in sys.modules or not any(\n"
        "    thread.name.startswith('genai') for thread in __import__('threading').enumerate())\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_default_book_is_made_once() -> None:
    """Everybody without a price file shares one book and its caches."""
    assert default_book() is default_book()
