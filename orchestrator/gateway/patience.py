"""Patience: a client whose stream has to wait for money or for the rate hears so, before it gives up.

After a while without an answer it gets the headers of a stream and then a ping every few seconds, as the
API itself sends them. From then on only an event can say that the call was declined.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class Patience:
    """Keeps one client patient, from ``after_s`` on, until ``end``."""

    __slots__ = ("_ended", "_every_s", "_http", "_response", "_task", "_timer")

    def __init__(self, http: web.BaseRequest, *, after_s: float, every_s: float) -> None:
        self._http = http
        self._every_s = every_s
        self._response: web.StreamResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Event | None = None
        self._timer = asyncio.get_running_loop().call_later(after_s, self._begin)

    def _begin(self) -> None:
        self._ended = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._ping(self._ended))

    async def _ping(self, ended: asyncio.Event) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = self._response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(self._http)
            while not ended.is_set():
                await response.write(_PING)
                try:
                    async with asyncio.timeout(self._every_s):
                        await ended.wait()
                except TimeoutError:
                    continue
        except ConnectionError:
            return  # its handler hears of it as well

    async def end(self) -> web.StreamResponse | None:
        """The wait is over. Returns the response that was begun, if it was."""
        self._timer.cancel()
        if self._task is not None and self._ended is not None:
            self._ended.set()
            await self._task
        return self._response
