"""Rows of a ledger file to records and back; the one place that knows the columns' order."""

from __future__ import annotations

import json
from typing import Any

from budgets.caps import Cap
from budgets.owners import Owner
from budgets.records import Account, CapChange, CapEntry, Hold, Line, Waiting

LINE = "hold, kind, at, held_at, scope, nanos, posted, held, in_doubt, model, owner, usage, note"
OPEN_HOLD = "id, nanos, scopes, kinds, held_at, model, owner, state, note"
CAP = "scope, per, tz, nanos, owner, since, fallback, dropped, after"
ACCOUNT = "cap_scope, cap_per, cap_tz, subject, window, posted, held, in_doubt, latched, begun"
OWNER = "id, host, pid, started_ms"
WAITING = "ticket, owner, nanos, blocked, tied"


#: A note must never keep a charge from being written: what JSON doesn't know is written as its text, and
#: lone surrogates as escapes.
dumps = json.JSONEncoder(separators=(",", ":"), default=str).encode


def line_row(line: Line) -> list[Any]:
    """A line without its id, in the order of ``LINE``; usage and note as they are."""
    return [
        line.hold,
        line.kind,
        line.at_us,
        line.held_at_us,
        line.scope,
        line.nanos,
        line.posted,
        line.held,
        line.in_doubt,
        line.model,
        line.owner,
        line.usage,
        line.note,
    ]


def line_of(row: tuple[Any, ...]) -> Line:
    """A row of ``id, LINE``."""
    return Line(
        id=row[0],
        hold=row[1],
        kind=row[2],
        at_us=row[3],
        held_at_us=row[4],
        scope=row[5],
        nanos=row[6],
        posted=row[7],
        held=row[8],
        in_doubt=row[9],
        model=row[10],
        owner=row[11],
        usage=None if row[12] is None else json.loads(row[12]),
        note=json.loads(row[13]),
    )


def hold_row(hold: Hold) -> list[Any]:
    """In the order of ``OPEN_HOLD``; scopes, kinds and note as they are."""
    return [
        hold.id,
        hold.nanos,
        hold.scopes,
        hold.kinds,
        hold.held_at_us,
        hold.model,
        hold.owner,
        hold.state,
        hold.note,
    ]


def hold_of(row: tuple[Any, ...]) -> Hold:
    """A row of ``OPEN_HOLD``."""
    return Hold(
        id=row[0],
        nanos=row[1],
        scopes=tuple(json.loads(row[2])),
        kinds=tuple((path, kind) for path, kind in json.loads(row[3])),
        held_at_us=row[4],
        model=row[5],
        owner=row[6],
        state=row[7],
        note=json.loads(row[8]),
    )


def cap_row(change: CapChange) -> tuple[Any, ...]:
    """In the order of ``CAP``."""
    cap = change.entry.cap
    return (
        cap.scope,
        cap.per or "ever",
        cap.tz,
        cap.nanos,
        cap.owner,
        change.entry.since_us,
        int(change.entry.fallback),
        int(change.dropped),
        change.after,
    )


def cap_of(row: tuple[Any, ...]) -> CapChange:
    """A row of ``CAP``."""
    cap = Cap.from_nanos(
        row[3], per=None if row[1] == "ever" else row[1], scope=row[0], tz=row[2], owner=row[4]
    )
    entry = CapEntry(cap=cap, since_us=row[5], fallback=bool(row[6]))
    return CapChange(entry=entry, dropped=bool(row[7]), after=row[8])


def account_row(account: Account) -> list[Any]:
    """In the order of ``ACCOUNT``."""
    return [
        *account.cap,
        account.subject,
        account.window,
        account.posted,
        account.held,
        account.in_doubt,
        account.latched,
        int(account.begun),
    ]


def account_of(row: tuple[Any, ...]) -> Account:
    """A row of ``ACCOUNT``."""
    return Account(
        cap=(row[0], row[1], row[2]),
        subject=row[3],
        window=row[4],
        posted=row[5],
        held=row[6],
        in_doubt=row[7],
        latched=row[8],
        begun=bool(row[9]),
    )


def owner_of(row: tuple[Any, ...]) -> Owner:
    """A row of ``OWNER``."""
    return Owner(id=row[0], host=row[1], pid=row[2], started_ms=row[3])


def waiting_of(row: tuple[Any, ...]) -> Waiting:
    """A row of ``WAITING``."""
    blocked = tuple((tuple(cap), subject, window) for cap, subject, window in json.loads(row[3]))
    return Waiting(ticket=row[0], owner=row[1], nanos=row[2], blocked=blocked, tied=row[4])
