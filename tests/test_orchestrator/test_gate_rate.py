"""The rate: never above the limit, hardly below it, and right about what really counts."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.gate import Gate
from orchestrator.gate.rate import CAPACITY_S, Bucket

from .gate_clock import ManualClock, settle

MODEL = "claude-opus-5-5"


class Server:
    """Enforces limits by strict token buckets with a burst of one second, in the clock's time."""

    def __init__(
        self, clock: ManualClock, chance: random.Random, limits: Mapping[str, int]
    ) -> None:
        self.clock = clock
        self.chance = chance
        self.limits = limits
        self.levels = {kind: limit / 60 for kind, limit in limits.items()}
        self.at = clock.monotonic()
        self.accepted: list[tuple[float, int]] = []
        self.refused = 0

    async def answer(self, size: int) -> tuple[int, dict[str, str]]:
        await self.clock.sleep(self.chance.uniform(0.001, 0.05))
        now = self.clock.monotonic()
        for kind, limit in self.limits.items():
            level = self.levels[kind] + (now - self.at) * limit / 60
            self.levels[kind] = min(limit / 60, level)
        self.at = now
        needs = {"requests": 1, "input-tokens": size}
        headers = {f"anthropic-ratelimit-{kind}-limit": str(n) for kind, n in self.limits.items()}
        if any(self.levels[kind] < needs[kind] for kind in self.limits):
            self.refused += 1
            return 429, headers | {"retry-after": "1"}
        for kind in self.limits:
            self.levels[kind] -= needs[kind]
            headers[f"anthropic-ratelimit-{kind}-remaining"] = str(round(self.levels[kind]))
        self.accepted.append((now, size))
        await self.clock.sleep(self.chance.uniform(0.2, 3.0))
        return 200, headers


async def call(gate: Gate, server: Server, size: int, estimate: float) -> None:
    while True:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=estimate, output_tokens=1000)
            status, headers = await server.answer(size)
            ticket.observe(status, headers)
            if status == 200:
                ticket.usage(input_tokens=size, output_tokens=100)
                return


async def saturate(
    gates: list[Gate],
    server: Server,
    clock: ManualClock,
    *,
    seconds: float,
    mean: int,
    factor: float,
) -> None:
    """More calls than fit, through each gate, for a while."""
    chance = server.chance
    tasks = []
    for gate in gates:
        for _ in range(int(seconds * 25)):
            size = chance.randint(mean // 10, mean * 19 // 10)
            tasks.append(asyncio.create_task(call(gate, server, size, size * factor)))
    await clock.run(seconds)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("limits", "mean", "factor"),
    [
        ({"requests": 1000}, 300, 1.0),
        ({"requests": 1000, "input-tokens": 400_000}, 300, 4.0),
        ({"requests": 1000, "input-tokens": 200_000}, 300, 1.0),
        ({"requests": 1000, "input-tokens": 200_000}, 300, 4.0),
    ],
)
async def test_the_limit_is_used_and_not_passed(
    seed: int, limits: dict[str, int], mean: int, factor: float
) -> None:
    """After warm-up at least 95 % of the tighter limit is used, and under 1 % is answered 429."""
    clock = ManualClock()
    chance = random.Random(seed)
    gate = Gate(64, clock=clock, jitter=chance.random)
    server = Server(clock, chance, limits)
    start = clock.monotonic() + 20
    await saturate([gate], server, clock, seconds=140, mean=mean, factor=factor)
    inside = [size for at, size in server.accepted if at >= start]
    used = len(inside) / (limits["requests"] * 2)
    if "input-tokens" in limits:
        used = max(used, sum(inside) / (limits["input-tokens"] * 2))
    refused = server.refused / (len(server.accepted) + server.refused)
    assert used >= 0.95
    assert refused < 0.01
    assert gate.statistics().in_use == 0


async def test_gates_that_share_a_key_come_to_terms() -> None:
    """Four processes that know nothing of each other take less after a 429 until they fit together (R-07)."""
    clock = ManualClock()
    chance = random.Random(4)
    gates = [Gate(64, clock=clock, jitter=chance.random) for _ in range(4)]
    server = Server(clock, chance, {"requests": 1000})
    await saturate(gates, server, clock, seconds=180, mean=300, factor=1.0)
    used = sum(at >= clock.monotonic() - 120 for at, _ in server.accepted) / 2000
    refused = server.refused / (len(server.accepted) + server.refused)
    assert used >= 0.95
    assert refused < 0.04


async def test_a_configured_limit_holds_over_every_minute() -> None:
    """Over any minute, no more than the limit and one bucket leave."""
    clock = ManualClock()
    gate = Gate(1000, requests_per_minute=120, clock=clock)
    left: list[float] = []

    async def one() -> None:
        with await gate.enter(MODEL) as ticket:
            await ticket.pace(input_tokens=1, output_tokens=1)
            left.append(clock.monotonic())
            ticket.observe(200, {})

    async with asyncio.TaskGroup() as tasks:
        for _ in range(400):
            tasks.create_task(one())
        await clock.run(100)
        await clock.run(200)
    assert len(left) == 400
    most = max(sum(at <= other < at + 60 for other in left) for at in left)
    assert 119 <= most <= 121


async def test_headers_never_raise_a_configured_limit() -> None:
    """The caller's own limit is a ceiling: a header lowers it, and brings it back, but never above."""
    gate = Gate(requests_per_minute=100, clock=ManualClock())
    for header, effective in ((4000, 100), (60, 60), (4000, 100)):
        with await gate.enter(MODEL) as ticket:
            ticket.observe(200, {"anthropic-ratelimit-requests-limit": str(header)})
        assert gate.statistics().groups[MODEL].limits == {"requests": effective}
    history = gate.statistics().groups[MODEL].history
    assert [(change.before, change.after, change.reason) for change in history] == [
        (None, 100, "configured"),
        (100, 60, "response header"),
        (60, 100, "response header"),
    ]


async def test_the_history_of_limits_is_bounded() -> None:
    """A server whose limit changes with every answer fills no memory."""
    gate = Gate(clock=ManualClock())
    for limit in range(1, 1000):
        with await gate.enter(MODEL) as ticket:
            ticket.observe(200, {"anthropic-ratelimit-requests-limit": str(limit)})
    assert len(gate.statistics().groups[MODEL].history) <= 64


async def test_a_call_larger_than_the_bucket_goes_and_the_next_pays() -> None:
    """A call of a minute's worth of tokens is not stuck for ever; the debt keeps the average."""
    clock = ManualClock()
    gate = Gate(input_tokens_per_minute=60_000, clock=clock)
    with await gate.enter(MODEL) as first:
        await first.pace(input_tokens=60_000, output_tokens=1)
        with await gate.enter(MODEL) as second:
            waiting = asyncio.create_task(second.pace(input_tokens=10, output_tokens=1))
            await clock.run(59)
            assert not waiting.done()
            await clock.run(1)
            assert waiting.done()


async def test_real_usage_corrects_the_estimate() -> None:
    """What was estimated too high is given back when the real count is known: reads don't count."""
    clock = ManualClock()
    gate = Gate(input_tokens_per_minute=60_000, clock=clock)
    first = await gate.enter(MODEL)
    await first.pace(input_tokens=60_000, output_tokens=1)
    second = await gate.enter(MODEL)
    waiting = asyncio.create_task(second.pace(input_tokens=10, output_tokens=1))
    await settle()
    assert not waiting.done()
    first.usage(input_tokens=100)
    await settle()
    assert waiting.done()
    first.close()
    second.close()


async def test_usage_may_come_in_parts_and_after_the_end() -> None:
    """Totals may be told again as they grow, and from a stream that was already closed."""
    clock = ManualClock()
    gate = Gate(output_tokens_per_minute=60_000, clock=clock)
    ticket = await gate.enter(MODEL)
    await ticket.pace(input_tokens=1, output_tokens=100)
    ticket.usage(input_tokens=1)
    ticket.usage(output_tokens=10_000)
    ticket.usage(output_tokens=30_000)
    ticket.close()
    ticket.usage(output_tokens=30_500)
    second = await gate.enter(MODEL)
    waiting = asyncio.create_task(second.pace(input_tokens=1, output_tokens=100))
    await clock.run(29)
    assert not waiting.done()
    await clock.run(2)
    assert waiting.done()
    second.close()


async def test_an_error_gives_its_tokens_back_but_not_its_request() -> None:
    """A request that failed counts as a request; its tokens were never produced."""
    clock = ManualClock()
    gate = Gate(input_tokens_per_minute=60_000, clock=clock)
    with await gate.enter(MODEL) as ticket:
        await ticket.pace(input_tokens=60_000, output_tokens=1)
        ticket.observe(500, {})
    with await gate.enter(MODEL) as ticket:
        await asyncio.wait_for(ticket.pace(input_tokens=100, output_tokens=1), 1)


async def test_max_tokens_is_no_guide_to_output() -> None:
    """Calls that allow 64,000 tokens and produce 50 are paced by the 50."""
    clock = ManualClock()
    gate = Gate(output_tokens_per_minute=60_000, clock=clock)
    start = clock.monotonic()
    for _ in range(100):
        with await gate.enter(MODEL) as ticket:
            pacing = asyncio.create_task(ticket.pace(input_tokens=1, output_tokens=64_000))
            while not pacing.done():
                await clock.run(0.01)
            ticket.usage(output_tokens=50)
    assert clock.monotonic() - start < 6


async def test_a_ticket_leaves_once() -> None:
    """A second pace, or one after the end, is the caller's mistake and says so."""
    gate = Gate(clock=ManualClock())
    ticket = await gate.enter(MODEL)
    await ticket.pace(input_tokens=1, output_tokens=1)
    with pytest.raises(RuntimeError, match="left already"):
        await ticket.pace(input_tokens=1, output_tokens=1)
    ticket.close()
    with pytest.raises(RuntimeError, match="is closed"):
        ticket.pace_sync(input_tokens=1, output_tokens=1)


async def test_low_remainders_stop_a_burst_but_starve_nobody() -> None:
    """A stale or rounded 'nothing left' costs part of a burst, never the steady rate."""
    clock = ManualClock()
    gate = Gate(requests_per_minute=600, clock=clock)
    start = clock.monotonic()
    for _ in range(100):
        with await gate.enter(MODEL) as ticket:
            pacing = asyncio.create_task(ticket.pace(input_tokens=1, output_tokens=1))
            while not pacing.done():
                await clock.run(0.01)
            ticket.observe(200, {"anthropic-ratelimit-requests-remaining": "0"})
    assert clock.monotonic() - start < 10.5


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    per_minute=st.integers(1, 10_000_000),
    calls=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50_000)), min_size=1, max_size=40),
)
def test_a_bucket_never_passes_its_limit(per_minute: int, calls: list[tuple[float, int]]) -> None:
    """Whatever comes when: between any two calls, at most the refill, one bucket and one call leave."""
    now = 0.0
    bucket = Bucket(per_minute, now, level=per_minute)
    left: list[tuple[float, int]] = []
    for pause, need in calls:
        now = max(now + pause, bucket.ready_at(now + pause, need))
        bucket.ready_at(now, need)
        bucket.take(need)
        left.append((now, need))
    per_s = per_minute / 60
    for first in range(len(left)):
        for last in range(first + 1, len(left)):
            taken = sum(need for _, need in left[first:last])
            allowed = (left[last][0] - left[first][0]) * per_s + max(1.0, per_s * CAPACITY_S)
            assert taken <= allowed * 1.000001 + 0.01
