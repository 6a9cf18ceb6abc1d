"""Contracts about holds and lines: ids in order without gaps, ids of holds once, values kept to the bit."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from decimal import Decimal
from typing import Any

from budgets.errors import AlreadyEnded
from budgets.money import MAX_NANOS
from budgets.stores.protocol import EntryRefused, Store

from .store_entries import OTHER, OWNER, begin, hold_of, line_of, settle, waiting_of


def lines_are_numbered(store: Store) -> None:
    """Lines are numbered 1, 2, 3 ... in the order they were written; a failed transaction leaves no gap."""
    for number in range(3):
        with store.transaction() as txn:
            begin(txn, hold_of(f"a{number}"))
            begin(txn, hold_of(f"b{number}"))
        with contextlib.suppress(ZeroDivisionError), store.transaction() as txn:
            begin(txn, hold_of(f"c{number}"))
            _ = 1 / 0
    with store.reader() as reader:
        assert [line.id for line in reader.lines()] == [1, 2, 3, 4, 5, 6]
        assert [line.hold for line in reader.lines()] == ["a0", "b0", "a1", "b1", "a2", "b2"]


def lines_can_be_chosen(store: Store) -> None:
    """Lines are found by scope, by hold, and behind a line; all three together too."""
    with store.transaction() as txn:
        first = begin(txn, hold_of("h1", 10, "app/one"))
        begin(txn, hold_of("h2", 10, "app/two", "far/away"))
        begin(txn, hold_of("h3", 10, "apple"))
        settle(txn, first, 3)
    with store.reader() as reader:
        assert [line.hold for line in reader.lines(scope="app")] == ["h1", "h2", "h1"]
        assert [line.hold for line in reader.lines(scope="far")] == ["h2"]
        assert [line.kind for line in reader.lines(hold="h1")] == ["hold", "settle"]
        assert [line.id for line in reader.lines(after=2)] == [3, 4]
        assert [line.id for line in reader.lines(scope="app/one", hold="h1", after=1)] == [4]
        assert list(reader.lines(scope="app/two", hold="h1")) == []
        assert list(reader.lines(hold="nothing")) == []


def a_hold_id_is_used_once(store: Store) -> None:
    """A hold with the id of an earlier one is refused, whether that is still open or has ended."""
    with store.transaction() as txn:
        begin(txn, hold_of("h1", 10))
    for _ in range(2):
        refused = False
        try:
            with store.transaction() as txn:
                begin(txn, hold_of("h1", 20))
        except (AlreadyEnded, EntryRefused):
            refused = True
        assert refused
        with store.transaction() as txn:
            assert txn.sums("app", None, None).held in {10, 0}
            if txn.open_hold("h1") is not None:
                settle(txn, hold_of("h1", 10), 1)
    with store.reader() as reader:
        assert [line.kind for line in reader.lines()] == ["hold", "settle"]


def open_holds_are_listed(store: Store) -> None:
    """Open holds are listed oldest first, in doubt or not; those of one owner only while they are held."""
    with store.transaction() as txn:
        begin(txn, hold_of("late", at_us=30))
        early = begin(txn, hold_of("early", at_us=10))
        begin(txn, hold_of("other", at_us=20, owner=OTHER.id))
        txn.put_hold(replace(early, state="doubt"))
        assert [h.id for h in txn.holds_of(OWNER.id)] == ["late"]
        assert {o.id for o in txn.open_owners()} == {OWNER.id, OTHER.id}
    with store.transaction() as txn:
        found = txn.open_hold("early")
        assert found is not None
        assert found.state == "doubt"
        txn.end_hold("late")
        assert {o.id for o in txn.open_owners()} == {OTHER.id}
        txn.put_waiting(waiting_of(txn.next_ticket(), OWNER))
        assert {o.id for o in txn.open_owners()} == {OWNER.id, OTHER.id}
    with store.reader() as reader:
        assert [(h.id, h.state) for h in reader.open_holds()] == [
            ("early", "doubt"),
            ("other", "held"),
        ]
        assert reader.owners() == {OWNER.id: OWNER, OTHER.id: OTHER}


def values_are_kept_exactly(store: Store) -> None:
    """Amounts up to 2^63 - 1 and texts of every alphabet come back as they were."""
    note: dict[str, Any] = {
        "agent": "Zoë 日本 🙂",
        "deep": {"list": [1, None, True, "x"]},
        "big": 2**62,
        "empty": {},
    }
    usage = {"input_tokens": 12, "iterations": [{"output_tokens": 3}]}
    hold = replace(
        hold_of("h1", MAX_NANOS, "app/Zoë 日本/🙂", at_us=-5, **note),
        kinds=(("app/Zoë 日本", "agent"),),
    )
    with store.transaction() as txn:
        begin(txn, hold)
        txn.end_hold("h1")
        end = line_of(hold, "settle", posted=MAX_NANOS, held=-MAX_NANOS, usage=usage, note=note)
        txn.append(end)
        begin(txn, replace(hold, id="h2", nanos=0))
    with store.reader() as reader:
        lines = list(reader.lines(scope="app/Zoë 日本"))
        assert lines[1] == replace(end, id=2)
        assert lines[0].usage is None
        assert lines[0].nanos == MAX_NANOS
        assert list(reader.open_holds()) == [replace(hold, id="h2", nanos=0)]


def odd_notes_are_written(store: Store) -> None:
    """A note never keeps a charge from being written: what has no JSON form is kept as some text."""
    odd: dict[str, Any] = {
        "decimal": Decimal("1.5"),
        "set": {1},
        "surrogate": "\ud800",
        "null": "a\x00b",
        "nan": float("nan"),
    }
    with store.transaction() as txn:
        hold = begin(txn, hold_of("h1", 10, **odd))
        txn.end_hold("h1")
        txn.append(line_of(hold, "settle", posted=3, held=-10, usage=odd, note=odd))
    with store.reader() as reader:
        assert [line.posted for line in reader.lines()] == [0, 3]
        assert [set(line.note) for line in reader.lines()] == [set(odd), set(odd)]


ALONE = (
    lines_are_numbered,
    lines_can_be_chosen,
    a_hold_id_is_used_once,
    open_holds_are_listed,
    values_are_kept_exactly,
    odd_notes_are_written,
)
