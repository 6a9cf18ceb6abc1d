"""Answers that are odd or broken HTTP: each ends, with a reason, its hold exactly once, and no other client gets it."""

from __future__ import annotations

import asyncio
import json

import pytest

from orchestrator.gateway import Gateway, Lease, Upstream

from .gatewaying import ask
from .raw_http import HEAD, MESSAGE, STREAM, Recorder, recorded

JSON = json.dumps(MESSAGE).encode()
EMPTY = b""


def _sized(head: bytes, body: bytes) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def _chunked(
    head: bytes, body: bytes, *, extension: bytes = b"", last: bytes = b"0\r\n\r\n"
) -> bytes:
    chunks = (body[at : at + 50] for at in range(0, len(body), 50))
    pieces = (b"%x%s\r\n%s\r\n" % (len(one), extension, one) for one in chunks)
    return head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(pieces) + last


def _answers(kind: bytes, body: bytes) -> dict[str, tuple[bytes, bool, int, str]]:
    """Each by name: its bytes, whether the connection closes then, the client's status, and the hold's end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n"
    good, plain = _sized(head, body), head + b"\r\n" + body
    return {
        "two answers": (good + good, False, 200, "settle"),
        "bytes after the end": (good + b"more", False, 502, "doubt"),
        "bytes after the last chunk": (_chunked(head, body) + b"more", False, 502, "doubt"),
        "chunk extensions": (
            _chunked(head, body, extension=b' ;a=1;b="x;y"'),
            False,
            200,
            "settle",
        ),
        "trailers": (_chunked(head, body, last=b"0\r\nx-t: 1\r\n\r\n"), False, 200, "settle"),
        "a chunk of no size": (_chunked(head, EMPTY, last=b"-5\r\nhello\r\n"), False, 502, "doubt"),
        "a chunk without end": (_chunked(head, EMPTY, last=b"f" * 20), False, 502, "doubt"),
        "early hints": (
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3 + good,
            False,
            200,
            "settle",
        ),
        "only a continue": (b"HTTP/1.1 100 Continue\r\n\r\n", True, 502, "doubt"),
        "another protocol": (
            b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + body,
            True,
            502,
            "doubt",
        ),
        "status 000": (good.replace(b"200 OK", b"000 None"), False, 502, "doubt"),
        "204 with a body": (good.replace(b"200 OK", b"204 No Content"), False, 502, "doubt"),
        "304 with a body": (good.replace(b"200 OK", b"304 Not Modified"), False, 502, "doubt"),
        "204": (b"HTTP/1.1 204 No Content\r\n\r\n", False, 204, "doubt"),
        "HTTP/1.0 without length": (plain.replace(b"1.1", b"1.0", 1), True, 200, "settle"),
        "without length": (plain, True, 200, "settle"),
        "two lengths": (head + b"content-length: 5\r\n" + good[len(head) :], False, 502, "doubt"),
        "no head": (body, True, 502, "doubt"),
        "half a head": (head, True, 502, "doubt"),
        "nothing": (EMPTY, True, 502, "doubt"),
    }


ANSWERS = {
    **{
        f"whole, {name}": (False, *odd) for name, odd in _answers(b"application/json", JSON).items()
    },
    **{
        f"stream, {name}": (True, *odd)
        for name, odd in _answers(b"text/event-stream", STREAM).items()
    },
}


async def _raw(gateway: Gateway, lease: Lease, body: bytes) -> bytes:
    """Everything that the client gets until its connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = HEAD.format(path="/v1/messages", key=lease.key)
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    async with asyncio.timeout(5):
        got = await reader.read()
    writer.close()
    return got


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_odd_answer_ends_with_a_reason(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the answer or one sentence, never silence or a traceback; the hold ends once."""
    streamed, answer, closes, status, ends = ANSWERS[name]
    async with recorded(answer, closes=closes) as (_, gateway, lease, ledger):
        got = await _raw(gateway, lease, json.dumps(ask(stream=streamed)).encode())
        assert await lease.settled(5)
        await asyncio.to_thread(ledger.flush)

        assert got.startswith(b"HTTP/1.1 %d " % status)
        assert [line.kind for line in ledger.lines()] == ["hold", ends]
        if status == 502:
            assert b"its hold is in doubt" in got
        if ends == "settle":
            assert (b"message_stop" if streamed else JSON) in got
        assert [record for record in caplog.records if record.exc_info] == []


async def test_an_answer_that_nobody_asked_for_reaches_nobody() -> None:
    """A second answer, sent on the idle connection, is not taken for the answer to the next client's request."""
    stray = json.dumps({**MESSAGE, "id": "msg_stray"}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    strayed = asyncio.Event()

    class Straying(Recorder):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answering = asyncio.create_task(super().serve(reader, writer))
            if not strayed.is_set():
                await release.wait()
                writer.write(_sized(head, stray))
                await writer.drain()
                strayed.set()
            await answering

    release = asyncio.Event()
    upstream = Straying(_sized(head, JSON))
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with recorded(b"") as (_, outer, _, ledger):
        async with Gateway(ledger=ledger, upstream=Upstream(url=url, api_key="k")) as gateway:
            raw = json.dumps(ask()).encode()
            first = await _raw(gateway, gateway.lease("a"), raw)
            release.set()
            await strayed.wait()
            await asyncio.sleep(0.05)  # until it has arrived, which nobody is told of
            second = await _raw(gateway, gateway.lease("b"), raw)
            third = await _raw(gateway, gateway.lease("c"), raw)

        assert JSON in first
        assert b"msg_stray" not in second + third
        assert JSON in second
        assert JSON in third
        assert len(upstream.heads) == 3
        assert outer is not gateway
    server.close()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_an_answer_before_the_request_was_read(streamed: bool) -> None:
    """An upstream that answers and reads no further is not waited for: the answer goes on at once."""
    error = b'{"type":"error","error":{"type":"request_too_large","message":"x"}}'
    head = b"HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\n"
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_sized(head, error))
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with recorded(b"") as (_, _, _, ledger):
        async with Gateway(ledger=ledger, upstream=Upstream(url=url, api_key="k")) as gateway:
            body = json.dumps(ask("x" * 20_000_000, stream=streamed)).encode()
            got = await _raw(gateway, gateway.lease("a"), body)
            done.set()

        assert got.startswith(b"HTTP/1.1 413")
        assert error in got
        assert [line.kind for line in ledger.lines()] == ["hold", "void"]
    server.close()
