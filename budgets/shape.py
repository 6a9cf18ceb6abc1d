"""A shape: what of a request decides its price, with an upper limit on every part.

``orchestrator.wire`` makes shapes from request bodies; ``pricing`` turns them into a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ttl = Literal["5m", "1h"]
Tier = Literal["standard", "batch"]
Geo = Literal["global", "us"]
Speed = Literal["standard", "fast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Upper limits of one HTTP attempt.

    Attributes:
        model: the model as the request names it.
        input_tokens: the most input tokens that can be billed, over all sampling rounds together.
        output_tokens: the most output tokens that can be billed, over all rounds, thinking included.
        prompt_tokens: the longest single prompt, for price tiers by prompt length; None means
            ``input_tokens``.
        web_searches: the most web searches that can be charged.
        cache_ttl: the longest cache lifetime that the request asks for; None if it marks nothing.
        tier: ``standard`` or ``batch``.
        geo: the place of inference that the request names; None if it names none (priced as ``us``,
            since a workspace default can apply).
        speed: ``standard`` or ``fast``.
        parts: further inference that the request can cause, each priced as a shape of its own (an
            advisor, a fallback model, a compaction pass).
        word: names of limits that are only the caller's word (tokens per web search, say); a real
            cost above them is an overrun.
    """

    model: str
    input_tokens: int
    output_tokens: int
    prompt_tokens: int | None = None
    web_searches: int = 0
    cache_ttl: Ttl | None = None
    tier: Tier = "standard"
    geo: Geo | None = None
    speed: Speed = "standard"
    parts: tuple[Shape, ...] = ()
    word: tuple[str, ...] = ()
