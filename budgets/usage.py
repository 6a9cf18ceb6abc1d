"""A usage: what one HTTP attempt really used, in disjoint classes of tokens.

``orchestrator.wire`` reads usages from responses; ``pricing`` turns them into a cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shape import Geo, Speed, Tier, Ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts as the provider reported them. Input, writes and reads never overlap.

    Attributes:
        model: the model that served (not the one asked for).
        input_tokens: uncached input only.
        cache_write_5m, cache_write_1h: tokens written to the cache, by lifetime.
        cache_write_unsplit: tokens written whose lifetime was not reported.
        cache_read: tokens read from the cache.
        output_tokens: billed output, thinking included.
        thinking_tokens: the part of ``output_tokens`` that was thinking (information only).
        web_searches, web_fetches: server tool requests; fetches are free.
        code_executions: server-side code runs (not derivable to money from one response).
        tier, geo, speed: as reported; geo None means that it was not reported.
        parts: iterations, where the provider lists them: then they are the bill, each at its own model,
            and the counts above are not priced again. Web searches stay on the whole.
        unsplit_ttl: lifetime at which ``cache_write_unsplit`` is priced: the longest that the request
            asked for; ``1h`` when unknown, the dearest.
    """

    model: str
    input_tokens: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write_unsplit: int = 0
    cache_read: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    web_searches: int = 0
    web_fetches: int = 0
    code_executions: int = 0
    tier: Tier = "standard"
    geo: Geo | None = None
    speed: Speed = "standard"
    parts: tuple[Usage, ...] = ()
    unsplit_ttl: Ttl = "1h"

    @property
    def prompt_tokens(self) -> int:
        """All input of this usage: what price tiers by prompt length look at."""
        return (
            self.input_tokens
            + self.cache_write_5m
            + self.cache_write_1h
            + self.cache_write_unsplit
            + self.cache_read
        )

    @property
    def touches_cache(self) -> bool:
        """Whether anything was read from the prompt cache or written to it."""
        own = self.cache_read or self.cache_write_5m or self.cache_write_1h
        if own or self.cache_write_unsplit:
            return True
        return any(part.touches_cache for part in self.parts)
