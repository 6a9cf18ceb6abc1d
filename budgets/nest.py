"""Contradictions in a nest of caps: caps that can't be reached, and plans that they don't pay for.

Pure arithmetic over caps as they were set; what was spent is the matter of ``report``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .caps import CALENDAR, Cap
from .money import format_usd
from .scopes import ancestors, is_within

#: From the smallest to the largest; None is for ever.
RANKS: dict[str | None, int] = {
    per: rank
    for rank, per in enumerate(("call", "agent", "run", "day", "week", "month", "year", None))
}
MONTHS_PER_YEAR = 12
#: Full weeks that every month holds.
WEEKS_PER_MONTH = 4
_DAYS_PER_YEAR_MOST = 366
_CENT = 10_000_000

Kind = Literal["zero", "above", "count", "zones", "together"]
_PLURALS = {
    "call": "calls",
    "agent": "agents",
    "run": "sessions",
    "day": "days",
    "week": "weeks",
    "month": "months",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many of one thing fall in the next larger one; None is not known and not checked."""

    calls_per_session: int | None = None
    agents_per_session: int | None = None
    sessions_per_day: int | None = None
    days_per_week: int = 7
    days_per_month: int = 31

    def of(self, inner: str | None, outer: str | None) -> int | None:
        """How many ``inner`` periods fall in one ``outer``; None if that is not known."""
        table: dict[tuple[str | None, str | None], int | None] = {
            ("call", "run"): self.calls_per_session,
            ("agent", "run"): self.agents_per_session,
            ("run", "day"): self.sessions_per_day,
            ("day", "week"): self.days_per_week,
            ("day", "month"): self.days_per_month,
            ("day", "year"): min(self.days_per_month * MONTHS_PER_YEAR, _DAYS_PER_YEAR_MOST),
            ("week", "month"): WEEKS_PER_MONTH,
            ("month", "year"): MONTHS_PER_YEAR,
        }
        return table.get((inner, outer))


NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not fit.

    Attributes:
        kind: ``zero`` (a cap of $0), ``above`` (a cap above one around it), ``count`` (so many of one
            cap are more than the next), ``zones`` (two calendars), ``together`` (siblings that add up
            to more than what they share).
        contradicts: False if it is only worth knowing: siblings may be overbooked on purpose, and a
            default is not something that anybody said.
        caps: the caps that it is about, the inner one first.
        message: one sentence that says what to do.
    """

    kind: Kind
    contradicts: bool
    caps: tuple[Cap, ...]
    message: str


def contradictions(caps: Iterable[Cap], counts: Counts = NO_COUNTS) -> list[Finding]:
    """What in a nest of caps can't all be meant, contradictions first.

    Args:
        caps: the caps; those of the owner ``default`` never make a contradiction by a count.
        counts: how many sessions a day has, and so on.
    """
    nest = _Nest(caps, counts)
    found = [*nest.zeros(), *nest.pairs(), *nest.zones(), *nest.siblings()]
    return sorted(found, key=lambda finding: not finding.contradicts)


class _Nest:
    def __init__(self, caps: Iterable[Cap], counts: Counts) -> None:
        self._caps = sorted(caps, key=lambda cap: (cap.scope, RANKS[cap.per], cap.tz))
        self._counts = counts
        self._by_scope: defaultdict[str, list[Cap]] = defaultdict(list)
        for cap in self._caps:
            self._by_scope[cap.scope].append(cap)

    def _around(self, cap: Cap) -> Iterator[Cap]:
        """The other caps that a call under this one falls under too, by its scope."""
        for scope in ancestors(cap.scope):
            for other in self._by_scope.get(scope, ()):
                if other is not cap:
                    yield other

    def zeros(self) -> Iterator[Finding]:
        for cap in self._caps:
            if cap.nanos == 0:
                message = (
                    f"the cap of {cap} lets nothing through that costs anything; "
                    "raise it, or drop it if another one is meant to limit this"
                )
                yield Finding(kind="zero", contradicts=True, caps=(cap,), message=message)

    def pairs(self) -> Iterator[Finding]:
        for inner in self._caps:
            for outer in self._around(inner):
                if not _encloses(outer, inner):
                    continue
                if inner.nanos > outer.nanos:
                    yield _above(inner, outer)
                elif (finding := self._counted(inner, outer)) is not None:
                    yield finding

    def _counted(self, inner: Cap, outer: Cap) -> Finding | None:
        count = self._counts.of(inner.per, outer.per)
        if count is None or inner.nanos * count <= outer.nanos or not outer.nanos:
            return None
        if inner.owner == outer.owner == "default" and NO_COUNTS.of(inner.per, outer.per):
            return None  # the defaults are not meant to be used up day after day
        if any(
            RANKS[inner.per] < RANKS[other.per] < RANKS[outer.per]
            and is_within(other.scope, outer.scope)
            and self._counts.of(inner.per, other.per) is not None
            and self._counts.of(other.per, outer.per) is not None
            for other in self._around(inner)
        ):
            return None  # said of the steps between already
        return _too_many(inner, outer, count)

    def zones(self) -> Iterator[Finding]:
        seen: set[tuple[str, str]] = set()
        for inner in self._caps:
            for outer in self._around(inner):
                pair = (inner.tz, outer.tz)
                if inner.per not in CALENDAR or outer.per not in CALENDAR or inner.tz == outer.tz:
                    continue
                if pair in seen or pair[::-1] in seen:
                    continue
                seen.add(pair)
                message = (
                    f"the cap of {inner} and the cap of {outer} follow two time zones, so their "
                    "windows turn at different moments; use one zone for all caps"
                )
                said = not _is_default(inner, outer)
                yield Finding(kind="zones", contradicts=said, caps=(inner, outer), message=message)

    def siblings(self) -> Iterator[Finding]:
        below: defaultdict[int, list[Cap]] = defaultdict(list)
        outers: dict[int, Cap] = {}
        for cap in self._caps:
            if cap.per in {"call", "agent", "run"} or not cap.scope:
                continue
            shared = [
                outer
                for outer in self._around(cap)
                if outer.scope != cap.scope and outer.per == cap.per and outer.tz == cap.tz
            ]
            if shared:
                nearest = max(shared, key=lambda outer: len(outer.scope))
                outers[id(nearest)] = nearest
                below[id(nearest)].append(cap)
        for key, inners in below.items():
            outer, total = outers[key], sum(cap.nanos for cap in inners)
            if len(inners) < 2 or total <= outer.nanos:
                continue
            message = (
                f"{len(inners)} caps below {_place(outer)} make {format_usd(total)} together, more "
                f"than the cap of {outer}; whoever comes last may find nothing left"
            )
            yield Finding(
                kind="together", contradicts=False, caps=(*inners, outer), message=message
            )


def _encloses(outer: Cap, inner: Cap) -> bool:
    """Whether all that ``inner`` allows must fit in ``outer`` as well."""
    wider = RANKS[outer.per] > RANKS[inner.per]
    return wider or (outer.per == inner.per and outer.scope != inner.scope)


def _above(inner: Cap, outer: Cap) -> Finding:
    message = (
        f"the cap of {inner} is above the cap of {outer}, so it can never be reached; "
        f"lower it to {format_usd(outer.nanos)} or raise the other to {format_usd(inner.nanos)}"
    )
    said = not _is_default(inner, outer)
    return Finding(kind="above", contradicts=said, caps=(inner, outer), message=message)


def _too_many(inner: Cap, outer: Cap, count: int) -> Finding:
    name = _PLURALS[inner.per or ""]
    fitting = outer.nanos // inner.nanos
    message = (
        f"{count} {name} at the cap of {inner} make {format_usd(inner.nanos * count)}, more than "
        f"the cap of {outer}, which pays for {fitting}; lower the first to "
        f"{format_usd(_whole_cents(outer.nanos // count))} or raise the second to "
        f"{format_usd(inner.nanos * count)}"
    )
    said = not _is_default(inner, outer)
    return Finding(kind="count", contradicts=said, caps=(inner, outer), message=message)


def _whole_cents(nanos: int) -> int:
    """Down to a cent, unless nothing would be left."""
    return nanos - nanos % _CENT or nanos


def _is_default(*caps: Cap) -> bool:
    return any(cap.owner == "default" for cap in caps)


def _place(cap: Cap) -> str:
    return repr(cap.scope) if cap.scope else "everything"
