"""Windows: the stretch of calendar time that a cap counts over, in the cap's own time zone.

A window is never "reset": the next one simply has other sums. What is counted in one is the matter
of the ledger.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from .errors import InvalidCap, InvalidInput

Per = Literal["day", "week", "month", "year", "ever"]
PERS: tuple[str, ...] = get_args(Per)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One calendar window, from ``starts`` up to but not including ``ends``.

    Attributes:
        per: ``day``, ``week`` (Monday to Sunday), ``month``, ``year`` or ``ever``.
        tz: name of the time zone whose calendar it follows.
        key: names the window within ``per`` and ``tz``: ``2026-11-29``, ``2026-W48``, ``2026-11``,
            ``2026`` or ``ever``.
        starts, ends: instants in UTC; None where there is no such end.
    """

    per: Per
    tz: str
    key: str
    starts: datetime | None
    ends: datetime | None

    def __str__(self) -> str:
        """Text for messages, such as ``day 2026-11-29 (Europe/Berlin)``."""
        return "ever" if self.per == "ever" else f"{self.per} {self.key} ({self.tz})"

    def covers(self, at: datetime) -> bool:
        """Whether the instant lies in this window."""
        return (self.starts is None or self.starts <= at) and (self.ends is None or at < self.ends)


def window_of(per: str, tz: str, at: datetime) -> Window:
    """The window that an instant lies in.

    Args:
        per: ``day``, ``week``, ``month``, ``year`` or ``ever``.
        tz: IANA name of a time zone, such as ``Europe/Berlin``.
        at: an instant with a time zone.

    Raises:
        InvalidCap: unknown ``per`` or unknown zone (with the nearest known names).
        InvalidInput: ``at`` has no time zone, so it is not an instant.
    """
    if at.tzinfo is None:
        msg = f"{at.isoformat()} has no time zone; pass an aware datetime such as datetime.now(UTC)"
        raise InvalidInput(msg)
    zone = zone_of(tz)
    window = _window(per, tz, _first_day(per, at.astimezone(zone).date()))
    # A day's local date can lag behind its window where a clock change happens at midnight and the
    # same hour comes twice: the later instants carry the earlier date. Instants decide, not labels.
    if window.ends is not None and at >= window.ends:
        window = _window(per, tz, _next_day(per, _first_day(per, at.astimezone(zone).date())))
    assert window.covers(at), (window, at)
    return window


@lru_cache(maxsize=512)
def zone_of(tz: str) -> ZoneInfo:
    """The time zone of a name.

    Raises:
        InvalidCap: no such zone; the message has the nearest known names.
    """
    known = available_timezones()
    if tz in known:
        return ZoneInfo(tz)
    near = difflib.get_close_matches(tz, sorted(known), n=3, cutoff=0.5)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    msg = f"time zone {tz!r} is not known{hint}; use an IANA name such as 'Europe/Berlin' or 'UTC'"
    raise InvalidCap(msg)


@lru_cache(maxsize=4096)
def _window(per: Per, tz: str, first: date) -> Window:
    if per == "ever":
        return Window(per=per, tz=tz, key="ever", starts=None, ends=None)
    return Window(
        per=per,
        tz=tz,
        key=_key(per, first),
        starts=_start_of(first, tz),
        ends=_start_of(_next_day(per, first), tz),
    )


def _first_day(per: str, day: date) -> date:
    match per:
        case "day":
            return day
        case "week":
            return day - timedelta(days=min(day.weekday(), day.toordinal() - 1))
        case "month":
            return day.replace(day=1)
        case "year":
            return day.replace(month=1, day=1)
        case "ever":
            return date.min
    msg = f"a cap can't be per {per!r}; use one of {', '.join(PERS)}"
    raise InvalidCap(msg)


def _next_day(per: str, first: date) -> date:
    """The first day of the following window."""
    match per:
        case "day":
            return first + timedelta(days=1)
        case "week":
            return first + timedelta(days=7)
        case "month":
            return (first + timedelta(days=31)).replace(day=1)
        case _:
            return first.replace(year=first.year + 1)


def _key(per: str, first: date) -> str:
    match per:
        case "day":
            return first.isoformat()
        case "week":
            year, week, _ = first.isocalendar()
            return f"{year:04d}-W{week:02d}"
        case "month":
            return f"{first.year:04d}-{first.month:02d}"
        case _:
            return f"{first.year:04d}"


def _start_of(day: date, tz: str) -> datetime:
    """The first instant of a local day, in UTC.

    Midnight may not exist (the clock jumps over it: then the day starts where the clock lands) and
    may come twice (then the first one counts).
    """
    zone = zone_of(tz)
    midnight = datetime.combine(day, time(), tzinfo=zone)
    before, after = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    if before <= after:
        return before
    # In a gap the two readings swap: fold=0 uses the offset before the jump. The day starts at the
    # jump itself, which lies between the two.
    low, high = after, before
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).date() < day:
            low = middle
        else:
            high = middle
    return high
