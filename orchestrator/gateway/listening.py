"""Listening: the gateway's own HTTP server, with its limits on connections, and its door that can be closed."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from .limits import Limits

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: The web server's own words about connections: what a client does wrong is a line, not a traceback.
_log = logging.getLogger("earmark.gateway.http")
#: Connections that wait for the server to take them.
_BACKLOG = 1024


def _without_traceback(record: logging.LogRecord) -> bool:
    fault = record.exc_info[1] if record.exc_info else None
    if fault is not None:
        record.msg, record.args = f"{record.getMessage()}: {type(fault).__name__}", ()
    record.exc_info = None
    return True


_log.addFilter(
    _without_traceback
)  # faults of ours are caught, and logged in full, before they come here


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Listening:
    """A server in front of a handler.

    Args:
        handle: answers requests; a client that leaves does not end it.
        host, port: where; port 0 takes a free one.
        limits: of connections and bodies.
        lost: hears of every connection that is gone.
    """

    def __init__(
        self,
        handle: Handle,
        host: str,
        port: int,
        limits: Limits,
        *,
        lost: Callable[[object], None],
    ) -> None:
        self._lost = lost
        self._handle = handle
        self._host = host
        self._port = port
        self._limits = limits
        self._server: _Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._server = _Server(
            self._handle,
            most=self._limits.connections,
            lost=self._lost,
            request_factory=self._request,
            access_log=None,
            logger=_log,
            keepalive_timeout=self._limits.idle_s,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.5)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._host, self._port, backlog=_BACKLOG)
        try:
            await self._site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._port = self._runner.addresses[0][1]

    async def close_door(self) -> None:
        """Take no further connections."""
        if self._site is not None and self._runner is not None:
            await self._site.stop()
            self._site = None

    async def stop(self) -> None:
        """Close every connection."""
        await self.close_door()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """The base URL for clients."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

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
        self, handle: Handle, *, most: int, lost: Callable[[object], None], **options: Any
    ) -> None:
        super().__init__(handle, **options)
        self._lost = lost
        self._most = most

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        """One more; too many are closed at once."""
        super().connection_made(handler, transport)
        if len(self._connections) > self._most:
            transport.abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """One less."""
        super().connection_lost(handler, exc)
        self._lost(handler)
