"""Reserves: money set aside before, so that a closing call is affordable whatever happens meanwhile (rule 15)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from budgets.caps import Cap
from budgets.check import check_lines
from budgets.errors import BudgetExceeded, LedgerError
from budgets.ledger import Ledger
from budgets.owners import Owner
from budgets.records import Ending, Hold
from budgets.report import report
from budgets.reserves import Reserve, drawing_on
from budgets.scopes import scope
from budgets.testing import ManualClock

from .conftest import MakeLedger

HUNDRED = Cap("0.0000001", scope="app")


def ask(ledger: Ledger, nanos: int, path: str = "app", **more: Any) -> Hold:
    """A hold that does not wait."""
    return ledger.hold(ledger.request(nanos, scope=path, wait=False, **more))


def draw(ledger: Ledger, reserve: Reserve, nanos: int, path: str = "app", **more: Any) -> Hold:
    """A hold that draws on a reserve and does not wait."""
    with drawing_on(reserve):
        return ask(ledger, nanos, path, **more)


def set_aside(ledger: Ledger) -> list[int]:
    """What open reserves hold."""
    return sorted(h.nanos for h in ledger.open_holds() if h.reserve is not None)


def prove(ledger: Ledger) -> None:
    """The checker finds nothing."""
    assert ledger.check().findings == []


def test_a_closing_call_is_affordable_when_the_cap_is_used_up_and_shut(
    make_ledger: MakeLedger,
) -> None:
    """Everybody else has spent all there is and was declined for good; the closing call goes all the same."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    assert (reserve.nanos, reserve.scope) == (30, "app")
    ledger.settle(ask(ledger, 70), 70)
    with pytest.raises(BudgetExceeded, match="reserved for closing calls") as caught:
        ask(ledger, 1)
    assert (caught.value.latched, caught.value.reserved) == (False, reserve.amount)
    with pytest.raises(BudgetExceeded):
        ask(ledger, 31)  # more than posted money leaves: from here on it is shut
    with pytest.raises(BudgetExceeded, match="stays so until the cap is raised"):
        ask(ledger, 1)
    closing = draw(ledger, reserve, 30)
    assert set_aside(ledger) == []
    ledger.settle(closing, 25)
    assert ledger.balance("app").posted_nanos == 95
    prove(ledger)


def test_a_void_puts_back_what_it_took_before_anybody_else_can_have_it(
    make_ledger: MakeLedger,
) -> None:
    """The closing call is overloaded as often as you like: each next try finds the reserve, and nobody else does."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ask(ledger, 70)
    for _ in range(5):
        closing = draw(ledger, reserve, 30)
        with pytest.raises(BudgetExceeded):
            ask(ledger, 1)
        ledger.void(closing)
        assert set_aside(ledger) == [30]
        with pytest.raises(BudgetExceeded):
            ask(ledger, 1)
    ledger.settle(draw(ledger, reserve, 30), 30)
    prove(ledger)


async def test_a_call_that_waits_does_not_get_the_reserve_between_two_tries(
    make_ledger: MakeLedger,
) -> None:
    """First in line for held money is first in line for what is free, not for what is set aside."""
    ledger = make_ledger(HUNDRED)
    reserve = await ledger.reserve_async(30, scope="app")
    rest = await ledger.hold_async(ledger.request(70, scope="app"))
    waiting = asyncio.create_task(ledger.hold_async(ledger.request(40, scope="app")))
    while not ledger.waiting:
        await asyncio.sleep(0)
    with drawing_on(reserve):
        closing = await ledger.hold_async(ledger.request(30, scope="app"))
        await ledger.end_async(Ending(hold=closing.id, kind="void"))
        assert not waiting.done()
        closing = await ledger.hold_async(ledger.request(30, scope="app"))
    await ledger.end_async(Ending(hold=rest.id, kind="settle", nanos=20))
    assert (await waiting).nanos == 40
    await ledger.end_async(Ending(hold=closing.id, kind="settle", nanos=30))
    prove(ledger)


@pytest.mark.parametrize("nanos", [10, 30, 45])
def test_a_draw_takes_what_it_needs_and_the_rest_stays(make_ledger: MakeLedger, nanos: int) -> None:
    """Less than the reserve leaves a smaller one; more than it is judged like any call for the difference."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ask(ledger, 50)
    closing = draw(ledger, reserve, nanos)
    assert set_aside(ledger) == ([30 - nanos] if nanos < 30 else [])
    assert ledger.balance("app").held_nanos == 50 + max(nanos, 30)
    ledger.void(closing)
    assert sum(set_aside(ledger)) == 30
    again = draw(ledger, reserve, 30)  # of all pieces together
    assert set_aside(ledger) == []
    ledger.settle(again, 1)
    prove(ledger)


def test_a_draw_that_is_declined_leaves_the_reserve_as_it_was(make_ledger: MakeLedger) -> None:
    """All or nothing: more than the reserve and the rest of the cap is declined, and nothing was given back."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ledger.settle(ask(ledger, 60), 60)
    lines = len(list(ledger.lines()))
    with pytest.raises(BudgetExceeded):
        draw(ledger, reserve, 41, latch=False)
    assert set_aside(ledger) == [30]
    assert len(list(ledger.lines())) == lines
    assert draw(ledger, reserve, 40).nanos == 40
    prove(ledger)


async def test_a_draw_that_must_wait_leaves_the_reserve_as_it_was(make_ledger: MakeLedger) -> None:
    """While it waits for the rest of its bound nothing is given back; then both come in one step."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    other = ask(ledger, 60)
    with drawing_on(reserve):
        task = asyncio.create_task(ledger.hold_async(ledger.request(50, scope="app")))
    while not ledger.waiting:
        await asyncio.sleep(0)
    assert set_aside(ledger) == [30]
    await ledger.end_async(Ending(hold=other.id, kind="void"))
    assert (await task).nanos == 50
    assert set_aside(ledger) == []
    prove(ledger)


def test_calls_in_the_way_of_which_a_reserve_is_do_not_wait_for_it(make_ledger: MakeLedger) -> None:
    """A run's own calls would wait for the end of the run, and the run for them: they are declined, not shut out."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(60, scope="app")
    with pytest.raises(BudgetExceeded, match="reserved for closing calls"):
        ledger.hold(ledger.request(50, scope="app"), timeout_s=5)
    assert ledger.release(reserve) == 60
    assert ask(ledger, 50).nanos == 50


def test_a_reserve_that_does_not_fit_is_declined_and_shuts_nothing(make_ledger: MakeLedger) -> None:
    """A precaution that can't be afforded must not take from the work what it could still spend."""
    ledger = make_ledger(HUNDRED)
    ledger.settle(ask(ledger, 80), 80)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(30, scope="app", wait=False)
    assert ask(ledger, 20).nanos == 20


def test_release_gives_back_and_may_be_called_twice(make_ledger: MakeLedger) -> None:
    """What is left of it is free again; a call under way that drew on it puts nothing back any more."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    closing = draw(ledger, reserve, 10)
    assert ledger.release(reserve) == 20
    assert ledger.release(reserve.id) == 0
    ledger.void(closing)
    assert ledger.balance("app").held_nanos == 0
    assert draw(ledger, reserve, 100).nanos == 100, "nothing is drawn of what is not there"
    prove(ledger)


async def test_release_async_says_what_it_gave_back(make_ledger: MakeLedger) -> None:
    """As its blocking twin."""
    ledger = make_ledger(HUNDRED)
    reserve = await ledger.reserve_async(30, scope="app")
    assert await ledger.release_async(reserve) == 30
    assert await ledger.release_async(reserve) == 0
    assert ledger.balance("app").held_nanos == 0


async def test_a_reserve_that_is_given_up_while_it_waits_holds_nothing(
    make_ledger: MakeLedger,
) -> None:
    """Cancelled in the queue, it leaves the queue."""
    ledger = make_ledger(HUNDRED)
    other = ask(ledger, 90)
    task = asyncio.create_task(ledger.reserve_async(30, scope="app"))
    while not ledger.waiting:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ledger.void(other)
    assert ledger.balance("app").held_nanos == 0


@pytest.mark.parametrize("kind", ["settle", "doubt", "resolve"])
def test_nothing_is_charged_to_a_reserve(make_ledger: MakeLedger, kind: Any) -> None:
    """It can only be given back."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    with pytest.raises(LedgerError, match="release it"):
        ledger.end(Ending(hold=reserve.id, kind=kind, nanos=1))
    assert set_aside(ledger) == [30]


def test_a_calls_hold_is_no_reserve(make_ledger: MakeLedger) -> None:
    """Neither can it be drawn on, nor can a note make one of it."""
    ledger = make_ledger(HUNDRED)
    hold = ask(ledger, 30)
    with pytest.raises(LedgerError, match="not a reserve"):
        ledger.hold(replace(ledger.request(1, scope="app"), replaces=hold.id))
    with pytest.raises(LedgerError, match="ledger's own"):
        ask(ledger, 1, note={"reserve": "mine"})
    assert [h.id for h in ledger.open_holds()] == [hold.id]


def test_the_context_is_that_of_one_ledger(make_ledger: MakeLedger) -> None:
    """A meter on another ledger draws on nothing; a reserve inside of it is a new one."""
    ledger, other = make_ledger(HUNDRED), Ledger(caps=[HUNDRED], fallback=())
    reserve = ledger.reserve(30, scope="app")
    with drawing_on(reserve):
        assert ledger.request(1, scope="app").replaces == reserve.id
        assert other.request(1, scope="app").replaces is None
        second = ledger.reserve(20, scope="app")
    assert ledger.request(1, scope="app").replaces is None
    assert set_aside(ledger) == [20, 30]
    assert ledger.release(second) == 20


def test_a_draw_from_below_draws_on_the_accounts_that_both_have(make_ledger: MakeLedger) -> None:
    """An agent's closing call draws on its run's reserve; the agent's own cap still binds it."""
    ledger = make_ledger(HUNDRED, Cap("0.00000002", scope="app/writer"))
    reserve = ledger.reserve(30, scope="app")
    ask(ledger, 70)
    with pytest.raises(BudgetExceeded) as caught, scope("writer"):
        draw(ledger, reserve, 25)
    assert caught.value.scope == "app/writer"
    with scope("writer"):
        closing = draw(ledger, reserve, 20)
    assert set_aside(ledger) == [10]
    ledger.void(closing)
    assert sum(set_aside(ledger)) == 30
    assert {h.scopes for h in ledger.open_holds() if h.reserve} == {("app",)}
    prove(ledger)


def test_a_cap_that_was_lowered_binds_closing_calls_too(make_ledger: MakeLedger) -> None:
    """What a person says later counts more than what was set aside before; the checker agrees."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ledger.settle(ask(ledger, 70), 70)
    closing = draw(ledger, reserve, 30)
    ledger.set_cap(Cap("0.00000009", scope="app"))
    ledger.void(closing)
    assert set_aside(ledger) == [], "it can't come back"
    ledger.set_cap(HUNDRED)
    prove(ledger)


def test_a_reserve_is_of_the_window_in_which_it_was_set_aside(
    make_ledger: MakeLedger, clock: ManualClock
) -> None:
    """After midnight the day's cap has it no more; the caps for ever still do."""
    day = Cap("0.0000001", per="day", scope="app")
    ledger = make_ledger(day, Cap("0.0000002", scope="app"))
    reserve = ledger.reserve(30, scope="app")
    clock.move(hours=24)
    ledger.settle(ask(ledger, 100), 100)
    with pytest.raises(BudgetExceeded):
        draw(ledger, reserve, 30, latch=False)
    clock.move(hours=24)
    assert draw(ledger, reserve, 30).nanos == 30
    assert ledger.balance("app").held_nanos == 30
    prove(ledger)


def test_reserves_are_not_calls(make_ledger: MakeLedger) -> None:
    """Reports count calls, the checker counts what is set aside beside them."""
    ledger = make_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ledger.settle(draw(ledger, reserve, 10), 5)
    check = ledger.check()
    assert (check.open_holds, check.reserves, check.held_nanos) == (0, 1, 20)
    (row,) = report(ledger.lines(), "scope")
    assert (row.calls, row.settled, row.voided, row.posted_nanos) == (1, 1, 0, 5)


# ---- ends of processes ----------------------------------------------------------------------------------


def test_closing_the_ledger_gives_reserves_back_and_puts_draws_in_doubt(
    file_ledger: MakeLedger,
) -> None:
    """Nothing was sent on a reserve; a call that drew on one was sent."""
    ledger = file_ledger(HUNDRED)
    reserve = ledger.reserve(30, scope="app")
    ledger.reserve(15, scope="app")
    draw(ledger, reserve, 10)
    ledger.close()
    after = file_ledger()
    assert [(h.nanos, h.state) for h in after.open_holds()] == [(10, "doubt")]
    assert after.balance("app").in_doubt_nanos == 10
    prove(after)


def test_the_reserve_of_another_owner_is_out_of_reach(file_ledger: MakeLedger) -> None:
    """Two ledgers on one file: only the one that set it aside draws on it; for the other it is in the way."""
    one, two = file_ledger(HUNDRED), file_ledger()
    reserve = one.reserve(60, scope="app")
    request = replace(two.request(50, scope="app", wait=False), replaces=reserve.id)
    with pytest.raises(BudgetExceeded, match="reserved for closing calls"):
        two.hold(request)
    assert two.release(reserve) == 0
    assert draw(one, reserve, 60).nanos == 60
    prove(two)


def test_a_dead_owners_reserve_is_in_nobodys_way(file_ledger: MakeLedger) -> None:
    """A call that it keeps out looks whether its owner lives, and goes."""
    ledger = file_ledger(HUNDRED)
    dead = file_ledger()
    dead._rules.owner = Owner(id="dead", host=dead._rules.owner.host, pid=2**22 + 1, started_ms=1)
    dead.reserve(60, scope="app")
    assert ask(ledger, 50).nanos == 50
    (line,) = (line for line in ledger.lines() if line.kind == "void")
    assert "owner died" in line.note["reason"]
    prove(ledger)


# ---- the checker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tampered", "finding"),
    [
        ("conjured", "takes more from reserve"),
        ("overdrawn", "takes more from reserve"),
        ("spent", "is a reserve, nothing was sent on it"),
    ],
)
def test_the_checker_finds_reserves_that_do_not_add_up(tampered: str, finding: str) -> None:
    """A reserve out of nothing, a draw on what is not there, and a charge to a reserve are found."""
    ledger = Ledger(caps=[HUNDRED], fallback=())
    reserve = ledger.reserve(30, scope="app")
    closing = draw(ledger, reserve, 30)
    if tampered == "spent":
        ledger.settle(closing, 1)
        ledger.reserve(10, scope="app")
    elif tampered == "overdrawn":
        ledger.void(closing)
        draw(ledger, reserve, 30)
    tables = ledger._store._tables  # type: ignore[attr-defined]
    last = tables.lines[-1]
    if tampered == "conjured":
        note = {"reserve": reserve.id}
        tables.lines.append(replace(last, id=last.id + 1, hold="x", nanos=9, held=9, note=note))
    elif tampered == "overdrawn":
        note = {"draws": {**last.note["draws"], "nanos": 31}}
        tables.lines[-1] = replace(last, nanos=40, held=40, note=note)
    else:
        ended = replace(last, id=last.id + 1, kind="settle", nanos=1, posted=1, held=-10)
        tables.lines.append(ended)
    with ledger.reader() as reader:
        findings = check_lines(reader).findings
    assert any(finding in each for each in findings), findings
