"""Stores keep their contracts: in memory and in a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from budgets.errors import LedgerUnavailable
from budgets.stores.file_lock import refuse_network_drive
from budgets.stores.memory import MemoryStore
from budgets.stores.protocol import Store
from budgets.stores.schema import APPLICATION_ID, VERSION
from budgets.stores.sqlite import SqliteStore
from budgets.stores.sqlite_transaction import within
from budgets.testing import STORE_CONTRACTS, Contract, run_store_contract
from budgets.testing.store_entries import begin, hold_of


@pytest.fixture
def make_file_store(tmp_path: Path) -> Callable[[], Store]:
    numbers = itertools.count()
    return lambda: SqliteStore(tmp_path / f"ledger-{next(numbers)}.db")


def open_again(store: Store) -> Store:
    assert isinstance(store, SqliteStore)
    return SqliteStore(store.path)


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=str)
def test_the_store_in_memory_keeps_the_contract(contract: Contract) -> None:
    """The store in memory keeps every promise that needs only one store."""
    assert contract.run(MemoryStore) is not contract.needs_second


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=str)
def test_the_store_in_a_file_keeps_the_contract(
    contract: Contract, make_file_store: Callable[[], Store]
) -> None:
    """The store in a file keeps every promise, also between two of it on one file."""
    assert contract.run(make_file_store, open_again)


def test_the_suite_runs_as_a_whole_and_names_what_is_broken() -> None:
    """One call runs all contracts; a store that forgets a hold fails by number and sentence."""

    class Forgetful(MemoryStore):
        def transaction(self, *, wait: bool = True) -> Iterator[object]:  # type: ignore[override]
            manager = super().transaction(wait=wait)
            step = manager.__enter__()
            step.put_hold = lambda hold: None  # type: ignore[method-assign]

            class Around:
                __enter__ = lambda _: step  # noqa: E731
                __exit__ = lambda _, *error: manager.__exit__(*error)  # noqa: E731

            return Around()  # type: ignore[return-value]

    assert len(run_store_contract(MemoryStore)) == sum(not c.needs_second for c in STORE_CONTRACTS)
    with pytest.raises(
        AssertionError, match=r"store contract 1: What a transaction wrote is there"
    ):
        run_store_contract(Forgetful)


def test_a_reopened_file_has_everything(tmp_path: Path) -> None:
    """What was committed is in the file after it is closed and opened again."""
    store = SqliteStore(tmp_path / "ledger.db")
    with store.transaction() as txn:
        begin(txn, hold_of("h1", 10, "app", "far"))
    with store.reader() as reader:
        before = (list(reader.lines()), list(reader.open_holds()), reader.extra_scopes())
    store.close()
    store = SqliteStore(tmp_path / "ledger.db")
    with store.reader() as reader:
        assert (list(reader.lines()), list(reader.open_holds()), reader.extra_scopes()) == before
    store.close()


def test_a_file_is_marked_as_a_ledger_and_its_lines_are_fenced(tmp_path: Path) -> None:
    """The file carries our mark and version, and refuses to change or delete a line, or to end a hold twice."""
    store = SqliteStore(tmp_path / "ledger.db")
    with store.transaction() as txn:
        begin(txn, hold_of("h1"))
    store.close()
    db = apsw.Connection(str(tmp_path / "ledger.db"))
    assert db.pragma("application_id") == APPLICATION_ID
    assert db.pragma("user_version") == VERSION
    with pytest.raises(apsw.ConstraintError, match="never changed"):
        db.execute("UPDATE lines SET nanos = 0")
    with pytest.raises(apsw.ConstraintError, match="never deleted"):
        db.execute("DELETE FROM lines")
    columns = "hold, kind, at, held_at, scope, nanos, posted, held, in_doubt, model, owner, note"
    copy = f"INSERT INTO lines ({columns}) SELECT {columns.replace('kind', '?')} FROM lines WHERE id = 1"
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        db.execute(copy, ("hold",))
    db.execute(copy, ("void",))
    for kind in ("settle", "void", "resolve"):
        with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
            db.execute(copy, (kind,))
    db.execute(copy, ("adjust",))
    db.execute(copy, ("adjust",))
    with pytest.raises(apsw.ConstraintError, match="CHECK"):
        db.execute(copy, ("refund",))
    db.close()


@pytest.mark.parametrize("subject", ["app", "app/run"])
def test_sums_of_a_scope_use_an_index(tmp_path: Path, subject: str) -> None:
    """A new scope is summed by index: its cost does not grow with the lines of others."""
    store = SqliteStore(tmp_path / "ledger.db")
    condition, bindings = within(subject)
    with store.reader():
        pass
    db = apsw.Connection(str(tmp_path / "ledger.db"))
    plan = " ".join(
        row[3]
        for row in db.execute(
            f"EXPLAIN QUERY PLAN SELECT sum(posted) FROM lines WHERE {condition}", bindings
        )
    )
    db.close()
    store.close()
    assert "SCAN lines" not in plan
    assert "lines_scope" in plan


def test_settings_that_make_money_safe(tmp_path: Path) -> None:
    """The file is in WAL mode and every commit is synced, after a reconnection too (D-06)."""
    store = SqliteStore(tmp_path / "ledger.db")
    for _ in range(2):
        with store.transaction():
            pass
        assert store._db is not None
        assert store._db.pragma("journal_mode") == "wal"
        assert store._db.pragma("synchronous") == 2
        assert store.pause()
        store.resume()
    store.close()


@pytest.mark.parametrize("kind", ["nfs4", "CIFS", "fuse.sshfs"])
def test_a_network_drive_is_refused(kind: str, tmp_path: Path) -> None:
    """A ledger there would be unsafe; the drive that the file lies on decides, not the ones around it (D-06)."""
    here, beside = tmp_path / "here", tmp_path / "here-too"
    drives = [("/", "ext4"), (f"{here}/", kind), (str(here / "local"), "ext4")]
    with pytest.raises(LedgerUnavailable, match="is a network drive"):
        refuse_network_drive(here / "deep" / "ledger.db", drives)
    for fine in (beside, here / "local", tmp_path):
        refuse_network_drive(fine / "ledger.db", drives)
