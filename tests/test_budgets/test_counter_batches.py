"""Batches in which one entry is at fault, a store that fails, and results that find their way."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from budgets.caps import Cap
from budgets.counter import Operation
from budgets.errors import LedgerError, LedgerUnavailable
from budgets.ledger import Ledger
from budgets.records import Ending, Hold
from budgets.stores.memory import MemoryStore

from .conftest import MakeLedger
from .faulty_store import FaultyStore, SteppedCounter, Trouble


async def settled(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads go on until something is so; the test's time limit ends what never comes."""
    while not condition():
        await asyncio.sleep(0.001)


# ---- one bad entry in a batch -----------------------------------------------------------------------------


def stepped(trouble: Trouble | None = None) -> tuple[Ledger, SteppedCounter]:
    """A ledger whose batches are run by hand."""
    store = FaultyStore(MemoryStore(), trouble or Trouble())
    cap = Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code")
    ledger = Ledger(caps=[cap], fallback=(), store=store)
    counter = SteppedCounter(store, ledger._rules, ledger._now_us)
    ledger._counter = counter
    return ledger, counter


class Box:
    """Takes a result."""

    def __init__(self) -> None:
        self.results: list[object] = []

    def __call__(self, result: object) -> None:
        self.results.append(result)


def ask(ledger: Ledger, counter: SteppedCounter, nanos: int) -> Box:
    box = Box()
    counter.submit(Operation(None, box, request=ledger.request(nanos, scope="app")))
    return box


def test_an_operation_that_breaks_hurts_nobody_else() -> None:
    """Whatever one operation raises, the others of its batch are done and only it is told."""
    ledger, counter = stepped()
    before, bad, after = Box(), Box(), Box()
    good = [ask(ledger, counter, 10)]
    counter.submit(Operation(lambda txn, at: {}["odd"], bad))
    good.append(ask(ledger, counter, 20))
    counter.submit(Operation(lambda txn, at: "fine", after))
    counter.run_batch(9)
    assert [type(r) for box in good for r in box.results] == [Hold, Hold]
    assert after.results == ["fine"]
    assert [type(r) for r in bad.results] == [LedgerError]
    assert "can't be written ('odd'); nothing was changed" in str(bad.results[0])
    assert ledger.balance("app").held_nanos == 30
    assert ledger.check().ok
    assert before.results == []


def test_a_bad_entry_does_not_cost_others_their_place_in_the_queue() -> None:
    """A batch that has to be done one by one keeps the queue's order, old places and new."""
    ledger, counter = stepped()
    first = ask(ledger, counter, 60)
    counter.run_batch(9)
    old = ask(ledger, counter, 90)
    counter.run_batch(9)
    new = ask(ledger, counter, 50)
    counter.submit(Operation(lambda txn, at: {}["odd"], Box()))
    late = ask(ledger, counter, 10)
    counter.run_batch(9)
    with ledger.reader() as reader:
        assert [w.nanos for w in reader.waiting()] == [90, 50, 10]
    assert (old.results, new.results, late.results, ledger.waiting) == ([], [], [], 3)
    (hold,) = first.results
    assert isinstance(hold, Hold)
    ledger.end_soon(Ending(hold=hold.id, kind="void"))
    counter.run_batch(9)
    assert [len(box.results) for box in (old, new, late)] == [1, 0, 0]


def test_a_store_that_fails_declines_holds_and_keeps_settlements() -> None:
    """While the store fails holds are declined, settlements are kept, and places in the queue given up."""
    trouble = Trouble()
    ledger, counter = stepped(trouble)
    first = ask(ledger, counter, 60)
    counter.run_batch(9)
    waits = ask(ledger, counter, 90)
    counter.run_batch(9)
    (hold,) = first.results
    assert isinstance(hold, Hold)
    trouble.arm(3, lasting=True)
    ending, asked = Box(), ask(ledger, counter, 5)
    counter.submit(
        Operation(
            lambda txn, at: ledger._rules.end(
                txn, Ending(hold=hold.id, kind="settle", nanos=7), at
            ),
            ending,
            must=True,
        )
    )
    for _ in range(3):
        counter.run_batch(9)
    assert [type(r) for r in [*asked.results, *waits.results]] == [
        LedgerUnavailable,
        LedgerUnavailable,
    ]
    assert ending.results == []
    trouble.disarm()
    counter.run_batch(9)
    assert len(ending.results) == 1
    with ledger.reader() as reader:
        assert not list(reader.waiting())
    assert (ledger.balance("app").posted_nanos, ledger.balance("app").held_nanos) == (7, 0)
    assert ledger.check().ok


@pytest.mark.parametrize("nth", range(1, 25))
def test_a_fault_at_any_statement_undoes_the_whole_batch(nth: int) -> None:
    """Whichever statement fails, nothing of the batch is kept, and the next batch finds everything as it was."""
    trouble = Trouble()
    ledger, counter = stepped(trouble)
    first, second = ask(ledger, counter, 60), ask(ledger, counter, 30)
    counter.run_batch(9)
    holds = [r for box in (first, second) for r in box.results if isinstance(r, Hold)]
    before = (list(ledger.lines()), ledger.open_holds(), ledger.balance("app"))
    trouble.arm(nth)
    boxes = [ask(ledger, counter, 5), ask(ledger, counter, 90)]
    counter.submit(
        Operation(
            lambda txn, at: ledger._rules.end(
                txn, Ending(hold=holds[0].id, kind="settle", nanos=9), at
            ),
            Box(),
        )
    )
    counter.run_batch(9)
    if not trouble.hits:
        return
    assert (list(ledger.lines()), ledger.open_holds(), ledger.balance("app")) == before
    assert ledger.waiting == 0
    trouble.disarm()
    again = ask(ledger, counter, 10)
    counter.run_batch(9)
    assert isinstance(again.results[0], Hold)
    assert all(isinstance(r, LedgerUnavailable) for box in boxes for r in box.results)
    assert ledger.check().ok


def test_a_lost_place_is_taken_back_but_nobody_elses(file_ledger: MakeLedger) -> None:
    """A place that a fault made uncertain is dropped later, and never the place of another process."""
    here = file_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    there = file_ledger()
    here.hold(here.request(60, scope="app"))

    def wait_there() -> None:
        with pytest.raises(LedgerError):
            there.hold(there.request(90, scope="app"))

    thread = threading.Thread(target=wait_there)
    thread.start()
    while not there.waiting:
        time.sleep(0.001)
    with there.reader() as reader:
        (ticket,) = [w.ticket for w in reader.waiting()]
    here._counter._stranded.add(ticket)
    here.set_cap(Cap.from_nanos(110, per=None, scope="app", tz="UTC", owner="code"))
    with here.reader() as reader:
        assert [w.ticket for w in reader.waiting()] == [ticket]
    there.close()
    thread.join(10)


# ---- results find their way -------------------------------------------------------------------------------


def test_a_receiver_that_breaks_does_not_stop_the_ledger(
    file_ledger: MakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises is logged; the next call is served."""
    ledger = file_ledger()

    def broken(_: object) -> None:
        raise ZeroDivisionError

    ledger._counter.submit(Operation(lambda txn, at: None, broken))
    assert ledger.hold(ledger.request(1))
    assert "could not be delivered" in caplog.text


def test_several_loops_share_one_ledger(make_ledger: MakeLedger) -> None:
    """Loops of several threads hold and settle on one ledger, each hearing on its own loop."""
    ledger = make_ledger(Cap.from_nanos(500, per=None, scope="app", tz="UTC", owner="code"))

    async def main() -> int:
        thread = threading.get_ident()

        async def call() -> None:
            hold = await ledger.hold_async(ledger.request(100, scope="app"))
            assert threading.get_ident() == thread
            await ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=1))

        await asyncio.gather(*(call() for _ in range(25)))
        return 25

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda _: asyncio.run(main()), range(4))) == 100
    assert ledger.balance("app").posted_nanos == 100
    assert ledger.check().ok


def test_a_finalizer_may_end_a_hold_in_the_middle_of_another_step(make_ledger: MakeLedger) -> None:
    """``end_soon`` from a finalizer that runs anywhere, even inside the ledger's own work, is done."""
    ledger = make_ledger()
    hold = ledger.hold(ledger.request(50))

    class Dropped:
        def __del__(self) -> None:
            ledger.end_soon(Ending(hold=hold.id, kind="void"))

    def work(txn: object, at_us: int) -> str:
        dropped = Dropped()
        dropped.me = dropped  # type: ignore[attr-defined]
        del dropped
        gc.collect()
        return "done"

    assert ledger._run(work) == "done"
    assert ledger.hold(ledger.request(1))
    assert [line.kind for line in ledger.lines(hold=hold.id)] == ["hold", "void"]


async def test_an_end_is_done_though_its_caller_is_cancelled(make_ledger: MakeLedger) -> None:
    """Once begun, a settlement is written, whatever becomes of the task (S-01)."""
    ledger = make_ledger()
    hold = ledger.hold(ledger.request(50))
    task = asyncio.create_task(ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=20)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settled(lambda: ledger.balance().posted_nanos == 20)


def test_after_end_soon_the_figures_are_current(file_ledger: MakeLedger) -> None:
    """Reading waits for what was handed over before, so that a report never misses the last charge."""
    ledger = file_ledger()
    for number in range(1, 30):
        ledger.end_soon(Ending(hold=ledger.hold(ledger.request(5)).id, kind="settle", nanos=1))
        assert ledger.balance().posted_nanos == number
