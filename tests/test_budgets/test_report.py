"""Balances and reports: what they add up, and what a call could still take."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded, InvalidCap, InvalidInput
from budgets.ledger import Ledger
from budgets.report import cap_sums, report
from budgets.scopes import scope
from budgets.testing import ManualClock

from .conftest import MakeLedger

CENT = 10_000_000


def spend(
    ledger: Ledger, cents: int, path: str = "app", *, model: str = "m", agent: str = ""
) -> None:
    """A call that costs what it was bound to."""
    note = {"agent": agent} if agent else {}
    hold = ledger.hold(ledger.request(cents * CENT, scope=path, model=model, note=note))
    usage = {"input_tokens": 10 * cents, "output_tokens": cents, "web_searches": 1}
    ledger.settle(hold, cents * CENT, usage=usage)


# ---- balances -------------------------------------------------------------------------------------------


def test_a_balance_adds_up_what_is_below(make_ledger: MakeLedger) -> None:
    """Posted, held and in doubt are disjoint, and hold everything below the scope."""
    ledger = make_ledger()
    spend(ledger, 10, "app/a")
    spend(ledger, 20, "app/b")
    ledger.doubt(ledger.hold(ledger.request(3 * CENT, scope="app/b")))
    ledger.hold(ledger.request(5 * CENT, scope="app"))
    balance = ledger.balance("app")
    assert (balance.posted, balance.held, balance.in_doubt) == (
        Decimal("0.30"),
        Decimal("0.05"),
        Decimal("0.03"),
    )
    assert (balance.remaining, balance.cap) == (None, None)
    assert ledger.balance("/app/b/").posted == Decimal("0.20")


@pytest.mark.parametrize(
    ("path", "left", "told"),
    [
        ("app/a", "0.25", "$0.30 on scope 'app/a'"),
        ("app/b", "0.40", "$0.60 per day (UTC) on scope 'app'"),
        ("other", "0.80", "$1.00 on everything"),
        ("simulated/app", None, ""),
    ],
)
def test_what_remains_is_the_least_of_all_caps_around(
    make_ledger: MakeLedger, path: str, left: str | None, told: str
) -> None:
    """The cap that leaves the least decides, its ancestors' caps included."""
    ledger = make_ledger(Cap("1"), Cap("0.60", per="day", scope="app"), Cap("0.30", scope="app/a"))
    spend(ledger, 5, "app/a")
    spend(ledger, 15, "app/b")
    balance = ledger.balance(path)
    assert balance.remaining == (None if left is None else Decimal(left))
    assert str(balance.cap or "") == told


def test_what_remains_is_what_a_call_gets(make_ledger: MakeLedger) -> None:
    """A call for what remains is admitted, one for more is not; caps per agent and run included."""
    ledger = make_ledger(Cap("1", per="agent"), Cap("5", per="run"), Cap("0.70", per="call"))
    with scope("lead"):
        spend(ledger, 60)
        remaining = ledger.balance("app/lead").remaining_nanos
        assert remaining == 40 * CENT
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(remaining + 1, scope="app", latch=False))
        ledger.hold(ledger.request(remaining, scope="app"))
    assert ledger.balance("app/lead").remaining == 0
    assert ledger.balance("app").remaining == 4


def test_nothing_remains_in_a_scope_that_stays_declined(make_ledger: MakeLedger) -> None:
    """A latched scope has nothing left, whatever its sums."""
    ledger = make_ledger(Cap("1", scope="app"))
    spend(ledger, 90)
    assert ledger.balance("app").remaining == Decimal("0.10")
    with pytest.raises(BudgetExceeded):
        spend(ledger, 20)
    assert ledger.balance("app/x").remaining == 0
    ledger.set_cap(Cap("1.50", scope="app"))
    assert ledger.balance("app").remaining == Decimal("0.60")


def test_defaults_count_only_where_nothing_else_does(make_ledger: MakeLedger) -> None:
    """Fallback caps show in what remains only for calls that no other cap covers."""
    ledger = make_ledger(Cap("50", scope="app"), fallback=[Cap("25", per="day", owner="default")])
    assert ledger.balance("app").remaining == 50
    assert ledger.balance("other").remaining == 25


def test_a_lowered_cap_leaves_nothing_rather_than_less(make_ledger: MakeLedger) -> None:
    """A cap below what is posted leaves zero."""
    ledger = make_ledger(Cap("1", scope="app"))
    spend(ledger, 90)
    ledger.set_cap(Cap("0.50", scope="app"))
    assert ledger.balance("app").remaining == 0


def test_sums_of_a_cap_are_those_of_its_window(make_ledger: MakeLedger, clock: ManualClock) -> None:
    """What counts against a cap is what its own window holds, known before any call met the cap."""
    ledger = make_ledger()
    spend(ledger, 10)
    clock.move(days=1)
    spend(ledger, 20)
    day, ever = Cap("1", per="day", scope="app"), Cap("1", scope="app")
    with ledger.reader() as reader:
        assert cap_sums(reader, day, clock.now).posted == 20 * CENT
        assert cap_sums(reader, ever, clock.now).posted == 30 * CENT
    ledger.set_cap(day)
    spend(ledger, 1)
    with ledger.reader() as reader:
        assert cap_sums(reader, day, clock.now).posted == 21 * CENT


# ---- reports --------------------------------------------------------------------------------------------


def a_week(make_ledger: MakeLedger, clock: ManualClock) -> Ledger:
    """Some calls on two days, by two agents with two models."""
    ledger = make_ledger()
    clock.set("2026-11-29T23:30:00+00:00")  # already Monday in Berlin
    spend(ledger, 10, "app/a", model="opus", agent="lead")
    spend(ledger, 30, "app/b", model="sonnet", agent="worker")
    late = ledger.hold(ledger.request(5 * CENT, scope="app/b", model="sonnet"))
    clock.move(hours=24)
    spend(ledger, 20, "app/a", model="sonnet", agent="worker")
    ledger.void(late)
    doubted = ledger.hold(ledger.request(7 * CENT, scope="app/a", model="opus"))
    ledger.doubt(doubted)
    resolved = ledger.hold(ledger.request(8 * CENT, scope="app/b", model="opus"))
    ledger.doubt(resolved)
    ledger.resolve(resolved, CENT)
    ledger.hold(ledger.request(2 * CENT, scope="app/b", model="opus"))
    return ledger


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("day", [("2026-11-29", "0.40"), ("2026-11-30", "0.21")]),
        ("model", [("sonnet", "0.50"), ("opus", "0.11")]),
        ("scope", [("app/b", "0.31"), ("app/a", "0.30")]),
        ("agent", [("worker", "0.50"), ("lead", "0.10"), ("(none)", "0.01")]),
    ],
)
def test_money_by_day_model_scope_and_agent(
    make_ledger: MakeLedger, clock: ManualClock, by: str, rows: list[tuple[str, str]]
) -> None:
    """Each grouping adds up to the same money; days in order, the rest dearest first."""
    ledger = a_week(make_ledger, clock)
    found = report(ledger.lines(), by)  # type: ignore[arg-type]
    assert [(row.key, row.posted) for row in found] == [(key, Decimal(a)) for key, a in rows]
    assert sum(row.posted_nanos for row in found) == ledger.balance().posted_nanos
    assert sum(row.held_nanos for row in found) == ledger.balance().held_nanos
    assert sum(row.in_doubt_nanos for row in found) == ledger.balance().in_doubt_nanos


def test_a_row_counts_calls_tokens_and_endings(make_ledger: MakeLedger, clock: ManualClock) -> None:
    """A call is counted once, by how it stands now; what is missing is under way."""
    rows = {row.key: row for row in report(a_week(make_ledger, clock).lines(), "model")}
    sonnet, opus = rows["sonnet"], rows["opus"]
    assert (sonnet.calls, sonnet.settled, sonnet.voided, sonnet.doubted) == (3, 2, 1, 0)
    assert (opus.calls, opus.settled, opus.voided, opus.doubted) == (4, 2, 0, 1)
    assert opus.in_doubt_nanos == 7 * CENT
    assert (sonnet.tokens["input_tokens"], sonnet.tokens["output_tokens"]) == (500, 50)
    assert sonnet.searches == 2


def test_days_follow_the_zone_that_is_asked_for(
    make_ledger: MakeLedger, clock: ManualClock
) -> None:
    """A day is a calendar day of the reader's zone, and a late ending stays in the day of its hold."""
    rows = report(a_week(make_ledger, clock).lines(), "day", tz="Europe/Berlin")
    assert [row.key for row in rows] == ["2026-11-30", "2026-12-01"]
    assert [row.voided for row in rows] == [1, 0]


def test_a_stretch_of_time_is_cut_by_when_holds_were_made(
    make_ledger: MakeLedger, clock: ManualClock
) -> None:
    """``since`` is included, ``until`` is not."""
    ledger = a_week(make_ledger, clock)
    first = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)
    second = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)
    assert [r.key for r in report(ledger.lines(), "day", since=second)] == ["2026-11-30"]
    assert [r.key for r in report(ledger.lines(), "day", since=first, until=second)] == [
        "2026-11-29"
    ]
    assert report(ledger.lines(), "day", until=first) == []


def test_a_wrong_question_is_named() -> None:
    """An unknown grouping, a time without a zone and an unknown zone are the caller's mistakes."""
    with pytest.raises(
        InvalidInput, match="'hour' is not a grouping; use one of day, model, scope, agent"
    ):
        report([], "hour")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="since has no time zone"):
        report([], "day", since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidCap, match="Europe/Berlin"):
        report([], "day", tz="Berlin")
