"""The formula of money: what holds for every shape and every usage."""

from dataclasses import replace
from datetime import UTC, datetime

import genai_prices
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.catalog import CURRENT, listed
from budgets.prices import default_book
from budgets.pricing import bound, cost
from budgets.shape import Geo, Shape, Speed, Tier
from budgets.usage import Usage

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BOOK = default_book()
PRICED = sorted(CURRENT & set(listed()))
FAST = ["claude-fable-5-2", "claude-mythos-5-2", "claude-opus-5", "claude-opus-5-5"]

tokens = st.integers(min_value=0, max_value=1_000_000) | st.sampled_from(
    [0, 1, 99_999, 100_000, 100_001, 200_000, 200_001]
)


@st.composite
def split(draw: st.DrawFn, total: int, pieces: int) -> list[int]:
    """A total in so many pieces, none negative."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=pieces - 1, max_size=pieces - 1)))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]


@st.composite
def shapes(draw: st.DrawFn, *, parts: bool = True) -> Shape:
    """Any shape that has a price."""
    speed: Speed = draw(st.sampled_from(["standard", "fast"]))
    tier: Tier = draw(st.sampled_from(["standard", "batch"])) if speed == "standard" else "standard"
    geo: Geo | None = draw(st.sampled_from([None, "global", "us"]))
    further = ()
    if parts:
        further = tuple(
            replace(part, tier=tier, speed="standard", geo=None)
            for part in draw(st.lists(shapes(parts=False), max_size=2))
        )
    return Shape(
        model=draw(st.sampled_from(FAST if speed == "fast" else PRICED)),
        input_tokens=draw(tokens),
        output_tokens=draw(st.integers(0, 128_000)),
        prompt_tokens=draw(st.none() | tokens),
        web_searches=draw(st.integers(0, 20)),
        cache_ttl=draw(st.sampled_from([None, "5m", "1h"])),
        tier=tier,
        geo=geo,
        speed=speed,
        parts=further,
    )


@st.composite
def usages_within(draw: st.DrawFn, shape: Shape) -> Usage:
    """Any usage that a shape's limits allow, told in one piece or in several rounds."""
    used = draw(st.integers(0, shape.input_tokens))
    classes = draw(split(used, 5))
    if shape.cache_ttl is None:
        classes = [sum(classes[:4]), 0, 0, 0, classes[4]]
    elif shape.cache_ttl == "5m":
        classes = [classes[0], classes[1] + classes[2], 0, classes[3], classes[4]]
    places: list[Geo | None] = [None, "global"] if shape.geo == "global" else [None, "global", "us"]
    whole = Usage(
        model=shape.model,
        input_tokens=classes[0],
        cache_write_5m=classes[1],
        cache_write_1h=classes[2],
        cache_write_unsplit=classes[3],
        cache_read=classes[4],
        unsplit_ttl=shape.cache_ttl or "1h",
        output_tokens=draw(st.integers(0, shape.output_tokens)),
        web_searches=draw(st.integers(0, shape.web_searches)),
        tier=shape.tier,
        speed=shape.speed,
        geo=draw(st.sampled_from(places)),
    )
    rounds = draw(st.integers(0, 3))
    if not rounds and not shape.parts:
        return whole
    parts = draw(rounds_of(whole, max(rounds, 1)))
    for further in shape.parts:
        part = draw(usages_within(further))
        parts.append(replace(part, geo=None, tier="standard", speed="standard", web_searches=0))
    return replace(whole, parts=tuple(parts))


@st.composite
def rounds_of(draw: st.DrawFn, whole: Usage, rounds: int) -> list[Usage]:
    """A usage as the provider's iterations, which name no place, tier or speed."""
    counted = ("input_tokens", "cache_write_5m", "cache_write_1h", "cache_write_unsplit")
    names = (*counted, "cache_read", "output_tokens")
    pieces = {name: draw(split(getattr(whole, name), rounds)) for name in names}
    return [
        Usage(model=whole.model, **{name: pieces[name][number] for name in names})
        for number in range(rounds)
    ]


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_no_usage_within_a_shape_costs_more_than_its_bound(data: st.DataObject) -> None:
    """The rule that everything rests on: what was held is enough for whatever comes back."""
    shape = data.draw(shapes())
    usage = data.draw(usages_within(shape))

    assert 0 <= cost(usage, BOOK, NOW) <= bound(shape, BOOK, NOW)


@given(shapes(), st.integers(0, 500_000), st.integers(0, 64_000), st.integers(0, 5))
@settings(deadline=None, max_examples=200)
def test_a_larger_shape_never_has_a_lower_bound(
    shape: Shape, more_input: int, more_output: int, more_searches: int
) -> None:
    """Each limit raised, and each thing left open, can only raise the bound."""
    floor = bound(shape, BOOK, NOW)
    wider = [
        replace(shape, input_tokens=shape.input_tokens + more_input),
        replace(shape, output_tokens=shape.output_tokens + more_output),
        replace(shape, web_searches=shape.web_searches + more_searches),
        replace(shape, cache_ttl="1h"),
        replace(shape, geo=None),
        replace(shape, parts=(*shape.parts, replace(shape, parts=()))),
    ]

    assert all(bound(other, BOOK, NOW) >= floor for other in wider)


@given(
    st.sampled_from(PRICED),
    st.lists(tokens, min_size=5, max_size=5),
    st.integers(0, 20),
    st.sampled_from(["standard", "batch"]),
)
@settings(deadline=None, max_examples=200)
def test_costs_agree_with_the_price_library(
    model: str, counts: list[int], searches: int, tier: Tier
) -> None:
    """For what genai-prices can price itself, our charge is its total, rounded up to a nano."""
    plain, write_5m, write_1h, read, output = counts
    usage = Usage(
        model=model,
        input_tokens=plain,
        cache_write_5m=write_5m,
        cache_write_1h=write_1h,
        cache_read=read,
        output_tokens=output,
        web_searches=searches,
        tier=tier,
    )
    theirs = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=plain + write_5m + write_1h + read,
            cache_write_tokens=write_5m + write_1h,
            cache_write_5m_tokens=write_5m,
            cache_write_1h_tokens=write_1h,
            cache_read_tokens=read,
            output_tokens=output,
            web_searches=searches,
        ),
        model_ref=model,
        provider_id="anthropic",
        genai_request_timestamp=NOW,
        price_context={"processing": "batch"} if tier == "batch" else None,
    )

    exact = theirs.total_price * 10**9
    assert 0 <= cost(usage, BOOK, NOW) - exact < 1


@given(shapes(parts=False), st.data())
@settings(deadline=None)
def test_the_order_of_parts_does_not_matter(shape: Shape, data: st.DataObject) -> None:
    """A bill is a sum."""
    usage = data.draw(usages_within(shape))

    assert cost(usage, BOOK, NOW) == cost(
        replace(usage, parts=tuple(reversed(usage.parts))), BOOK, NOW
    )
