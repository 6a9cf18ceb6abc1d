"""Answers whose figures contradict each other: none is settled at the lower one, and what can be read is settled by."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from budgets import Ledger
from orchestrator.gateway import Gateway, Upstream

from .gatewaying import ask
from .raw_http import HEAD, MESSAGE, STREAM, exchange, recorded, values, whole

JSON = json.dumps(MESSAGE).encode()
DELTA = STREAM[STREAM.index(b"event: message_delta") : STREAM.index(b"event: message_stop")]
STOP = STREAM[STREAM.index(b"event: message_stop") :]
HIGH = DELTA.replace(b'"output_tokens":9', b'"output_tokens":40')
LOW = DELTA.replace(b'"output_tokens":9', b'"output_tokens":1')
#: $2 and $10 a million tokens of claude-sonnet-5-5, in nano-dollars.
COST = {output: 20 * 2_000 + output * 10_000 for output in (9, 40)}


def _ends(ledger: Ledger) -> tuple[str, int, bool]:
    """How the hold ended: the kind, what was posted, and whether that is the whole hold, unpriced."""
    held, *ends = ledger.lines()
    assert len(ends) == 1
    is_whole = ends[0].posted == held.nanos and "unpriced" in ends[0].note
    return ends[0].kind, ends[0].posted, is_whole


async def _through(answer: bytes, *, stream: bool) -> tuple[bytes, tuple[str, int, bool]]:
    """What the client gets of an answer, and how its hold ends."""
    async with recorded(answer) as (_, gateway, lease, ledger):
        head = HEAD.format(path="/v1/messages", key=lease.key)
        _, said = await exchange(gateway.url, head, json.dumps(ask(stream=stream)).encode())
        await lease.settled(5)
        await asyncio.to_thread(ledger.flush)
        return said, _ends(ledger)


@pytest.mark.parametrize("deltas", [HIGH + LOW, LOW + HIGH], ids=["falling", "rising"])
async def test_of_two_deltas_the_larger_counts(deltas: bytes) -> None:
    """The client gets both, the ledger the larger."""
    body = STREAM.replace(DELTA, deltas)
    answer = whole("200 OK", body, content_type="text/event-stream")

    said, ends = await _through(answer, stream=True)

    assert said == body
    assert ends == ("settle", COST[40], False)


async def test_a_second_message_after_the_first_is_not_overlooked() -> None:
    """However late it comes: neither of the two is believed, so the whole hold is posted."""
    first_is_read = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        writer.write(STREAM)
        await first_is_read.wait()
        writer.write(STREAM.replace(DELTA, LOW))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with recorded(b"") as (_, _, _, ledger):
        async with Gateway(ledger=ledger, upstream=Upstream(url=url, api_key="k")) as gateway:
            lease = gateway.lease("app")
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            body = json.dumps(ask(stream=True)).encode()
            head = HEAD.format(path="/v1/messages", key=lease.key)
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            await reader.readuntil(STOP)
            first_is_read.set()
            await reader.readuntil(STOP)
            assert await lease.settled(5)
            writer.close()
        await asyncio.to_thread(ledger.flush)
        kind, _, is_whole = _ends(ledger)

        assert (kind, is_whole) == ("settle", True)
    server.close()


@pytest.mark.parametrize("stream", [False, True], ids=["asked whole", "asked as a stream"])
async def test_a_usage_twice_in_one_body(stream: bool) -> None:
    """The client gets the bytes as they are; the whole hold is posted, as for a usage that can't be read."""
    body = JSON.replace(b'"usage"', b'"usage": {"input_tokens": 1, "output_tokens": 1}, "usage"', 1)

    said, (kind, _, is_whole) = await _through(whole("200 OK", body), stream=stream)

    assert said == body
    assert (kind, is_whole) == ("settle", True)


@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize("before", [b"", b" \n "])
async def test_json_where_a_stream_was_asked_for(coding: str, before: bytes) -> None:
    """Its usage says what it cost, so it is settled by that; the client gets what the upstream sent."""
    body = before + JSON
    packed = gzip.compress(body) if coding else body
    named = {"content_type": "application/json", "request_id": "req_1"}
    answer = whole("200 OK", packed, **named, **({"content_encoding": coding} if coding else {}))

    said, ends = await _through(answer, stream=True)

    assert said == packed
    assert ends == ("settle", COST[9], False)


async def test_json_that_is_cut_where_a_stream_was_asked_for() -> None:
    """Half an object says nothing: in doubt."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    async with recorded(head + JSON[:-9], closes=True) as (_, gateway, lease, ledger):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = json.dumps(ask(stream=True)).encode()
        asked = HEAD.format(path="/v1/messages", key=lease.key)
        writer.write(f"{asked}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert values(await reader.readuntil(b"\r\n\r\n"))["content-type"] == ["application/json"]
        assert await lease.settled(5)
        writer.close()
        await asyncio.to_thread(ledger.flush)

        assert _ends(ledger)[0] == "doubt"
