"""A store in memory: for tests, dry runs and ledgers that needn't outlive the process.

It is also the reference that other stores are compared with: plain dicts and no cleverness.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from budgets.owners import Owner
from budgets.records import Account, CapEntry, Hold, Line, Sums, Waiting
from budgets.scopes import is_within

from .protocol import AccountKey, Reader, Transaction


class MemoryStore:
    """Everything in dicts, behind one lock."""

    name = "memory"
    durable = False

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = _State()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin an atomic step; an exception puts everything back as it was."""
        with self._lock:
            self._state.begin()
            try:
                yield self._state
            except BaseException:
                self._state.roll_back()
                raise
            self._state.undo.clear()

    def changed_elsewhere(self) -> bool:
        """Never: nobody else can reach this memory."""
        return False

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """A view of what is committed."""
        with self._lock:
            yield self._state

    def close(self) -> None:
        """Nothing to release; the figures stay readable."""


class _State:
    """Transaction and reader in one; changes are undone in reverse from a list."""

    def __init__(self) -> None:
        self.caps_epoch = 0
        self.undo: list[tuple[dict, object, object]] = []  # type: ignore[type-arg]
        self._caps: dict[tuple[str, str, str], CapEntry] = {}
        self._history: list[tuple[CapEntry, bool]] = []
        self._accounts: dict[AccountKey, Account] = {}
        self._open: dict[str, Hold] = {}
        self._lines: list[Line] = []
        self._last: dict[str, str] = {}
        self._scopes: dict[str, tuple[str, ...]] = {}
        self._owners: dict[str, Owner] = {}
        self._waiting: dict[int, Waiting] = {}
        self._marks = (0, 0, 0)

    # ---- atomicity --------------------------------------------------------------------------------

    def begin(self) -> None:
        self.undo.clear()
        self._marks = (len(self._lines), len(self._history), self.caps_epoch)

    def roll_back(self) -> None:
        for table, key, before in reversed(self.undo):
            if before is None:
                table.pop(key, None)
            else:
                table[key] = before
        self.undo.clear()
        del self._lines[self._marks[0] :]
        del self._history[self._marks[1] :]
        self.caps_epoch = self._marks[2] + 1

    def _put(self, table: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
        self.undo.append((table, key, table.get(key)))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    # ---- caps and accounts ------------------------------------------------------------------------

    def caps(self) -> dict[tuple[str, str, str], CapEntry]:
        return self._caps

    def cap_history(self) -> Sequence[tuple[CapEntry, bool]]:
        return list(self._history)

    def put_cap(self, entry: CapEntry) -> None:
        self._put(self._caps, entry.cap.key, entry)
        self._history.append((entry, False))
        self.caps_epoch += 1

    def drop_cap(self, key: tuple[str, str, str], at_us: int) -> None:
        entry = self._caps[key]
        self._put(self._caps, key, None)
        self._history.append((replace(entry, since_us=at_us), True))
        for account in [k for k in self._accounts if k[0] == key]:
            self._put(self._accounts, account, None)
        self.caps_epoch += 1

    def account(self, key: AccountKey) -> Account | None:
        account = self._accounts.get(key)
        if account is not None:
            # Handed out for changing in place: keep what it was.
            self.undo.append((self._accounts, key, copy.copy(account)))
        return account

    def add_account(self, account: Account) -> None:
        self._put(self._accounts, account.key, account)

    def touch(self, account: Account) -> None:
        pass

    def accounts(self) -> Iterator[Account]:
        return iter([copy.copy(a) for a in self._accounts.values()])

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        posted = held = in_doubt = 0
        for line in self._lines:
            if from_us is not None and line.held_at_us < from_us:
                continue
            if to_us is not None and line.held_at_us >= to_us:
                continue
            paths = self._scopes.get(line.hold, (line.scope,))
            if any(is_within(path, subject) for path in paths):
                posted += line.posted
                held += line.held
                in_doubt += line.in_doubt
        return Sums(posted=posted, held=held, in_doubt=in_doubt)

    # ---- holds and lines --------------------------------------------------------------------------

    def open_hold(self, hold_id: str) -> Hold | None:
        return self._open.get(hold_id)

    def ended_as(self, hold_id: str) -> str | None:
        return self._last.get(hold_id)

    def put_hold(self, hold: Hold) -> None:
        self._put(self._open, hold.id, hold)
        if len(hold.scopes) > 1:
            self._put(self._scopes, hold.id, hold.scopes)

    def end_hold(self, hold_id: str) -> None:
        self._put(self._open, hold_id, None)

    def append(self, line: Line) -> None:
        self._lines.append(replace(line, id=len(self._lines) + 1))
        self._put(self._last, line.hold, line.kind)

    def lines(self, *, scope: str = "", hold: str | None = None, after: int = 0) -> Iterator[Line]:
        for line in self._lines[after:]:
            if hold is not None and line.hold != hold:
                continue
            paths = self._scopes.get(line.hold, (line.scope,))
            if not scope or any(is_within(path, scope) for path in paths):
                yield line

    def open_holds(self) -> Iterator[Hold]:
        return iter(list(self._open.values()))

    def extra_scopes(self) -> dict[str, tuple[str, ...]]:
        return {hold: paths[1:] for hold, paths in self._scopes.items()}

    # ---- owners and the queue ---------------------------------------------------------------------

    def open_owners(self) -> Sequence[Owner]:
        ids = {h.owner for h in self._open.values() if h.state == "held"} | {
            w.owner for w in self._waiting.values()
        }
        return [self._owners[i] for i in sorted(ids)]

    def holds_of(self, owner_id: str) -> Sequence[Hold]:
        return [h for h in self._open.values() if h.owner == owner_id and h.state == "held"]

    def put_owner(self, owner: Owner) -> None:
        self._put(self._owners, owner.id, owner)

    def owners(self) -> dict[str, Owner]:
        return dict(self._owners)

    def waiting(self) -> Collection[Waiting]:
        return self._waiting.values()

    def next_ticket(self) -> int:
        return next(reversed(self._waiting), 0) + 1

    def put_waiting(self, waiting: Waiting) -> None:
        self._put(self._waiting, waiting.ticket, waiting)

    def drop_waiting(self, ticket: int) -> None:
        self._put(self._waiting, ticket, None)

    def integrity(self) -> Sequence[str]:
        return []
