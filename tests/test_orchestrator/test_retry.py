"""Retries: what is tried again, how often, after how long; one owner, every try with a hold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anthropic
import httpx2
import pytest
from tenacity import RetryCallState

from orchestrator.retry import Answer, Retry, RetryBudget
from orchestrator.simulator import Fault
from orchestrator.wire import ErrorKind, classify

from .metering import ask, rig

QUICK = {"first_s": 0.001, "longest_s": 0.002}


def _kind(status: int, **headers: str) -> ErrorKind:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify(status, {"error": {"type": "x", "message": ""}}, named, now=datetime.now(UTC))


def _connection_error() -> anthropic.APIConnectionError:
    return anthropic.APIConnectionError(request=httpx2.Request("POST", "http://host"))


async def _play(
    policy: Retry, *ends: Any, deadline: float | None = None
) -> tuple[int, list[float]]:
    """Run a call that ends so, one after the other; how many tries were made and each wait."""
    waits: list[float] = []
    tries = 0

    async def once() -> Answer:
        nonlocal tries
        end = ends[min(tries, len(ends) - 1)]
        tries += 1
        if isinstance(end, BaseException):
            raise end
        return Answer(None, end)

    def note(state: RetryCallState) -> None:
        waits.append(state.upcoming_sleep)

    retrying = replace(policy, sleep=_no_sleep).asynchronous(deadline, note)
    with contextlib.suppress(anthropic.APIConnectionError, ValueError):
        await retrying(once)
    return tries, waits


async def _no_sleep(seconds: float) -> None:
    pass


@pytest.mark.parametrize(
    ("end", "tries"),
    [
        (None, 1),
        (_kind(400), 1),
        (_kind(401), 1),
        (_kind(402), 1),
        (_kind(403), 1),
        (_kind(404), 1),
        (_kind(413), 1),
        (_kind(408), 5),
        (_kind(409), 5),
        (_kind(429), 20),
        (_kind(429, x_should_retry="false"), 1),
        (_kind(500), 5),
        (_kind(501), 1),
        (_kind(503), 5),
        (_kind(504), 5),
        (_kind(529), 5),
        (_kind(500, x_should_retry="false"), 1),
        (_connection_error(), 5),
        (anthropic.APITimeoutError(request=httpx2.Request("POST", "http://host")), 5),
        (ValueError("the caller's"), 1),
    ],
)
async def test_what_is_tried_how_often(end: Any, tries: int) -> None:
    """The table of the policy: each kind of end and how many tries it gets."""
    assert (await _play(Retry(), end))[0] == tries


async def test_spend_limits_are_never_tried_again() -> None:
    """The provider's money is out: one try, though it comes as 429 (R-08)."""
    details = {"error_code": "enforced_spend_limit_reached"}
    error = {"error": {"type": "rate_limit_error", "message": "", "details": details}}
    assert (await _play(Retry(), classify(429, error)))[0] == 1


async def test_waits_double_with_jitter() -> None:
    """Faults wait twice as long each time, up to the longest, with up to a quarter on top."""
    _, waits = await _play(Retry(attempts=7, first_s=1, longest_s=8), _kind(529))
    for wait, base in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert base <= wait <= base * 1.25


async def test_retry_after_is_honoured_in_full() -> None:
    """A longer ``retry-after`` than the longest wait is waited out, jitter on top (R-01, R-03)."""
    _, waits = await _play(Retry(attempts=2, longest_s=8), _kind(529, retry_after="300"))
    assert 300 <= waits[0] <= 375


async def test_rate_limits_are_waited_for_in_the_gate() -> None:
    """A 429 is no wait of its own: the gate pauses everyone (R-02)."""
    _, waits = await _play(Retry(rate_limited=3), _kind(429, retry_after="60"))
    assert waits == [0.0, 0.0]


async def test_rate_limits_do_not_use_up_the_tries_of_faults() -> None:
    """Ten 429s and then an overload: the overload still has its tries, and its first wait."""
    ends = [_kind(429)] * 10 + [_kind(529)]
    tries, waits = await _play(Retry(first_s=1), *ends)
    assert tries == 10 + 5
    assert 1 <= waits[10] <= 1.25


async def test_a_deadline_ends_the_tries() -> None:
    """What could only be tried after the deadline is not waited for."""
    tries, _ = await _play(Retry(first_s=10), _kind(529), deadline=time.monotonic() + 5)
    assert tries == 1


async def test_the_budget_of_a_run_is_shared() -> None:
    """Retries of all calls together are bounded, so that a bad hour is no storm (R-04)."""
    budget = RetryBudget(most=6)
    policy = Retry(budget=budget)
    tries = [(await _play(policy, _kind(529)))[0] for _ in range(3)]
    assert tries == [5, 3, 1]
    assert budget.used == 6


# ---- under the meter --------------------------------------------------------------------------------


async def test_each_try_is_an_attempt_with_a_hold() -> None:
    """One owner: exactly as many attempts as the policy says, each held and void (S-07, C-24)."""
    async with rig(retry=Retry(attempts=4, **QUICK)) as on:
        on.sim.faults.extend([Fault(kind="overloaded", times=0)])
        with pytest.raises(anthropic.OverloadedError):
            await on.client.messages.create(**ask())
        assert on.sim.stats.arrived == 4
        assert on.kinds() == ["void"] * 4
        on.prove_exact(requests=0)


@pytest.mark.parametrize("fault", ["overloaded", "reset"])
async def test_the_clients_own_retries_do_not_multiply_ours(fault: str) -> None:
    """A client that was left with its retries on adds none: tries are capped at one place (S-07)."""
    async with rig(retry=Retry(attempts=3, **QUICK), client={"max_retries": 2}) as on:
        on.sim.faults.extend([Fault(kind=fault, times=0)])
        with pytest.raises((anthropic.OverloadedError, anthropic.APIConnectionError)):
            await on.client.messages.create(**ask())
        assert on.sim.stats.arrived == 3
        assert len(on.kinds()) == 3
        on.prove()


async def test_after_a_few_faults_it_goes_well() -> None:
    """Faults of several kinds in a row, then an answer: only the answer is charged."""
    async with rig(retry=Retry(**QUICK)) as on:
        on.sim.faults.extend(["overloaded", "server_error", "unavailable", "gateway_timeout"])
        message = await on.client.messages.create(**ask())
        assert message.usage.output_tokens == 50
        assert on.kinds() == ["void"] * 4 + ["settle"]
        on.prove_exact(requests=1)


async def test_a_reset_is_tried_again_and_stays_in_doubt() -> None:
    """A try that may have been billed keeps its hold; the next one has another (S-08)."""
    async with rig(retry=Retry(**QUICK)) as on:
        on.sim.faults.extend([Fault(kind="reset", billed=True)])
        await on.client.messages.create(**ask())
        assert on.kinds() == ["doubt", "settle"]
        on.prove()
        assert on.sim.bill.requests == 2


async def test_streams_are_tried_until_they_open() -> None:
    """An error status in place of a stream is tried again; an open stream never is (S-05)."""
    async with rig(retry=Retry(**QUICK)) as on:
        on.sim.faults.extend(["overloaded", Fault(kind="cut", after_events=5)])
        with pytest.raises(httpx2.RemoteProtocolError):
            async with on.client.messages.stream(**ask()) as stream:
                await stream.until_done()
        assert on.kinds() == ["void", "doubt"]
        on.prove()


async def test_a_429_is_waited_out_by_everyone() -> None:
    """Calls that share the limit wait at least ``retry-after``, then all pass (R-01, R-02)."""
    async with rig(retry=Retry(**QUICK)) as on:
        on.sim.faults.extend([Fault(kind="rate_limited", retry_after=0.3)])
        began = time.monotonic()
        await on.client.messages.create(**ask())
        first = time.monotonic() - began
        await asyncio.gather(*(on.client.messages.create(**ask()) for _ in range(4)))
        assert first >= 0.3
        (group,) = on.gate.statistics().groups.values()
        assert group.throttled == 1
        on.prove_exact(requests=5)


async def test_cancelled_between_two_tries() -> None:
    """A call cancelled while it waits for its next try holds nothing (H-01)."""
    async with rig(retry=Retry(first_s=60)) as on:
        on.sim.faults.extend(["overloaded"])
        task = asyncio.create_task(on.client.messages.create(**ask()))
        while on.kinds() != ["void"]:
            await asyncio.sleep(0)
        assert on.gate.statistics().in_use == 0  # no slot is held over a wait
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        on.prove_exact(requests=0)
