"""What passes through a gateway is what was sent, byte for byte, in both directions (cases G-01 to G-05)."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
from backports import zstd

from budgets import Cap, Ledger
from orchestrator.encodings import decoder_of
from orchestrator.gateway import Gateway, Upstream

from .gatewaying import REAL_KEY, ask
from .raw_http import BODY, HEAD, MESSAGE, STREAM, exchange, recorded, values, whole


async def test_a_request_arrives_as_it_left() -> None:
    """Body, path, query and every header, betas and unknown ones included, are what they are without a gateway."""
    # G-01, G-02, G-03
    async with recorded(whole("200 OK", json.dumps(MESSAGE).encode())) as (
        recorder,
        gateway,
        lease,
        ledger,
    ):
        head = HEAD.format(path="/v1/messages?beta=true&x=%2F", key=REAL_KEY)
        await exchange(recorder.url, head, BODY)
        await exchange(gateway.url, head.replace(REAL_KEY, lease.key), BODY)
        direct, through = (values(one) for one in recorder.heads)
        for one in (direct, through):  # of the connection, not of the request
            one.pop("connection", None)
            one.pop("host")

        assert recorder.bodies[1] == recorder.bodies[0] == BODY
        assert recorder.heads[1].split(b"\r\n")[0] == recorder.heads[0].split(b"\r\n")[0]
        assert through == direct
        assert through["anthropic-beta"] == [
            "of-tomorrow-2027-01-01,context-1m-2025-08-07",
            "second-line",
        ]
        assert [line.kind for line in ledger.lines()] == ["hold", "settle"]


async def test_hop_by_hop_headers_and_the_clients_key_stay_here() -> None:
    """What belongs to the connection is not passed on, nor anything that names a client's key."""
    async with recorded(whole("200 OK", json.dumps(MESSAGE).encode())) as (
        recorder,
        gateway,
        lease,
        _,
    ):
        head = HEAD.format(path="/v1/messages", key=lease.key) + "x-mine: 1\r\nKeep-Alive: 5\r\n"
        await exchange(gateway.url, head.replace("X-Empty: ", "connection: x-mine"), BODY)
        got = values(recorder.heads[0])

        assert not {"x-mine", "keep-alive"} & set(got)
        assert lease.key not in recorder.heads[0].decode()
        assert got["x-api-key"] == [REAL_KEY]


ERRORS = {
    "400 Bad Request": b'{"type":"error","error":{"type":"invalid_request_error",  "message":"no such beta"}}',
    "402 Payment Required": b'{"type":"error","error":{"type":"billing_error","message":"x"}}',
    "429 Too Many Requests": b'{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}',
    "500 Internal Server Error": b"<html>not JSON</html>",
    "529 Overloaded": b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    "302 Found": b"",
}


@pytest.mark.parametrize("status", ERRORS)
async def test_errors_come_back_verbatim(status: str) -> None:
    """Status, body and headers of an error are the upstream's own; nothing was billed but for what can't be read."""
    # G-02, G-05
    answer = whole(
        status,
        ERRORS[status],
        content_type="application/json",
        retry_after="7",
        x_should_retry="false",
    )
    async with recorded(answer) as (_, gateway, lease, ledger):
        head, body = await exchange(
            gateway.url, HEAD.format(path="/v1/messages", key=lease.key), BODY
        )
        got = values(head)

        assert head.split(b" ")[1].decode() == status[:3]
        assert body == ERRORS[status]
        assert (got["retry-after"], got["x-should-retry"]) == (["7"], ["false"])
        assert list(ledger.lines())[-1].kind == ("doubt" if status[0] == "3" else "void")


PACKING: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("coding", PACKING)
async def test_packed_answers_pass_as_they_are_and_are_read(coding: str, streamed: bool) -> None:
    """Whatever encoding the client accepts: its bytes are untouched, and the usage in them is settled."""
    plain = STREAM if streamed else json.dumps(MESSAGE, ensure_ascii=False).encode()
    packed = PACKING[coding](plain)
    kind = "text/event-stream" if streamed else "application/json"
    async with recorded(whole("200 OK", packed, content_type=kind, content_encoding=coding)) as (
        _,
        gateway,
        lease,
        ledger,
    ):
        raw = json.dumps(ask(stream=streamed)).encode()
        head, body = await exchange(
            gateway.url, HEAD.format(path="/v1/messages", key=lease.key), raw
        )
        line = list(ledger.lines())[-1]

        assert body == packed
        assert values(head)["content-encoding"] == [coding]
        assert (line.kind, (line.usage or {})["output_tokens"]) == ("settle", 9)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_every_piece_may_be_packed_by_itself(coding: str) -> None:
    """A server that flushes each event as a frame of its own is read like one that does not."""
    events = STREAM.split(b"\n\n")
    decoder = decoder_of(coding)

    assert [decoder.feed(PACKING[coding](event)) for event in events] == events
    assert decoder.feed(b"".join(PACKING[coding](event) for event in events)) == b"".join(events)


async def test_an_encoding_that_nobody_can_read_is_not_asked_for() -> None:
    """The upstream is told only of encodings that can be read here: otherwise every usage would be lost."""
    async with recorded(whole("200 OK", json.dumps(MESSAGE).encode())) as (
        recorder,
        gateway,
        lease,
        _,
    ):
        head = HEAD.format(path="/v1/messages", key=lease.key)
        await exchange(gateway.url, head.replace("br, zstd", "lzma, *"), BODY)

        assert values(recorder.heads[0])["accept-encoding"] == ["gzip, deflate"]


SMUGGLED = {
    "a key twice": b'{"model":"claude-sonnet-5-5","max_tokens":1,"max_tokens":100000,"messages":[]}',
    "a key twice, escaped": b'{"model":"claude-sonnet-5-5","max_tokens":1,"max\\u005ftokens":99999,"messages":[]}',
    "a key twice, deep": b'{"model":"claude-sonnet-5-5","max_tokens":1,"messages":[],"tools":[{"a":1,"a":2}]}',
    "no JSON": b'{"model":',
    "no object": b"[1]",
    "not UTF-8": b'{"model":"\xff"}',
    "UTF-16": '{"model":"x"}'.encode("utf-16"),
    "no max_tokens": b'{"model":"claude-sonnet-5-5","messages":[]}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_body_that_two_readers_could_read_differently_is_refused(name: str) -> None:
    """What was priced is what the upstream reads: anything else is a 400, and nothing is sent."""
    async with recorded(b"") as (recorder, gateway, lease, ledger):
        head, body = await exchange(
            gateway.url, HEAD.format(path="/v1/messages", key=lease.key), SMUGGLED[name]
        )

        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert recorder.heads == []
        assert list(ledger.lines()) == []


async def test_packed_and_huge_bodies_are_refused() -> None:
    """A packed body can't be priced, and one above the limit is not even read."""
    async with recorded(b"") as (recorder, gateway, lease, _):
        head = HEAD.format(path="/v1/messages", key=lease.key)
        packed, _ = await exchange(
            gateway.url, head + "content-encoding: gzip\r\n", gzip.compress(BODY)
        )
        hidden, _ = await exchange(
            gateway.url, f"{head}content-encoding: identity\r\ncontent-encoding: br\r\n", BODY
        )
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
        huge = await reader.readuntil(b"\r\n\r\n")
        writer.close()

        assert packed.startswith(b"HTTP/1.1 400")
        assert hidden.startswith(b"HTTP/1.1 400")
        assert huge.startswith(b"HTTP/1.1 413")
        assert recorder.heads == []


async def test_a_client_that_leaves_in_its_body_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It gives no line in the log, and spends nothing."""
    async with recorded(b"") as (recorder, gateway, lease, ledger):
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = HEAD.format(path="/v1/messages", key=lease.key)
        writer.write(f"{head}content-length: 500\r\n\r\n{{".encode())
        await writer.drain()
        writer.transport.abort()
        async with asyncio.timeout(5):
            while b"connections 0.0" not in gateway.counters.page():
                await asyncio.sleep(0.01)

        assert [one for one in caplog.records if one.name.startswith("earmark")] == []
        assert recorder.heads == []
        assert list(ledger.lines()) == []


async def test_a_stream_is_not_buffered() -> None:
    """The first event is with the client before the upstream has sent the second."""
    begun = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        events = STREAM.split(b"\n\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        writer.write(events[0] + b"\n\n")
        await begun.wait()  # only the client sets it
        writer.write(b"\n\n".join(events[1:]))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with Ledger(caps=[Cap("100")]) as ledger:
        async with Gateway(ledger=ledger, upstream=Upstream(url=url, api_key="k")) as gateway:
            lease = gateway.lease("app")
            raw = json.dumps(ask(stream=True)).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            head = HEAD.format(path="/v1/messages", key=lease.key)
            writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
            await reader.readuntil(b": hello")
            begun.set()
            rest = await reader.readuntil(b'message_stop"}')
            writer.close()
            await lease.settled(5)

        assert b"of_tomorrow" in rest
        assert [line.kind for line in ledger.lines()] == ["hold", "settle"]
    server.close()


def test_the_recording_says_what_it_is_for() -> None:
    """The odd request parses as what the gateway prices; otherwise the tests above prove nothing."""
    read: dict[str, Any] = json.loads(BODY)

    assert read["messages"][1]["role"] == "system"
