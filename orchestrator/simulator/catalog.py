"""The models that the simulator serves, with its own price table.

Kept apart from ``budgets`` on purpose: tests compare the ledger with the simulator's bill, and a
comparison of one table with itself would prove nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WEB_SEARCH_NANOS = 10_000_000
#: All token factors (batch 0.5, US inference 1.1) are whole numbers of twentieths.
TWENTIETHS = 20

_DATED = re.compile(r"-\d{8}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model. Prices are nano-dollars per token.

    Attributes:
        id: the name without a date.
        name: the name for people.
        input, write_5m, write_1h, read, output: nano-dollars per token at the standard rate.
        cache_minimum: tokens below which a prefix is silently not cached.
        context: the longest prompt, in tokens.
        max_output: the largest ``max_tokens`` allowed.
        fast: whether ``speed: fast`` (twice the price) is offered.
        geo: whether ``inference_geo`` may be asked for.
        always_thinks: rejects disabled thinking and a forced ``tool_choice``.
        budgeted_thinking: accepts ``thinking: {"type": "enabled"}``.
        tier_above: prompts longer than this cost ``tier_factor`` times as much; None for no tier.
    """

    id: str
    name: str
    input: int
    write_5m: int
    write_1h: int
    read: int
    output: int
    cache_minimum: int
    context: int = 1_000_000
    max_output: int = 128_000
    fast: bool = False
    geo: bool = True
    always_thinks: bool = False
    budgeted_thinking: bool = False
    tier_above: int | None = None
    tier_factor: int = 5


def _spec(
    model: str, name: str, prices: tuple[int, int, int, int, int], minimum: int, **more: int | bool
) -> ModelSpec:
    rates = dict(zip(("input", "write_5m", "write_1h", "read", "output"), prices, strict=True))
    return ModelSpec(id=model, name=name, cache_minimum=minimum, **rates, **more)  # type: ignore[arg-type]


_SPECS = (
    # id, name, (input, 5m write, 1h write, read, output) in nano-dollars per token, cache minimum
    _spec(
        "claude-fable-5-2", "Claude Fable 5.2", (8_000, 10_000, 16_000, 200, 40_000), 512,
        fast=True, always_thinks=True,
    ),
    _spec(
        "claude-mythos-5-2", "Claude Mythos 5.2", (8_000, 10_000, 16_000, 200, 40_000), 512,
        fast=True, always_thinks=True,
    ),
    _spec(
        "claude-fable-5-1", "Claude Fable 5.1", (10_000, 12_500, 20_000, 250, 50_000), 512,
        always_thinks=True,
    ),
    _spec(
        "claude-fable-5", "Claude Fable 5", (10_000, 12_500, 20_000, 1_000, 50_000), 512,
        always_thinks=True,
    ),
    _spec(
        "claude-opus-5-5", "Claude Opus 5.5", (4_000, 5_000, 8_000, 200, 20_000), 512,
        fast=True, always_thinks=True,
    ),
    _spec("claude-opus-5", "Claude Opus 5", (5_000, 6_250, 10_000, 500, 25_000), 512, fast=True),
    _spec(
        "claude-opus-4-8", "Claude Opus 4.8", (5_000, 6_250, 10_000, 500, 25_000), 1_024, fast=True
    ),
    _spec("claude-opus-4-7", "Claude Opus 4.7", (5_000, 6_250, 10_000, 500, 25_000), 2_048),
    _spec(
        "claude-opus-4-6", "Claude Opus 4.6", (5_000, 6_250, 10_000, 500, 25_000), 4_096,
        budgeted_thinking=True,
    ),
    _spec("claude-sonnet-5-5", "Claude Sonnet 5.5", (2_000, 2_500, 4_000, 100, 10_000), 1_024),
    _spec("claude-sonnet-5", "Claude Sonnet 5", (2_000, 2_500, 4_000, 200, 10_000), 1_024),
    _spec(
        "claude-sonnet-4-6", "Claude Sonnet 4.6", (3_000, 3_750, 6_000, 300, 15_000), 1_024,
        budgeted_thinking=True,
    ),
    _spec(
        "claude-haiku-5-5", "Claude Haiku 5.5", (100, 125, 200, 10, 500), 1_024, tier_above=100_000
    ),
    _spec(
        "claude-haiku-4-5", "Claude Haiku 4.5", (1_000, 1_250, 2_000, 100, 5_000), 4_096,
        context=200_000, max_output=64_000, geo=False, budgeted_thinking=True,
    ),
)  # fmt: skip

MODELS = {spec.id: spec for spec in _SPECS}


def find(model: object) -> ModelSpec | None:
    """The model of this name, with or without a date at its end; None if there is none."""
    if not isinstance(model, str):
        return None
    return MODELS.get(model) or MODELS.get(_DATED.sub("", model))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Billed counts of one inference, in disjoint classes of tokens."""

    input: int = 0
    write_5m: int = 0
    write_1h: int = 0
    read: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        """All input tokens together: what a price tier looks at."""
        return self.input + self.write_5m + self.write_1h + self.read


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What else decides the price: batch halves, US inference adds a tenth, fast doubles."""

    batch: bool = False
    us: bool = False
    fast: bool = False


def price(parts: list[tuple[ModelSpec, Counts]], terms: Terms, *, web_searches: int = 0) -> int:
    """The exact price of one request in nano-dollars, rounded up once.

    Args:
        parts: every inference of the request with the model that did it.
        terms: what multiplies the token prices.
        web_searches: charged at a flat rate that nothing multiplies.
    """
    factor = (22 if terms.us else TWENTIETHS) // (2 if terms.batch else 1)
    factor *= 2 if terms.fast else 1
    total = 0
    for spec, counts in parts:
        tokens = (
            counts.input * spec.input
            + counts.write_5m * spec.write_5m
            + counts.write_1h * spec.write_1h
            + counts.read * spec.read
            + counts.output * spec.output
        )
        if spec.tier_above is not None and counts.prompt > spec.tier_above:
            tokens *= spec.tier_factor
        total += tokens * factor
    return -(-total // TWENTIETHS) + web_searches * WEB_SEARCH_NANOS
