"""Room: what would fit, asked before a set of calls starts (rule 14); asking changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.money import to_decimal
from budgets.scopes import scope
from budgets.testing import ManualClock

from .conftest import MakeLedger


def cap(nanos: int, path: str = "app", **fields: str) -> Cap:
    """A cap in nano-dollars."""
    return Cap(to_decimal(nanos), scope=path, **fields)  # type: ignore[arg-type]


def state(ledger: Ledger) -> tuple[object, ...]:
    """Everything that a question might have changed."""
    with ledger.reader() as reader:
        accounts = sorted((a.key, a.posted, a.held, a.latched) for a in reader.accounts())
        return len(list(reader.lines())), accounts, len(reader.cap_history()), reader.owners()


def fill(ledger: Ledger) -> None:
    """Below ``app``: 20 posted, 10 in doubt, 30 held, 5 of them a reserve."""
    ledger.settle(ledger.hold(ledger.request(20, scope="app")), 20)
    ledger.doubt(ledger.hold(ledger.request(10, scope="app")))
    ledger.hold(ledger.request(25, scope="app"))
    ledger.reserve(5, scope="app")


def test_the_tightest_cap_is_named_with_what_it_leaves(make_ledger: MakeLedger) -> None:
    """Held money counts now, and not once it has come back; a reserve is held."""
    ledger = make_ledger(cap(100), cap(1000, ""), cap(75, per="day", tz="Europe/Berlin"))
    fill(ledger)
    before = state(ledger)
    room = ledger.room("app")
    assert room.now is not None
    assert room.unheld is not None
    assert (room.now.nanos, room.unheld.nanos) == (75 - 60, 75 - 30)
    assert room.now.amount == Decimal("0.000000015")
    assert room.now.cap.per == "day"
    assert room.now.reopens_at == datetime(2026, 11, 29, 23, tzinfo=UTC)
    assert room.per_call is None
    assert state(ledger) == before


@pytest.mark.parametrize(
    ("bounds", "now", "unheld"),
    [
        ([], 0, 0),
        ([10, 10, 10, 10, 10], 4, 5),
        ([40, 1], 1, 2),
        ([41, 1], 0, 2),
        ([0, 41, 0], 1, 3),
        ([40, 0, 0, 1], 3, 4),
        ([71], 0, 0),
        ([30, 40, 1], 1, 2),
    ],
)
def test_so_many_of_the_first_fit(
    make_ledger: MakeLedger, bounds: list[int], now: int, unheld: int
) -> None:
    """Under a cap of 100: exactly as many as can be held one after the other, in their order."""
    ledger = make_ledger(cap(100))
    fill(ledger)
    before = state(ledger)
    assert ledger.affordable(bounds, scope="app") == now
    assert ledger.affordable(bounds, scope="app", held=False) == unheld
    assert state(ledger) == before
    for nanos in bounds[:now]:
        ledger.hold(ledger.request(nanos, scope="app", wait=False))
    if now < len(bounds):
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(bounds[now], scope="app", wait=False))


def test_a_cap_on_single_calls_ends_the_set(make_ledger: MakeLedger) -> None:
    """A call that is too large for it does not fit, whatever else is there."""
    ledger = make_ledger(cap(100), cap(20, per="call"))
    room = ledger.room("app")
    assert room.per_call is not None
    assert room.per_call.nanos == 20
    assert ledger.affordable([20, 20, 21, 1], scope="app") == 2


def test_a_scope_that_is_shut_has_no_room(make_ledger: MakeLedger) -> None:
    """What was declined for posted money stays declined until the cap is raised, and so says the question."""
    ledger = make_ledger(cap(100))
    ledger.settle(ledger.hold(ledger.request(90, scope="app")), 90)
    with pytest.raises(BudgetExceeded):
        ledger.hold(ledger.request(20, scope="app"))
    assert ledger.affordable([1], scope="app") == 0
    assert ledger.affordable([0], scope="app") == 1
    ledger.set_cap(cap(120))
    assert ledger.affordable([20, 10, 1], scope="app") == 2


def test_caps_of_the_context_count_before_the_first_call(make_ledger: MakeLedger) -> None:
    """A cap that no call has brought to the ledger yet is asked all the same, and not set by it."""
    ledger = make_ledger(cap(100))
    before = state(ledger)
    with scope("writer", cap="0.00000003"):
        room = ledger.room("app")
        assert ledger.affordable([20, 10, 10], scope="app") == 2
    assert room.now is not None
    assert room.now.cap.scope == "app/writer"
    assert state(ledger) == before


def test_caps_per_agent_and_run_count_for_their_subjects(make_ledger: MakeLedger) -> None:
    """Each agent has its own room, the run around them another."""
    ledger = make_ledger(cap(40, per="agent"), cap(65, per="run"))
    for name, nanos in (("one", 30), ("two", 20)):
        with scope(name):
            ledger.hold(ledger.request(nanos, scope="app"))
    found = {}
    for name in ("one", "two", "three"):
        with scope(name):
            least = ledger.room("app").now
            assert least is not None
            found[name] = (least.nanos, least.cap.scope, least.cap.per)
    assert found == {
        "one": (10, "app/one", "agent"),
        "two": (15, "app", "run"),
        "three": (15, "app", "run"),
    }


def test_fallback_caps_count_only_where_nothing_else_does(make_ledger: MakeLedger) -> None:
    """As when calls are admitted."""
    ledger = make_ledger(cap(100), fallback=[cap(10, ""), cap(5, "", per="call")])
    assert ledger.affordable([50, 50, 1], scope="app") == 2
    assert ledger.affordable([5, 5, 1], scope="elsewhere") == 2
    assert ledger.affordable([6], scope="elsewhere") == 0


def test_without_any_cap_everything_fits(make_ledger: MakeLedger) -> None:
    """There is no least then."""
    room = make_ledger().room("app")
    assert (room.now, room.unheld, room.per_call) == (None, None, None)
    assert room.fits([10**15] * 3) == 3


def test_the_window_that_counts_is_that_of_now(make_ledger: MakeLedger, clock: ManualClock) -> None:
    """Yesterday's calls take no room from today."""
    ledger = make_ledger(cap(100, per="day"))
    fill(ledger)
    assert ledger.affordable([41], scope="app") == 0
    clock.move(hours=24)
    assert ledger.affordable([100], scope="app") == 1
