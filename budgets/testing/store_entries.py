"""Entries to fill a store with: short ways to write a hold, its lines, an account, an owner."""

from __future__ import annotations

from typing import Any

from budgets.caps import Cap
from budgets.owners import Owner
from budgets.records import Account, CapEntry, Hold, Line, LineKind, Waiting
from budgets.stores.protocol import Transaction

OWNER = Owner(id="owner-1", host="host#boot-ns", pid=4711, started_ms=1_700_000_000_000)
OTHER = Owner(id="owner-2", host="host#boot-ns", pid=4712, started_ms=1_700_000_000_001)


def hold_of(
    hold_id: str,
    nanos: int = 10,
    *scopes: str,
    at_us: int = 1_000,
    owner: str = OWNER.id,
    **note: Any,
) -> Hold:
    """A hold on these scopes (``app`` if none is given)."""
    return Hold(
        id=hold_id,
        nanos=nanos,
        scopes=scopes or ("app",),
        kinds=(),
        held_at_us=at_us,
        model="model",
        owner=owner,
        note=note,
    )


def line_of(
    hold: Hold, kind: LineKind, *, posted: int = 0, held: int = 0, in_doubt: int = 0, **more: Any
) -> Line:
    """A line about a hold."""
    return Line(
        hold=hold.id,
        kind=kind,
        at_us=hold.held_at_us,
        held_at_us=hold.held_at_us,
        scope=hold.scope,
        nanos=abs(posted or held or in_doubt),
        posted=posted,
        held=held,
        in_doubt=in_doubt,
        model=hold.model,
        owner=hold.owner,
        **more,
    )


def begin(txn: Transaction, hold: Hold) -> Hold:
    """Write a hold and the line that begins it."""
    txn.put_owner(OWNER if hold.owner == OWNER.id else OTHER)
    txn.put_hold(hold)
    txn.append(line_of(hold, "hold", held=hold.nanos, note=hold.note))
    return hold


def settle(txn: Transaction, hold: Hold, nanos: int) -> None:
    """End a hold with a charge."""
    txn.end_hold(hold.id)
    txn.append(line_of(hold, "settle", posted=nanos, held=-hold.nanos))


def cap_of(amount: int = 5, scope: str = "app", *, since_us: int = 1) -> CapEntry:
    """A cap for ever."""
    return CapEntry(cap=Cap(amount, scope=scope), since_us=since_us)


def account_of(cap: CapEntry, subject: str = "app", *, held: int = 0) -> Account:
    """An account of a cap for ever."""
    return Account(cap=cap.cap.key, subject=subject, window="ever", held=held)


def waiting_of(ticket: int, owner: Owner = OWNER, nanos: int = 5) -> Waiting:
    """A place in the queue."""
    blocked = (((("app", "ever", "UTC")), "app", "ever"),)
    return Waiting(ticket=ticket, owner=owner.id, nanos=nanos, blocked=blocked)
