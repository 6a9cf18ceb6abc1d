"""Caps: what they can be made of, what makes them the same, how they read."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from budgets.cap_table import CapTable, matching
from budgets.caps import Cap
from budgets.defaults import DEFAULT_AMOUNTS, default_caps, fallback_caps
from budgets.errors import InvalidAmount, InvalidCap, InvalidScope
from budgets.records import CapEntry
from budgets.scopes import Place


@pytest.mark.parametrize(
    ("cap", "text"),
    [
        (Cap("5"), "$5.00 on everything"),
        (Cap("5", scope="app"), "$5.00 on scope 'app'"),
        (Cap(Decimal("0.125"), per="call"), "$0.125 per call on everything"),
        (Cap(25, per="day", tz="Europe/Berlin"), "$25.00 per day (Europe/Berlin) on everything"),
        (Cap("$1,000", per="session", scope="a/b"), "$1,000.00 per run on scope 'a/b'"),
    ],
)
def test_a_cap_reads_as_a_sentence(cap: Cap, text: str) -> None:
    """A cap's text has its amount, period, zone and scope."""
    assert str(cap) == text


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: Cap(5.0), InvalidAmount, "float"),
        (lambda: Cap("-5", scope="app"), InvalidAmount, "cap of 'app'"),
        (lambda: Cap("five"), InvalidAmount, "cap"),
        (lambda: Cap(None), InvalidAmount, "cap"),
        (lambda: Cap("5", per="hour"), InvalidCap, "call, agent, run, day, week, month, year"),
        (lambda: Cap("5", per="day", tz="Mars"), InvalidCap, "time zone 'Mars'"),
        (lambda: Cap("5", scope="a//b"), InvalidScope, "segment"),
    ],
)
def test_what_is_not_a_cap_is_refused(make: object, error: type[Exception], told: str) -> None:
    """Each mistake has its own error, and the message names it."""
    with pytest.raises(error, match=told):
        make()  # type: ignore[operator]


def test_scope_period_and_zone_make_it_the_same_cap() -> None:
    """Amount and owner may change; a zone matters only where there is a calendar."""
    assert Cap("5", scope="a").key == Cap("9", scope="a", owner="file").key
    assert Cap("5", per="run").key == Cap("5", per="session").key
    assert Cap("5", tz="Europe/Berlin").key == Cap("5").key
    assert Cap("5", per="day", tz="Europe/Berlin").key != Cap("5", per="day").key
    assert Cap("5", per="day").key != Cap("5", per="week").key


def test_a_cap_can_be_moved_copied_and_sent() -> None:
    """A cap on another scope differs in nothing else, and pickling keeps it."""
    cap = Cap("5", per="day", scope="a", tz="Europe/Berlin", owner="file")
    assert cap.at_scope("b").at_scope("a") == cap
    assert cap.at_scope("b").scope == "b"
    assert pickle.loads(pickle.dumps(cap)) == cap
    assert cap.amount == 5


def test_the_defaults_are_six_levels_each_above_the_one_below() -> None:
    """Nothing runs without a cap: a call, a run, a day, a week, a month and a year have one each."""
    amounts = [Decimal(amount) for amount in DEFAULT_AMOUNTS.values()]
    assert amounts == sorted(set(amounts))
    assert [cap.per for cap in default_caps()] == ["call", "run", "day", "week", "month", "year"]
    assert {cap.owner for cap in fallback_caps()} == {"default"}
    assert {cap.scope for cap in fallback_caps()} == {"", "simulated"}


def test_a_table_finds_caps_by_scope_however_many_there_are() -> None:
    """Only the caps around a place are looked at, outermost first."""
    table = CapTable(CapEntry(cap=Cap("1", scope=f"s{n}"), since_us=0) for n in range(5000))
    for cap in (Cap("9"), Cap("5", scope="s7/deep"), Cap("2", per="agent", scope="s7")):
        table.put(CapEntry(cap=cap, since_us=0))
    place = Place(scopes=("s7/deep/er",), kinds=(("s7/deep", "agent"),))
    found = [(str(m.entry.cap.amount), m.subject, m.named) for m in matching(table, place)]
    assert found == [
        ("9.00", "", True),
        ("2.00", "s7", False),
        ("1.00", "s7", True),
        ("2.00", "s7/deep", True),
        ("5.00", "s7/deep", True),
        ("2.00", "s7/deep/er", False),
    ]


def test_a_table_takes_back_what_is_dropped() -> None:
    """Dropping and putting are exact opposites, and dropping what is not there does nothing."""
    entry = CapEntry(cap=Cap("1", scope="a"), since_us=0)
    table = CapTable([entry])
    assert table.drop(("b", "ever", "UTC")) is None
    copy = table.copy()
    assert table.drop(entry.cap.key) == entry
    assert (len(table), list(table.on("a")), entry.cap.key in table) == (0, [], False)
    assert list(copy) == [entry]
    table.put(entry)
    assert table.get(entry.cap.key) == entry
