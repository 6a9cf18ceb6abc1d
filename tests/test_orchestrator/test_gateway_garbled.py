"""What is no HTTP gets one answer in the API's form, without a byte of it, and can't fill the log."""

from __future__ import annotations

import asyncio
import json

import pytest

from .raw_http import recorded

MARK = b"QUITE-A-MARK"
LONG = MARK * 1_000
POST = b"POST /v1/messages HTTP/1.1\r\n"
LOCAL = b"host: localhost\r\n"

GARBLED = {
    "no host": POST + b"x-a: " + MARK + b"\r\ncontent-length: 2\r\n\r\n{}",
    "a length and chunks": POST
    + LOCAL
    + b"content-length: 2\r\ntransfer-encoding: chunked\r\nx-a: "
    + MARK
    + b"\r\n\r\n0\r\n\r\n",
    "a length that is none": POST + LOCAL + b"content-length: -1" + MARK + b"\r\n\r\n",
    "a long header": POST + LOCAL + b"x-a: " + LONG + b"\r\n\r\n",
    "a long path": b"GET /" + LONG + b" HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "many headers": POST + LOCAL + b"".join(b"x-%d: %b\r\n" % (n, MARK) for n in range(200)),
    "a folded header": POST + LOCAL + b"x-a: 1\r\n " + MARK + b"\r\n\r\n",
    "a space before a colon": POST + b"host : localhost\r\nx: " + MARK + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + MARK + b"\r\n\r\n",
    "a chunk that is none": POST + LOCAL + b"transfer-encoding: chunked\r\n\r\nzz" + MARK + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


async def _said_to(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(5):
        said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize("name", GARBLED)
async def test_it_gets_the_apis_error(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """400 ``invalid_request_error`` as JSON, nothing echoed, nothing spent or sent, and the connection is closed."""
    async with recorded(b"") as (recorder, gateway, _, ledger):
        head, _, body = (await _said_to(gateway.port, GARBLED[name])).partition(b"\r\n\r\n")

        assert head.split()[1] == b"400"
        assert b"content-type: application/json" in head.lower()
        error = json.loads(body)
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert "no HTTP request" in error["error"]["message"]
        assert MARK not in head + body
        assert MARK.decode() not in caplog.text
        assert recorder.heads == []
        assert list(ledger.lines()) == []


async def test_it_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """However often it comes, it is one line in the log; the metric has all of them."""
    async with recorded(b"") as (_, gateway, _, _):
        for data in GARBLED.values():
            await _said_to(gateway.port, data)

        lines = [one.getMessage() for one in caplog.records if one.name.startswith("earmark")]
        assert len(lines) == 1
        assert "said once" in lines[0]
        counted = f'earmark_gateway_refused_total{{reason="bad_http"}} {len(GARBLED)}.0'
        assert counted.encode() in gateway.counters.page()
