"""The ledger's promises to its callers: never past a cap, whoever asks, in whatever context."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from budgets.caps import Cap
from budgets.errors import (
    BudgetExceeded,
)
from budgets.ledger import Ledger
from budgets.records import HoldRequest
from budgets.scopes import Place, scope
from budgets.testing import ManualClock

from .conftest import MakeLedger

DOLLAR = 1_000_000_000


def dollars(amount: str) -> int:
    """Nano-dollars."""
    return int(Decimal(amount) * DOLLAR)


# ---- never past a cap ---------------------------------------------------------------------------------


async def test_parallel_calls_admit_exactly_as_many_as_fit(make_ledger: MakeLedger) -> None:
    """Of N calls at the same moment exactly cap / bound are admitted, whatever N is (O-01, O-05)."""
    ledger = make_ledger(Cap("1", scope="app"))
    asked = [
        ledger.hold_async(ledger.request(dollars("0.11"), scope="app/run", wait=False))
        for _ in range(100)
    ]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(not isinstance(r, BaseException) for r in results) == 9
    assert all(isinstance(r, BudgetExceeded) for r in results if isinstance(r, BaseException))
    assert ledger.balance("app").held == Decimal("0.99")
    assert ledger.balance("app").remaining == Decimal("0.01")


def test_threads_admit_exactly_as_many_as_fit(make_ledger: MakeLedger) -> None:
    """The same for threads; sums lose no increment (O-08)."""
    ledger = make_ledger(Cap("1", scope="app"))

    def call(_: int) -> bool:
        try:
            hold = ledger.hold(ledger.request(dollars("0.10"), scope="app", wait=False))
        except BudgetExceeded:
            return False
        ledger.settle(hold, dollars("0.10"))
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(call, range(64))) == 10
    assert ledger.balance("app").posted == 1
    assert ledger.check().ok


def test_a_child_draws_on_every_ancestor(make_ledger: MakeLedger) -> None:
    """A nested call is limited by the least of all caps around it, and the decline names that one (O-06)."""
    ledger = make_ledger(
        Cap("1", scope="app"), Cap("0.50", scope="app/run"), Cap("9", scope="app/run/a")
    )
    ledger.settle(ledger.hold(ledger.request(dollars("0.40"), scope="app/run/a")), dollars("0.40"))
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(dollars("0.20"), scope="app/run/a"))
    assert caught.value.scope == "app/run"
    ledger.settle(ledger.hold(ledger.request(dollars("0.60"), scope="app/other")), dollars("0.55"))
    assert ledger.balance("app/run/a").remaining == Decimal(0), (
        "the scope was declined and stays so"
    )
    assert ledger.balance("app").remaining == Decimal("0.05")


def test_several_scopes_are_all_or_nothing(make_ledger: MakeLedger) -> None:
    """A call that draws on two scopes is held in both or in neither."""
    ledger = make_ledger(Cap("1", scope="a"), Cap("0.10", scope="b"))
    both = Place(scopes=("a", "b"))
    with pytest.raises(BudgetExceeded, match="scope 'b'"):
        ledger.hold(HoldRequest(id="h1", nanos=dollars("0.20"), place=both))
    assert ledger.balance("a").held == 0
    ledger.hold(HoldRequest(id="h2", nanos=dollars("0.05"), place=both))
    assert (ledger.balance("a").held, ledger.balance("b").held) == (
        Decimal("0.05"),
        Decimal("0.05"),
    )
    assert ledger.balance("").held == Decimal("0.05"), "counted once in what is around both"


def test_a_zero_bound_is_always_admitted(make_ledger: MakeLedger) -> None:
    """A call whose bound is $0 passes an exhausted, latched and $0 cap (H-11)."""
    ledger = make_ledger(Cap("0", scope="app"), Cap("0", per="call"))
    with pytest.raises(BudgetExceeded):
        ledger.hold(ledger.request(1, scope="app"))
    ledger.void(ledger.hold(ledger.request(0, scope="app")))


def test_caps_per_call_agent_and_run(make_ledger: MakeLedger) -> None:
    """Caps per call, agent and run apply to each one below their scope by itself."""
    ledger = make_ledger(
        Cap("0.30", per="call", scope="app"), Cap("0.50", per="agent"), Cap("0.80", per="run")
    )
    with pytest.raises(
        BudgetExceeded, match=r"\$0.30 per call on scope 'app'.*more than the whole cap"
    ):
        ledger.hold(ledger.request(dollars("0.31"), scope="app/r0"))
    spent = []
    for run in ("r1", "r2"):
        for agent in ("a", "b"):
            with scope(agent):
                for _ in range(3):
                    try:
                        hold = ledger.hold(ledger.request(dollars("0.20"), scope=f"app/{run}"))
                    except BudgetExceeded as error:
                        spent.append((error.scope, str(error.cap.per)))
                    else:
                        ledger.settle(hold, dollars("0.20"))
    assert spent == [
        ("app/r1/a", "agent"),
        ("app/r1", "run"),
        ("app/r2/a", "agent"),
        ("app/r2", "run"),
    ]
    assert ledger.check().ok


def test_an_agents_cap_holds_for_what_is_nested_in_it(make_ledger: MakeLedger) -> None:
    """What runs below an agent draws on the agent's cap too, by whatever name."""
    ledger = make_ledger(Cap("0.50", per="agent"))
    with scope("lead"):
        ledger.settle(ledger.hold(ledger.request(dollars("0.30"), scope="app")), dollars("0.30"))
        with scope("worker"):
            with pytest.raises(BudgetExceeded) as caught:
                ledger.hold(ledger.request(dollars("0.30"), scope="app"))
            assert caught.value.scope == "app/lead"
    assert ledger.check().ok


def test_fallback_caps_bind_only_what_nothing_else_covers(make_ledger: MakeLedger) -> None:
    """A cap of one's own, of whatever kind, takes the place of the defaults where it applies (H-10)."""
    ledger = make_ledger(
        Cap("50", scope="app"),
        Cap("9", per="call", scope="tools"),
        fallback=[Cap("2", per="call", owner="default"), Cap("5", per="day", owner="default")],
    )
    ledger.hold(ledger.request(dollars("30"), scope="app"))
    with pytest.raises(BudgetExceeded, match=r"\$2.00 per call on everything, set by default"):
        ledger.hold(ledger.request(dollars("3"), scope="elsewhere"))
    with pytest.raises(
        BudgetExceeded, match=r"\$5.00 per day \(UTC\) on everything, the default lowered to fit"
    ):
        ledger.hold(ledger.request(dollars("6"), scope="tools"))
    assert ledger.check().ok


def test_the_documented_defaults_apply_without_any_cap(make_ledger: MakeLedger) -> None:
    """A ledger that nobody set a cap on is not without one, real or simulated (O-17)."""
    ledger = make_ledger(fallback=Ledger()._fallback)
    for path in ("app", "simulated/app"):
        with pytest.raises(BudgetExceeded, match=r"\$2.00 per call"):
            ledger.hold(ledger.request(dollars("2.01"), scope=path))
        ledger.hold(ledger.request(dollars("2"), scope=path))
        ledger.hold(ledger.request(dollars("2"), scope=path, wait=False))
        with pytest.raises(BudgetExceeded, match=r"\$5.00 per run"):
            ledger.hold(ledger.request(dollars("2"), scope=path, wait=False))


def test_a_fallback_never_replaces_what_somebody_said(file_ledger: MakeLedger) -> None:
    """A cap with the key of a fallback keeps its amount when a further process opens with that fallback."""
    fallback = [Cap("5", per="day")]
    file_ledger(Cap("20", per="day"), fallback=fallback)
    second = file_ledger(fallback=fallback)
    second.hold(second.request(dollars("15")))
    assert [e.cap.amount for e in second.caps()] == [20]


def test_lifting_a_cap_brings_back_the_fallback_that_it_replaced(make_ledger: MakeLedger) -> None:
    """When the cap that stood in front of a fallback goes, calls are not without any."""
    ledger = make_ledger(Cap("20", per="day"), fallback=[Cap("5", per="day")])
    ledger.drop_cap(Cap("0", per="day"))
    with pytest.raises(BudgetExceeded, match=r"\$5.00 per day"):
        ledger.hold(ledger.request(dollars("6")))
    ledger.drop_cap(Cap("0", scope="nowhere"))


# ---- the caps of a context ------------------------------------------------------------------------------


def test_a_cap_that_comes_with_a_block_binds_inside_it(make_ledger: MakeLedger) -> None:
    """A block's cap limits all that is called in it, and only that."""
    ledger = make_ledger()
    with scope("researcher", cap="0.50"):
        ledger.settle(ledger.hold(ledger.request(dollars("0.40"), scope="app")), dollars("0.40"))
        with scope("deeper"), pytest.raises(BudgetExceeded) as caught:
            ledger.hold(ledger.request(dollars("0.20"), scope="app"))
    assert (caught.value.scope, caught.value.posted) == ("app/researcher", Decimal("0.40"))
    ledger.hold(ledger.request(dollars("7"), scope="app"))


def test_the_ledgers_word_counts_once_a_blocks_cap_is_set(file_ledger: MakeLedger) -> None:
    """A cap raised by a person stays raised, though the block that first set it goes on (rule: the latest word)."""
    ledger, operator = file_ledger(), file_ledger()
    with scope("job", cap="0.10"):
        ledger.settle(ledger.hold(ledger.request(dollars("0.10"), scope="app")), dollars("0.10"))
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(dollars("0.10"), scope="app"))
        operator.set_cap(Cap("0.30", scope="app/job"))
        ledger.hold(ledger.request(dollars("0.10"), scope="app"))
    with ledger.reader() as reader:
        assert len(reader.cap_history()) == 2


def test_a_second_meter_inside_a_block_draws_on_both(make_ledger: MakeLedger) -> None:
    """Another base inside a block can't escape the block's cap, nor its own."""
    ledger = make_ledger(Cap("0.30", scope="tools"))
    with scope("job", cap="0.50"):
        ledger.hold(ledger.request(dollars("0.20"), scope="app"))
        ledger.hold(ledger.request(dollars("0.20"), scope="tools"))
        with pytest.raises(BudgetExceeded, match="app/job"):
            ledger.hold(ledger.request(dollars("0.20"), scope="tools", wait=False))
    with pytest.raises(BudgetExceeded, match="scope 'tools'"):
        ledger.hold(ledger.request(dollars("0.20"), scope="tools", wait=False))
    assert ledger.balance("app/job").held == Decimal("0.40")


async def test_tasks_threads_and_workers_inherit_the_blocks_cap(make_ledger: MakeLedger) -> None:
    """Tasks and ``to_thread`` inside a block draw on its cap, in sum."""
    ledger = make_ledger()

    async def task() -> bool:
        try:
            await ledger.hold_async(ledger.request(dollars("0.10"), scope="app", wait=False))
        except BudgetExceeded:
            return False
        return True

    def work() -> bool:
        try:
            ledger.hold(ledger.request(dollars("0.10"), scope="app", wait=False))
        except BudgetExceeded:
            return False
        return True

    async with scope("job", cap="0.50"):
        done = await asyncio.gather(
            *(task() for _ in range(4)), *(asyncio.to_thread(work) for _ in range(4))
        )
    assert sum(done) == 5


# ---- the latch (rule 13) --------------------------------------------------------------------------------


def test_a_decline_for_posted_money_stays_although_less_would_fit(make_ledger: MakeLedger) -> None:
    """After a decline for posted money even a smaller call is declined, until the cap is raised."""
    ledger = make_ledger(Cap("1", scope="app"))
    ledger.settle(ledger.hold(ledger.request(dollars("0.90"), scope="app/a")), dollars("0.90"))
    with pytest.raises(BudgetExceeded) as first:
        ledger.hold(ledger.request(dollars("0.20"), scope="app/a"))
    assert not first.value.latched
    with pytest.raises(BudgetExceeded, match="declined before and stays so") as second:
        ledger.hold(ledger.request(dollars("0.01"), scope="app/b"))
    assert second.value.latched
    ledger.set_cap(Cap("1", scope="app", owner="somebody"))
    with pytest.raises(BudgetExceeded):
        ledger.hold(ledger.request(dollars("0.01"), scope="app"))
    ledger.set_cap(Cap("1.05", scope="app"))
    ledger.hold(ledger.request(dollars("0.01"), scope="app"))


def test_the_latch_outlives_the_process(file_ledger: MakeLedger) -> None:
    """A new process finds the scope as shut as the old one left it."""
    first = file_ledger(Cap("1", scope="app"))
    first.settle(first.hold(first.request(dollars("0.90"), scope="app")), dollars("0.90"))
    with pytest.raises(BudgetExceeded):
        first.hold(first.request(dollars("0.20"), scope="app"))
    first.close()
    second = file_ledger(Cap("1", scope="app"))
    with pytest.raises(BudgetExceeded, match="declined before"):
        second.hold(second.request(1, scope="app"))


def test_the_latch_goes_with_the_window(make_ledger: MakeLedger, clock: ManualClock) -> None:
    """The next window is open, and the one before is still shut when the clock is set back."""
    ledger = make_ledger(Cap("1", per="day", scope="app"))
    ledger.settle(ledger.hold(ledger.request(dollars("0.90"), scope="app")), dollars("0.90"))
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(dollars("0.20"), scope="app"))
    assert caught.value.reopens_at == datetime(2026, 11, 30, tzinfo=UTC)
    clock.set(caught.value.reopens_at)
    ledger.void(ledger.hold(ledger.request(dollars("0.20"), scope="app")))
    clock.move(seconds=-1)
    with pytest.raises(BudgetExceeded, match="declined before"):
        ledger.hold(ledger.request(1, scope="app"))


@pytest.mark.parametrize("how", ["the window has turned", "the cap was raised"])
def test_every_process_sees_at_once_that_money_is_there_again(
    file_ledger: MakeLedger, clock: ManualClock, how: str
) -> None:
    """No process keeps a verdict of its own: what opens a cap opens it for those who were declined before (W-06)."""
    cap = Cap("1", per="day", scope="app")
    ledgers = [file_ledger(cap) for _ in range(3)]
    first = ledgers[0]
    first.settle(first.hold(first.request(dollars("1"), scope="app")), dollars("1"))
    for ledger in ledgers:
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(1, scope="app"))
    if how == "the cap was raised":
        first.set_cap(Cap("2", per="day", scope="app"))
    else:
        clock.set(datetime(2026, 11, 30, tzinfo=UTC))
    for ledger in ledgers:
        ledger.void(ledger.hold(ledger.request(1, scope="app")))


@pytest.mark.parametrize("reason", ["too large", "held", "doubt", "asking"])
def test_other_declines_do_not_latch(make_ledger: MakeLedger, reason: str) -> None:
    """A call larger than the cap, held money, money in doubt, and a mere question shut nothing."""
    ledger = make_ledger(Cap("1", scope="app"))
    hold = ledger.hold(ledger.request(dollars("0.90"), scope="app"))
    request = ledger.request(dollars("0.20"), scope="app", wait=False)
    match reason:
        case "too large":
            request = ledger.request(dollars("1.20"), scope="app")
        case "doubt":
            ledger.doubt(hold)
        case "asking":
            ledger.settle(hold, dollars("0.90"))
            request = ledger.request(dollars("0.20"), scope="app", latch=False)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(request)
    assert not caught.value.latched
    ledger.hold(ledger.request(dollars("0.10"), scope="app"))
