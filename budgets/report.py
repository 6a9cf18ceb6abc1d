"""Questions about the past: balances, and where the money went by day, model, scope or agent.

Everything is added up from lines; nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from .caps import Cap
from .errors import InvalidInput
from .records import RESERVE, Balance, DollarSums, Line, Sums, from_us
from .room import room_in, sums_of, window_in_force
from .scopes import Place
from .stores.protocol import Reader
from .windows import zone_of

By = Literal["day", "model", "scope", "agent"]
TOKEN_CLASSES = ("input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens")


def balance_of(reader: Reader, scope: str, now: datetime) -> Balance:
    """Sums of a scope, and what a call made in it now could still take."""
    sums = reader.sums(scope, None, None)
    least = room_in(reader, Place(scopes=(scope,)), now).now
    return Balance(
        scope=scope,
        posted_nanos=sums.posted,
        held_nanos=sums.held,
        in_doubt_nanos=sums.in_doubt,
        remaining_nanos=None if least is None else least.nanos,
        cap=None if least is None else least.cap,
    )


def cap_sums(reader: Reader, cap: Cap, now: datetime) -> Sums:
    """What counts against a cap on its own scope, in the window that ``now`` lies in."""
    return sums_of(reader, cap, cap.scope, window_in_force(cap, now))


@dataclass(slots=True)
class ReportRow(DollarSums):
    """One group of a report; amounts in nano-dollars beside Decimal dollars.

    Attributes:
        key: the day, model, scope or agent.
        calls: HTTP attempts that were held for.
        settled, voided, doubted: how they stand (a doubt that was resolved is settled); what is missing is under way.
        posted_nanos: charged, corrections included.
        in_doubt_nanos: may or may not have been billed.
        tokens: the four disjoint classes of tokens.
        searches: web searches charged.
    """

    key: str
    calls: int = 0
    settled: int = 0
    voided: int = 0
    doubted: int = 0
    posted_nanos: int = 0
    held_nanos: int = 0
    in_doubt_nanos: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKEN_CLASSES, 0))
    searches: int = 0

    def add(self, line: Line) -> None:
        """Count one line."""
        self.posted_nanos += line.posted
        self.held_nanos += line.held
        self.in_doubt_nanos += line.in_doubt
        if RESERVE not in line.note:
            self.calls += line.kind == "hold"
            self.voided += line.kind == "void"
        self.doubted += (line.kind == "doubt") - (line.kind == "resolve")
        self.settled += line.kind in {"settle", "resolve"}
        for name in TOKEN_CLASSES:
            self.tokens[name] += int((line.usage or {}).get(name, 0))
        self.searches += int((line.usage or {}).get("web_searches", 0))


def report(
    lines: Iterable[Line],
    by: By,
    *,
    tz: str = "UTC",
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[ReportRow]:
    """Group lines.

    Args:
        lines: as ``Ledger.lines`` gives them.
        by: ``day`` (of the hold, in ``tz``), ``model``, ``scope`` or ``agent``.
        tz: the calendar of ``day``.
        since, until: keep holds made in this time (end excluded).

    Returns:
        Rows: days in order, everything else by money, dearest first.

    Raises:
        InvalidInput: an unknown grouping, or a time without a zone.
    """
    zone = zone_of(tz)
    keys: dict[str, Callable[[Line], str]] = {
        "day": lambda line: from_us(line.held_at_us).astimezone(zone).date().isoformat(),
        "model": lambda line: line.model or "(none)",
        "scope": lambda line: line.scope or "(everything)",
        "agent": lambda line: str(line.note.get("agent") or "(none)"),
    }
    if by not in keys:
        raise InvalidInput(f"report: {by!r} is not a grouping; use one of {', '.join(keys)}")
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(
                f"report: {name} has no time zone; pass an aware datetime such as datetime.now(UTC)"
            )
    key_of = keys[by]
    rows: dict[str, ReportRow] = {}
    for line in lines:
        if (since and line.held_at < since) or (until and line.held_at >= until):
            continue
        key = key_of(line)
        row = rows.get(key)
        if row is None:
            row = rows[key] = ReportRow(key)
        row.add(line)
    if by == "day":
        return sorted(rows.values(), key=lambda row: row.key)
    return sorted(rows.values(), key=lambda row: (-row.posted_nanos, row.key))
