"""Reading a ledger file for reports and checks, beside the writers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import apsw

from budgets.cap_table import CapTable
from budgets.owners import Owner
from budgets.records import Account, CapChange, Hold, Line, Sums, Waiting

from . import rows
from .protocol import AccountKey
from .sqlite_transaction import read_account, read_caps, read_sums, read_waiting, within


class SqliteReader:
    """See ``protocol.Reader``; everything it returns is of one moment."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def caps(self) -> CapTable:
        """See ``protocol.Reader``."""
        table = CapTable()
        read_caps(self._db, table, 0)
        return table

    def cap_history(self) -> Sequence[CapChange]:
        """See ``protocol.Reader``."""
        return [
            rows.cap_of(row) for row in self._db.execute(f"SELECT {rows.CAP} FROM caps ORDER BY id")
        ]

    def sums(self, subject: str, from_us: int | None, to_us: int | None) -> Sums:
        """See ``protocol.Reader``."""
        return read_sums(self._db, subject, from_us, to_us)

    def lines(self, *, scope: str = "", hold: str | None = None, after: int = 0) -> Iterator[Line]:
        """See ``protocol.Reader``."""
        condition, bindings = "id > ?", [after]
        if scope:
            more, more_bindings = within(scope)
            condition, bindings = f"{condition} AND {more}", [*bindings, *more_bindings]
        if hold is not None:
            condition, bindings = f"{condition} AND hold = ?", [*bindings, hold]  # type: ignore[list-item]
        query = f"SELECT id, {rows.LINE} FROM lines WHERE {condition} ORDER BY id"
        for row in self._db.execute(query, bindings):
            yield rows.line_of(row)

    def open_holds(self) -> Iterator[Hold]:
        """See ``protocol.Reader``."""
        for row in self._db.execute(
            f"SELECT {rows.OPEN_HOLD} FROM open_holds ORDER BY held_at, id"
        ):
            yield rows.hold_of(row)

    def account(self, key: AccountKey) -> Account | None:
        """See ``protocol.Reader``."""
        return read_account(self._db, key)

    def accounts(self) -> Iterator[Account]:
        """See ``protocol.Reader``."""
        for row in self._db.execute(f"SELECT {rows.ACCOUNT} FROM accounts"):
            yield rows.account_of(row)

    def extra_scopes(self) -> dict[str, tuple[str, ...]]:
        """See ``protocol.Reader``."""
        found: dict[str, tuple[str, ...]] = {}
        for scope, hold in self._db.execute(
            "SELECT scope, hold FROM extra_scopes ORDER BY hold, scope"
        ):
            found[hold] = (*found.get(hold, ()), scope)
        return found

    def owners(self) -> dict[str, Owner]:
        """See ``protocol.Reader``."""
        found = (rows.owner_of(row) for row in self._db.execute(f"SELECT {rows.OWNER} FROM owners"))
        return {owner.id: owner for owner in found}

    def waiting(self) -> Collection[Waiting]:
        """See ``protocol.Reader``."""
        return read_waiting(self._db)

    def integrity(self) -> Sequence[str]:
        """See ``protocol.Reader``."""
        answers: list[Any] = [row[0] for row in self._db.execute("PRAGMA integrity_check(20)")]
        return [] if answers == ["ok"] else [str(a) for a in answers]
