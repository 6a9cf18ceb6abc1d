"""A cap: an amount that may be spent in a scope, for ever or per call, agent, run or calendar window."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, cast, get_args

from .errors import InvalidCap
from .money import format_usd, parse_usd, to_decimal

Per = Literal["call", "agent", "run", "day", "week", "month", "year"]
PERIODS: tuple[str, ...] = get_args(Per)
#: Calendar periods; the others are counted per thing.
CALENDAR: tuple[str, ...] = ("day", "week", "month", "year")


@dataclass(frozen=True, slots=True, init=False)
class Cap:
    """An amount that may be spent in a scope.

    Args:
        amount: dollars: ``"5"``, ``"$5.00"``, a Decimal or an int; never a float.
        per: ``call``, ``agent``, ``run`` (``session`` means the same), ``day``, ``week``, ``month`` or
            ``year``; None is an amount for ever. Per call, agent and run it applies to each one below
            ``scope`` by itself.
        scope: what it limits; ``""`` is everything.
        tz: the time zone whose calendar the window follows (an IANA name); UTC if not given.
        owner: who set it, for messages: ``code``, a file, a flag, ``default``.

    Raises:
        InvalidAmount, InvalidCap, InvalidScope: what, where and what to do, in one sentence.
    """

    nanos: int
    per: Per | None
    scope: str
    tz: str
    owner: str

    def __init__(
        self,
        amount: object,
        *,
        per: str | None = None,
        scope: str = "",
        tz: str = "UTC",
        owner: str = "code",
    ) -> None:
        from .scopes import normal_scope  # scopes builds on caps; only the check goes the other way

        label = f"cap{f' per {per}' if per else ''}{f' of {scope!r}' if scope else ''}"
        period = "run" if per == "session" else per
        if period is not None and period not in PERIODS:
            raise InvalidCap(
                f"{label}: {per!r} is not a period; use one of {', '.join(PERIODS)}, or none for ever"
            )
        if period in CALENDAR:
            from .windows import zone_of

            zone_of(tz)
        object.__setattr__(self, "nanos", parse_usd(amount, what=label))
        object.__setattr__(self, "per", cast("Per | None", period))
        object.__setattr__(self, "scope", normal_scope(scope))
        object.__setattr__(self, "tz", tz if period in CALENDAR else "UTC")
        object.__setattr__(self, "owner", owner)

    @classmethod
    def from_nanos(cls, nanos: int, *, per: str | None, scope: str, tz: str, owner: str) -> Cap:
        """A cap as the ledger wrote it down, without reading an amount again."""
        copy = object.__new__(cls)
        object.__setattr__(copy, "nanos", nanos)
        object.__setattr__(copy, "per", per)
        object.__setattr__(copy, "scope", scope)
        object.__setattr__(copy, "tz", tz)
        object.__setattr__(copy, "owner", owner)
        return copy

    @property
    def amount(self) -> Decimal:
        """The amount in dollars."""
        return to_decimal(self.nanos)

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same cap when it is set again: scope, period, zone."""
        return (self.scope, self.per or "ever", self.tz)

    def at_scope(self, scope: str) -> Cap:
        """The same cap on another scope."""
        return Cap.from_nanos(self.nanos, per=self.per, scope=scope, tz=self.tz, owner=self.owner)

    def __str__(self) -> str:
        period = f" per {self.per}" if self.per else ""
        zone = f" ({self.tz})" if self.per in CALENDAR else ""
        where = f"scope {self.scope!r}" if self.scope else "everything"
        return f"{format_usd(self.nanos)}{period}{zone} on {where}"


__all__ = ["CALENDAR", "PERIODS", "Cap", "Per"]
