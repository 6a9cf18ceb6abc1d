"""Lanes: a pool of connections in which a request costs the same however many connections there are.

The HTTP library's own pool goes through all of its connections when a request begins and again when it ends,
and asks the system about each idle one. Metered calls leave theirs idle while they wait for the ledger: with
64 calls at once that cost more than everything else that metering does. Here the connection used last goes
first, and only that one is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Self

import httpcore2
from anyio import CancelScope
from httpcore2 import AsyncConnectionInterface

#: A connection that nobody has used for this long (the HTTP library's own figure) is closed when another
#: one comes back.
_KEEP_S = 5.0


class Lanes:
    """Sends each request over a connection of its own, kept for the next one.

    Args:
        pool: makes the connections, with its settings, and is not used otherwise.
        limit: the most connections at once; further requests wait in their order.
    """

    def __init__(self, pool: httpcore2.AsyncConnectionPool, *, limit: int) -> None:
        self._pool = pool
        self._places = asyncio.Semaphore(limit)
        self._idle: deque[tuple[float, AsyncConnectionInterface]] = deque()
        self._busy: set[AsyncConnectionInterface] = set()

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send it; its connection is free again when the response is closed.

        Raises:
            httpcore2.PoolTimeout: it waited longer for a connection than its pool timeout says.
            httpcore2.UnsupportedProtocol: the URL is neither http nor https.
        """
        origin = request.url.origin
        if origin.scheme not in {b"http", b"https"}:
            raise httpcore2.UnsupportedProtocol(f"{origin}: neither http nor https")
        if self._places.locked():
            await self._wait(request)
        else:
            await self._places.acquire()
        lane: AsyncConnectionInterface | None = None
        try:
            lane = await self._idle_lane(origin) or self._pool.create_connection(origin)
            self._busy.add(lane)
            response = await lane.handle_async_request(request)
        except BaseException:
            self._free(lane)
            raise
        response.stream = _Body(response.stream, lane, self)
        return response

    async def _wait(self, request: httpcore2.Request) -> None:
        timeout_s = request.extensions.get("timeout", {}).get("pool")
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            message = f"no connection came free within {timeout_s:g} s"
            raise httpcore2.PoolTimeout(message) from None

    async def _idle_lane(self, origin: httpcore2.Origin) -> AsyncConnectionInterface | None:
        for place in reversed(self._idle):
            lane = place[1]
            if lane.can_handle_request(origin):
                self._idle.remove(place)
                if not lane.has_expired():
                    return lane
                await lane.aclose()
                return None
        return None

    def _free(self, lane: AsyncConnectionInterface | None) -> None:
        self._places.release()
        if lane in self._busy:  # else everything was closed meanwhile
            assert lane is not None
            self._busy.remove(lane)
            if lane.is_available():
                self._idle.append((time.monotonic(), lane))

    async def leave(self, lane: AsyncConnectionInterface) -> None:
        """A response is closed: its connection is free, and one that has been free for long is closed."""
        self._free(lane)
        idle = self._idle
        if idle and idle[0][0] < time.monotonic() - _KEEP_S:
            await idle.popleft()[1].aclose()

    async def aclose(self) -> None:
        """Close every connection, busy ones too."""
        lanes = [*self._busy, *(lane for _, lane in self._idle)]
        self._busy.clear()
        self._idle.clear()
        for lane in lanes:
            await lane.aclose()
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Body:
    """The body of a response; closing it frees its connection, once."""

    def __init__(
        self,
        stream: Any,
        lane: AsyncConnectionInterface,
        lanes: Lanes,
    ) -> None:
        self._stream = stream
        self._lane = lane
        self._lanes: Lanes | None = lanes

    def __aiter__(self) -> AsyncIterator[bytes]:
        parts: AsyncIterator[bytes] = self._stream.__aiter__()
        return parts

    async def aclose(self) -> None:
        lanes, self._lanes = self._lanes, None
        if lanes is None:
            return
        with CancelScope(shield=True):
            await self._stream.aclose()
            await lanes.leave(self._lane)
