"""Lifetimes: whether a shared prefix pays for a place in the prompt cache, and which of the two it should have.

Worked out from a model's own rates for one token of the prefix, which is used ``n`` times, ``g`` seconds
apart. An entry lives for its lifetime after its last use, so with gaps that it outlives it is written once
and read ``n - 1`` times; with longer gaps it is written every time:

    uncached       n * input
    5m, 1h         write + (n - 1) * read      where the gap is kept
                   n * write                   where it is not (never worth it)

So for gaps that five minutes outlive, ``5m`` pays as soon as n > 1 + (write - input) / (input - read): at the
documented multiples (1.25 and 0.1) from the second use on. For longer gaps it takes ``1h``, at 2 and 0.1 (or
0.05) from the third use on.
"""

from __future__ import annotations

from typing import Final

from .rates import Rates
from .shape import Ttl

#: Documented lifetimes in seconds, counted from the start of the request that used the entry last.
LIFETIME_S: Final[dict[Ttl, int]] = {"5m": 300, "1h": 3600}
#: Gaps vary: one counts as outlived if it takes up to four fifths of the lifetime.
_KEPT, _OF = 4, 5
#: Uses that are expected where nobody knows how many there will be.
_MANY = 10


def best_lifetime(rates: Rates, *, uses: int | None, every_s: int = 0) -> Ttl | None:
    """The lifetime at which a prefix is cheapest; None where it is cheapest uncached.

    Args:
        rates: of the model.
        uses: calls that share the prefix, the first included; None for many.
        every_s: seconds between them.
    """
    count = _MANY if uses is None else uses
    lifetimes: tuple[Ttl | None, ...] = (None, "5m", "1h")
    # The first of equals: no marker before a marker, a short life before a long one.
    return min(lifetimes, key=lambda ttl: prefix_cost(rates, ttl, uses=count, every_s=every_s))


def prefix_cost(rates: Rates, ttl: Ttl | None, *, uses: int, every_s: int = 0) -> int:
    """Pico-dollars that one token of a prefix costs over all its uses.

    Args:
        rates: of the model.
        ttl: the lifetime asked for, None for no marker.
        uses: calls that share it.
        every_s: seconds between them.
    """
    if ttl is None:
        return uses * rates.input
    write = rates.write_1h if ttl == "1h" else rates.write_5m
    is_kept = every_s * _OF <= LIFETIME_S[ttl] * _KEPT
    return write + (uses - 1) * (rates.read if is_kept else write)
