"""What a 429 costs: it is avoided at the start, blamed on the right thing, and made up for soon."""

import asyncio
import contextvars
import random
from contextlib import suppress

import pytest

from orchestrator.gate import Gate, GroupStatistics

from .gate_clock import ManualClock, settle
from .test_gate_rate import Server, saturate
from .test_gate_slots import stranger

MODEL = "claude-opus-5-5"
LIMITS = {
    "anthropic-ratelimit-requests-limit": "1000",
    "anthropic-ratelimit-input-tokens-limit": "600000",
}
SHORT = {
    **LIMITS,
    "anthropic-ratelimit-requests-remaining": "900",
    "anthropic-ratelimit-input-tokens-remaining": "0",
}
PLENTY = SHORT | {"anthropic-ratelimit-input-tokens-remaining": "500000"}


def group(gate: Gate) -> GroupStatistics:
    return gate.statistics().groups[MODEL]


async def answered(gate: Gate, clock: ManualClock, status: int, headers: dict[str, str]) -> None:
    """One call that leaves, takes a while and is answered."""
    with await stranger(gate.enter(MODEL)) as ticket:
        pacing = asyncio.create_task(ticket.pace(input_tokens=100, output_tokens=10))
        await clock.run(1)
        await pacing
        await clock.run(0.1)
        ticket.observe(status, headers)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1.0, 4.0])
async def test_large_calls_use_the_limit_and_do_not_pass_it(seed: int, factor: float) -> None:
    """Calls of up to a second's worth of tokens, bounds or estimates: 95 % used, under 1 % 429."""
    clock = ManualClock()
    chance = random.Random(seed)
    gate = Gate(64, clock=clock, jitter=chance.random)
    server = Server(clock, chance, {"requests": 1000, "input-tokens": 1_500_000})
    start = clock.monotonic() + 20
    await saturate([gate], server, clock, seconds=140, mean=12_000, factor=factor)
    used = sum(size for at, size in server.accepted if at >= start) / (1_500_000 * 2)
    assert used >= 0.95
    assert server.refused / (len(server.accepted) + server.refused) < 0.01


async def test_the_first_large_calls_wait_for_the_first_answer() -> None:
    """Before anything is known of limits, large prompts leave one by one; the first answer frees them."""
    clock = ManualClock()
    gate = Gate(64, clock=clock)
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    leaving = [
        asyncio.create_task(ticket.pace(input_tokens=50_000, output_tokens=10))
        for ticket in tickets
    ]
    await clock.run(1)
    assert sum(task.done() for task in leaving) == 1
    tickets[0].observe(200, {})
    await settle()
    assert all(task.done() for task in leaving)
    for ticket in tickets:
        ticket.close()


async def test_without_an_answer_large_calls_go_on_all_the_same() -> None:
    """A first call that hangs holds up the others for seconds, not for ever."""
    clock = ManualClock()
    gate = Gate(64, clock=clock)
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    leaving = [
        asyncio.create_task(ticket.pace(input_tokens=50_000, output_tokens=10))
        for ticket in tickets
    ]
    await clock.run(60)
    assert all(task.done() for task in leaving)
    for ticket in tickets:
        ticket.close()


@pytest.mark.parametrize("known", [{}, {"anthropic-ratelimit-input-tokens-limit": "900000"}])
async def test_a_limit_that_was_not_known_costs_no_share(known: dict[str, str]) -> None:
    """A 429 that is the first to name a limit, or a lower one, is nobody else's use of it."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    if known:
        await answered(gate, clock, 200, known)
    await answered(gate, clock, 429, {**SHORT, "retry-after": "1"})
    assert group(gate).limits["input_tokens"] == 600_000
    assert group(gate).share == 1.0


async def test_a_429_is_blamed_on_what_its_headers_say() -> None:
    """Short of tokens takes share and no width; plenty left takes width and no share."""
    for headers, width_kept, share_kept in ((SHORT, True, False), (PLENTY, False, True)):
        clock = ManualClock()
        gate = Gate(64, clock=clock, jitter=lambda: 0.0)
        await answered(gate, clock, 200, LIMITS)
        before = group(gate)
        await answered(gate, clock, 429, {**headers, "retry-after": "1"})
        after = group(gate)
        assert (after.width == before.width) is width_kept
        assert (after.share == before.share) is share_kept
        assert after.paused_s > 0


async def test_a_lone_429_costs_little_and_is_soon_made_up_for() -> None:
    """One 429 takes a twentieth of the share; half a minute later all but a margin is back."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    await answered(gate, clock, 200, LIMITS)
    await answered(gate, clock, 429, {**SHORT, "retry-after": "1"})
    assert group(gate).share == pytest.approx(0.95)
    await clock.run(2)
    await answered(gate, clock, 429, {**SHORT, "retry-after": "1"})
    assert group(gate).share < 0.8
    await clock.run(120)
    assert group(gate).share == pytest.approx(0.98)


async def test_what_was_refused_is_no_burst_when_the_pause_ends() -> None:
    """Eight refused calls give their tokens back, yet after the pause no eight leave at once."""
    clock = ManualClock()
    gate = Gate(64, clock=clock, jitter=lambda: 0.0)
    await answered(gate, clock, 200, LIMITS)
    tickets = [await stranger(gate.enter(MODEL)) for _ in range(8)]
    leaving = [asyncio.create_task(t.pace(input_tokens=5_000, output_tokens=1)) for t in tickets]
    await clock.run(10)
    assert all(task.done() for task in leaving)
    for ticket in tickets:
        ticket.observe(429, {**LIMITS, "retry-after": "2"})
        ticket.close()

    async def again() -> None:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=5_000, output_tokens=1)
            left.append(clock.monotonic())

    left: list[float] = []
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(again(), context=contextvars.Context()) for _ in range(8)]
    await clock.run(2.05)
    assert len(left) <= 1
    await clock.run(10)
    assert len(left) == 8
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
