"""Relay: the bytes of a stream go to the client as they come, and are watched for their final usage.

Nothing is collected: when the client reads slowly, the upstream is read slowly. The hold is settled at the end of
the stream, since what follows a usage can contradict it, and before the client's own stream ends. When the client is
gone, the rest is read for the ledger alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from budgets.records import Ending
from orchestrator.attempt import Attempt
from orchestrator.wire import SseReader

from .blotting import Passage, Passed

if TYPE_CHECKING:
    from .exchange import Exchange


#: The most of an answer in JSON, where a stream was asked for, that is kept to be settled by.
_LONGEST = 64 * 1024 * 1024


class _Watch:
    """Reads the plain bytes of an answer as they pass by, and says at their end how the hold ends."""

    __slots__ = ("_attempt", "_kept", "_size", "_sse")

    def __init__(self, attempt: Attempt) -> None:
        assert attempt.reader is not None
        self._attempt = attempt
        self._sse = SseReader(attempt.reader)
        #: Of an answer that is one JSON object; events never begin as one.
        self._kept: list[bytes] | None = None
        self._size = 0

    def take(self, plain: bytes) -> None:
        if not self._size and plain.lstrip().startswith(b"{"):
            self._kept = []
        self._size += len(plain if self._size else plain.lstrip())
        if self._kept is None:
            self._sse.feed(plain)
        elif self._size <= _LONGEST:
            self._kept.append(plain)

    def ending(self) -> Ending:
        if self._kept is None:
            self._sse.close()
            return self._attempt.of_stream(None)
        attempt, body = self._attempt, b"".join(self._kept)
        return attempt.of_answer(attempt.status, body, {"request-id": attempt.request_id})[0]


async def relay(
    exchange: Exchange,
    attempt: Attempt,
    upstream: aiohttp.ClientResponse,
    response: web.StreamResponse,
    passage: Passage,
) -> web.StreamResponse:
    """Pass a stream on, and end its hold.

    Args:
        exchange: hears when the client is gone.
        attempt: has a hold; it is ended here, in whichever way.
        upstream: the answer, of which the head is in.
        response: to the client, who may have its headers already.
        passage: what may go on of the answer.
    """
    watch = _Watch(attempt)
    if not response.prepared:
        await _to_client(exchange, response.prepare(exchange.http))

    async def pass_on(passed: Passed) -> None:
        watch.take(passed.plain)
        if passed.shows:
            exchange.drop_client()
        if passed.client and not exchange.is_alone:
            await _to_client(exchange, response.write(passed.client))

    try:
        async for chunk in upstream.content.iter_any():
            await pass_on(passage.take(chunk))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if not attempt.ended:
            attempt.meter.end_soon(attempt, attempt.of_stream(error))
        _cut(exchange.http)
        return response
    await pass_on(passage.rest())
    if not attempt.ended:
        attempt.meter.end_soon(attempt, watch.ending())
    if not exchange.is_alone:
        await _to_client(exchange, response.write_eof())
    return response


async def _to_client(exchange: Exchange, writing: object) -> None:
    """Wait for a write; a client that is gone is no fault."""
    exchange.writing_since = asyncio.get_running_loop().time()
    try:
        await writing  # type: ignore[misc]
    except ConnectionError:
        exchange.client_left()
    finally:
        exchange.writing_since = 0.0


def _cut(http: web.BaseRequest) -> None:
    """The upstream broke off: so does the client's connection, after what it got so far."""
    transport = http.transport
    if transport is not None:
        transport.close()
