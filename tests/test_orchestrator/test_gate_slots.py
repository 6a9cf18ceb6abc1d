"""Slots: fair order over tasks, threads and loops; nothing leaks, nobody is stuck behind the dead."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Coroutine

import pytest

from orchestrator.gate import Gate, NestedTooDeep, RateDeadline, Ticket

from .gate_clock import ManualClock, settle

MODEL = "claude-opus-5-5"
OTHER = "claude-sonnet-5-5"


def gate_of(width: int, **options: int) -> Gate:
    return Gate(width, clock=ManualClock(), jitter=lambda: 0.0, **options)


def stranger(work: Coroutine[object, object, Ticket]) -> "asyncio.Task[Ticket]":
    """A task that inherits no open slots from the test."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def test_a_free_slot_takes_no_task_switch() -> None:
    """Entering and leaving an idle gate never yields to other tasks."""
    gate = gate_of(4)
    steps = iter(range(10))
    asyncio.get_running_loop().call_soon(lambda: next(steps))
    with await gate.enter(MODEL) as ticket:
        await ticket.pace(input_tokens=1, output_tokens=1)
    assert next(steps) == 0


async def test_order_of_arrival() -> None:
    """Ten tasks that wait for one slot get it in the order in which they came."""
    gate = gate_of(1)
    order: list[int] = []

    async def work(number: int) -> None:
        with await gate.enter(MODEL):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(work(number))
    assert order == list(range(10))


async def test_a_newcomer_does_not_overtake() -> None:
    """Whoever comes when a slot was just freed for a waiter waits behind that waiter."""
    gate = gate_of(1)
    first = await gate.enter(MODEL)
    waiting = stranger(gate.enter(MODEL))
    await settle()
    first.close()
    newcomer = stranger(gate.enter(MODEL))
    await settle()
    assert waiting.done()
    assert not newcomer.done()
    (await waiting).close()
    (await newcomer).close()


async def test_the_width_counts_over_all_groups() -> None:
    """Two groups share the slots of the gate, in order of arrival across both (O-19)."""
    gate = gate_of(2)
    tickets = [await stranger(gate.enter(MODEL)), await stranger(gate.enter(OTHER))]
    waiting = [stranger(gate.enter(name)) for name in (OTHER, MODEL)]
    await settle()
    tickets[0].close()
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    tickets[1].close()
    for task in waiting:
        (await task).close()
    assert gate.statistics().in_use == 0


async def test_a_full_group_does_not_block_another() -> None:
    """A group at its own width leaves the rest of the gate to others."""
    gate = gate_of(64)
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    stuck = stranger(gate.enter(MODEL))
    await settle()
    free = stranger(gate.enter(OTHER))
    await settle()
    assert free.done()
    assert not stuck.done()
    for ticket in tickets:
        ticket.close()
    (await stuck).close()
    (await free).close()


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_waiter_leaves_no_trace(granted: bool) -> None:
    """Cancelled while it waits, or in the moment when the slot was its already: the next one goes."""
    gate = gate_of(1)
    first = await gate.enter(MODEL)
    cancelled = stranger(gate.enter(MODEL))
    following = stranger(gate.enter(MODEL))
    await settle()
    if granted:
        first.close()
    cancelled.cancel()
    if not granted:
        first.close()
    await settle()
    assert cancelled.cancelled()
    (await following).close()
    assert gate.statistics().in_use == 0
    assert gate.statistics().waiting == 0


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_pace_gives_back_what_it_took(granted: bool) -> None:
    """A call that was cancelled before it left takes nothing from the rate."""
    clock = ManualClock()
    gate = Gate(requests_per_minute=60, clock=clock)
    first, second, third = [await gate.enter(MODEL) for _ in range(3)]
    await first.pace(input_tokens=1, output_tokens=1)
    cancelled = asyncio.create_task(second.pace(input_tokens=1, output_tokens=1))
    following = asyncio.create_task(third.pace(input_tokens=1, output_tokens=1))
    await settle()
    if granted:
        clock.advance(1)
    cancelled.cancel()
    if not granted:
        clock.advance(1)
    await settle()
    assert cancelled.cancelled()
    assert following.done()
    for ticket in (first, second, third):
        ticket.close()
    assert gate.statistics().in_use == 0


async def test_closing_twice_frees_one_slot() -> None:
    """A ticket closed again and again releases its slot once."""
    gate = gate_of(1)
    ticket = await gate.enter(MODEL)
    for _ in range(3):
        ticket.close()
    assert gate.statistics().in_use == 0
    assert not ticket.is_open


async def test_a_lost_ticket_comes_back() -> None:
    """A ticket that nobody closed is closed when it is garbage-collected, and counted."""
    gate = gate_of(1)
    await gate.enter(MODEL)
    gc.collect()
    (await gate.enter(MODEL)).close()
    assert gate.statistics().dropped == 1


def test_a_finalizer_may_close_inside_the_gate() -> None:
    """Tickets that die in cycles, in the middle of whatever the gate does, neither block nor leak."""
    gate = Gate(1000)
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(300):
            ticket = gate.enter_sync(MODEL) if gate.statistics().in_use < 8 else None
            cycle: list[object] = [ticket]
            cycle.append(cycle)
            del ticket, cycle
            gate.statistics()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert gate.statistics().in_use == 0


async def test_pace_is_failed_when_the_ticket_is_closed_elsewhere() -> None:
    """A ticket closed by another task ends the wait with a clear error, not with a hang."""
    gate = Gate(requests_per_minute=1, clock=ManualClock())
    first, second = await gate.enter(MODEL), await gate.enter(MODEL)
    await first.pace(input_tokens=1, output_tokens=1)
    waiting = asyncio.create_task(second.pace(input_tokens=1, output_tokens=1))
    await settle()
    second.close()
    with pytest.raises(RuntimeError, match="closed while it waited"):
        await waiting
    first.close()


# Threads and loops


def test_threads_and_loops_share_one_gate() -> None:
    """Threads and tasks of several loops, all at once: never more than the width, none forgotten."""
    gate = Gate(3)
    lock = threading.Lock()
    now = most = done = 0

    def count(step: int) -> None:
        nonlocal now, most, done
        with lock:
            now += step
            most = max(most, now)
            done += step < 0

    def in_thread() -> None:
        for _ in range(50):
            with gate.enter_sync(MODEL) as ticket:
                ticket.pace_sync(input_tokens=1, output_tokens=1)
                count(+1)
                count(-1)

    async def task() -> None:
        for _ in range(10):
            with await gate.enter(MODEL) as ticket:
                await ticket.pace(input_tokens=1, output_tokens=1)
                count(+1)
                await asyncio.sleep(0)
                count(-1)

    async def in_loop() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(task())

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(in_loop())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert done == 4 * 50 + 3 * 100
    assert most <= 3
    assert gate.statistics().in_use == 0


def test_a_closed_loop_with_waiters_blocks_nobody() -> None:
    """Waiters of a loop that was closed under them are passed over."""
    gate = gate_of(1)
    ticket = gate.enter_sync(MODEL)
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(gate.enter(MODEL), context=contextvars.Context())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    ticket.close()
    assert contextvars.Context().run(lambda: gate.enter_sync(MODEL)).is_open is True
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_loop_that_stands_still_is_passed_over_and_keeps_its_place() -> None:
    """A stopped loop holds up nobody; when it runs again its waiter is first in line."""
    gate = gate_of(1)
    first = gate.enter_sync(MODEL)
    loop = asyncio.new_event_loop()
    sleeper = loop.create_task(gate.enter(MODEL), context=contextvars.Context())
    loop.run_until_complete(asyncio.sleep(0))
    first.close()
    second = contextvars.Context().run(gate.enter_sync, MODEL)
    loop.run_until_complete(asyncio.sleep(0))
    assert not sleeper.done()
    second.close()
    ticket = loop.run_until_complete(sleeper)
    assert gate.statistics().in_use == 1
    ticket.close()
    loop.close()


def test_a_ticket_may_be_closed_from_another_loop() -> None:
    """A stream that is finalised in another loop or thread wakes the waiter in its own."""
    gate = Gate(1)
    ticket = gate.enter_sync(MODEL)
    waits = threading.Event()
    closed: list[bool] = []

    async def wait() -> None:
        task = stranger(gate.enter(MODEL))
        await asyncio.sleep(0)
        waits.set()
        (await task).close()
        closed.append(True)

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    waits.wait(10)
    ticket.close()
    thread.join(10)
    assert closed == [True]


def test_a_gate_nobody_uses_is_freed() -> None:
    """An alarm that is set for later keeps no gate alive."""
    clock = ManualClock()
    gate = Gate(requests_per_minute=1, clock=clock)
    alive = weakref.ref(gate._desk)

    async def give_up(gate: Gate) -> None:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=1, output_tokens=1)
        with await gate.enter(MODEL) as ticket:
            waiting = asyncio.create_task(ticket.pace(input_tokens=1, output_tokens=1))
            await settle()
            waiting.cancel()
            await settle()

    contextvars.Context().run(asyncio.run, give_up(gate))
    del gate
    gc.collect()
    assert alive() is None
    clock.advance(120)


# Calls inside open calls


@pytest.mark.parametrize("depth", [1, 2, 5])
async def test_nested_calls_of_one_task_do_not_deadlock(depth: int) -> None:
    """Width 1, streams opened inside open streams five deep: each goes, as overflow (R-09)."""
    gate = gate_of(1)

    async def nest(level: int) -> int:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=1, output_tokens=1)
            return level if level == depth else await nest(level + 1)

    assert await asyncio.wait_for(nest(1), 5) == depth
    assert gate.statistics().in_use == 0
    assert gate.statistics().overflow == 0


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_nested_calls_of_one_thread_do_not_deadlock(depth: int) -> None:
    """The same for synchronous callers (R-10)."""
    gate = gate_of(1)

    def nest(level: int) -> int:
        with gate.enter_sync(MODEL) as ticket:
            ticket.pace_sync(input_tokens=1, output_tokens=1)
            return level if level == depth else nest(level + 1)

    assert nest(1) == depth
    assert gate.statistics().in_use == 0


async def test_children_of_an_open_call_go_one_at_a_time() -> None:
    """A hundred tasks started inside an open stream finish at width 1, one beyond the width at most."""
    gate = gate_of(1)
    most = 0

    async def child() -> None:
        nonlocal most
        with await gate.enter(MODEL):
            most = max(most, gate.statistics().in_use)
            await asyncio.sleep(0)

    with await gate.enter(MODEL):
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            for _ in range(100):
                tasks.create_task(child())
    assert most == 2
    assert gate.statistics().in_use == 0


async def test_a_stranger_gets_no_overflow() -> None:
    """A task that holds nothing waits, even while another one's nested calls are let in."""
    gate = gate_of(1)
    outer = await gate.enter(MODEL)
    waiting = stranger(gate.enter(MODEL))
    await settle()
    inner = await gate.enter(MODEL)
    assert inner.is_overflow
    inner.close()
    await settle()
    assert not waiting.done()
    outer.close()
    (await waiting).close()


async def test_a_closed_call_lends_nothing() -> None:
    """Who has closed its call is a stranger again."""
    gate = gate_of(1)
    (await gate.enter(MODEL)).close()
    holder = await stranger(gate.enter(MODEL))
    waiting = asyncio.create_task(gate.enter(MODEL))
    await settle()
    assert not waiting.done()
    holder.close()
    (await waiting).close()


async def test_overflow_ends_at_the_connection_pool() -> None:
    """Nested calls never pass the pool: where waiting could not end, an error says so."""
    gate = gate_of(1, pool=3)
    tickets = [await gate.enter(MODEL) for _ in range(3)]
    with pytest.raises(NestedTooDeep, match="connection pool"):
        await gate.enter(MODEL)
    assert gate.statistics().waiting == 0
    for ticket in tickets:
        ticket.close()
    assert gate.statistics().in_use == 0


# Deadlines


async def test_a_wait_for_a_slot_ends_at_the_deadline() -> None:
    """Who gets no slot in time is told, and is out of the queue."""
    clock = ManualClock()
    gate = Gate(1, clock=clock)
    first = await gate.enter(MODEL)
    waiting = stranger(gate.enter(MODEL, clock.monotonic() + 10))
    await clock.run(9.9)
    assert not waiting.done()
    await clock.run(0.1)
    with pytest.raises(RateDeadline, match="free slot") as caught:
        await waiting
    assert caught.value.retry_at is None
    assert gate.statistics().waiting == 0
    first.close()


def test_a_deadline_wakes_a_thread() -> None:
    """A blocked thread ends at its deadline by the machine's clock too."""
    gate = Gate(1)
    with gate.enter_sync(MODEL):
        caught: list[Exception] = []

        def wait() -> None:
            try:
                gate.enter_sync(MODEL, gate.clock.monotonic() + 0.02)
            except RateDeadline as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
    assert len(caught) == 1


async def test_a_deadline_in_the_past_sends_nothing() -> None:
    """A call that comes after its deadline is refused even where slots are free."""
    gate = gate_of(4)
    with pytest.raises(RateDeadline, match="after its deadline"):
        await gate.enter(MODEL, gate.clock.monotonic())
    ticket = await gate.enter(MODEL)
    with pytest.raises(RateDeadline):
        await ticket.pace(input_tokens=1, output_tokens=1, deadline=gate.clock.monotonic())
    ticket.close()
    assert gate.statistics().in_use == 0


async def test_deadlines_of_the_past_are_forgotten() -> None:
    """Thousands of calls that waited under a far deadline leave nothing behind while others wait."""
    clock = ManualClock()
    gate = Gate(1, clock=clock)
    far = clock.monotonic() + 1e6
    current = await stranger(gate.enter(MODEL, far))
    following = stranger(gate.enter(MODEL, far))
    for _ in range(2000):
        await asyncio.sleep(0)
        later = stranger(gate.enter(MODEL, far))
        await asyncio.sleep(0)
        current.close()
        current, following = await following, later
    assert len(gate._desk._order._deadlines) < 200
    current.close()
    (await following).close()


async def test_many_names_do_not_fill_memory() -> None:
    """Groups that nobody uses are forgotten when there are many; one in use is not."""
    gate = gate_of(4)
    with await gate.enter("in-use"):
        for number in range(2000):
            (await gate.enter(f"model-{number}x")).close()
        assert len(gate.statistics().groups) <= 256
        assert gate.statistics().groups["in-use"].in_use == 1
