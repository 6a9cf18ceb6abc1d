"""Lingering: a connection whose answer has been read is given back when the next call needs one.

The HTTP library's pool asks the system about every idle connection each time that a request begins or ends.
Calls that wait for the ledger would leave theirs idle meanwhile, and with 64 at once that cost more than all of
metering. So an answer that has been read is closed just before another call is sent, or a second later if none is.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
from anthropic import APIConnectionError, APIRequest, APITimeoutError

from .wire import Reading

logger = logging.getLogger("earmark")

#: The SDK's own header of an answer's form; ``stream`` leaves the body to be read.
_MODE = "X-Stainless-Raw-Response"
#: Without another call a connection is given back after this many seconds.
_LINGER_S = 1.0


class Lingering:
    """Answers that have been read and are not closed yet, for any number of event loops.

    Args:
        off: the client's transport (``lanes``) has no need of it.
    """

    def __init__(self, *, off: bool) -> None:
        self._off = off
        self._kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = (
            weakref.WeakKeyDictionary()
        )

    def headers(self, request: APIRequest, reading: Reading) -> dict[str, str]:
        """What has to be added to a request, so that the client leaves the reading of its answer to us.

        Args:
            request: as the caller asked for it. Who asked for the raw answer gets it as the client makes it.
            reading: of the request; streams are left alone.
        """
        if self._off or reading.stream or _MODE in request.headers:
            return {}
        return {_MODE: "stream"}

    async def read(self, response: httpx2.Response, sent_at: float) -> bytes:
        """Read an answer to its end, and put off closing it.

        Args:
            response: whose body may have been read already.
            sent_at: ``time.perf_counter()`` when its request left, for ``response.elapsed``.

        Raises:
            APITimeoutError, APIConnectionError: it can't be read; as the client would have raised them.
        """
        body = response.stream
        if not (self._off or response.is_closed) and isinstance(body, httpx2.AsyncByteStream):
            response.stream = _Body(body, self._here(), sent_at)
        try:
            return bytes(await response.aread())
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=response.request) from error
        except httpx2.HTTPError as error:
            raise APIConnectionError(request=response.request) from error

    async def make_room(self) -> None:
        """Another call is about to be sent: give one connection back."""
        kept = self._kept.get(asyncio.get_running_loop())
        if kept is not None and kept.bodies:
            await _close(kept.bodies.popleft()[1])

    def _here(self) -> _Kept:
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None:
            kept = self._kept[loop] = _Kept()
        return kept


class _Kept:
    """What one loop keeps."""

    __slots__ = ("__weakref__", "bodies", "closing", "is_timed")

    def __init__(self) -> None:
        self.bodies: deque[tuple[float, httpx2.AsyncByteStream]] = deque()
        self.is_timed = False
        self.closing: asyncio.Task[None] | None = None

    def add(self, body: httpx2.AsyncByteStream) -> None:
        self.bodies.append((time.monotonic(), body))
        self._set_timer()

    def _set_timer(self) -> None:
        if self.bodies and not self.is_timed:
            self.is_timed = True
            wait_s = self.bodies[0][0] + _LINGER_S - time.monotonic()
            asyncio.get_running_loop().call_later(wait_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self.is_timed = False
        self.closing = asyncio.get_running_loop().create_task(self._close_old())

    async def _close_old(self) -> None:
        while self.bodies and self.bodies[0][0] + _LINGER_S <= time.monotonic():
            await _close(self.bodies.popleft()[1])
        self._set_timer()


async def _close(body: httpx2.AsyncByteStream) -> None:
    try:
        await body.aclose()
    except Exception:  # its answer is read and accounted for; the pool makes another connection
        logger.exception("a connection could not be given back")


class _Body(httpx2.AsyncByteStream):
    """A body that stays open after it was read to its end; one that was not is closed at once."""

    def __init__(self, inner: httpx2.AsyncByteStream, kept: _Kept, sent_at: float) -> None:
        self._inner = inner
        self._kept = kept
        self._is_read = False
        self._sent_at = sent_at
        #: Read by ``httpx2.Response.elapsed``.
        self.elapsed: timedelta | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part
        self._is_read = True

    async def aclose(self) -> None:
        self.elapsed = timedelta(seconds=time.perf_counter() - self._sent_at)
        if self._is_read:
            self._is_read = False
            self._kept.add(self._inner)
        else:
            await self._inner.aclose()
