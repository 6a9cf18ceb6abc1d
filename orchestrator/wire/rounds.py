"""Rounds: how much one request can cost when the provider samples several times inside it.

Every use of a server-side tool is one more round, and every round sends the whole prompt again,
grown by what came before. Advisors, fallback models and compaction passes are further inference,
each a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from budgets.shape import Geo, Shape, Speed, Tier, Ttl

from .allowances import Uses
from .tools import Advisor

#: The largest context window on sale: bounds a prompt that another model than the named one reads.
LARGEST_WINDOW = 1_000_000
#: Rounds beyond one for each use: the answer, and one use that is refused for passing its limit.
_ROUNDS_BESIDE_USES = 2
#: Above so many rounds every prompt is taken to be as long as the context window.
_ROUNDS_COUNTED = 1_000
#: What the provider adds to an advisor's or a compaction's prompt.
_SIDE_PROMPT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One entry of ``fallbacks``."""

    model: str
    max_tokens: int
    speed: Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A pass that summarises the conversation.

    Attributes:
        tokens: the most output of one pass (the caller's word).
        trigger: input tokens from which on it happens; None means always.
    """

    tokens: int
    trigger: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything of a request that decides its price, apart from how long its prompt is.

    Attributes:
        text_bound: the most tokens of the first prompt for any tokenizer; None if its bytes don't
            bound it.
    """

    model: str
    text_bound: int | None
    context_window: int
    max_tokens: int
    uses: tuple[Uses, ...] = ()
    searches: int = 0
    advisors: tuple[Advisor, ...] = ()
    hops: tuple[Hop, ...] = ()
    compaction: Compaction | None = None
    cache_ttl: Ttl | None = None
    tier: Tier = "standard"
    geo: Geo | None = None
    speed: Speed = "standard"
    word: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums over all rounds: input, output, the longest prompt, the number of rounds."""

    input_tokens: int
    output_tokens: int
    longest: int
    rounds: int


def totals(*, prompt: int, window: int, max_tokens: int, uses: tuple[Uses, ...]) -> Totals:
    """The most that the rounds of one request can add up to.

    The dearest order is one use per round, those that bring in most first: uses made side by side
    bring in as much but save rounds.
    """
    first = min(prompt, window)
    if not uses:
        return Totals(input_tokens=first, output_tokens=max_tokens, longest=first, rounds=1)
    count = sum(one.uses for one in uses)
    rounds = count + _ROUNDS_BESIDE_USES
    output = rounds * max_tokens
    if rounds > _ROUNDS_COUNTED:
        return Totals(
            input_tokens=rounds * window, output_tokens=output, longest=window, rounds=rounds
        )
    brought_in = sorted((one.tokens for one in uses for _ in range(one.uses)), reverse=True)
    added = [max_tokens + tokens for tokens in brought_in] + [max_tokens]
    length, total = prompt, first
    for more in added:
        length += more
        total += min(length, window)
    return Totals(
        input_tokens=total, output_tokens=output, longest=min(length, window), rounds=rounds
    )


def shape_of(plan: Plan, prompt: int) -> Shape:
    """The shape of a request whose first prompt is at most ``prompt`` tokens long."""
    sums = totals(
        prompt=prompt, window=plan.context_window, max_tokens=plan.max_tokens, uses=plan.uses
    )
    parts: tuple[Shape, ...] = ()
    if plan.hops or plan.advisors or plan.compaction is not None:
        parts = (*_compaction(plan, sums), *_hops(plan, sums), *_advisors(plan, sums))
    return Shape(
        model=plan.model,
        input_tokens=sums.input_tokens,
        output_tokens=sums.output_tokens,
        prompt_tokens=sums.longest if sums.rounds > 1 else None,
        web_searches=plan.searches,
        cache_ttl=plan.cache_ttl,
        tier=plan.tier,
        geo=plan.geo,
        speed=plan.speed,
        parts=parts,
        word=plan.word,
    )


def compacts(plan: Plan, sums: Totals) -> bool:
    """Whether a compaction pass can happen at all."""
    if plan.compaction is None:
        return False
    trigger = plan.compaction.trigger
    return trigger is None or sums.longest + plan.max_tokens >= trigger


def _compaction(plan: Plan, sums: Totals) -> tuple[Shape, ...]:
    if plan.compaction is None or not compacts(plan, sums):
        return ()
    prompt = min(plan.context_window, sums.longest + plan.max_tokens + _SIDE_PROMPT)
    return (
        _part(
            plan,
            model=plan.model,
            input_tokens=sums.rounds * prompt,
            output_tokens=sums.rounds * plan.compaction.tokens,
            longest=prompt,
        ),
    )


def _hops(plan: Plan, sums: Totals) -> tuple[Shape, ...]:
    """Each fallback model reads the whole prompt, and what those before it had written.

    Another tokenizer than the counted one may read it, so only bytes bound it here.
    """
    window = max(LARGEST_WINDOW, plan.context_window)
    prompt = window if plan.text_bound is None else plan.text_bound
    parts = []
    for hop in plan.hops:
        prompt += sums.output_tokens + _results(plan)
        own = totals(prompt=prompt, window=window, max_tokens=hop.max_tokens, uses=plan.uses)
        prompt += own.output_tokens
        parts.append(
            _part(
                plan,
                model=hop.model,
                input_tokens=own.input_tokens,
                output_tokens=own.output_tokens,
                longest=own.longest,
                speed=hop.speed,
            )
        )
    return tuple(parts)


def _advisors(plan: Plan, sums: Totals) -> tuple[Shape, ...]:
    """An advisor reads all that the asking model has read and written."""
    window = max(LARGEST_WINDOW, plan.context_window)
    if plan.text_bound is None:
        prompt = window
    else:
        grown = plan.text_bound + sums.output_tokens + _results(plan)
        prompt = min(window, grown + _SIDE_PROMPT)
    return tuple(
        _part(
            plan,
            model=advisor.model,
            input_tokens=advisor.uses * prompt,
            output_tokens=advisor.uses * advisor.tokens,
            longest=prompt,
            cache_ttl=advisor.caching,
        )
        for advisor in plan.advisors
    )


def _results(plan: Plan) -> int:
    return sum(one.uses * one.tokens for one in plan.uses)


def _part(
    plan: Plan,
    *,
    model: str,
    input_tokens: int,
    output_tokens: int,
    longest: int,
    cache_ttl: Ttl | None = None,
    speed: Speed | None = None,
) -> Shape:
    return Shape(
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prompt_tokens=longest,
        cache_ttl=cache_ttl or plan.cache_ttl,
        tier=plan.tier,
        geo=plan.geo,
        speed=speed or plan.speed,
        word=plan.word,
    )
