"""One transaction on a ledger file: reads through a cache, writes gathered and flushed in few statements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apsw

from budgets.cap_table import CapTable
from budgets.errors import AlreadyEnded
from budgets.owners import Owner
from budgets.records import RESERVE, Account, CapChange, CapEntry, Hold, Line, Sums, Waiting

from . import rows
from .protocol import AccountKey

#: Accounts of finished windows and agents are forgotten from the cache beyond this, between transactions;
#: they stay in the file.
_ACCOUNTS_MAX = 20_000


def _values(columns: str, *, as_json: tuple[str, ...] = ()) -> str:
    """``INSERT ... SELECT`` from a JSON array of rows: one statement for any number of rows."""
    fields = ", ".join(
        f"nullif(value -> {n}, 'null')" if name in as_json else f"value ->> {n}"
        for n, name in enumerate(columns.split(", "))
    )
    return f"({columns}) SELECT {fields} FROM json_each(?)"


_ADD_LINES = f"INSERT INTO lines {_values(rows.LINE, as_json=('usage', 'note'))}"
_PUT_HOLDS = (
    "INSERT OR REPLACE INTO open_holds "
    f"{_values(rows.OPEN_HOLD, as_json=('scopes', 'kinds', 'note'))}"
)
_END_HOLDS = "DELETE FROM open_holds WHERE id IN (SELECT value FROM json_each(?))"
_PUT_ACCOUNTS = f"INSERT OR REPLACE INTO accounts {_values(rows.ACCOUNT)}"
#: Looking for the word first spares reading the notes of all other holds.
_RESERVES = (
    f"SELECT {rows.OPEN_HOLD} FROM open_holds WHERE instr(note, ?) AND note ->> ? IS NOT NULL"
)
_ADD_SCOPES = f"INSERT OR IGNORE INTO extra_scopes {_values('scope, hold')}"

_SUMS = "SELECT ifnull(sum(posted), 0), ifnull(sum(held), 0), ifnull(sum(in_doubt), 0) FROM lines WHERE "


@dataclass(slots=True)
class Cache:
    """What the last transaction knew; good for as long as nobody else writes.

    Caps outlive that: their table only grows, so a look at its last row tells whether they changed.
    """

    version: int = -1
    caps: CapTable = field(default_factory=CapTable)
    caps_read: int = 0
    caps_epoch: int = 0
    accounts_epoch: int = 0
    accounts: dict[AccountKey, Account | None] = field(default_factory=dict)
    open_holds: dict[str, Hold] = field(default_factory=dict)
    waiting: dict[int, Waiting] | None = None
    reserves: dict[str, Hold] | None = None

    def is_stale(self, db: apsw.Connection) -> bool:
        """True if another connection has written since this one's last transaction."""
        return bool(self.version != db.execute("PRAGMA data_version").get)

    def check(self, db: apsw.Connection) -> None:
        """Called with the write lock held: from here on nobody else writes."""
        version = db.execute("PRAGMA data_version").get
        if version != self.version:
            self.drop()
            self.version = version
            last = read_caps(db, self.caps, self.caps_read)
            if last != self.caps_read:
                self.caps_read = last
                self.caps_epoch += 1
        elif len(self.accounts) > _ACCOUNTS_MAX:
            self.accounts.clear()
            self.accounts_epoch += 1

    def drop(self) -> None:
        """Forget what another process may have changed."""
        self.version = -1
        self.accounts.clear()
        self.accounts_epoch += 1
        self.open_holds.clear()
        self.waiting = None
        self.reserves = None

    def drop_all(self) -> None:
        """After a failed transaction: forget everything, its caps too."""
        self.drop()
        self.caps = CapTable()
        self.caps_read = 0
        self.caps_epoch += 1


class SqliteTransaction:
    """See ``protocol.Transaction``; ``flush`` writes what was gathered, before the commit."""

    def __init__(self, db: apsw.Connection, cache: Cache) -> None:
        self._db = db
        self._cache = cache
        self._lines: list[Line] = []
        self._puts: dict[str, Hold] = {}
        self._ends: set[str] = set()
        self._dirty: dict[int, Account] = {}
        self._extra: list[tuple[str, str]] = []

    @property
    def caps_epoch(self) -> int:
        """See ``protocol.Transaction``."""
        return self._cache.caps_epoch

    @property
    def accounts_epoch(self) -> int:
        """See ``protocol.Transaction``."""
        return self._cache.accounts_epoch

    def flush(self) -> None:
        """Write everything gathered so far."""
        run = self._db.execute
        if self._lines:
            run(_ADD_LINES, (rows.dumps([rows.line_row(line) for line in self._lines]),))
            self._lines.clear()
        if self._ends:
            run(_END_HOLDS, (rows.dumps([*self._ends]),))
            self._ends.clear()
        if self._puts:
            run(_PUT_HOLDS, (rows.dumps([rows.hold_row(hold) for hold in self._puts.values()]),))
            self._puts.clear()
        if self._dirty:
            run(_PUT_ACCOUNTS, (rows.dumps([rows.account_row(a) for a in self._dirty.values()]),))
            self._dirty.clear()
        if self._extra:
            run(_ADD_SCOPES, (rows.dumps(self._extra),))
            self._extra.clear()

    # ---- caps and accounts ------------------------------------------------------------------------

    def caps(self) -> CapTable:
        """See ``protocol.Transaction``."""
        return self._cache.caps

    def put_cap(self, entry: CapEntry) -> None:
        """See ``protocol.Transaction``."""
        self._cache.caps.put(entry)
        self._write_cap(entry, dropped=False)

    def drop_cap(self, key: tuple[str, str, str], at_us: int) -> None:
        """See ``protocol.Transaction``."""
        entry = self._cache.caps.drop(key)
        assert entry is not None
        self._write_cap(replace(entry, since_us=at_us), dropped=True)
        self._db.execute(
            "DELETE FROM accounts WHERE cap_scope = ? AND cap_per = ? AND cap_tz = ?", key
        )
        self._cache.accounts.clear()
        self._cache.accounts_epoch += 1

    def _write_cap(self, entry: CapEntry, *, dropped: bool) -> None:
        self.flush()
        last = self._db.execute("SELECT ifnull(max(id), 0) FROM lines").get
        self._db.execute(
            f"INSERT INTO caps ({rows.CAP}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows.cap_row(CapChange(entry=entry, dropped=dropped, after=int(last))),
        )
        self._cache.caps_read = self._db.last_insert_rowid()
        self._cache.caps_epoch += 1

    def account(self, key: AccountKey) -> Account | None:
        """See ``protocol.Transaction``."""
        if key in self._cache.accounts:
            return self._cache.accounts[key]
        account = read_account(self._db, key)
        self._cache.accounts[key] = account
        return account

    def add_account(self, account: Account) -> None:
        """See ``protocol.Transaction``."""
        self._cache.accounts[account.key] = account
        self._cache.accounts_epoch += 1
        self._dirty[id(account)] = account

    def touch(self, account: Account) -> None:
        """See ``protocol.Transaction``."""
        self._dirty[id(account)] = account

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        """See ``protocol.Transaction``."""
        self.flush()
        return read_sums(self._db, subject, from_us, to_us)

    # ---- holds and lines --------------------------------------------------------------------------

    def open_hold(self, hold_id: str) -> Hold | None:
        """See ``protocol.Transaction``."""
        hold = self._cache.open_holds.get(hold_id)
        if hold is None and hold_id not in self._ends:
            row = self._db.execute(
                f"SELECT {rows.OPEN_HOLD} FROM open_holds WHERE id = ?", (hold_id,)
            ).fetchone()
            hold = None if row is None else rows.hold_of(row)
        return hold

    def ended_as(self, hold_id: str) -> str | None:
        """See ``protocol.Transaction``."""
        self.flush()
        found = self._db.execute(
            "SELECT kind FROM lines WHERE hold = ? ORDER BY id DESC LIMIT 1", (hold_id,)
        ).get
        return None if found is None else str(found)

    def posted_for(self, hold_id: str) -> int | None:
        """See ``protocol.Transaction``."""
        self.flush()
        row = self._db.execute(
            "SELECT sum(posted), sum(kind IN ('settle', 'resolve')) FROM lines WHERE hold = ?",
            (hold_id,),
        ).fetchone()
        return int(row[0]) if row is not None and row[1] else None

    def put_hold(self, hold: Hold) -> None:
        """See ``protocol.Transaction``; an id of a hold that has ended is refused by the file at ``flush``."""
        if hold.state == "held":
            if hold.id in self._cache.open_holds:
                raise AlreadyEnded(
                    f"hold {hold.id}: this id was used before", hold=hold.id, ended_as="hold"
                )
            if len(hold.scopes) > 1:
                self._extra.extend((path, hold.id) for path in hold.scopes[1:])
        self._puts[hold.id] = hold
        self._cache.open_holds[hold.id] = hold
        if hold.reserve is not None:
            self._reserves()[hold.id] = hold

    def end_hold(self, hold_id: str) -> None:
        """See ``protocol.Transaction``."""
        self._puts.pop(hold_id, None)
        self._ends.add(hold_id)
        self._cache.open_holds.pop(hold_id, None)
        if self._cache.reserves:
            self._cache.reserves.pop(hold_id, None)

    def append(self, line: Line) -> None:
        """See ``protocol.Transaction``."""
        self._lines.append(line)

    # ---- owners and the queue ---------------------------------------------------------------------

    def open_owners(self) -> Sequence[Owner]:
        """See ``protocol.Transaction``."""
        self.flush()
        found = self._db.execute(
            f"SELECT {rows.OWNER} FROM owners WHERE id IN "
            "(SELECT owner FROM open_holds WHERE state = 'held' UNION SELECT owner FROM waiting)"
        )
        return [rows.owner_of(row) for row in found.fetchall()]

    def holds_of(self, owner_id: str) -> Sequence[Hold]:
        """See ``protocol.Transaction``."""
        self.flush()
        found = self._db.execute(
            f"SELECT {rows.OPEN_HOLD} FROM open_holds WHERE owner = ? AND state = 'held'",
            (owner_id,),
        )
        return [rows.hold_of(row) for row in found.fetchall()]

    def reserves(self) -> Collection[Hold]:
        """See ``protocol.Transaction``."""
        return self._reserves().values()

    def _reserves(self) -> dict[str, Hold]:
        if self._cache.reserves is None:
            self.flush()
            found = self._db.execute(_RESERVES, (f'"{RESERVE}":', f"$.{RESERVE}"))
            self._cache.reserves = {row[0]: rows.hold_of(row) for row in found}
        return self._cache.reserves

    def put_owner(self, owner: Owner) -> None:
        """See ``protocol.Transaction``."""
        self._db.execute(
            f"INSERT OR IGNORE INTO owners ({rows.OWNER}) VALUES (?, ?, ?, ?)",
            (owner.id, owner.host, owner.pid, owner.started_ms),
        )

    def waiting(self) -> Collection[Waiting]:
        """See ``protocol.Transaction``."""
        return self._queue().values()

    def _queue(self) -> dict[int, Waiting]:
        if self._cache.waiting is None:
            self._cache.waiting = {w.ticket: w for w in read_waiting(self._db)}
        return self._cache.waiting

    def next_ticket(self) -> int:
        """See ``protocol.Transaction``."""
        return next(reversed(self._queue()), 0) + 1

    def put_waiting(self, waiting: Waiting) -> None:
        """See ``protocol.Transaction``."""
        self._queue()[waiting.ticket] = waiting
        self._db.execute(
            f"INSERT OR REPLACE INTO waiting ({rows.WAITING}) VALUES (?, ?, ?, ?, ?)",
            (
                waiting.ticket,
                waiting.owner,
                waiting.nanos,
                rows.dumps(waiting.blocked),
                waiting.tied,
            ),
        )

    def drop_waiting(self, ticket: int) -> None:
        """See ``protocol.Transaction``."""
        self._queue().pop(ticket, None)
        self._db.execute("DELETE FROM waiting WHERE ticket = ?", (ticket,))


# ---- reads that transactions and readers share ------------------------------------------------------


def read_caps(db: apsw.Connection, table: CapTable, after: int) -> int:
    """Apply every word about caps behind row ``after`` to a table; the number of the last row."""
    for row in db.execute(f"SELECT {rows.CAP}, id FROM caps WHERE id > ? ORDER BY id", (after,)):
        change = rows.cap_of(row)
        if change.dropped:
            table.drop(change.entry.cap.key)
        else:
            table.put(change.entry)
        after = row[-1]
    return after


def read_account(db: apsw.Connection, key: AccountKey) -> Account | None:
    """One account of the file."""
    row = db.execute(
        f"SELECT {rows.ACCOUNT} FROM accounts WHERE cap_scope = ? AND cap_per = ? AND cap_tz = ? "
        "AND subject = ? AND window = ?",
        (*key[0], key[1], key[2]),
    ).fetchone()
    return None if row is None else rows.account_of(row)


def read_waiting(db: apsw.Connection) -> list[Waiting]:
    """The queue, first come first."""
    return [
        rows.waiting_of(row)
        for row in db.execute(f"SELECT {rows.WAITING} FROM waiting ORDER BY ticket")
    ]


def within(subject: str) -> tuple[str, list[Any]]:
    """A condition on ``lines`` that keeps what lies within a scope."""
    if not subject:
        path = "NOT (scope = 'simulated' OR (scope >= 'simulated/' AND scope < 'simulated0'))"
        return f"({path} OR hold IN (SELECT hold FROM extra_scopes WHERE {path}))", []
    # '0' is the character after '/', so this range is every path below the subject; it uses the index.
    path = "(scope = ? OR (scope >= ? AND scope < ?))"
    bounds = [subject, subject + "/", subject + "0"]
    return f"({path} OR hold IN (SELECT hold FROM extra_scopes WHERE {path}))", [*bounds, *bounds]


def read_sums(db: apsw.Connection, subject: str, from_us: int | None, to_us: int | None) -> Sums:
    """Sums of the lines within a scope whose holds were made in the time given."""
    condition, bindings = within(subject)
    if from_us is not None:
        condition += " AND held_at >= ?"
        bindings.append(from_us)
    if to_us is not None:
        condition += " AND held_at < ?"
        bindings.append(to_us)
    try:
        row = db.execute(_SUMS + condition, bindings).fetchone()
    except apsw.SQLError:  # more than 64 bits in total: Python has more
        each = db.execute(f"SELECT posted, held, in_doubt FROM lines WHERE {condition}", bindings)
        row = tuple(sum(column) for column in zip(*each, strict=True))
    assert row is not None
    return Sums(posted=row[0], held=row[1], in_doubt=row[2])
