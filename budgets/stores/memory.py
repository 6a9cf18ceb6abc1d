"""A store in memory: for tests, dry runs and ledgers that needn't outlive the process.

It is also the reference that other stores are compared with: plain dicts and lists.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from budgets.cap_table import CapTable
from budgets.errors import AlreadyEnded
from budgets.owners import Owner
from budgets.records import Account, CapChange, CapEntry, Hold, Line, Sums, Waiting
from budgets.scopes import ancestors

from .protocol import AccountKey, Reader, Transaction


class MemoryStore:
    """Everything in dicts, behind one lock."""

    name = "memory"
    durable = False

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tables = _Tables()

    @contextmanager
    def transaction(self, *, wait: bool = True) -> Iterator[Transaction]:  # noqa: ARG002
        """Begin an atomic step; an exception puts everything back as it was."""
        with self._lock:
            step = _Step(self._tables)
            try:
                yield step
            except BaseException:
                step.roll_back()
                raise

    def changed_elsewhere(self) -> bool:
        """Never: nobody else can reach this memory."""
        return False

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """A view of what is committed now; it stays as it is while others write."""
        with self._lock:
            view = _View(self._tables)
        yield view

    def close(self) -> None:
        """Nothing to release; the figures stay readable."""


class _Tables:
    """What is kept. Lists of lines only grow (but for a roll-back), so views share them up to their length."""

    def __init__(self) -> None:
        self.caps = CapTable()
        self.caps_epoch = 0
        self.accounts_epoch = 0
        self.history: list[CapChange] = []
        self.accounts: dict[AccountKey, Account] = {}
        self.open: dict[str, Hold] = {}
        self.reserves: dict[str, Hold] = {}
        self.lines: list[Line] = []
        self.within: dict[str, list[Line]] = {}
        self.of_hold: dict[str, list[Line]] = {}
        self.scopes: dict[str, tuple[str, ...]] = {}
        self.owners: dict[str, Owner] = {}
        self.waiting: dict[int, Waiting] = {}
        self.ticket = 0


class _Step:
    """One transaction: changes are made at once and undone in reverse from a list. See ``Transaction``."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables
        self._undo: list[Callable[[], object]] = []

    def roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        tables = self._tables
        tables.waiting = dict(sorted(tables.waiting.items()))  # what came back came back at the end
        tables.caps_epoch += 1
        tables.accounts_epoch += 1

    def _put(self, table: dict[Any, Any], key: object, value: object) -> None:
        before = table.get(key)
        if before is None:
            self._undo.append(lambda: table.pop(key, None))
        else:
            self._undo.append(lambda: table.__setitem__(key, before))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    # ---- caps and accounts ------------------------------------------------------------------------

    @property
    def caps_epoch(self) -> int:
        return self._tables.caps_epoch

    @property
    def accounts_epoch(self) -> int:
        return self._tables.accounts_epoch

    def caps(self) -> CapTable:
        return self._tables.caps

    def put_cap(self, entry: CapEntry) -> None:
        caps, before = self._tables.caps, self._tables.caps.get(entry.cap.key)
        caps.put(entry)
        self._undo.append(
            (lambda: caps.drop(entry.cap.key)) if before is None else (lambda: caps.put(before))
        )
        self._note_change(entry, dropped=False)

    def drop_cap(self, key: tuple[str, str, str], at_us: int) -> None:
        entry = self._tables.caps.drop(key)
        assert entry is not None
        self._undo.append(lambda: self._tables.caps.put(entry))
        for account in [k for k in self._tables.accounts if k[0] == key]:
            self._put(self._tables.accounts, account, None)
        self._tables.accounts_epoch += 1
        self._note_change(replace(entry, since_us=at_us), dropped=True)

    def _note_change(self, entry: CapEntry, *, dropped: bool) -> None:
        change = CapChange(entry=entry, dropped=dropped, after=len(self._tables.lines))
        self._tables.history.append(change)
        self._undo.append(self._tables.history.pop)
        self._tables.caps_epoch += 1

    def account(self, key: AccountKey) -> Account | None:
        return self._tables.accounts.get(key)

    def add_account(self, account: Account) -> None:
        self._put(self._tables.accounts, account.key, account)
        self._tables.accounts_epoch += 1

    def touch(self, account: Account) -> None:
        posted, held, in_doubt = account.posted, account.held, account.in_doubt
        latched, begun = account.latched, account.begun

        def put_back() -> None:
            account.posted, account.held, account.in_doubt = posted, held, in_doubt
            account.latched, account.begun = latched, begun

        self._undo.append(put_back)

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        return _sums(self._tables.within.get(subject, ()), from_us, to_us)

    # ---- holds and lines --------------------------------------------------------------------------

    def open_hold(self, hold_id: str) -> Hold | None:
        return self._tables.open.get(hold_id)

    def ended_as(self, hold_id: str) -> str | None:
        lines = self._tables.of_hold.get(hold_id)
        return lines[-1].kind if lines else None

    def posted_for(self, hold_id: str) -> int | None:
        lines = self._tables.of_hold.get(hold_id, ())
        if not any(line.kind in {"settle", "resolve"} for line in lines):
            return None
        return sum(line.posted for line in lines)

    def put_hold(self, hold: Hold) -> None:
        if hold.state == "held":
            if self._tables.of_hold.get(hold.id):
                raise AlreadyEnded(
                    f"hold {hold.id}: this id was used before", hold=hold.id, ended_as="hold"
                )
            if len(hold.scopes) > 1:
                self._put(self._tables.scopes, hold.id, hold.scopes)
        self._put(self._tables.open, hold.id, hold)
        if hold.reserve is not None:
            self._put(self._tables.reserves, hold.id, hold)

    def end_hold(self, hold_id: str) -> None:
        self._put(self._tables.open, hold_id, None)
        if hold_id in self._tables.reserves:
            self._put(self._tables.reserves, hold_id, None)

    def append(self, line: Line) -> None:
        tables = self._tables
        written = replace(line, id=len(tables.lines) + 1)
        paths = tables.scopes.get(line.hold, (line.scope,))
        lists = [tables.lines, tables.of_hold.setdefault(line.hold, [])]
        around = dict.fromkeys(a for scope in paths for a in ancestors(scope))
        lists.extend(tables.within.setdefault(path, []) for path in around)
        for one in lists:
            one.append(written)
            self._undo.append(one.pop)

    # ---- owners and the queue ---------------------------------------------------------------------

    def open_owners(self) -> Sequence[Owner]:
        ids = {h.owner for h in self._tables.open.values() if h.state == "held"}
        ids |= {w.owner for w in self._tables.waiting.values()}
        return [self._tables.owners[i] for i in sorted(ids)]

    def holds_of(self, owner_id: str) -> Sequence[Hold]:
        found = self._tables.open.values()
        return [h for h in found if h.owner == owner_id and h.state == "held"]

    def reserves(self) -> Collection[Hold]:
        return self._tables.reserves.values()

    def put_owner(self, owner: Owner) -> None:
        self._put(self._tables.owners, owner.id, owner)

    def waiting(self) -> Collection[Waiting]:
        return self._tables.waiting.values()

    def next_ticket(self) -> int:
        self._tables.ticket += 1
        return self._tables.ticket

    def put_waiting(self, waiting: Waiting) -> None:
        self._put(self._tables.waiting, waiting.ticket, waiting)

    def drop_waiting(self, ticket: int) -> None:
        self._put(self._tables.waiting, ticket, None)


class _View:
    """What was committed at one moment. See ``Reader``."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables
        self._length = len(tables.lines)
        self._caps = tables.caps.copy()
        self._history = tuple(tables.history)
        self._accounts = {key: copy.copy(a) for key, a in tables.accounts.items()}
        self._open = list(tables.open.values())
        self._owners = dict(tables.owners)
        self._waiting = list(tables.waiting.values())

    def caps(self) -> CapTable:
        return self._caps

    def cap_history(self) -> Sequence[CapChange]:
        return self._history

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        return _sums(self.lines(scope=subject) if subject else self._everything(), from_us, to_us)

    def _everything(self) -> Iterator[Line]:
        return self._until_now(self._tables.within.get("", []))

    def _until_now(self, lines: list[Line]) -> Iterator[Line]:
        for line in lines[: self._length]:
            if line.id > self._length:
                return
            yield line

    def lines(self, *, scope: str = "", hold: str | None = None, after: int = 0) -> Iterator[Line]:
        if hold is not None:
            found = self._tables.of_hold.get(hold, [])
        else:
            found = self._tables.within.get(scope, []) if scope else self._tables.lines[after:]
        inside = (
            {id(line) for line in self._tables.within.get(scope, [])} if hold and scope else None
        )
        for line in self._until_now(found):
            if line.id > after and (inside is None or id(line) in inside):
                yield line

    def open_holds(self) -> Iterator[Hold]:
        return iter(sorted(self._open, key=lambda hold: (hold.held_at_us, hold.id)))

    def account(self, key: AccountKey) -> Account | None:
        return self._accounts.get(key)

    def accounts(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def extra_scopes(self) -> dict[str, tuple[str, ...]]:
        scopes = dict(self._tables.scopes)
        return {hold: tuple(sorted(paths[1:])) for hold, paths in scopes.items()}

    def owners(self) -> dict[str, Owner]:
        return self._owners

    def waiting(self) -> Collection[Waiting]:
        return self._waiting

    def integrity(self) -> Sequence[str]:
        return []


def _sums(lines: Collection[Line] | Iterator[Line], from_us: int | None, to_us: int | None) -> Sums:
    posted = held = in_doubt = 0
    for line in lines:
        if from_us is not None and line.held_at_us < from_us:
            continue
        if to_us is not None and line.held_at_us >= to_us:
            continue
        posted += line.posted
        held += line.held
        in_doubt += line.in_doubt
    return Sums(posted=posted, held=held, in_doubt=in_doubt)
