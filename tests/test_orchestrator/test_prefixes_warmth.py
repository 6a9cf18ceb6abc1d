"""Who goes first for a cold prefix, and who may follow: one registry, tasks, threads and a clock by hand."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from orchestrator.prefixes.warmth import Warmer, Warmth

from .gate_clock import ManualClock, settle

KEY = b"prefix"


class Calls:
    """Calls that become ready one after the other, and end as the test says."""

    def __init__(self, warmth: Warmth) -> None:
        self.warmth = warmth
        #: Seconds that each call has for everything.
        self.left_s: float | None = None
        self.gone: list[int] = []
        self.warmers = [Warmer() for _ in range(20)]
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, *numbers: int) -> None:
        self.tasks += [asyncio.create_task(self._go(number)) for number in numbers]

    async def _go(self, number: int) -> None:
        await self.warmth.ready_async(KEY, self.warmers[number], left_s=self.left_s)
        self.gone.append(number)

    def warms(self, number: int) -> bool:
        return KEY in self.warmers[number].keys

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def calls(*, settle_s: float = 0, deadline: float | None = None) -> tuple[Calls, ManualClock]:
    clock = ManualClock()
    warmth = Warmth(clock, settle_s=settle_s, patience_s=60, deadline=deadline)
    return Calls(warmth), clock


async def test_the_first_goes_alone_and_the_others_follow_its_answer() -> None:
    """Nobody else goes before the first answer begins; then all do, without any of them warming again."""
    many, _ = calls()
    many.start(*range(10))
    await settle()
    assert many.gone == [0]

    many.warmth.began(KEY, many.warmers[0], "5m")
    await settle()

    assert many.gone == list(range(10))
    assert [many.warms(number) for number in range(1, 10)] == [False] * 9


async def test_the_others_wait_until_the_entry_has_settled() -> None:
    """After the begin of the answer the others, late ones too, wait for the settle delay, and no longer."""
    many, clock = calls(settle_s=0.25)
    many.start(0, 1)
    await settle()
    many.warmth.began(KEY, many.warmers[0], "5m")
    many.start(2)
    await clock.run(0.24)
    assert many.gone == [0]

    await clock.run(0.02)
    many.start(3)
    await settle()

    assert many.gone == [0, 1, 2, 3]


async def test_a_warmer_that_fails_is_followed_by_the_next() -> None:
    """Each failure sends exactly one more ahead."""
    many, _ = calls()
    many.start(0, 1, 2, 3)
    await settle()
    many.warmth.failed(KEY, many.warmers[0])
    await settle()
    assert many.gone == [0, 1]
    many.warmth.failed(KEY, many.warmers[1])
    await settle()
    assert many.gone == [0, 1, 2]

    many.warmth.began(KEY, many.warmers[2], "5m")
    await settle()

    assert many.gone == [0, 1, 2, 3]


async def test_a_waiter_that_is_cancelled_takes_no_turn_with_it() -> None:
    """Whether a waiter leaves before or just after it was given the turn, the next one gets it."""
    many, _ = calls()
    many.start(0, 1, 2, 3)
    await settle()
    many.tasks[1].cancel()
    await settle()
    many.warmth.failed(KEY, many.warmers[0])  # the turn is 2's, which has not run since
    many.tasks[2].cancel()
    await settle()

    assert many.gone == [0, 3]
    assert many.warms(3)
    assert not many.warms(2)


async def test_patience_ends_with_somebody_else_going_ahead() -> None:
    """A warmer without an answer for a minute is followed by one other; its own answer still warms."""
    many, clock = calls()
    many.start(0, 1, 2)
    await settle()
    await clock.run(59)
    assert many.gone == [0]
    await clock.run(2)
    assert many.gone == [0, 1]

    many.warmth.began(KEY, many.warmers[0], "5m")
    many.warmth.failed(KEY, many.warmers[1])  # late: it is warm
    await settle()

    assert many.gone == [0, 1, 2]


async def test_who_has_little_time_waits_for_a_third_of_it() -> None:
    """Behind a warmer that hangs one other goes ahead after a sixth, and all go after a third, warm or not."""
    many, clock = calls()
    many.left_s = 30
    many.start(0, 1, 2, 3)
    await settle()
    await clock.run(4.9)
    assert many.gone == [0]
    await clock.run(0.2)
    assert many.gone == [0, 1]
    assert many.warms(1)

    await clock.run(4.8)
    assert many.gone == [0, 1]
    await clock.run(0.2)

    assert many.gone == [0, 1, 2, 3]
    assert not many.warms(2)


async def test_a_second_warmer_spares_the_others_the_wait() -> None:
    """Once its answer has begun they read what it wrote, within their time."""
    many, clock = calls()
    many.left_s = 30
    many.start(0, 1, 2, 3)
    await clock.run(5.1)
    many.warmth.began(KEY, many.warmers[1], "5m")
    await settle()

    assert many.gone == [0, 1, 2, 3]
    assert [many.warms(2), many.warms(3)] == [False, False]


async def test_nobody_waits_past_the_deadline() -> None:
    """At the deadline of the run all go, to be told there."""
    many, clock = calls(deadline=1_010)
    many.start(0, 1, 2)
    await clock.run(9)
    assert many.gone == [0]
    await clock.run(2)
    many.start(3)
    await settle()

    assert many.gone == [0, 1, 2, 3]


@pytest.mark.parametrize(("ttl", "warm_s"), [("5m", 240), ("1h", 2_880)])
async def test_a_prefix_is_cold_again_after_its_lifetime(ttl: str, warm_s: int) -> None:
    """It counts as warm for four fifths of its lifetime after the last answer, then one goes alone again."""
    many, clock = calls()
    many.start(0)
    await settle()
    many.warmth.began(KEY, many.warmers[0], ttl)  # type: ignore[arg-type]
    await clock.run(warm_s - 1)
    many.start(1)
    await settle()
    assert not many.warms(1)
    many.warmth.began(KEY, many.warmers[1], ttl)  # type: ignore[arg-type]
    await clock.run(warm_s - 1)
    many.start(2)
    await settle()
    assert not many.warms(2)

    await clock.run(2)
    many.start(3, 4)
    await settle()

    assert many.warms(3)
    assert many.gone == [0, 1, 2, 3]
    await many.end()


async def test_a_prefix_that_is_not_cached_holds_nobody_up() -> None:
    """Where a marker was seen to do nothing, those who wait go, and later ones don't wait."""
    many, _ = calls()
    many.start(0, 1, 2)
    await settle()
    many.warmth.note_inert(KEY)
    many.start(3)
    await settle()

    assert sorted(many.gone) == [0, 1, 2, 3]
    assert many.warmth.is_inert(KEY)


def test_threads_wait_as_tasks_do() -> None:
    """A thread that waits goes when the answer that somebody else waits for begins."""
    warmth = Warmth(ManualClock(), settle_s=0, patience_s=60)
    first, second = Warmer(), Warmer()
    warmth.ready(KEY, first)
    gone = threading.Event()

    def follow() -> None:
        warmth.ready(KEY, second)
        gone.set()

    thread = threading.Thread(target=follow)
    thread.start()
    while not warmth._prefixes[KEY].line:
        threading.Event().wait(0.001)
    assert not gone.is_set()
    warmth.began(KEY, first, "5m")
    thread.join(5)

    assert gone.is_set()
    assert second.keys == []


@pytest.mark.parametrize("seed", range(40))
async def test_every_call_goes_whatever_happens(seed: int) -> None:
    """In any order of failures, answers, cancellations and time, nobody is forgotten."""
    chance = random.Random(seed)
    many, clock = calls(settle_s=chance.choice([0, 0.1]))
    ended: set[int] = set()

    async def live(number: int) -> None:
        warmer = many.warmers[number]
        await many.warmth.ready_async(KEY, warmer)
        await asyncio.sleep(0)
        if chance.random() < 0.4:
            for key in list(warmer.keys):
                many.warmth.failed(key, warmer)
        else:
            many.warmth.began(KEY, warmer, "5m")
        ended.add(number)

    tasks = [asyncio.create_task(live(number)) for number in range(20)]
    for task in tasks:
        await asyncio.sleep(0)
        if chance.random() < 0.2:
            task.cancel()
    for _ in range(100):
        await clock.run(1)
    done = await asyncio.gather(*tasks, return_exceptions=True)

    cancelled = {n for n, end in enumerate(done) if isinstance(end, asyncio.CancelledError)}
    assert ended | cancelled == set(range(20))
    assert not many.warmth._prefixes[KEY].line
