"""Rate limits of the simulator: token buckets, headers and concurrency."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from orchestrator.simulator import Faults, Limits, Simulator
from orchestrator.simulator.api_errors import ApiError
from orchestrator.simulator.limits import RateLimiter

MODEL = "claude-sonnet-5-5"


def admit(limiter: RateLimiter, now: float, tokens: int = 0, busy: int = 0) -> str | None:
    """None if let in, else the ``retry-after`` of the refusal."""
    try:
        limiter.admit(tokens, in_progress=busy, now=now)
    except ApiError as error:
        return error.headers["retry-after"] if error.status == 429 else f"status {error.status}"
    return None


def test_requests_refill_continuously() -> None:
    """A bucket of 60 a minute refills by one each second, not by sixty each minute."""
    limiter = RateLimiter(Limits(requests_per_minute=60))

    assert [admit(limiter, 0.0) for _ in range(61)] == [None] * 60 + ["1"]
    assert admit(limiter, 0.5) == "1"
    assert admit(limiter, 1.0) is None
    assert admit(limiter, 1.0) == "1"
    assert [admit(limiter, 31.0) for _ in range(31)] == [None] * 30 + ["1"]


def test_small_bursts() -> None:
    """With a burst of one second, a minute's worth can't be spent at once."""
    limiter = RateLimiter(Limits(requests_per_minute=600, burst_s=1.0))

    assert [admit(limiter, 0.0) for _ in range(11)].count(None) == 10


def test_input_tokens() -> None:
    """Input is taken at admission; the refusal says how long until there is enough."""
    limiter = RateLimiter(Limits(input_tokens_per_minute=6_000))

    assert admit(limiter, 0.0, tokens=5_000) is None
    assert admit(limiter, 0.0, tokens=2_000) == "10"
    assert admit(limiter, 10.0, tokens=2_000) is None


def test_a_request_above_the_limit_waits_for_a_full_bucket() -> None:
    """More than the bucket can hold is let in when it is full, and leaves a debt."""
    limiter = RateLimiter(Limits(input_tokens_per_minute=6_000))

    assert admit(limiter, 0.0, tokens=12_000) is None
    assert admit(limiter, 0.0, tokens=100) == "61"


def test_output_is_taken_when_produced() -> None:
    """Output counts when it is there; a bucket overdrawn admits nothing until it is paid back."""
    limiter = RateLimiter(Limits(output_tokens_per_minute=600))

    assert admit(limiter, 0.0) is None
    limiter.produced(700, 0.0)
    assert admit(limiter, 0.0) == "11"
    assert admit(limiter, 11.0) is None


def test_headers() -> None:
    """Headers give limit, what remains (tokens in thousands) and when the bucket is full."""
    limiter = RateLimiter(
        Limits(
            requests_per_minute=60, input_tokens_per_minute=60_000, output_tokens_per_minute=9_000
        )
    )
    limiter.admit(30_500, in_progress=0, now=0.0)
    headers = limiter.headers(0.0)

    prefix = "anthropic-ratelimit"
    assert headers[f"{prefix}-requests-limit"] == "60"
    assert headers[f"{prefix}-requests-remaining"] == "59"
    assert headers[f"{prefix}-input-tokens-remaining"] == "29000"
    assert headers[f"{prefix}-output-tokens-remaining"] == "9000"
    assert headers[f"{prefix}-tokens-limit"] == "60000"
    reset = datetime.fromisoformat(headers[f"{prefix}-input-tokens-reset"])
    assert 25 < (reset - datetime.now(UTC)).total_seconds() < 31


def test_fractions_of_a_second() -> None:
    """Fast tests may have ``retry-after`` in fractions, never shorter than the real wait."""
    limiter = RateLimiter(Limits(requests_per_minute=6_000, burst_s=0.01, whole_seconds=False))

    assert admit(limiter, 0.0) is None
    assert 0.01 <= float(admit(limiter, 0.0) or 0) < 0.012


async def test_over_http() -> None:
    """Replies carry the headers, a refusal carries retry-after, and cached reads are free."""
    limits = Limits(input_tokens_per_minute=4_000)
    system: Any = [{"type": "text", "text": "x" * 12_000, "cache_control": {"type": "ephemeral"}}]
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    async with (
        Simulator(limits=limits, clock=lambda: 1.0) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        first = await client.messages.with_raw_response.create(**asked, system=system)
        second = await client.messages.with_raw_response.create(**asked, system=system)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(**asked, system="y" * 12_000)

    remaining = "anthropic-ratelimit-input-tokens-remaining"
    assert (first.headers[remaining], second.headers[remaining]) == ("0", "0")
    assert int(caught.value.response.headers["retry-after"]) == 31
    assert sim.bill.requests == 2


async def test_token_counts_have_their_own_bucket() -> None:
    """Token counts are limited apart from messages."""
    limits = Limits(counts_per_minute=1, requests_per_minute=1)
    messages: Any = [{"role": "user", "content": "Hi"}]
    async with (
        Simulator(limits=limits, clock=lambda: 1.0) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        await client.messages.count_tokens(model=MODEL, messages=messages)
        await client.messages.create(model=MODEL, max_tokens=5, messages=messages)
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.count_tokens(model=MODEL, messages=messages)


async def test_concurrency() -> None:
    """One message more than allowed at once is refused; the peak is counted (R-14)."""
    async with (
        Simulator(limits=Limits(concurrent=2), faults=Faults(["hang", "hang"])) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):

        async def ask() -> None:
            await client.messages.create(
                model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(ask())
            await sim.arrived(2)
            with pytest.raises(anthropic.RateLimitError, match="concurrent connections"):
                await ask()
            sim.release()
        await ask()

    assert (sim.stats.peak, sim.bill.requests) == (2, 3)
