"""A 429 pauses everyone who shares the limit, as long as the server says, and nobody else."""

import asyncio

import pytest

from orchestrator.gate import Gate, RateDeadline

from .gate_clock import ManualClock, settle
from .test_gate_slots import stranger

MODEL = "claude-opus-5-5"
OTHER = "claude-sonnet-5-5"


def paused(clock: ManualClock, *, jitter: float = 0.0, **headers: str) -> Gate:
    """A gate whose first call came back 429."""
    gate = Gate(64, clock=clock, jitter=lambda: jitter)
    ticket = gate.enter_sync(MODEL)
    ticket.pace_sync(input_tokens=1, output_tokens=1)
    ticket.observe(429, {name.replace("_", "-"): value for name, value in headers.items()})
    ticket.close()
    return gate


@pytest.mark.parametrize("seconds", [0.5, 20, 300, 4 * 3600])
async def test_a_pause_lasts_at_least_as_long_as_retry_after(seconds: float) -> None:
    """Nobody of the group enters before, however long that is; then the waiter goes (R-01, R-03)."""
    clock = ManualClock()
    gate = paused(clock, retry_after=str(seconds))
    waiting = stranger(gate.enter(MODEL))
    await clock.run(seconds * 0.999)
    assert not waiting.done()
    await clock.run(seconds * 0.001 + 0.001)
    (await waiting).close()


async def test_jitter_only_adds() -> None:
    """Jitter makes a pause longer by a tenth at most, five seconds at most, and never shorter."""
    for jitter, seconds, most in ((0.0, 20, 20.0), (1.0, 20, 22.1), (1.0, 3600, 3605.0)):
        gate = paused(ManualClock(), jitter=jitter, retry_after=str(seconds))
        assert gate.statistics().groups[MODEL].paused_s == pytest.approx(most)


async def test_one_429_pauses_calls_that_have_a_slot_already() -> None:
    """Calls in the same group that are about to leave wait too; another group goes on (R-02)."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    ready, refused = await gate.enter(MODEL), await gate.enter(MODEL)
    await refused.pace(input_tokens=1, output_tokens=1)
    refused.observe(429, {"retry-after": "7"})
    leaving = asyncio.create_task(ready.pace(input_tokens=1, output_tokens=1))
    with await gate.enter(OTHER) as other:
        await other.pace(input_tokens=1, output_tokens=1)
    await clock.run(6.9)
    assert not leaving.done()
    await clock.run(0.2)
    assert leaving.done()
    ready.close()
    refused.close()


async def test_a_later_and_longer_word_extends_the_pause() -> None:
    """Of several retry-after the latest end counts; a shorter one ends nothing early."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    tickets = [await gate.enter(MODEL) for _ in range(3)]
    for ticket, seconds in zip(tickets, ("5", "30", "1"), strict=True):
        ticket.observe(429, {"retry-after": seconds})
        ticket.close()
    assert gate.statistics().groups[MODEL].paused_s == pytest.approx(30)


async def test_pauses_without_retry_after_double() -> None:
    """A 429 that names no time pauses for 1, 2, 4 ... 60 s, and begins anew after a success."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)

    async def answered(status: int) -> float:
        clock.advance(0.001)
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=1, output_tokens=1)
            ticket.observe(status, {})
        pause = gate.statistics().groups[MODEL].paused_s
        clock.advance(pause)
        return pause

    pauses = [await answered(429) for _ in range(8)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
    await answered(200)
    assert await answered(429) == pytest.approx(1)


async def test_a_pause_beyond_the_deadline_is_said_at_once() -> None:
    """Waiting in vain is no use: newcomers and waiters alike are told when to come back."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    deadline = clock.monotonic() + 60
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    for_slot = stranger(gate.enter(MODEL, deadline))
    patient = stranger(gate.enter(MODEL, deadline + 100))
    await settle()
    tickets[0].observe(429, {"retry-after": "90"})
    await settle()
    with pytest.raises(RateDeadline, match="opens in 90 s") as caught:
        await for_slot
    assert caught.value.group == MODEL
    assert caught.value.retry_in_s == pytest.approx(90)
    assert caught.value.retry_at is not None
    assert caught.value.retry_at.timestamp() == pytest.approx(clock.time() + 90)
    with pytest.raises(RateDeadline):
        await gate.enter(MODEL, deadline)
    with pytest.raises(RateDeadline):
        await tickets[1].pace(input_tokens=1, output_tokens=1, deadline=deadline)
    assert not patient.done()
    for ticket in tickets:
        ticket.close()
    await clock.run(91)
    (await patient).close()
    assert gate.statistics().in_use == 0


async def test_who_failed_by_deadline_may_pace_again() -> None:
    """A ticket whose pace came too late is still open and may try once more."""
    clock = ManualClock()
    gate = Gate(requests_per_minute=60, clock=clock)
    first, second = await gate.enter(MODEL), await gate.enter(MODEL)
    await first.pace(input_tokens=1, output_tokens=1)
    with pytest.raises(RateDeadline):
        await second.pace(input_tokens=1, output_tokens=1, deadline=clock.monotonic() + 0.5)
    clock.advance(1)
    await second.pace(input_tokens=1, output_tokens=1)
    first.close()
    second.close()


async def test_the_end_of_a_pause_is_no_burst() -> None:
    """After a pause the calls leave at the pace of the limit, not all at once."""
    clock = ManualClock()
    gate = Gate(64, requests_per_minute=600, clock=clock, jitter=lambda: 0.0)
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    tickets[0].observe(429, {"retry-after": "10"})
    leaving = [asyncio.create_task(t.pace(input_tokens=1, output_tokens=1)) for t in tickets[1:]]
    await clock.run(10.05)
    assert sum(task.done() for task in leaving) == 0
    await clock.run(0.25)
    assert sum(task.done() for task in leaving) in (2, 3)
    await clock.run(5)
    assert all(task.done() for task in leaving)
    for ticket in tickets:
        ticket.close()


async def test_waiters_for_the_rate_do_not_take_all_slots() -> None:
    """A group at its limit keeps only a few slots waiting; the others stay free for other groups."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    for _ in range(10):  # widen the group to 64
        tickets = [await stranger(gate.enter(MODEL)) for _ in range(gate_width(gate))]
        for ticket in tickets:
            ticket.observe(200, {})
        for ticket in tickets:
            ticket.close()
    with await gate.enter(MODEL) as ticket:
        ticket.observe(200, {"anthropic-ratelimit-requests-limit": "1"})

    async def call() -> None:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=1, output_tokens=1)

    tasks = [asyncio.create_task(call()) for _ in range(100)]
    await settle()
    assert gate.statistics().groups[MODEL].in_use <= 17
    with await gate.enter(OTHER) as other:
        await other.pace(input_tokens=1, output_tokens=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.statistics().in_use == 0


def gate_width(gate: Gate) -> int:
    groups = gate.statistics().groups
    return groups[MODEL].width if MODEL in groups else 8
