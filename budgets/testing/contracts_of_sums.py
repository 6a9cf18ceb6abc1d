"""Contracts about sums: what lies within a scope and a time, each charge once."""

from __future__ import annotations

from budgets.money import MAX_NANOS
from budgets.stores.protocol import Store

from .store_entries import begin, hold_of, line_of, settle


def sums_follow_scopes(store: Store) -> None:
    """A scope's sums hold all that is below it and nothing that only begins with the same letters."""
    paths = ["app", "app/run", "app/run/x", "app2", "app-x", "app0", "app.y", "apq", "a", "other"]
    with store.transaction() as txn:
        for number, path in enumerate(paths):
            begin(txn, hold_of(f"h{number}", 2**number, path))
        held = {
            path: txn.sums(path, None, None).held for path in ["app", "app/run", "app2", "", "x"]
        }
    assert held == {"app": 0b111, "app/run": 0b110, "app2": 0b1000, "": 2**10 - 1, "x": 0}


def play_money_is_apart(store: Store) -> None:
    """What is below ``simulated`` does not count in everything, unless it draws on a real scope too."""
    with store.transaction() as txn:
        begin(txn, hold_of("real", 1, "app"))
        begin(txn, hold_of("play", 2, "simulated/app"))
        begin(txn, hold_of("bare", 4, "simulated"))
        begin(txn, hold_of("like", 8, "simulated2"))
        begin(txn, hold_of("both", 16, "simulated/app", "app"))
        begin(txn, hold_of("root", 32, "simulated/app", ""))
        assert txn.sums("", None, None).held == 1 + 8 + 16 + 32
        assert txn.sums("simulated", None, None).held == 2 + 4 + 16 + 32
    with store.reader() as reader:
        assert reader.sums("", None, None).held == 57
        assert reader.sums("app", None, None).held == 17


def a_charge_counts_once(store: Store) -> None:
    """A hold that draws on several scopes counts once in each and once in what is around them."""
    with store.transaction() as txn:
        hold = begin(txn, hold_of("h1", 10, "app/a", "app/b/c", "far"))
        settle(txn, hold, 7)
        for scope in ("", "app", "app/a", "app/b", "app/b/c", "far"):
            assert txn.sums(scope, None, None).posted == 7, scope
        assert txn.sums("app/b/d", None, None).posted == 0
    with store.reader() as reader:
        assert reader.extra_scopes() == {"h1": ("app/b/c", "far")}
        assert len(list(reader.lines(scope="app"))) == 2


def sums_follow_the_time_of_the_hold(store: Store) -> None:
    """A line belongs to the time its hold was made, its first instant included and its last excluded."""
    with store.transaction() as txn:
        for at_us in (99, 100, 199, 200):
            hold = begin(txn, hold_of(f"h{at_us}", at_us, at_us=at_us))
            late = line_of(hold, "settle", posted=at_us, held=-at_us)
            txn.end_hold(hold.id)
            txn.append(late)
        assert txn.sums("app", 100, 200).posted == 299
        assert txn.sums("", 100, 200).posted == 299
        assert txn.sums("app", None, 100).posted == 99
        assert txn.sums("app", 200, None).posted == 200


def sums_are_exact_beyond_64_bits(store: Store) -> None:
    """Sums larger than any single amount are exact."""
    with store.transaction() as txn:
        for name in ("a", "b", "c"):
            begin(txn, hold_of(name, MAX_NANOS, name))
        assert txn.sums("", None, None).held == 3 * MAX_NANOS
        assert txn.sums("a", None, None).held == MAX_NANOS


def corrections_add_up(store: Store) -> None:
    """What was posted for a hold is its charge and all corrections."""
    with store.transaction() as txn:
        hold = begin(txn, hold_of("h1", 10))
        settle(txn, hold, 7)
        for change in (5, -3, -9):
            txn.append(line_of(hold, "adjust", posted=change))
        assert txn.posted_for("h1") == 0
        assert txn.sums("app", None, None).posted == 0
        assert txn.posted_for("never") is None
        begin(txn, hold_of("h2", 10))
        assert txn.posted_for("h2") is None


ALONE = (
    sums_follow_scopes,
    play_money_is_apart,
    a_charge_counts_once,
    sums_follow_the_time_of_the_hold,
    sums_are_exact_beyond_64_bits,
    corrections_add_up,
)
