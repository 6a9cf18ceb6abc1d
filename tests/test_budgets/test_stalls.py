"""Stalls: what nobody refers to any more never keeps others waiting for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from budgets import Cap, stalls
from budgets.records import Ending

from .conftest import MakeLedger


class Forgotten:
    """A hold that ends when it is collected, and that only the collector finds: it refers to itself."""

    def __init__(self, end: object) -> None:
        self.me = self
        self.end = end

    def __del__(self) -> None:
        self.end()  # type: ignore[operator]


@pytest.fixture(autouse=True)
def _nothing_is_collected_by_chance() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("waits_in", ["a task", "a thread"])
async def test_money_of_a_forgotten_hold_comes_back(make_ledger: MakeLedger, waits_in: str) -> None:
    """Everybody waits and nothing is allocated: the collector runs all the same, and the wait ends."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    hold = ledger.hold(ledger.request(60, scope="app"))
    Forgotten(lambda: ledger.end_soon(Ending(hold=hold.id, kind="void", note={})))

    if waits_in == "a task":
        async with asyncio.timeout(20):
            assert await ledger.hold_async(ledger.request(80, scope="app"))
    else:
        assert await asyncio.to_thread(ledger.hold, ledger.request(80, scope="app"), timeout_s=20)


def test_who_only_waits_long_is_not_disturbed_for_ever() -> None:
    """Each look through everything that did not help doubles the time until the next one."""
    pace, at, fulls = stalls._Pace(), 0.0, []
    while at < 600:
        at += pace.pause_s
        if pace.next(stuck=True) == 2:
            fulls.append(at)
    assert fulls[0] < 2
    assert len(fulls) < 30


def test_a_stall_that_was_one_is_found_quicker_the_next_time() -> None:
    """A look that helped halves the time again."""
    pace = stalls._Pace()
    for _ in range(12):  # ten minutes of calls that just take their time
        pace.next(stuck=True)
    patient = pace._full_after_s
    for _ in range(20):
        pace.next(stuck=False)
        while pace.next(stuck=True) != 2:
            pass
        pace.next(stuck=False)
    assert pace._full_after_s < patient


def test_nobody_waits_and_the_watch_sleeps(make_ledger: MakeLedger) -> None:
    """A queue in which nobody waits any more is not looked at."""
    ledger = make_ledger(Cap.from_nanos(100, per=None, scope="app", tz="UTC", owner="code"))
    hold = ledger.hold(ledger.request(60, scope="app"))
    waiting = threading.Thread(target=ledger.hold, args=[ledger.request(80, scope="app")])
    waiting.start()
    while not ledger.waiting:
        pass
    ledger.void(hold)
    waiting.join(20)
    assert not waiting.is_alive()
    assert ledger._counter.standing() is None
