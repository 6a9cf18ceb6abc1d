"""What the ledger needs of a store, in words and types.

A store keeps lines, open holds, caps, accounts, owners and the waiting queue. The rules (who is admitted,
what a line changes) are in ``budgets.admission``; a store only promises that a transaction is atomic,
durable when it returns, and alone: no other process's transaction runs beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from budgets.cap_table import CapTable
from budgets.owners import Owner
from budgets.records import Account, CapChange, CapEntry, Hold, Line, Sums, Waiting

AccountKey = tuple[tuple[str, str, str], str, str]


class EntryRefused(Exception):
    """A transaction can't be written because of what is in it; the storage itself is well."""


class StoreBusy(Exception):
    """Another thread or process is writing just now."""


class Transaction(Protocol):
    """One atomic step. Reads see its own writes; an exception undoes all of it."""

    @property
    def caps_epoch(self) -> int:
        """Changes whenever the caps may have changed; equal values promise equal caps."""

    @property
    def accounts_epoch(self) -> int:
        """Changes whenever accounts were added or forgotten; at equal values, the objects handed out still count."""

    def caps(self) -> CapTable:
        """All caps in force."""

    def put_cap(self, entry: CapEntry) -> None:
        """Set a cap; the latest wins, earlier ones stay in the history."""

    def drop_cap(self, key: tuple[str, str, str], at_us: int) -> None:
        """Lift a cap and forget its accounts (they are summed again if it comes back)."""

    def account(self, key: AccountKey) -> Account | None:
        """The account, for changing in place after ``touch``; None if it doesn't exist yet."""

    def add_account(self, account: Account) -> None:
        """A new account."""

    def touch(self, account: Account) -> None:
        """The account is about to be changed in place."""

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        """Sums of all lines within a scope whose holds were made in the time given (end excluded)."""

    def open_hold(self, hold_id: str) -> Hold | None:
        """The open hold of this id."""

    def ended_as(self, hold_id: str) -> str | None:
        """Kind of the last line about a hold; None if there is none."""

    def posted_for(self, hold_id: str) -> int | None:
        """What was posted for a hold, corrections included; None if it was never settled or resolved."""

    def put_hold(self, hold: Hold) -> None:
        """Add an open hold, or change the state of one.

        Raises:
            AlreadyEnded: a hold to be added has the id of one that was there before. A store may say so
                only when the transaction is written, as ``EntryRefused``.
        """

    def end_hold(self, hold_id: str) -> None:
        """The hold is not open any more."""

    def append(self, line: Line) -> None:
        """Write a line; its id is given by the store."""

    def open_owners(self) -> Sequence[Owner]:
        """Owners of holds in state ``held`` and of waiting calls."""

    def holds_of(self, owner_id: str) -> Sequence[Hold]:
        """Open holds in state ``held`` of one owner."""

    def reserves(self) -> Collection[Hold]:
        """Open holds that are reserves, of all owners. Cheap while there are none."""

    def put_owner(self, owner: Owner) -> None:
        """Make an owner known."""

    def waiting(self) -> Collection[Waiting]:
        """All waiting calls, first come first."""

    def next_ticket(self) -> int:
        """A number above every ticket in the queue."""

    def put_waiting(self, waiting: Waiting) -> None:
        """Add or change a waiting call."""

    def drop_waiting(self, ticket: int) -> None:
        """The call waits no more."""


class Reader(Protocol):
    """A consistent view for reports; never blocks holds."""

    def caps(self) -> CapTable:
        """All caps in force."""

    def cap_history(self) -> Sequence[CapChange]:
        """Every word about caps, oldest first."""

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        """As in a transaction."""

    def lines(self, *, scope: str = "", hold: str | None = None, after: int = 0) -> Iterator[Line]:
        """Lines in order; ``scope`` keeps only what lies within it, ``after`` starts behind a line id."""

    def open_holds(self) -> Iterator[Hold]:
        """Open holds, oldest first."""

    def account(self, key: AccountKey) -> Account | None:
        """One account; None if nothing was counted in it yet."""

    def accounts(self) -> Iterator[Account]:
        """All accounts."""

    def extra_scopes(self) -> dict[str, tuple[str, ...]]:
        """Holds that draw on more than one path: hold id to the further paths."""

    def owners(self) -> dict[str, Owner]:
        """All owners ever seen, by id."""

    def waiting(self) -> Collection[Waiting]:
        """All waiting calls."""

    def integrity(self) -> Sequence[str]:
        """What the storage engine itself finds wrong; empty if nothing."""


class Store(Protocol):
    """Where a ledger is kept."""

    #: For messages: a path, or ``memory``.
    name: str
    #: True if it survives the process; such a store is driven from one thread.
    durable: bool

    def transaction(self, *, wait: bool = True) -> AbstractContextManager[Transaction]:
        """Begin an atomic step; leaving it without an exception makes it durable.

        Raises:
            StoreBusy: ``wait`` is False, and another thread or process is writing; nothing was done.
            LedgerUnavailable, LedgerCorrupt: nothing was written.
            EntryRefused: nothing was written, because of what one of the entries holds.
        """

    def changed_elsewhere(self) -> bool:
        """True if another process may have written since the last transaction; cheap."""

    def reader(self) -> AbstractContextManager[Reader]:
        """A view of what is committed; may be used from any thread."""

    def close(self) -> None:
        """Release the storage; may be called twice."""


__all__ = ["AccountKey", "EntryRefused", "Reader", "Store", "StoreBusy", "Transaction"]
