"""The waiting queue: first come first served, cancellable, one for all processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded, LedgerUnavailable
from budgets.ledger import Ledger
from budgets.records import Ending, Hold
from budgets.testing import ManualClock

from .conftest import MakeLedger
from .faulty_store import SteppedCounter


async def settled(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads go on until something is so; the test's time limit ends what never comes."""
    while not condition():
        await asyncio.sleep(0.001)


class Line:
    """Calls of one test that ask for money, with the order in which they got it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[Hold]] = {}

    async def ask(self, name: str, nanos: int, path: str = "app", *, waits: bool = True) -> None:
        """Ask, and return when the call is in the queue (or has its money, if it doesn't wait)."""

        async def hold() -> Hold:
            held = await self.ledger.hold_async(self.ledger.request(nanos, scope=path))
            self.got.append(name)
            return held

        before = self.ledger.waiting
        self.tasks[name] = asyncio.create_task(hold())
        if waits:
            await settled(lambda: self.ledger.waiting == before + 1 or self.tasks[name].done())
        else:
            await self.tasks[name]

    def hold_of(self, name: str) -> Hold:
        return self.tasks[name].result()


# ---- the queue ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["settle", "void"])
async def test_held_money_is_waited_for_and_given_in_order(
    make_ledger: MakeLedger, kind: str
) -> None:
    """A call that only held money stands in the way of waits, and is served first come first served."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    line = Line(ledger)
    await line.ask("first", 90, waits=False)
    for name in ("b", "c", "d"):
        await line.ask(name, 60)
    assert ledger.waiting == 3
    for name in ("first", "b", "c", "d"):
        await line.tasks[name]
        await ledger.end_async(Ending(hold=line.hold_of(name).id, kind=kind))  # type: ignore[arg-type]
    assert line.got == ["first", "b", "c", "d"]
    assert ledger.waiting == 0
    assert ledger.check().ok


async def test_a_small_call_does_not_overtake_a_large_one(make_ledger: MakeLedger) -> None:
    """Who came later waits behind who came earlier, though there would be room."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    line = Line(ledger)
    await line.ask("first", 50, waits=False)
    await line.ask("large", 80)
    await line.ask("small", 10)
    assert line.got == ["first"]
    with pytest.raises(BudgetExceeded, match="only held money"):
        ledger.hold(ledger.request(10, scope="app", wait=False))
    await ledger.end_async(Ending(hold=line.hold_of("first").id, kind="void"))
    await asyncio.gather(line.tasks["large"], line.tasks["small"])
    assert line.got == ["first", "large", "small"]


async def test_who_waits_for_one_scope_stands_in_nobodys_way_elsewhere(
    make_ledger: MakeLedger,
) -> None:
    """Only calls for the same short money queue up; others of the same run go on."""
    ledger = make_ledger(
        Cap.from_nanos(1000, per=None, scope="app", tz="UTC", owner="code"),
        Cap.from_nanos(100, per=None, scope="app/a", tz="UTC", owner="code"),
    )
    line = Line(ledger)
    await line.ask("first", 90, "app/a", waits=False)
    await line.ask("second", 80, "app/a")
    await line.ask("third", 5, "app/a")
    await line.ask("elsewhere", 500, "app/b", waits=False)
    await line.ask("around", 100, "app", waits=False)
    assert line.got == ["first", "elsewhere", "around"]
    await ledger.end_async(Ending(hold=line.hold_of("first").id, kind="void"))
    await asyncio.gather(*line.tasks.values())


async def test_a_cancelled_call_leaves_its_place(make_ledger: MakeLedger) -> None:
    """A call that is cancelled while it waits is out of the queue at once, and the next moves up (H-01)."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    line = Line(ledger)
    await line.ask("first", 60, waits=False)
    await line.ask("large", 80)
    await line.ask("small", 30)
    line.tasks["large"].cancel()
    await line.tasks["small"]
    assert line.got == ["first", "small"]
    with ledger.reader() as reader:
        assert list(reader.waiting()) == []
    assert ledger.balance("app").held_nanos == 90


@pytest.mark.parametrize("moment", ["handed over", "waiting", "freed", "made"])
async def test_a_cancel_at_any_moment_leaves_nothing_held(moment: str) -> None:
    """Cancelled before its batch, in the queue, after its money was freed, or just before it hears of its hold."""
    ledger = Ledger(
        caps=[Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code")], fallback=()
    )
    blocker = ledger.hold(ledger.request(60, scope="app"))
    counter = SteppedCounter(ledger._store, ledger._rules, ledger._now_us)
    ledger._counter = counter
    nanos = 30 if moment == "made" else 80
    task = asyncio.create_task(ledger.hold_async(ledger.request(nanos, scope="app")))
    await asyncio.sleep(0)
    if moment != "handed over":
        counter.run_batch(9)
    if moment == "freed":
        ledger.end_soon(Ending(hold=blocker.id, kind="void"))
        counter.run_batch(9)
    assert ledger.waiting == (moment == "waiting")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(4):
        counter.run_batch(9)
    ledger_now = ledger.check()
    assert ledger_now.held_nanos == (0 if moment == "freed" else 60)
    with ledger.reader() as reader:
        assert not list(reader.waiting())
    assert ledger.waiting == 0


async def test_a_coroutine_that_is_closed_leaves_nothing_held(make_ledger: MakeLedger) -> None:
    """A hold whose coroutine is thrown away (generator close) is void, not leaked."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    blocker = ledger.hold(ledger.request(60, scope="app"))
    coroutine = ledger.hold_async(ledger.request(80, scope="app"))
    coroutine.send(None)
    coroutine.close()
    ledger.void(blocker)
    await settled(lambda: ledger.balance("app").held_nanos == 0 and ledger.waiting == 0)


def test_a_loop_that_ends_leaves_nothing_held(make_ledger: MakeLedger) -> None:
    """An event loop that is closed while its calls wait takes nothing with it."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    blocker = ledger.hold(ledger.request(60, scope="app"))

    async def main() -> None:
        task = asyncio.create_task(ledger.hold_async(ledger.request(80, scope="app")))
        await settled(lambda: ledger.waiting == 1)
        assert not task.done()

    asyncio.run(main())
    ledger.void(blocker)
    assert ledger.hold(ledger.request(100, scope="app"), timeout_s=10)


def test_a_loop_that_is_just_gone_leaves_nothing_held(make_ledger: MakeLedger) -> None:
    """Even a loop that was closed without any goodbye: a hold that nobody can be told of is void."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    blocker = ledger.hold(ledger.request(60, scope="app"))
    loop = asyncio.new_event_loop()
    task = loop.create_task(ledger.hold_async(ledger.request(80, scope="app")))
    loop.run_until_complete(settled(lambda: ledger.waiting == 1))
    loop.close()
    threading.Thread(target=ledger.void, args=[blocker]).start()  # as from another program's thread
    assert ledger.hold(ledger.request(100, scope="app"), timeout_s=10)
    task.get_coro().close()  # type: ignore[union-attr]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_waiting_has_a_time_limit_for_threads(make_ledger: MakeLedger) -> None:
    """A thread may say how long it waits; afterwards nothing is held for it."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    blocker = ledger.hold(ledger.request(60, scope="app"))
    with pytest.raises(TimeoutError, match=r"within 0.05 s: held money was in the way"):
        ledger.hold(ledger.request(80, scope="app"), timeout_s=0.05)
    ledger.void(blocker)
    assert ledger.waiting == 0
    assert ledger.balance("app").held_nanos == 0


def test_threads_wait_for_each_other(make_ledger: MakeLedger) -> None:
    """Eight threads share money for one call: all are served, none at the same time."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            hold = ledger.hold(ledger.request(60, scope="app"))
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            ledger.void(hold)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max(most) == 1
    assert len(most) == 80


async def test_money_that_is_posted_or_in_doubt_is_not_waited_for(make_ledger: MakeLedger) -> None:
    """A call that waits is declined as soon as what it waited for is posted or in doubt."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    line = Line(ledger)
    await line.ask("first", 60, waits=False)
    await line.ask("second", 50)
    await ledger.end_async(Ending(hold=line.hold_of("first").id, kind="doubt"))
    with pytest.raises(BudgetExceeded, match="in doubt"):
        await line.tasks["second"]
    await line.ask("third", 40, waits=False)
    await line.ask("fourth", 30)
    await ledger.end_async(Ending(hold=line.hold_of("third").id, kind="settle", nanos=40))
    with pytest.raises(BudgetExceeded):
        await line.tasks["fourth"]
    with ledger.reader() as reader:
        assert not list(reader.waiting())


async def test_raising_or_lifting_a_cap_wakes_those_who_wait(make_ledger: MakeLedger) -> None:
    """Money is also made by a higher cap."""
    cap = Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code")
    ledger = make_ledger(cap)
    line = Line(ledger)
    await line.ask("first", 60, waits=False)
    await line.ask("second", 60)
    await line.ask("third", 60)
    await asyncio.to_thread(
        ledger.set_cap, Cap.from_nanos(120, per=None, scope="app", tz="UTC", owner="code")
    )
    await line.tasks["second"]
    await asyncio.to_thread(ledger.drop_cap, cap)
    await line.tasks["third"]


async def test_a_turning_window_wakes_those_who_wait(
    file_ledger: MakeLedger, clock: ManualClock
) -> None:
    """At midnight the queue of a day's cap moves on without anybody's doing."""
    ledger = file_ledger(Cap.from_nanos(100, per="day", scope="app", tz="UTC", owner="code"))
    line = Line(ledger)
    await line.ask("first", 60, waits=False)
    await line.ask("second", 60)
    clock.move(hours=12)
    await line.tasks["second"]
    assert ledger.check().ok


async def test_another_process_frees_the_money(file_ledger: MakeLedger) -> None:
    """What one process settles, a call that waits in another gets; and the queue is one for all."""
    here = file_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    there = file_ledger()
    hold = there.hold(there.request(60, scope="app"))
    first, second = Line(here), Line(there)
    await first.ask("here", 80)
    await second.ask("there", 30)
    assert not second.tasks["there"].done(), "it may not overtake who waits in another process"
    await there.end_async(Ending(hold=hold.id, kind="void"))
    await first.tasks["here"]
    await here.end_async(Ending(hold=first.hold_of("here").id, kind="void"))
    await second.tasks["there"]


async def test_a_ledger_that_closes_leaves_its_places(file_ledger: MakeLedger) -> None:
    """Calls that wait in a ledger that is closed are declined, and stand in nobody's way."""
    here = file_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    there = file_ledger()
    hold = there.hold(there.request(60, scope="app"))
    line = Line(here)
    await line.ask("here", 80)
    await asyncio.to_thread(here.close)
    with pytest.raises(LedgerUnavailable, match="it was closed"):
        await line.tasks["here"]
    assert await asyncio.to_thread(there.hold, there.request(30, scope="app"), timeout_s=10)
    there.void(hold)
