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

from .passing import to_client

if TYPE_CHECKING:
    from .exchange import Exchange


async def relay(
    exchange: Exchange,
    attempt: Attempt,
    http: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    begun: web.StreamResponse | None,
) -> web.StreamResponse:
    """Pass a stream on, and end its hold.

    Args:
        exchange: hears when the client is gone.
        attempt: has a hold; it is ended here, in whichever way.
        http: the client's request.
        upstream: the head of the answer.
        begun: the response, if the client got its headers while it waited.
    """
    eye = Eye(attempt, upstream.headers.get("content-encoding", ""))
    response = begun or web.StreamResponse(
        status=upstream.status, headers=to_client(upstream.raw_headers)
    )
    metering = attempt.meter
    if begun is None:
        await _to_client(exchange, response.prepare(http))
    try:
        async for chunk in upstream.content.iter_any():
            ending = eye.take(chunk)
            if ending is not None:
                metering.end_soon(attempt, ending)
            if not exchange.is_alone:
                await _to_client(exchange, response.write(chunk))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if not attempt.ended:
            metering.end_soon(attempt, attempt.of_stream(error))
        _cut(http)
        return response
    ending = eye.last()
    if ending is not None:
        metering.end_soon(attempt, ending)
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
