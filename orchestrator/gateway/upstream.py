"""Upstream: where requests are passed on to, with the key that only the gateway knows."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from orchestrator.errors import ConfigError

#: aiohttp warns of larger bodies that are given as one piece.
_ONE_PIECE = 1 << 20
#: What aiohttp would add by itself: nothing is added to what the client sent.
_NOTHING_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

#: Connections that are found stale for one request, one after the other.
_STALE_MOST = 64
#: Statuses below it only announce an answer; 101 is one of another protocol.
_FIRST_FINAL = 200

_NEVER_CONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The API behind a gateway.

    Attributes:
        url: its base URL.
        api_key: goes out as ``x-api-key``; never shown.
        auth_token: goes out as ``Authorization: Bearer``; never shown.
        connect_s: seconds to make a connection.
        silence_s: seconds without a byte of the answer after which a request is given up, in doubt.

    Raises:
        ConfigError: not a base URL, or not exactly one of key and token.
    """

    url: str = "https://api.anthropic.com"
    api_key: str | None = field(default=None, repr=False)
    auth_token: str | None = field(default=None, repr=False)
    connect_s: float = 10
    silence_s: float = 600

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if "@" in parts.netloc:  # it is printed and logged, and the key has a place of its own
            raise ConfigError(
                f"upstream: the address of {parts.hostname} holds a name or a password; leave them out of it"
            )
        try:
            is_base = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:  # not a port
            is_base = False
        if not is_base or parts.query:
            raise ConfigError(
                f"upstream: {self.url!r} is not a base URL; write it such as https://api.anthropic.com"
            )
        secrets = [one for one in (self.api_key, self.auth_token) if one]
        if len(secrets) != 1:
            raise ConfigError("upstream: give it either an API key or an auth token, and not both")
        if not secrets[0].isascii() or not secrets[0].isprintable():
            raise ConfigError("upstream: its key holds characters that no key has")

    @property
    def credentials(self) -> tuple[str, str]:
        """The header that proves who pays, in the form that was configured."""
        if self.api_key:
            return "x-api-key", self.api_key
        return "Authorization", f"Bearer {self.auth_token}"

    @property
    def secret(self) -> str:
        """What no answer may show."""
        return self.api_key or self.auth_token or ""


class UpstreamFault(Exception):
    """The upstream gave no answer, or no whole one.

    Attributes:
        sent: the request, or a part of it, can have reached it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Line:
    """The connections to one upstream. Use as ``async with``."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._base = upstream.url.rstrip("/")
        self._proxy = _proxy_of(upstream.url)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Be ready to send."""
        waits = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._upstream.connect_s,
            sock_read=self._upstream.silence_s,
        )
        self._session = aiohttp.ClientSession(
            # The gate limits what is under way; a second limit here would only hide its queue.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=waits,
            skip_auto_headers=_NOTHING_ADDED,
            request_class=_Request,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterable[bytes] | None,
    ) -> aiohttp.ClientResponse:
        """Send one request; returns when the head of the answer is in.

        Args:
            method: as the client sent it.
            target: path and query, as the client sent them.
            headers: all that go out, credentials included.
            body: as the client sent it.

        Raises:
            UpstreamFault: no answer.
        """
        assert self._session is not None
        for _ in range(_STALE_MOST):
            try:
                response = await self._session.request(
                    method,
                    URL(self._base + target, encoded=True),
                    headers=headers,
                    data=_given(body),
                    allow_redirects=False,
                    proxy=self._proxy,
                )
            except _StaleError:
                continue
            except _NEVER_CONNECTED as error:
                raise UpstreamFault(type(error).__name__, sent=False) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise UpstreamFault(type(error).__name__, sent=True) from error
            if response.status < _FIRST_FINAL:
                response.close()
                raise UpstreamFault(f"status {response.status}, which is no answer", sent=True)
            return response
        raise UpstreamFault("its connections answer before they are asked", sent=False)


class _StaleError(aiohttp.ClientConnectionError):
    """Its connection has bytes that nobody asked for; nothing was sent."""


class _Request(aiohttp.ClientRequest):
    """A request that is not sent on a connection that has answered already.

    What came after the end of an answer, once its connection was idle, would be taken for the answer to the next
    request: another client's, and wrong by one for every request that follows.
    """

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Send it, or close the connection."""
        if conn.protocol is None or conn.protocol.should_close:
            raise _StaleError
        return await super().send(conn)


def _given(
    body: bytes | AsyncIterable[bytes] | None,
) -> bytes | io.BytesIO | AsyncIterable[bytes] | None:
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > _ONE_PIECE else body


def why_none(error: BaseException) -> str:
    """Why there was no answer, in words that hold nothing of what the upstream sent."""
    cause = error.__cause__ or error
    if isinstance(cause, (aiohttp.ClientResponseError, aiohttp.ClientPayloadError)):
        return f"the upstream gave no whole answer in proper HTTP ({type(cause).__name__})"
    name = str(error) if isinstance(error, UpstreamFault) else type(cause).__name__
    return f"the upstream gave no answer ({name})"


def _proxy_of(url: str) -> str | None:
    """The proxy that the system names for this address, if any."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
