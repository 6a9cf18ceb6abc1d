"""Seeded interleavings of calls, cancels, errors, nested calls and time; each replayable by its seed."""

import asyncio
import contextvars
import random

import pytest

from orchestrator.gate import Gate, RateDeadline

from .gate_clock import ManualClock, settle

MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-opus-4-8")


class World:
    """A gate, a clock and callers that do anything at all, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.width = self.chance.choice([1, 2, 3, 10])
        self.gate = Gate(
            self.width,
            requests_per_minute=self.chance.choice([None, 60, 600]),
            input_tokens_per_minute=self.chance.choice([None, 10_000]),
            clock=self.clock,
            jitter=self.chance.random,
        )

    async def call(self, depth: int) -> None:
        chance, gate = self.chance, self.gate
        deadline = (
            self.clock.monotonic() + chance.choice([1, 10, 1e5]) if chance.random() < 0.3 else None
        )
        ticket = await gate.enter(chance.choice(MODELS), deadline)
        try:
            assert gate.statistics().in_use - gate.statistics().overflow <= self.width
            await ticket.pace(
                input_tokens=chance.randint(1, 3000), output_tokens=10, deadline=deadline
            )
            if chance.random() < 0.7:
                await self.clock.sleep(chance.expovariate(2))
            if chance.random() < 0.3 and depth < 4:
                await self.call(depth + 1)
            status = chance.choice([200] * 6 + [429, 429, 500, 529, 400])
            said = {"retry-after": str(chance.randint(0, 5))} if chance.random() < 0.5 else {}
            ticket.observe(status, said)
            if status == 200:
                ticket.usage(
                    input_tokens=chance.randint(0, 3000), output_tokens=chance.randint(1, 99)
                )
        except BaseException:
            ticket.close()  # the traceback would keep it alive
            raise
        if chance.random() < 0.8:
            ticket.close()
        del ticket  # the rest by the finalizer

    async def run(self) -> None:
        chance = self.chance
        tasks = [
            asyncio.get_running_loop().create_task(self.call(0), context=contextvars.Context())
            for _ in range(40)
        ]
        for _ in range(60):
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if chance.random() < 0.6:
                self.clock.advance(chance.expovariate(1))
        # Nothing but time is needed for the rest to end.
        for _ in range(300):
            await self.clock.run(60)
            if all(task.done() for task in tasks):
                break
        for task in tasks:
            assert task.done()
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, RateDeadline):
                raise error


@pytest.mark.parametrize("block", range(8))
def test_thousands_of_interleavings_leak_nothing(block: int) -> None:
    """Never more than the width in use (nested calls apart), everybody ends, no slot is lost."""
    for seed in range(block * 40, block * 40 + 40):
        world = World(seed)
        asyncio.run(world.run())
        statistics = world.gate.statistics()
        assert statistics.in_use == 0, f"seed {seed}"
        assert statistics.overflow == 0, f"seed {seed}"
        assert statistics.waiting == 0, f"seed {seed}"


async def test_cancelled_at_every_await() -> None:
    """Cancelled after each possible number of steps, a call leaves the gate as it found it."""
    reached_end = False
    for steps in range(30):
        clock = ManualClock()
        gate = Gate(1, requests_per_minute=60, clock=clock)
        first = gate.enter_sync(MODELS[0])
        first.pace_sync(input_tokens=1, output_tokens=1)

        async def call(gate: Gate = gate) -> None:
            with await gate.enter(MODELS[0]) as ticket:
                await ticket.pace(input_tokens=1, output_tokens=1)
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(call(), context=contextvars.Context())
        for step in range(steps):
            await asyncio.sleep(0)
            if step == 1:
                first.close()
            if step == 4:
                clock.advance(1)
        task.cancel()
        first.close()
        await settle()
        reached_end = reached_end or not task.cancelled()
        assert task.done()
        assert gate.statistics().in_use == 0
        assert gate.statistics().waiting == 0
        with await gate.enter(MODELS[0]):
            assert gate.statistics().in_use == 1
    assert reached_end
