"""Lingering: answers in a client of the caller's own are closed late, and nobody notices."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import anthropic
import httpcore2
import httpx2
import pytest

from orchestrator import lingering as module
from orchestrator.simulator import Fault

from .metering import MODEL, Rig, ask, rig


def idle(on: Rig) -> list[bool]:
    """Which connections of the client's pool are idle."""
    pool = on.client._client._transport._pool
    assert isinstance(pool, httpcore2.AsyncConnectionPool)
    return [connection.is_idle() for connection in pool.connections]


async def test_a_connection_stays_busy_until_the_next_call() -> None:
    """After a call its connection is not idle, and the next one gets it all the same."""
    async with rig() as on:
        for _ in range(3):
            await on.client.messages.create(**ask())
            assert idle(on) == [False]
        on.prove_exact(requests=3)


async def test_without_a_next_call_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection does not stay busy for long when no call follows."""
    monkeypatch.setattr(module, "_LINGER_S", 0.001)
    async with rig() as on:
        await asyncio.gather(*(on.client.messages.create(**ask()) for _ in range(3)))
        deadline = time.monotonic() + 5
        while not all(idle(on)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.002)
        on.prove_exact(requests=3)


async def test_a_full_pool_is_not_blocked() -> None:
    """Where the caller's client has a single connection, calls and free requests still get it."""
    http = anthropic.DefaultAsyncHttpxClient(limits=httpx2.Limits(max_connections=1))
    async with rig(client={"http_client": http}) as on:
        await asyncio.gather(*(on.client.messages.create(**ask()) for _ in range(8)))
        counted = await on.client.messages.count_tokens(model=MODEL, messages=ask()["messages"])
        assert counted.input_tokens > 0
        on.prove_exact(requests=8)
    await http.aclose()


async def test_callers_get_what_they_asked_for() -> None:
    """Parsed messages, raw and streamed responses are what they were, with body, headers and time taken."""
    async with rig() as on:
        message = await on.client.messages.create(**ask())
        assert message.usage.output_tokens == 50
        raw = await on.client.messages.with_raw_response.create(**ask())
        assert (await raw.parse()).usage.output_tokens == 50
        async with on.client.messages.with_streaming_response.create(**ask()) as response:
            assert (await response.parse()).usage.output_tokens == 50
            assert timedelta() < response.http_response.elapsed < timedelta(seconds=30)
        on.prove_exact(requests=3)


async def test_a_body_that_is_cut_is_an_error_of_the_sdk_and_in_doubt() -> None:
    """A connection that breaks within the answer is what the SDK says it is, and it is charged."""
    async with rig(client={"max_retries": 0}) as on:
        on.sim.faults.extend([Fault(kind="hang", billed=True)])
        impatient = on.client.with_options(timeout=httpx2.Timeout(30, read=0.1))
        with pytest.raises(anthropic.APITimeoutError):
            await impatient.messages.create(**ask())
        assert on.kinds() == ["doubt"]


@pytest.mark.parametrize("cut", ["reset", "silence"])
async def test_an_answer_cut_in_its_middle(cut: str) -> None:
    """Half an answer raises the SDK's own error, goes in doubt, and its connection is not used again."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"id":')
        if cut == "silence":
            await reader.read()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = {
        "base_url": f"http://127.0.0.1:{port}",
        "max_retries": 0,
        "timeout": httpx2.Timeout(30, read=0.2),
    }
    kind = anthropic.APITimeoutError if cut == "silence" else anthropic.APIConnectionError
    async with rig() as on:
        with pytest.raises(kind):
            await on.client.with_options(**options).messages.create(**ask())
        assert on.kinds() == ["doubt"]
    server.close()


async def test_errors_are_closed_late_too() -> None:
    """An error reply is raised as the SDK's own, void, with its connection kept for the next call."""
    async with rig(client={"max_retries": 0}) as on:
        on.sim.faults.extend([Fault(kind="error", status=400)])
        with pytest.raises(anthropic.BadRequestError):
            await on.client.messages.create(**ask())
        await on.client.messages.create(**ask())
        assert on.kinds() == ["void", "settle"]
        assert len(idle(on)) == 1
