"""Contracts about reserves: which open holds are some, in a transaction's own view, after a failure, and elsewhere."""

from __future__ import annotations

from typing import Any

from budgets.stores.protocol import Store, Transaction

from .store_entries import OTHER, begin, hold_of, line_of


class _Stop(Exception):
    pass


def _names(txn: Transaction) -> list[str]:
    return sorted(hold.id for hold in txn.reserves())


def _void(txn: Transaction, hold_id: str, **note: Any) -> None:
    hold = hold_of(hold_id, **note)
    txn.end_hold(hold_id)
    txn.append(line_of(hold, "void", held=-hold.nanos))


def reserves_are_found_by_their_note(store: Store) -> None:
    """Open holds whose note has a reserve are listed, of all owners; others are not, whatever their notes hold."""
    with store.transaction() as txn:
        assert _names(txn) == []
        begin(txn, hold_of("r1", reserve="r1"))
        begin(txn, hold_of("r1.rest", owner=OTHER.id, reserve="r1"))
        begin(txn, hold_of("call", draws={"reserve": "r1", "nanos": 3}, said='"reserve":'))
        assert _names(txn) == ["r1", "r1.rest"]
    with store.transaction() as txn:
        assert _names(txn) == ["r1", "r1.rest"]
        assert {hold.reserve for hold in txn.reserves()} == {"r1"}
        _void(txn, "r1", reserve="r1")
        _void(txn, "call")
        assert _names(txn) == ["r1.rest"]
    with store.transaction() as txn:
        assert _names(txn) == ["r1.rest"]


def an_exception_undoes_reserves(store: Store) -> None:
    """An exception undoes the end of a reserve and the beginning of another."""
    with store.transaction() as txn:
        begin(txn, hold_of("r1", reserve="r1"))
    try:
        with store.transaction() as txn:
            assert _names(txn) == ["r1"]
            _void(txn, "r1", reserve="r1")
            begin(txn, hold_of("r2", reserve="r2"))
            assert _names(txn) == ["r2"]
            raise _Stop
    except _Stop:
        pass
    with store.transaction() as txn:
        assert _names(txn) == ["r1"]


def another_store_sees_reserves(store: Store, second: Store) -> None:
    """Reserves that another store sets aside or gives back are seen here."""
    for turn in range(2):
        with store.transaction() as txn:
            begin(txn, hold_of(f"r{turn}", reserve=f"r{turn}"))
        with second.transaction() as txn:
            assert _names(txn) == [f"r{turn}"]
            _void(txn, f"r{turn}", reserve=f"r{turn}")
        with store.transaction() as txn:
            assert _names(txn) == []


ALONE = (reserves_are_found_by_their_note, an_exception_undoes_reserves)
WITH_SECOND = (another_store_sees_reserves,)
