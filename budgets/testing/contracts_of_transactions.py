"""Contracts about transactions: atomic, alone, durable when they return, and what readers see meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from budgets.stores.protocol import Store, Transaction

from .store_entries import (
    OTHER,
    OWNER,
    account_of,
    begin,
    cap_of,
    hold_of,
    settle,
    waiting_of,
)


class _Stop(Exception):
    pass


def _undone(store: Store, work: Callable[[Transaction], None]) -> None:
    try:
        with store.transaction() as txn:
            work(txn)
            raise _Stop
    except _Stop:
        pass


def a_commit_is_seen(store: Store) -> None:
    """What a transaction wrote is there for the next one and for readers."""
    with store.transaction() as txn:
        begin(txn, hold_of("h1"))
    with store.transaction() as txn:
        assert txn.open_hold("h1") == hold_of("h1")
    with store.reader() as reader:
        assert [h.id for h in reader.open_holds()] == ["h1"]
        assert [line.kind for line in reader.lines()] == ["hold"]


def an_exception_undoes_everything(store: Store) -> None:
    """An exception undoes all of a transaction: lines, holds, caps, accounts, owners and places in the queue."""
    cap = cap_of()
    with store.transaction() as txn:
        begin(txn, hold_of("h1", 10))
        txn.put_cap(cap)
        txn.add_account(account_of(cap, held=10))
        txn.put_waiting(waiting_of(txn.next_ticket()))

    def work(txn: Transaction) -> None:
        account = txn.account(account_of(cap).key)
        assert account is not None
        txn.touch(account)
        account.held = 99
        settle(txn, hold_of("h1", 10), 7)
        begin(txn, hold_of("h2", owner=OTHER.id))
        txn.put_cap(cap_of(9))
        txn.put_cap(cap_of(3, "elsewhere"))
        txn.drop_waiting(1)
        txn.put_waiting(waiting_of(txn.next_ticket(), OTHER))

    _undone(store, work)
    with store.transaction() as txn:
        account = txn.account(account_of(cap).key)
        assert account is not None
        assert account.held == 10
        assert txn.open_hold("h1") is not None
        assert txn.open_hold("h2") is None
        assert txn.ended_as("h2") is None
        assert [e.cap.nanos for e in txn.caps()] == [cap.cap.nanos]
        assert [w.ticket for w in txn.waiting()] == [1]
        assert [o.id for o in txn.open_owners()] == [OWNER.id]
    with store.reader() as reader:
        assert len(list(reader.lines())) == 1
        assert len(reader.cap_history()) == 1
        assert list(reader.owners()) == [OWNER.id]


def reads_see_own_writes(store: Store) -> None:
    """A transaction reads what it has written itself, before it is committed."""
    with store.transaction() as txn:
        hold = begin(txn, hold_of("h1", 10))
        assert txn.open_hold("h1") == hold
        assert txn.ended_as("h1") == "hold"
        assert txn.posted_for("h1") is None
        assert txn.sums("app", None, None).held == 10
        assert [h.id for h in txn.holds_of(OWNER.id)] == ["h1"]
        settle(txn, hold, 4)
        assert txn.open_hold("h1") is None
        assert txn.ended_as("h1") == "settle"
        assert txn.posted_for("h1") == 4
        assert txn.sums("app", None, None).posted == 4


def accounts_change_in_place(store: Store) -> None:
    """An account that is touched and changed in place keeps the change, also across transactions."""
    cap = cap_of()
    key = account_of(cap).key
    with store.transaction() as txn:
        txn.put_cap(cap)
        assert txn.account(key) is None
        txn.add_account(account_of(cap, held=1))
    for turn in range(3):
        with store.transaction() as txn:
            account = txn.account(key)
            assert account is not None
            assert account.held == 1 + turn
            txn.touch(account)
            account.held += 1
            account.latched = 2**62
    with store.reader() as reader:
        kept = reader.account(key)
        assert kept is not None
        assert (kept.held, kept.latched) == (4, 2**62)
        assert [a.key for a in reader.accounts()] == [key]


def epochs_tell_of_change(store: Store) -> None:
    """Epochs move when caps change, when accounts come or go, and when a transaction fails."""
    cap = cap_of()
    seen = []
    with store.transaction() as txn:
        seen.append((txn.caps_epoch, txn.accounts_epoch))
        txn.put_cap(cap)
        seen.append((txn.caps_epoch, txn.accounts_epoch))
        assert seen[1][0] != seen[0][0]
        txn.add_account(account_of(cap))
        seen.append((txn.caps_epoch, txn.accounts_epoch))
        assert seen[2][1] != seen[1][1]
        txn.drop_cap(cap.cap.key, 5)
        seen.append((txn.caps_epoch, txn.accounts_epoch))
        assert seen[3][0] != seen[2][0]
        assert seen[3][1] != seen[2][1]
    _undone(store, lambda txn: txn.put_cap(cap))
    with store.transaction() as txn:
        assert txn.caps_epoch not in {caps for caps, _ in seen}
        assert txn.accounts_epoch not in {accounts for _, accounts in seen}


def a_lifted_cap_forgets_its_accounts(store: Store) -> None:
    """A cap that is lifted takes its accounts with it, and no others."""
    cap, other = cap_of(), cap_of(7, "other")
    with store.transaction() as txn:
        for entry in (cap, other):
            txn.put_cap(entry)
            txn.add_account(account_of(entry, "app"))
            txn.add_account(account_of(entry, "app/deeper"))
    with store.transaction() as txn:
        txn.drop_cap(cap.cap.key, 9)
        assert txn.account(account_of(cap).key) is None
        assert txn.account(account_of(other).key) is not None
    with store.reader() as reader:
        assert {a.cap for a in reader.accounts()} == {other.cap.key}
        assert [e.cap for e in reader.caps()] == [other.cap]


def caps_have_a_history(store: Store) -> None:
    """Every word about a cap is kept, in order, with the last line that was written before it."""
    with store.transaction() as txn:
        txn.put_cap(cap_of(5, since_us=10))
        begin(txn, hold_of("h1"))
        txn.put_cap(cap_of(9, since_us=3))
        txn.drop_cap(cap_of().cap.key, 4)
    with store.transaction() as txn:
        txn.put_cap(cap_of(2, since_us=5))
    with store.reader() as reader:
        told: list[tuple[object, ...]] = [
            (change.entry.cap.amount, change.entry.since_us, change.dropped, change.after)
            for change in reader.cap_history()
        ]
        assert told == [(5, 10, False, 0), (9, 3, False, 1), (9, 4, True, 1), (2, 5, False, 1)]
        assert [e.cap.amount for e in reader.caps()] == [2]


def the_queue_keeps_its_order(store: Store) -> None:
    """The queue is first come first served; a change keeps the place, and so does a failed transaction."""
    with store.transaction() as txn:
        txn.put_owner(OWNER)
        for _ in range(4):
            txn.put_waiting(waiting_of(txn.next_ticket()))
        tickets = [w.ticket for w in txn.waiting()]
        assert tickets == sorted(set(tickets))
        txn.put_waiting(waiting_of(tickets[1], nanos=77))
        txn.drop_waiting(tickets[2])
    left = [tickets[0], tickets[1], tickets[3]]
    _undone(store, lambda txn: txn.drop_waiting(tickets[0]))
    with store.transaction() as txn:
        assert [w.ticket for w in txn.waiting()] == left
        assert [w.nanos for w in txn.waiting()] == [5, 77, 5]
        assert txn.next_ticket() > max(left)
    with store.reader() as reader:
        assert [w.ticket for w in reader.waiting()] == left


def a_reader_sees_one_moment(store: Store) -> None:
    """A reader shows the same figures from its first answer on, and does not hold up writers."""
    with store.transaction() as txn:
        begin(txn, hold_of("h1"))
    wrote = threading.Event()

    def write() -> None:
        with store.transaction() as txn:
            begin(txn, hold_of("h2"))
        wrote.set()

    with store.reader() as reader:
        assert len(list(reader.lines())) == 1
        thread = threading.Thread(target=write)
        thread.start()
        assert wrote.wait(10), "a writer was held up by a reader"
        thread.join()
        assert len(list(reader.lines())) == 1
        assert reader.sums("app", None, None).held == 10
        assert [h.id for h in reader.open_holds()] == ["h1"]
    with store.reader() as reader:
        assert reader.sums("app", None, None).held == 20


def closing_twice_is_fine(store: Store) -> None:
    """A store may be closed twice, and has no faults of its own after a normal life."""
    with store.transaction() as txn:
        begin(txn, hold_of("h1"))
    with store.reader() as reader:
        assert list(reader.integrity()) == []
    store.close()
    store.close()


def another_store_sees_it(store: Store, second: Store) -> None:
    """What one store wrote, another on the same storage knows in its next transaction."""
    cap = cap_of()
    key = account_of(cap).key
    with store.transaction() as txn:
        txn.put_cap(cap)
        txn.add_account(account_of(cap, held=1))
    with second.transaction() as txn:
        account = txn.account(key)
        assert account is not None
        txn.touch(account)
        account.held += 1
        begin(txn, hold_of("h1", 2))
        txn.put_waiting(waiting_of(txn.next_ticket()))
        txn.put_cap(cap_of(8))
    assert store.changed_elsewhere()
    with store.transaction() as txn:
        account = txn.account(key)
        assert account is not None
        assert account.held == 2
        assert txn.open_hold("h1") is not None
        assert [w.ticket for w in txn.waiting()] == [1]
        assert [e.cap.amount for e in txn.caps()] == [8]
        txn.drop_cap(cap.cap.key, 3)
    assert not store.changed_elsewhere()
    with second.transaction() as txn:
        assert txn.account(key) is None
        assert len(txn.caps()) == 0


def transactions_are_alone(store: Store, second: Store) -> None:
    """No other store's transaction runs beside one that has begun."""
    order: list[str] = []
    begun = threading.Event()

    def other() -> None:
        begun.wait(10)
        with second.transaction() as txn:
            order.append("second")
            assert txn.sums("app", None, None).held == 10

    thread = threading.Thread(target=other)
    thread.start()
    with store.transaction() as txn:
        begun.set()
        begin(txn, hold_of("h1", 10))
        thread.join(0.1)  # as long as this one runs, the other can't begin
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


ALONE = (
    a_commit_is_seen,
    an_exception_undoes_everything,
    reads_see_own_writes,
    accounts_change_in_place,
    epochs_tell_of_change,
    a_lifted_cap_forgets_its_accounts,
    caps_have_a_history,
    the_queue_keeps_its_order,
    a_reader_sees_one_moment,
    closing_twice_is_fine,
)
WITH_SECOND = (another_store_sees_it, transactions_are_alone)
