"""Batches in the simulator: their life, their results and their price."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from orchestrator.simulator import Simulator

MODEL = "claude-haiku-5-5"


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    """A simulator that holds its batches until they are let go."""
    async with Simulator(batch_seconds=None) as simulator:
        yield simulator


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as made:
        yield made


def item(name: str, text: str = "[[sim:output=5]]", **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    params = {"model": MODEL, "max_tokens": 50, "messages": messages, **fields}
    return {"custom_id": name, "params": params}


async def results(client: AsyncAnthropic, batch_id: str) -> dict[str, Any]:
    lines = await client.messages.batches.results(batch_id)
    return {line.custom_id: line.result async for line in lines}


async def test_life_of_a_batch(sim: Simulator, client: AsyncAnthropic) -> None:
    """A batch is in progress, then ended with counts and results, at half the token price."""
    made = await client.messages.batches.create(requests=[item("a"), item("b")])
    assert made.processing_status == "in_progress"
    assert (made.request_counts.processing, made.results_url) == (2, None)
    with pytest.raises(anthropic.AnthropicError, match="No `results_url`"):
        await client.messages.batches.results(made.id)

    await sim.finish_batches()
    ended = await client.messages.batches.retrieve(made.id)
    assert ended.processing_status == "ended"
    assert (ended.request_counts.processing, ended.request_counts.succeeded) == (0, 2)
    found = await results(client, made.id)
    assert found["a"].message.usage.service_tier == "batch"
    assert found["a"].message.usage.output_tokens == 5
    # 7 input tokens at 100 and 5 output tokens at 500 nano-dollars, halved
    assert [row.nanos for row in sim.bill.rows] == [1_600, 1_600]
    row = sim.bill.row(found["b"].message.id)
    assert row is not None
    assert row.kind == "batch"


async def test_each_item_ends_in_its_own_way(sim: Simulator, client: AsyncAnthropic) -> None:
    """Bad params, server errors and expiry show up per item and cost nothing (B-04, B-13)."""
    made = await client.messages.batches.create(
        requests=[
            item("good"),
            item("late", "[[sim:batch=expired]]"),
            item("broken", "[[sim:batch=errored]]"),
            item("unknown", model="claude-nothing"),
            item("streamed", stream=True),
            item("fast", model="claude-opus-5-5", speed="fast"),
            item("warm", max_tokens=0),
        ]
    )
    await sim.finish_batches()
    found = await results(client, made.id)

    assert {name: result.type for name, result in found.items()} == {
        "good": "succeeded",
        "late": "expired",
        "broken": "errored",
        "unknown": "errored",
        "streamed": "errored",
        "fast": "errored",
        "warm": "errored",
    }
    assert found["unknown"].error.error.type == "not_found_error"
    assert found["broken"].error.error.type == "api_error"
    assert sim.bill.requests == 1


async def test_results_are_in_no_order(sim: Simulator, client: AsyncAnthropic) -> None:
    """Results are shuffled, so that nobody relies on their order (B-12)."""
    names = [f"item-{number}" for number in range(40)]
    made = await client.messages.batches.create(requests=[item(name) for name in names])
    await sim.finish_batches()
    lines = await client.messages.batches.results(made.id)
    order = [line.custom_id async for line in lines]

    assert order != names
    assert sorted(order) == sorted(names)


async def test_cancel(sim: Simulator, client: AsyncAnthropic) -> None:
    """A canceled batch goes through ``canceling``; what wasn't processed costs nothing."""
    made = await client.messages.batches.create(requests=[item("a"), item("b")])
    canceled = await client.messages.batches.cancel(made.id)
    assert canceled.processing_status == "canceling"
    assert canceled.cancel_initiated_at is not None
    await sim.finish_batches()

    ended = await client.messages.batches.retrieve(made.id)
    assert (ended.processing_status, ended.request_counts.canceled) == ("ended", 2)
    assert {result.type for result in (await results(client, made.id)).values()} == {"canceled"}
    assert sim.bill.requests == 0


async def test_expiry(sim: Simulator, client: AsyncAnthropic) -> None:
    """A batch that ran out of time ends with its items expired and unbilled."""
    made = await client.messages.batches.create(requests=[item("a")])
    await sim.finish_batches(expire=True)

    assert (await results(client, made.id))["a"].type == "expired"
    assert sim.bill.requests == 0


async def test_delete(sim: Simulator, client: AsyncAnthropic) -> None:
    """An ended batch can be deleted and is then unknown; a running one can't be."""
    made = await client.messages.batches.create(requests=[item("a")])
    with pytest.raises(anthropic.BadRequestError, match="in_progress"):
        await client.messages.batches.delete(made.id)
    await sim.finish_batches()
    deleted = await client.messages.batches.delete(made.id)

    assert (deleted.id, deleted.type) == (made.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve(made.id)


async def test_pages(client: AsyncAnthropic) -> None:
    """Lists are paged, the newest first, forwards and backwards."""
    ids = [(await client.messages.batches.create(requests=[item("a")])).id for _ in range(5)]
    ids.reverse()

    assert [batch.id async for batch in client.messages.batches.list(limit=2)] == ids
    first = await client.messages.batches.list(limit=2)
    assert ([batch.id for batch in first.data], first.has_more) == (ids[:2], True)
    back = await client.messages.batches.list(limit=2, before_id=ids[4])
    assert ([batch.id for batch in back.data], back.has_more) == (ids[2:4], True)
    whole = await client.messages.batches.list(limit=5)
    assert not whole.has_more


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "at least one"),
        ([item("a"), item("a")], "not unique"),
        ([item("a" * 65)], "should match pattern"),
        ([item("a b")], "should match pattern"),
        ([{"custom_id": "a"}], "requests.0.params"),
    ],
)
async def test_refused_at_once(client: AsyncAnthropic, requests: Any, words: str) -> None:
    """Only the list itself is checked when a batch is created (B-01, B-02)."""
    with pytest.raises(anthropic.BadRequestError, match=words):
        await client.messages.batches.create(requests=requests)


async def test_without_holding_a_batch_ends_by_itself() -> None:
    """By default a batch ends without being told to."""
    async with (
        Simulator() as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        made = await client.messages.batches.create(requests=[item("a")])
        assert made.processing_status == "in_progress"
        ended = await client.messages.batches.retrieve(made.id)

    assert ended.processing_status == "ended"


async def test_finish_over_http(sim: Simulator, client: AsyncAnthropic) -> None:
    """Another process can let batches end through HTTP."""
    made = await client.messages.batches.create(requests=[item("a")])
    async with httpx2.AsyncClient(base_url=sim.url) as http:
        await http.post("/sim/batches/finish")

    assert (await client.messages.batches.retrieve(made.id)).processing_status == "ended"
