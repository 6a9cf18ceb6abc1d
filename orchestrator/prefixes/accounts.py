"""Accounts of caching: what was written, whether anything has read it, and what that saved or wasted."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from budgets.lifetimes import LIFETIME_S
from budgets.money import format_usd, to_decimal
from budgets.pricing import CacheEffect
from budgets.shape import Ttl
from orchestrator.clock import Clock
from orchestrator.context import Tally
from orchestrator.wire.markers import Prefix

logger = logging.getLogger("earmark")

_ENTRIES_MAX = 20_000
#: Writes of a prefix that is there already; one more than these raises the alarm, once.
_REPEATS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The prefixes of one request, for the account of what it read and wrote.

    Attributes:
        prefixes: all up to the last marked one, shortest first.
        marked: those that bear a marker, shortest first.
        ttl: the lifetime of all markers.
        model: the model asked.
    """

    prefixes: tuple[Prefix, ...]
    marked: tuple[Prefix, ...]
    ttl: Ttl
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CachingReport:
    """What prompt caching did in a run so far, also for markers that the caller placed.

    Attributes:
        reads, writes: calls that read from the cache, and calls that wrote to it.
        read_tokens, written_tokens: tokens of those.
        saved_nanos: tokens read, at the price of plain input, less what they cost.
        surcharge_nanos: what tokens written cost above plain input.
        wasted_nanos: the part of the surcharge for writes that nothing has read so far, or that wrote again
            what was there; only of prefixes that were marked without being asked.
        alarms: prefixes that were written again and again.
    """

    reads: int = 0
    writes: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    saved_nanos: int = 0
    surcharge_nanos: int = 0
    wasted_nanos: int = 0
    alarms: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the tokens under markers that were read and not written; 0 where there were none."""
        return self.read_tokens / ((self.read_tokens + self.written_tokens) or 1)

    @property
    def saved(self) -> Decimal:
        """Dollars saved by reads."""
        return to_decimal(self.saved_nanos)

    @property
    def surcharge(self) -> Decimal:
        """Dollars paid for writes, above plain input."""
        return to_decimal(self.surcharge_nanos)

    @property
    def wasted(self) -> Decimal:
        """Dollars of the surcharge that brought nothing so far."""
        return to_decimal(self.wasted_nanos)

    def __str__(self) -> str:
        if not self.reads and not self.writes:
            return "caching: nothing was cached"
        return (
            f"caching: {self.reads:,} calls read {self.read_tokens:,} tokens, {self.writes:,} wrote "
            f"{self.written_tokens:,} ({self.hit_rate:.0%} read); reads saved {format_usd(self.saved_nanos)}, "
            f"writes cost {format_usd(self.surcharge_nanos)} more than plain input, "
            f"{format_usd(self.wasted_nanos)} of it wasted"
        )


@dataclass(slots=True)
class _Entry:
    """One prefix in the cache, as far as is known here."""

    until: float
    #: Surcharge that nothing has read yet, and whose tallies count it as wasted until then.
    unread_nanos: int
    tallies: tuple[Tally, ...]
    repeats: int = 0


class Accounts:
    """Follows what the calls of one run write and read.

    Args:
        clock: where time comes from.
        alarm: called once for each prefix that is written again and again while it should be there.
    """

    def __init__(self, clock: Clock, alarm: Callable[..., None]) -> None:
        self._clock = clock
        self._alarm = alarm
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._reads = self._writes = self._alarms = 0

    def report(self, tally: Tally) -> CachingReport:
        """The account so far. ``tally`` is that of all calls."""
        with self._lock:
            return CachingReport(
                reads=self._reads,
                writes=self._writes,
                read_tokens=tally.tokens["cache_read_tokens"],
                written_tokens=tally.tokens["cache_write_tokens"],
                saved_nanos=tally.saved_nanos,
                surcharge_nanos=tally.surcharge_nanos,
                wasted_nanos=tally.wasted_nanos,
                alarms=self._alarms,
            )

    def add(
        self,
        marks: Marks | None,
        usage: Mapping[str, Any],
        effect: CacheEffect,
        tallies: tuple[Tally, ...],
    ) -> None:
        """Count one answered call.

        Args:
            marks: the prefixes that were marked without being asked; None if none were.
            usage: what it used, as it is written down.
            effect: what the cache did to its price.
            tallies: who counts what was wasted.
        """
        read = int(usage.get("cache_read_tokens", 0))
        written = int(usage.get("cache_write_tokens", 0))
        with self._lock:
            self._reads += read > 0
            self._writes += written > 0
            if marks is None:
                return
            hit = self._read_up_to(marks, read)
            fresh = [prefix for prefix in marks.marked if prefix.tokens > hit] if written else []
            alarms = [
                self._write(marks, prefix, share, tallies)
                for prefix, share in _shares(fresh, hit, effect.surcharge_nanos)
            ]
        if any(alarms):
            self._raise_alarm(marks, written, effect)

    def _read_up_to(self, marks: Marks, read: int) -> int:
        """Everything that the longest known entry stands on was read; returns its (guessed) length."""
        if not read:
            return 0
        now = self._clock.monotonic()
        hit = 0
        for prefix in reversed(marks.prefixes):
            entry = self._entries.get(prefix.key)
            # The guess is low, but for prose with long words; what is much longer than what was read wasn't.
            if entry is None or (not hit and (entry.until < now or prefix.tokens * 4 > read * 5)):
                continue
            hit = hit or prefix.tokens
            entry.until = max(entry.until, now + LIFETIME_S[marks.ttl])
            _waste(entry.tallies, -entry.unread_nanos)
            entry.unread_nanos, entry.tallies = 0, ()
        # An entry that somebody else wrote: the marked prefix that fits what was read.
        return hit or max((one.tokens for one in marks.marked if one.tokens <= read), default=0)

    def _write(self, marks: Marks, prefix: Prefix, nanos: int, tallies: tuple[Tally, ...]) -> bool:
        """One prefix was written; True if that was once too often."""
        now = self._clock.monotonic()
        known = self._entries.pop(prefix.key, None)
        is_there = known is not None and known.until >= now
        entry = _Entry(now + LIFETIME_S[marks.ttl], nanos, tallies)
        _waste(tallies, nanos)
        if known is not None:
            entry.repeats = known.repeats + is_there
        if known is not None and is_there:
            # What was there may still be read; what wrote it again is wasted for good.
            entry.unread_nanos, entry.tallies = known.unread_nanos, known.tallies
        self._entries[prefix.key] = entry
        while len(self._entries) > _ENTRIES_MAX:
            self._entries.popitem(last=False)
        return is_there and entry.repeats == _REPEATS_MAX + 1

    def _raise_alarm(self, marks: Marks, tokens: int, effect: CacheEffect) -> None:
        with self._lock:
            self._alarms += 1
        logger.warning(
            "%s: the same prefix (about %s tokens) is written to the cache again and again instead of being read; "
            "something before it changes, or calls go before it is warm",
            marks.model,
            f"{tokens:,}",
        )
        self._alarm(
            model=marks.model,
            tokens=tokens,
            nanos=effect.surcharge_nanos,
            writes=_REPEATS_MAX + 2,
        )


def _shares(fresh: Sequence[Prefix], hit: int, nanos: int) -> list[tuple[Prefix, int]]:
    """The surcharge of one call over the prefixes that it wrote, by their (guessed) lengths."""
    if not fresh:
        return []
    length = fresh[-1].tokens - hit
    shares, given, start = [], 0, hit
    for prefix in fresh:
        start = prefix.tokens
        upto = nanos * (start - hit) // length if length else nanos
        shares.append((prefix, upto - given))
        given = upto
    return shares


def _waste(tallies: tuple[Tally, ...], nanos: int) -> None:
    for tally in tallies:
        tally.waste(nanos)
