"""Priming: whether marking a shared prefix pays, and what for.

A mark makes each miss dearer (a write of an hour costs twice the input) and each hit much cheaper. Requests
of one batch run side by side, so without a warm cache most of them would miss: one request goes ahead, in a
batch of its own (a plain call does not warm the cache for a batch), and the rest follow when it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from budgets.money import format_usd
from budgets.rates import Rates

_PICO_PER_NANO = 1_000
#: An entry lives an hour from its last use; this long is relied on.
WARM_S = 45 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """Whether a prefix is marked and primed.

    Attributes:
        pays: mark it.
        least_items: requests from which on it pays, the priming one among them; 0 if never.
        saved_nanos: what it saves, if as many requests hit as is expected.
        reason: one sentence for people.
    """

    pays: bool
    least_items: int
    saved_nanos: int
    reason: str


def choose(
    *, tokens: int, items: int, minimum: int, rates: Rates, hits_permille: int
) -> CacheChoice:
    """Work out whether marking a prefix pays.

    The priming request writes it at once; of the others, ``hits_permille`` of a thousand read it and the
    rest write it again.

    Args:
        tokens: length of the prefix.
        items: requests that share it.
        minimum: the shortest prefix that the model caches.
        rates: of the model, at the batch rate.
        hits_permille: expected share of reads.
    """
    if tokens < minimum:
        return CacheChoice(
            pays=False,
            least_items=0,
            saved_nanos=0,
            reason=f"the shared prefix has {tokens:,} tokens, the model caches from {minimum:,} on",
        )
    misses = 1000 - hits_permille
    # Thousandths of pico-dollars, for one token of the prefix: what each request saves, what the first one costs.
    gain = 1000 * rates.input - hits_permille * rates.read - misses * rates.write_1h
    extra = 1000 * (rates.write_1h - rates.input)
    if gain <= 0:
        return CacheChoice(
            pays=False,
            least_items=0,
            saved_nanos=0,
            reason=f"with {hits_permille / 10:g}% hits a mark costs more in misses than it saves",
        )
    least = 1 + -(-(extra + 1) // gain)
    saved = ((items - 1) * gain - extra) * tokens // (1000 * _PICO_PER_NANO)
    if items < least:
        return CacheChoice(
            pays=False,
            least_items=least,
            saved_nanos=0,
            reason=f"{items:,} requests share the prefix of {tokens:,} tokens; marking it pays from {least:,} on",
        )
    return CacheChoice(
        pays=True,
        least_items=least,
        saved_nanos=saved,
        reason=(
            f"{items:,} requests share a prefix of {tokens:,} tokens: at {hits_permille / 10:g}% hits an hour's mark "
            f"and one request ahead save about {format_usd(saved)} (it pays from {least:,} on)"
        ),
    )
