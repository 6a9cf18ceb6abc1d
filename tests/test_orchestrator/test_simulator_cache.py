"""Prompt caching in the simulator: hits, misses, lifetimes and their arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from orchestrator.simulator import Fault, Faults, Simulator

MODEL = "claude-sonnet-5-5"
FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sim(clock: Clock) -> AsyncIterator[Simulator]:
    async with Simulator(clock=clock) as simulator:
        yield simulator


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as made:
        yield made


def block(tokens: int, marker: dict[str, str] | None = None, letter: str = "x") -> dict[str, Any]:
    made: dict[str, Any] = {"type": "text", "text": letter * (tokens * 4)}
    return made if marker is None else {**made, "cache_control": marker}


async def ask(client: AsyncAnthropic, **fields: Any) -> tuple[int, int, int, int]:
    """Input, 5m writes, 1h writes and reads of one request."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "four"}],
        **fields,
    }
    usage = (await client.messages.create(**asked)).usage
    split = usage.cache_creation
    assert split is not None
    written = split.ephemeral_5m_input_tokens + split.ephemeral_1h_input_tokens
    assert written == usage.cache_creation_input_tokens
    return (
        usage.input_tokens,
        split.ephemeral_5m_input_tokens,
        split.ephemeral_1h_input_tokens,
        usage.cache_read_input_tokens or 0,
    )


async def test_write_then_read(client: AsyncAnthropic) -> None:
    """The first request writes the marked prefix, the second reads it."""
    system = [block(2_000, FIVE)]

    assert await ask(client, system=system) == (4, 2_000, 0, 0)
    assert await ask(client, system=system) == (4, 0, 0, 2_000)


async def test_mixed_lifetimes(client: AsyncAnthropic) -> None:
    """1h up to its last marker, 5m from there to the last marker, the rest uncached."""
    system = [block(1_500, HOUR), block(700, FIVE), block(300)]

    assert await ask(client, system=system) == (304, 700, 1_500, 0)
    assert await ask(client, system=system) == (304, 0, 0, 2_200)


async def test_a_longer_prefix_reads_the_shorter_one(client: AsyncAnthropic) -> None:
    """What goes beyond a cached prefix is written, the prefix itself is read."""
    await ask(client, system=[block(2_000, FIVE)])

    system = [block(2_000), block(500, FIVE)]
    assert await ask(client, system=system) == (4, 500, 0, 2_000)


@pytest.mark.parametrize(("tokens", "written"), [(1_023, 0), (1_024, 1_024)])
async def test_minimum(client: AsyncAnthropic, tokens: int, written: int) -> None:
    """A prefix under the model's minimum is silently not cached (P-04)."""
    system = [block(tokens, FIVE)]

    assert (await ask(client, system=system))[1] == written
    assert (await ask(client, system=system))[3] == written


@pytest.mark.parametrize(("marker", "lifetime"), [(FIVE, 300), (HOUR, 3_600)], ids=["5m", "1h"])
async def test_lifetime_is_refreshed_by_hits(
    clock: Clock, client: AsyncAnthropic, marker: dict[str, str], lifetime: int
) -> None:
    """An entry lives its lifetime from its last use, and not a second longer."""
    system = [block(2_000, marker)]
    await ask(client, system=system)
    for _ in range(2):
        clock.seconds += lifetime - 1
        assert (await ask(client, system=system))[3] == 2_000
    clock.seconds += lifetime
    assert (await ask(client, system=system))[3] == 0


async def test_automatic_marker(client: AsyncAnthropic) -> None:
    """A top-level marker caches up to the last block, and the next turn reads it."""
    long = {"role": "user", "content": [block(2_000)]}
    turns = [long, {"role": "assistant", "content": "yes!"}, {"role": "user", "content": "more"}]

    first = await ask(client, messages=[long], cache_control=FIVE)
    second = await ask(client, messages=turns, cache_control=FIVE)
    assert first == (0, 2_003, 0, 0)
    assert second == (0, 8, 0, 2_003)


async def test_order_is_tools_system_messages(client: AsyncAnthropic) -> None:
    """Another system text keeps the cached tools; another tool keeps nothing."""
    tool = {"name": "big", "description": "d" * 8_000, "input_schema": {"type": "object"}}
    marked = [{**tool, "cache_control": FIVE}]
    tools_tokens = (await ask(client, tools=marked, system=[block(1_000, FIVE)]))[1] - 1_000
    assert tools_tokens > 2_346

    other_system = await ask(client, tools=marked, system=[block(1_000, FIVE, "y")])
    assert other_system == (4, 1_000, 0, tools_tokens)
    other_tool = [{**tool, "name": "bug", "cache_control": FIVE}]
    assert (await ask(client, tools=other_tool, system=[block(1_000, FIVE)]))[3] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"output_config": {"effort": "low"}},
        {"thinking": {"type": "adaptive"}},
        {"model": "claude-sonnet-5"},
    ],
    ids=["effort", "thinking", "model"],
)
async def test_settings_that_break_the_cache(
    client: AsyncAnthropic, change: dict[str, Any]
) -> None:
    """Effort, thinking and model are part of what a cached message prefix must repeat."""
    messages = [{"role": "user", "content": [block(2_000, FIVE)]}]
    await ask(client, messages=messages)

    assert (await ask(client, messages=messages, **change))[3] == 0
    assert (await ask(client, messages=messages))[3] == 2_003


async def test_look_back_is_twenty_blocks(client: AsyncAnthropic) -> None:
    """A cached prefix more than twenty blocks before the marker isn't found."""
    head = block(2_000)
    await ask(client, system=[{**head, "cache_control": FIVE}])

    near = [head, *[block(1) for _ in range(18)], block(1, FIVE)]
    far = [head, *[block(1, letter="z") for _ in range(19)], block(1, FIVE)]
    assert (await ask(client, system=near))[3] == 2_000
    assert (await ask(client, system=far))[3] == 0


async def test_parallel_requests_all_write() -> None:
    """An entry can be read only once the first response began, so a fan-out writes it N times."""
    hang = Fault(kind="hang", times=3)
    async with (
        Simulator(faults=Faults([hang])) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        system = [block(2_000, FIVE)]
        asked = [asyncio.create_task(ask(client, system=system)) for _ in range(3)]
        await sim.arrived(3)
        sim.release()
        written = [(await task)[1] for task in asked]
        after = await ask(client, system=system)

    assert written == [2_000, 2_000, 2_000]
    assert after == (4, 0, 0, 2_000)


async def test_delay_until_readable(clock: Clock) -> None:
    """With a cache delay, an entry is readable only that long after the response began (P-01)."""
    async with (
        Simulator(clock=clock, cache_delay_s=2.0) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        system = [block(2_000, FIVE)]
        await ask(client, system=system)
        assert (await ask(client, system=system))[3] == 0
        clock.seconds += 2.0
        assert (await ask(client, system=system))[3] == 2_000


async def test_warm_up_without_output(client: AsyncAnthropic) -> None:
    """``max_tokens=0`` writes the cache and generates nothing."""
    system = [block(2_000, FIVE)]
    message = await client.messages.create(
        model=MODEL,
        max_tokens=0,
        system=system,  # type: ignore[arg-type]
        messages=[{"role": "user", "content": "four"}],
    )

    assert message.usage.output_tokens == 0
    assert (await ask(client, system=system))[3] == 2_000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"system": [block(9, FIVE) for _ in range(5)]}, "maximum of 4"),
        (
            {"system": [block(9, FIVE) for _ in range(4)], "cache_control": FIVE},
            "maximum of 4",
        ),
        ({"system": [block(9, FIVE), block(9, HOUR)]}, "must not come after"),
        (
            {
                "messages": [{"role": "user", "content": [block(9, HOUR)]}],
                "cache_control": FIVE,
            },
            "another ttl",
        ),
        ({"system": [block(9, {"type": "ephemeral", "ttl": "2h"})]}, "'5m' or '1h'"),
    ],
)
async def test_bad_markers(client: AsyncAnthropic, fields: dict[str, Any], words: str) -> None:
    """Too many markers, lifetimes in the wrong order, or unknown ones are a 400."""
    with pytest.raises(anthropic.BadRequestError, match=words):
        await ask(client, **fields)


async def test_batches_share_the_cache(sim: Simulator, client: AsyncAnthropic) -> None:
    """Items of a batch write and read the same cache, at half the price."""
    params: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 10,
        "system": [block(2_000, HOUR)],
        "messages": [{"role": "user", "content": "four [[sim:output=2]]"}],
    }
    await client.messages.batches.create(
        requests=[{"custom_id": f"item-{n}", "params": params} for n in range(2)]  # type: ignore[typeddict-item]
    )
    await sim.finish_batches()

    first, second = sim.bill.rows
    fresh = first.counts.input * 2_000 + 2 * 10_000
    assert first.nanos == (2_000 * 4_000 + fresh) // 2
    assert second.nanos == (2_000 * 100 + fresh) // 2
