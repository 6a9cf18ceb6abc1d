"""Listening: the gateway's own HTTP server, with its limits on connections, and its door that can be closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from .door import BACKLOG, Door
from .limits import Limits
from .replies import not_http

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: The web server's own words about connections: what a client does wrong is a line, not a traceback.
_log = logging.getLogger("earmark.gateway.http")


def _without_traceback(record: logging.LogRecord) -> bool:
    fault = record.exc_info[1] if record.exc_info else None
    if fault is not None:
        record.msg, record.args = f"{record.getMessage()}: {type(fault).__name__}", ()
    record.exc_info = None
    return True


_log.addFilter(
    _without_traceback
)  # faults of ours are caught, and logged in full, before they come here


class Listening:
    """A server in front of a handler.

    Args:
        handle: answers requests; a client that leaves does not end it.
        host, port: where; port 0 takes a free one.
        door: the same as an address that is taken already; None takes it at the start.
        limits: of connections and bodies.
        lost: hears of every connection that is gone.
        garbled: hears of every request that is no HTTP.
    """

    def __init__(
        self,
        handle: Handle,
        host: str,
        port: int,
        limits: Limits,
        *,
        lost: Callable[[object], None],
        garbled: Callable[[], None],
        door: Door | None = None,
    ) -> None:
        self._lost = lost
        self._garbled = garbled
        self._handle = handle
        self._host = host
        self._port = port
        self._limits = limits
        self._door = door
        self._server: _Server | None = None
        self._runner: web.ServerRunner | None = None
        self._sites: list[web.SockSite] = []

    def take(self) -> Door:
        """The address, which is taken now if it is not yet; who connects waits for ``start``.

        Raises:
            OSError: the port is taken.
        """
        if self._door is None:
            self._door = Door(self._host, self._port)
        return self._door

    async def start(self) -> None:
        """Serve.

        Raises:
            OSError: the port is taken.
        """
        door = self.take()
        self._server = _Server(
            self._handle,
            most=self._limits.connections,
            lost=self._lost,
            garbled=self._garbled,
            request_factory=self._request,
            access_log=None,
            logger=_log,
            keepalive_timeout=self._limits.idle_s,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.5)
        await self._runner.setup()
        for one in door.sockets:
            self._sites.append(web.SockSite(self._runner, one, backlog=BACKLOG))
            await self._sites[-1].start()

    async def close_door(self) -> None:
        """Take no further connections."""
        sites, self._sites = self._sites, []
        for site in sites:
            await site.stop()

    async def stop(self) -> None:
        """Close every connection."""
        await self.close_door()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._door is not None:
            self._door.close()

    @property
    def url(self) -> str:
        """The base URL for clients, once the address is taken; ``""`` before."""
        return "" if self._door is None else self._door.url

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port if self._door is None else self._door.port

    @property
    def connections(self) -> int:
        """Of clients, now."""
        return 0 if self._server is None else len(self._server.connections)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: Any,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            task.get_loop(),
            client_max_size=self._limits.body_bytes + 1,
        )


class _Server(web.Server):
    """A server that takes so many connections and no more."""

    def __init__(
        self,
        handle: Handle,
        *,
        most: int,
        lost: Callable[[object], None],
        garbled: Callable[[], None],
        request_factory: Callable[..., web.BaseRequest],
        **options: Any,
    ) -> None:
        super().__init__(handle, request_factory=request_factory, **options)
        self._options = options
        self._lost = lost
        self._garbled = garbled
        self._most = most

    def __call__(self) -> RequestHandler:
        """The protocol of one connection."""
        loop = asyncio.get_running_loop()
        return _Connection(self, garbled=self._garbled, loop=loop, **self._options)

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        """One more; too many are closed at once."""
        super().connection_made(handler, transport)
        if len(self._connections) > self._most:
            transport.abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """One less."""
        super().connection_lost(handler, exc)
        self._lost(handler)


class _Connection(RequestHandler):
    """A connection whose own errors come in the API's form: without a byte of the client's, and without a line each."""

    __slots__ = ("_garbled",)

    def __init__(self, server: _Server, *, garbled: Callable[[], None], **options: Any) -> None:
        super().__init__(server, **options)
        self._garbled = garbled

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is counted and gets 400, a client that is gone is no news; the rest is the server's."""
        if isinstance(exc, ConnectionError):
            raise exc
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._garbled()
        reply = not_http().response()
        reply.force_close()
        return reply
