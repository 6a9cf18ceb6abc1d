"""Room: how much more a place can take, under which cap, and when that opens again. Asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from .bindings import EVER
from .cap_table import CapTable, Match, matching
from .caps import CALENDAR, Cap
from .money import to_decimal
from .records import CapEntry, Sums, to_us
from .scopes import Place
from .stores.protocol import Reader
from .windows import Window, window_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The cap that leaves the least, and what it leaves.

    Attributes:
        nanos: nano-dollars; 0 if nothing, or if it is shut since a call was declined there (rule 13).
        cap: the cap, at the scope that it limits here.
        window: the calendar window it counts in now.
    """

    nanos: int
    cap: Cap
    window: Window

    @property
    def amount(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.nanos)

    @property
    def reopens_at(self) -> datetime | None:
        """When its window turns; None if it never does."""
        return self.window.ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a place can still take.

    Attributes:
        now: at this moment: posted, in doubt and held all count. None if no cap applies.
        unheld: once everything under way has come back for nothing: only posted and in doubt count.
        per_call: the tightest cap on a single call, or None.
    """

    now: Least | None
    unheld: Least | None
    per_call: Cap | None

    def fits(self, nanos_each: Sequence[int], *, held: bool = True) -> int:
        """How many of the first of these bounds fit together, in their order.

        Args:
            nanos_each: the bounds of calls, nano-dollars.
            held: count what is held as well; False asks what would fit if all of it came back.
        """
        least = self.now if held else self.unheld
        total = 0
        for number, nanos in enumerate(nanos_each):
            total += nanos
            if nanos and least is not None and total > least.nanos:
                return number
            if self.per_call is not None and nanos > self.per_call.nanos:
                return number
        return len(nanos_each)


def room_in(reader: Reader, place: Place, now: datetime, undeclared: Iterable[Cap] = ()) -> Room:
    """What the caps leave for calls made in a place.

    Args:
        reader: the ledger.
        place: where.
        now: when; decides which windows count.
        undeclared: caps that the next call made there would set.
    """
    table = reader.caps()
    added = list(undeclared)
    if added:
        table = _with(table.copy(), added)
    matches = matching(table, place)
    judged = [m for m in matches if m.entry.cap.per != "call" and _counts(reader, m)]
    said = [m for m in judged if not m.entry.fallback]
    single = [m.entry for m in matches if m.entry.cap.per == "call"]
    said_single = [entry for entry in single if not entry.fallback]
    tightest = said_single or ([] if said else single)
    found = [_left(reader, match, now) for match in said or judged]
    return Room(
        now=min((with_held for with_held, _ in found), key=_nanos, default=None),
        unheld=min((without for _, without in found), key=_nanos, default=None),
        per_call=min((entry.cap for entry in tightest), key=lambda cap: cap.nanos, default=None),
    )


def _nanos(least: Least) -> int:
    return least.nanos


def _with(table: CapTable, caps: Iterable[Cap]) -> CapTable:
    """The table after these caps were set, as ``admission`` sets them: defaults give way."""
    for cap in caps:
        for old in list(table.on(cap.scope)):
            if old.cap.per == cap.per and old.cap.owner == "default" and not old.fallback:
                table.drop(old.cap.key)
        table.put(CapEntry(cap=cap, since_us=0))
    return table


def _counts(reader: Reader, match: Match) -> bool:
    """Caps per agent and run apply to the subject of a call, and to subjects around it that have begun."""
    if match.named:
        return True
    account = reader.account((match.entry.cap.key, match.subject, EVER.key))
    return account is not None and account.begun


def _left(reader: Reader, match: Match, now: datetime) -> tuple[Least, Least]:
    """What one cap leaves, with what is held and without."""
    cap, subject = match.entry.cap, match.subject
    window = window_in_force(cap, now)
    account = reader.account((cap.key, subject, window.key))
    sums = sums_of(reader, cap, subject, window)
    shut = account is not None and account.latched >= max(cap.nanos, 1)
    named = cap if subject == cap.scope else cap.at_scope(subject)
    each: Iterator[Least] = (
        Least(nanos=0 if shut else max(cap.nanos - counted, 0), cap=named, window=window)
        for counted in (sums.total, sums.posted + sums.in_doubt)
    )
    return next(each), next(each)


def window_in_force(cap: Cap, now: datetime) -> Window:
    """The window that a cap counts in at a moment."""
    return window_of(cap.per, cap.tz, now) if cap.per in CALENDAR else EVER


def sums_of(reader: Reader, cap: Cap, subject: str, window: Window) -> Sums:
    """What counts against a cap on a subject in a window: its account, or the lines if it has none yet."""
    account = reader.account((cap.key, subject, window.key))
    if account is not None:
        return Sums(posted=account.posted, held=account.held, in_doubt=account.in_doubt)
    return reader.sums(
        subject,
        None if window.starts is None else to_us(window.starts),
        None if window.ends is None else to_us(window.ends),
    )


__all__ = ["Least", "Room", "room_in", "sums_of", "window_in_force"]
