"""Many calls at once with everything going wrong: never a cent over, nearly all of the cap used."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from budgets import BudgetExceeded, Cap, Ledger, scope
from orchestrator.gate import Gate
from orchestrator.retry import Retry, RetryBudget
from orchestrator.simulator import Fault
from orchestrator.transport import Passes, async_http_client

from .metering import Rig, ask, rig

#: Sonnet: at most 1,000 tokens of output at $11 a million and a few hundred of input.
BOUND_NANOS = 11_900_000
CAP = "1.9"  # about 160 bounds, and about 300 calls at what they really cost


def _fields(chance: random.Random) -> dict[str, Any]:
    output = min(1_000, max(1, int(chance.lognormvariate(6.35, 0.5))))
    return ask(f"work [[sim:output={output}]]", max_tokens=1_000)


def _prove_used(on: Rig, cap_nanos: int) -> None:
    balance = on.ledger.balance()
    charged = balance.posted_nanos + balance.in_doubt_nanos
    assert on.sim.bill.nanos <= charged <= cap_nanos
    assert charged >= cap_nanos * 0.99
    on.prove()


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_a_thousand_calls_under_a_cap_for_three_hundred(
    durable: bool, tmp_path: Path
) -> None:
    """1,000 at once: $0 over by the server's own bill, 99 % of the cap used (O-01, O-05, O-15)."""
    chance = random.Random(7)
    ledger = Ledger(tmp_path / "ledger.db" if durable else None, caps=[Cap(CAP)])
    async with rig(ledger=ledger) as on:
        calls = [on.client.messages.create(**_fields(chance)) for _ in range(1_000)]
        answers = await asyncio.gather(*calls, return_exceptions=True)

        served = [one for one in answers if isinstance(one, anthropic.types.Message)]
        assert all(isinstance(one, BudgetExceeded) for one in answers if one not in served)
        assert 200 < len(served) < 500
        hold = next(line for line in ledger.lines() if line.kind == "hold")
        assert hold.nanos < BOUND_NANOS
        _prove_used(on, 1_900_000_000)
        on.prove_exact(requests=len(served))


async def _one(on: Rig, chance: random.Random) -> None:
    """A call, a stream or half of one, perhaps cancelled at any point."""
    fields = _fields(chance)
    way = chance.random()
    if way < 0.4:
        await on.client.messages.create(**fields)
        return
    async with on.client.messages.stream(**fields) as stream:
        async for _ in stream:
            if way < 0.5:
                break


async def _wild(on: Rig, chance: random.Random) -> None:
    task = asyncio.create_task(_one(on, chance))
    if chance.random() < 0.2:
        for _ in range(chance.randrange(400)):
            await asyncio.sleep(0)
        task.cancel()
    # What the SDK makes of half a document or a missing usage is its own business.
    broken = (ValueError, AttributeError)
    with contextlib.suppress(
        BudgetExceeded, asyncio.CancelledError, anthropic.APIError, httpx2.HTTPError, *broken
    ):
        await task


RATES = {
    "overloaded": 0.05,
    "server_error": 0.03,
    "reset": 0.02,
    "invalid_json": 0.02,
    "html": 0.01,
    "cut": 0.03,
    "sse_error": 0.03,
    "no_stop": 0.02,
    "no_usage": 0.01,
    "gzip": 0.1,
}


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_everything_goes_wrong_at_once(seed: int, tmp_path: Path) -> None:
    """Cancels, retries, resets and cut streams mixed: never over, nothing leaks (H-01, S-01, S-08)."""
    chance = random.Random(seed)
    durable = seed % 2 == 0
    ledger = Ledger(tmp_path / "ledger.db" if durable else None, caps=[Cap(CAP)])
    options: dict[str, Any] = {}
    if seed > 2:
        passes = Passes()
        options = {"passes": passes, "client": {"http_client": async_http_client(passes)}}
    retry = Retry(attempts=3, first_s=0.001, longest_s=0.002, budget=RetryBudget(200))
    async with rig(ledger=ledger, retry=retry, gate=Gate(width=32), **options) as on:
        on.sim.faults.set_rates(RATES, seed=seed)
        # Each with a chance of its own: what one does depends on no other.
        seeds = [chance.randrange(2**32) for _ in range(1_000)]
        await asyncio.gather(*(_wild(on, random.Random(one)) for one in seeds))
        while on.sim.stats.in_progress or ledger.balance().held_nanos:
            await asyncio.sleep(0.001)

        assert ledger.waiting == 0
        kinds = set(on.kinds())
        assert {"settle", "void", "doubt"} <= kinds
        _prove_used(on, 1_900_000_000)


async def test_a_thousand_failures_leave_no_trace() -> None:
    """After 1,000 injected failures the gate's width and the held sum are what they were."""
    kinds = ["overloaded", "server_error", "reset", "html", "invalid_json", "sse_error", "cut"]
    timeout = httpx2.Timeout(30, read=5)
    async with rig(client={"timeout": timeout}, cap="1000", gate=Gate(width=16)) as on:
        for _ in range(20):
            await on.client.messages.create(**ask())
        before = on.gate.statistics()
        held = on.ledger.balance().held_nanos

        async def fail(number: int) -> None:
            kind = kinds[number % len(kinds)]
            stream = number % len(kinds) > 4 or number % 2 == 0
            with contextlib.suppress(anthropic.APIError, httpx2.HTTPError, ValueError):
                answer = await on.client.messages.create(
                    **ask(f"{number} [[sim:fault={kind}]]"), stream=stream
                )
                if stream:
                    async for _ in answer:
                        pass

        await asyncio.gather(*(fail(number) for number in range(1_000)))
        after = on.gate.statistics()

        assert set(on.kinds()[20:]) == {"void", "doubt"}
        assert len(on.kinds()) == 1_020
        assert on.ledger.balance().held_nanos == held == 0
        assert (after.width, after.in_use, after.waiting) == (before.width, 0, 0)
        (group_before,), (group_after,) = before.groups.values(), after.groups.values()
        assert group_after.width >= group_before.width
        assert group_after.width_max == group_before.width_max == 16
        await asyncio.gather(*(on.client.messages.create(**ask()) for _ in range(50)))
        on.prove()


async def test_nested_scopes_all_hold() -> None:
    """Children with caps of their own under a parent's: each holds, and so does the parent's (O-05)."""
    ledger = Ledger(caps=[Cap("0.05", scope="app")])
    async with rig(ledger=ledger, gate=Gate(width=64)) as on:

        async def worker(number: int) -> None:
            async with scope(f"worker-{number}", cap="0.02"):
                for _ in range(50):
                    with contextlib.suppress(BudgetExceeded):
                        await on.client.messages.create(**ask())

        await asyncio.gather(*(worker(number) for number in range(6)))
        for number in range(6):
            assert ledger.balance(f"app/worker-{number}").posted_nanos <= 20_000_000
        assert 45_000_000 < on.sim.bill.nanos <= 50_000_000
        on.prove_exact()


def test_faults_are_known() -> None:
    """The kinds that the simulation draws are the simulator's own."""
    assert all(Fault(kind=kind) for kind in RATES)
