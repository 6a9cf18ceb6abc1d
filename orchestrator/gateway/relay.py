"""Relay: the bytes of a stream go to the client as they come, and are watched for their final usage.

Nothing is collected: when the client reads slowly, the upstream is read slowly. The hold is settled before
the last bytes are handed out. When the client is gone, the rest is read for the ledger alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from orchestrator.attempt import Attempt
from orchestrator.metered_stream import Eye

from .blotting import Passage, Passed

if TYPE_CHECKING:
    from .exchange import Exchange


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
    eye = Eye(attempt, "identity")
    if not response.prepared:
        await _to_client(exchange, response.prepare(exchange.http))

    async def pass_on(passed: Passed) -> None:
        ending = eye.take(passed.plain)
        if ending is not None:
            attempt.meter.end_soon(attempt, ending)
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
    ending = eye.last()
    if ending is not None:
        attempt.meter.end_soon(attempt, ending)
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
