"""The official SDK talks to the simulator unchanged, sync and async."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import anthropic
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

from orchestrator.simulator import Settings, Simulator, SimulatorThread, running_simulator

MODEL = "claude-sonnet-5-5"


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Verdict(pydantic.BaseModel):
    label: Literal["invoice", "letter", "contract"]
    why: str


@beta_tool
def weather(city: str) -> str:
    """Get the weather.

    Args:
        city: The city's name.
    """
    return f"sunny in {city}"


@beta_async_tool
async def weather_later(city: str) -> str:
    """Get the weather.

    Args:
        city: The city's name.
    """
    return f"rain in {city}"


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(settings=Settings(keep_calls=20)) as simulator:
        yield simulator


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as made:
        yield made


@pytest.fixture
def thread() -> Iterator[SimulatorThread]:
    with running_simulator() as started:
        yield started


@pytest.fixture
def sync_client(thread: SimulatorThread) -> Iterator[Anthropic]:
    with Anthropic(base_url=thread.url, api_key="key", max_retries=0) as made:
        yield made


async def test_create_answers_with_simulated_text(sim: Simulator, client: AsyncAnthropic) -> None:
    """A plain call gets a text that says it is simulated, and whole usage."""
    message = await client.messages.create(model=MODEL, max_tokens=50, messages=user("Hello there"))

    assert message.content[0].text == "Simulated answer to: Hello there"
    assert (message.stop_reason, message.model) == ("end_turn", MODEL)
    usage = message.usage
    assert (usage.service_tier, usage.inference_geo) == ("standard", "global")
    assert usage.cache_creation.ephemeral_5m_input_tokens == 0
    row = sim.bill.row(message.id)
    assert row is not None
    assert row.request_id == message._request_id
    assert row.nanos == usage.input_tokens * 2_000 + usage.output_tokens * 10_000


async def test_stream_has_a_placeholder_first_and_the_count_last(client: AsyncAnthropic) -> None:
    """A stream opens with the input side and output 1; the last delta carries the real output."""
    async with client.messages.stream(
        model=MODEL, max_tokens=500, messages=user("Hello [[sim:output=100]]")
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()

    assert events[0].message.usage.output_tokens == 1
    assert events[0].message.usage.cache_creation is not None
    delta = next(event for event in events if event.type == "message_delta")
    assert delta.usage.output_tokens == 100
    assert set(delta.usage.model_fields_set) & {"service_tier", "inference_geo"} == set()
    assert len([event for event in events if event.type == "text"]) > 1
    assert final.usage.output_tokens == 100
    assert events[-1].type == "message_stop"


async def test_stream_and_plain_call_cost_the_same(sim: Simulator, client: AsyncAnthropic) -> None:
    """The same request costs the same with and without stream (C-09)."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 900,
        "system": [{"type": "text", "text": "x" * 8_000, "cache_control": {"type": "ephemeral"}}],
        "messages": user("Hi [[sim:output=321]]"),
    }
    await client.messages.create(**asked)
    await client.messages.create(**asked)
    async for _ in await client.messages.create(**asked, stream=True):
        pass

    _, plain, streamed = sim.bill.rows
    assert plain.nanos == streamed.nanos
    assert plain.counts == streamed.counts
    assert plain.counts.read == 2_000


async def test_parse_fills_the_schema(client: AsyncAnthropic) -> None:
    """``messages.parse`` gets an instance whose label shares most words with the document."""
    message = await client.messages.parse(
        model=MODEL,
        max_tokens=400,
        system="invoice: asks to pay an amount\nletter: greets\ncontract: parties agree on terms",
        messages=user("Both parties agree on the following terms."),
        output_format=Verdict,
    )

    assert message.parsed_output is not None
    assert message.parsed_output.label == "contract"
    assert message.parsed_output.why.startswith("Simulated")


@pytest.mark.parametrize("threaded", [True, False])
async def test_tool_runner(sim: Simulator, client: AsyncAnthropic, threaded: bool) -> None:
    """A tool runner's loop costs the same whether the server holds the conversation or not."""
    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=400,
        tools=[weather_later],
        messages=user("use tool weather_later for Paris"),
        **({} if threaded else {"thread": False}),
    )
    final = await runner.until_done()

    assert final.stop_reason == "end_turn"
    first, second = (json.loads(call.body) for call in sim.calls)
    assert len(second["messages"]) == (1 if threaded else 3)
    assert ("tools" in second) is not threaded
    assert ("thread" in first) is threaded
    prompts = [row.counts.prompt for row in sim.bill.rows]
    assert prompts[1] > prompts[0] > 346
    assert prompts[1] == final.usage.input_tokens == 451


async def test_a_lost_thread_is_replayed(sim: Simulator, client: AsyncAnthropic) -> None:
    """A thread that expired is answered with thread_not_found, and the SDK sends all of it again."""
    thread = client.beta.messages.thread(model=MODEL, max_tokens=100)
    await thread.send(*user("first"))
    sim.world.threads.clear()
    await thread.send(*user("second"))

    continued, replayed = (json.loads(call.body) for call in sim.calls[1:])
    assert continued["thread"]["type"] == "continue"
    assert (replayed["thread"]["type"], len(replayed["messages"])) == ("create", 3)
    assert sim.stats.by_status == {200: 2, 404: 1}
    assert sim.bill.requests == 2


async def test_a_reply_can_be_continued_once(client: AsyncAnthropic) -> None:
    """Continuing the same reply twice is refused with its own code."""
    betas = ["message-threads-2026-08-12"]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "betas": betas}
    first = await client.beta.messages.create(
        **asked, messages=user("one"), thread={"type": "create"}
    )
    again: dict[str, Any] = {"type": "continue", "previous_message_id": first.id}
    await client.beta.messages.create(**asked, messages=user("two"), thread=again)

    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.beta.messages.create(**asked, messages=user("three"), thread=again)

    assert caught.value.error_code == "thread_already_continued"


async def test_tool_loop_of_given_length(client: AsyncAnthropic) -> None:
    """``turns=N`` makes a loop of exactly N tool calls."""
    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=400,
        tools=[weather_later],
        messages=user("[[sim:turns=3]] go"),
    )
    stops = [message.stop_reason async for message in runner]

    assert stops == ["tool_use", "tool_use", "tool_use", "end_turn"]


async def test_count_tokens_is_close_to_the_bill(client: AsyncAnthropic) -> None:
    """The count is an estimate within one percent of what is billed."""
    asked: dict[str, Any] = {"model": MODEL, "messages": user("word " * 4_000)}
    count = await client.messages.count_tokens(**asked)
    message = await client.messages.create(**asked, max_tokens=10)

    billed = message.usage.input_tokens
    assert abs(count.input_tokens - billed) <= billed / 100


async def test_models(client: AsyncAnthropic) -> None:
    """The models endpoint gives the bounds that a caller needs."""
    listed = {model.id: model async for model in client.models.list()}
    one = await client.models.retrieve("claude-haiku-4-5")

    assert listed["claude-opus-5-5"].max_tokens == 128_000
    assert (one.max_input_tokens, one.max_tokens) == (200_000, 64_000)
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("claude-opus-9")


def test_sync_client(thread: SimulatorThread, sync_client: Anthropic) -> None:
    """The sync client works against the simulator in a thread: create, stream, parse, tools."""
    sync_client.messages.create(model=MODEL, max_tokens=50, messages=user("Hello"))
    with sync_client.messages.stream(
        model=MODEL, max_tokens=50, messages=user("Hello again")
    ) as stream:
        text = "".join(stream.text_stream)
    parsed = sync_client.messages.parse(
        model=MODEL, max_tokens=200, messages=user("an invoice"), output_format=Verdict
    )
    final = sync_client.beta.messages.tool_runner(
        model=MODEL, max_tokens=200, tools=[weather], messages=user("use tool weather")
    ).until_done()

    assert text == "Simulated answer to: Hello again"
    assert parsed.parsed_output is not None
    assert parsed.parsed_output.label == "invoice"
    assert final.stop_reason == "end_turn"
    assert thread.bill.requests == 5


async def test_bearer_and_api_key_both_work(sim: Simulator) -> None:
    """A key is taken from either header, as the SDK and the CLI send it."""
    bearer = AsyncAnthropic(base_url=sim.url, auth_token="token", max_retries=0)
    async with bearer, AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as plain:
        await bearer.messages.create(model=MODEL, max_tokens=5, messages=user("a"))
        await plain.messages.create(
            model=MODEL,
            max_tokens=5,
            messages=user("a"),
            extra_headers={"x-api-key": "key", "authorization": ""},
        )

    assert sim.bill.requests == 2
