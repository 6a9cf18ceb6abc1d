"""A server that records raw requests and answers with raw bytes, behind a gateway, and a client that sees raw bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from budgets import Cap, Ledger
from orchestrator.gateway import Gateway, Lease, Limits, Upstream

from .gatewaying import REAL_KEY

USAGE = {
    "input_tokens": 20,
    "output_tokens": 9,
    "service_tier": "standard",
    "inference_geo": "global",
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [{"type": "text", "text": "Grüße,  \u2028ja"}],
    "stop_reason": "end_turn",
    "usage": USAGE,
}
#: Whole, with odd spacing, comments and events that nobody knows.
STREAM = (
    b": hello\r\n\r\n"
    b'event: message_start\ndata: {"type":"message_start","message":'
    + json.dumps({**MESSAGE, "content": [], "usage": {**USAGE, "output_tokens": 1}}).encode()
    + b'}\n\nevent: ping\ndata: {}\n\nevent: of_tomorrow\ndata:{"x":  1}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":9}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@dataclass
class Recorder:
    """A server that takes down what it gets, raw, and answers with bytes; ``closes``: and hangs up then."""

    answer: bytes = b""
    closes: bool = False
    url: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(values(head).get("content-length", ["0"])[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def values(head: bytes) -> dict[str, list[str]]:
    """The headers of a head, by name in lower case."""
    found: dict[str, list[str]] = {}
    for line in head.decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        if name:
            found.setdefault(name.lower(), []).append(value)
    return found


def whole(status: str, body: bytes, **headers: str) -> bytes:
    """An answer as it goes over the wire."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{named}content-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def recorded(
    answer: bytes, *, closes: bool = False
) -> AsyncIterator[tuple[Recorder, Gateway, Lease, Ledger]]:
    """A recorder behind a gateway."""
    recorder = Recorder(answer, closes)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ledger = Ledger(caps=[Cap("100")])
    upstream = Upstream(url=recorder.url, api_key=REAL_KEY)
    async with Gateway(ledger=ledger, upstream=upstream, limits=Limits(stop_s=0.5)) as gateway:
        yield recorder, gateway, gateway.lease("app"), ledger
    server.close()
    ledger.close()


async def exchange(url: str, head: str, body: bytes) -> tuple[bytes, bytes]:
    """One request, raw; the answer's head and body as they are on the wire."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(
            f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        )
        back = await reader.readuntil(b"\r\n\r\n")
        headers = values(back)
        if "content-length" in headers:
            return back, await reader.readexactly(int(headers["content-length"][0]))
        said = b""
        while size := int(await reader.readline(), 16):
            said += (await reader.readexactly(size + 2))[:-2]
        return back, said
    finally:
        writer.close()


HEAD = (
    "POST {path} HTTP/1.1\r\nhost: localhost\r\nX-Api-Key: {key}\r\n"
    "Content-Type: application/json\r\nanthropic-version: 2023-06-01\r\n"
    "anthropic-beta: of-tomorrow-2027-01-01,context-1m-2025-08-07\r\nanthropic-beta: second-line\r\n"
    "User-Agent: claude-cli/2.1.332 (external, sdk-py)\r\nX-Odd: Grüße\r\n"
    "accept-encoding: gzip, deflate, br, zstd\r\nx-stainless-retry-count: 0\r\nX-Empty: \r\n"
)
#: Spacing, order, unicode and numbers that a parser would write differently.
BODY = (
    b'{ "model":"claude-sonnet-5-5",\n "max_tokens":400, "temperature": 1.0e0,'
    b'"system":[{"type":"text","text":"\\u00fc\xc3\xbc","cache_control":{"type":"ephemeral"}}],'
    b'"messages":[{"role":"user","content":"Hello"},{"role":"system","content":"note"}]}'
)
