"""The guard: a transport that sends nothing billable without a live hold.

Clients that ``Run`` builds have it, so that a copy of the client which drops the meter
(``with_options(middleware=[...])``) can't spend. It also tells the meter whether a request ever left.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import httpx2
from anthropic import (
    DEFAULT_CONNECTION_LIMITS,
    AnthropicError,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
)

from budgets.records import Hold

from .errors import Unmetered
from .lanes import Lanes
from .wire import classify_path

#: Carries the hold's id from the meter to the guard; it never goes on the wire.
HOLD_HEADER = "x-earmark-hold"


class LostMeter(Unmetered, AnthropicError):
    """A billable request without a hold. An error of the SDK's family too, so that it passes unwrapped."""


class Sending(Protocol):
    """What has a hold and is about to leave: an attempt of a call, or a batch.

    Attributes:
        hold: its hold.
        ended: the hold does not count any more.
        was_sent: whether its first byte can have left; None where nobody can tell.
    """

    hold: Hold | None
    ended: bool
    was_sent: bool | None

    @property
    def is_batch(self) -> bool:
        """It makes a batch: ``batches`` has its hold, and the meter lets it through."""


class Passes:
    """Attempts that may be on their way now, by hold id.

    Args:
        base_url: the client's, if it has a path of its own (a gateway's prefix, say).
    """

    def __init__(self, base_url: str = "") -> None:
        self._prefix = httpx2.URL(base_url).path.rstrip("/")
        self._live: weakref.WeakValueDictionary[str, Sending] = weakref.WeakValueDictionary()

    def issue(self, attempt: Sending) -> str:
        """Let this attempt through; returns what to put into ``HOLD_HEADER``."""
        assert attempt.hold is not None
        self._live[attempt.hold.id] = attempt
        return attempt.hold.id

    def lets_batch_through(self, hold_id: object) -> bool:
        """Whether a batch with this hold may leave now."""
        one = self._live.get(hold_id) if isinstance(hold_id, str) else None
        return one is not None and not one.ended and one.is_batch

    def check(self, request: httpx2.Request) -> Sending | None:
        """Look at a request about to leave; returns its attempt.

        Raises:
            LostMeter: it can bill and has no live hold. Nothing was sent.
        """
        attempt = self._attempt_of(request)
        if attempt is not None:
            return attempt
        path = request.url.path
        kind = classify_path(request.method, path.removeprefix(self._prefix))
        if kind in {"free", "count_tokens"}:
            return None
        raise LostMeter(
            f"{request.method} {path}: this client has lost its meter, so the request has no hold and was not "
            "sent; don't replace the middleware of a Run's client (add yours in front: [yours, *client.middleware])"
        )

    def _attempt_of(self, request: httpx2.Request) -> Sending | None:
        hold_id = request.headers.pop(HOLD_HEADER, None)
        if hold_id is None:
            # A redirect keeps the extensions of the request that was redirected.
            hold_id = request.extensions.get(HOLD_HEADER)
        attempt = None if hold_id is None else self._live.get(hold_id)
        return None if attempt is None or attempt.ended else attempt


class AsyncGuard(httpx2.AsyncBaseTransport):
    """Stands in front of the real transport of an async client."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, passes: Passes) -> None:
        self._inner = inner
        self._passes = passes
        #: Other transports may take the body without asking for it.
        self._tells = isinstance(inner, httpx2.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None:
            _note(request, attempt, tells=self._tells)
        response = await self._inner.handle_async_request(request)
        if attempt is not None:
            attempt.was_sent = True
        return response

    async def aclose(self) -> None:
        """Close the real transport."""
        await self._inner.aclose()


class Guard(httpx2.BaseTransport):
    """Stands in front of the real transport of a sync client."""

    def __init__(self, inner: httpx2.BaseTransport, passes: Passes) -> None:
        self._inner = inner
        self._passes = passes
        #: Other transports may take the body without asking for it.
        self._tells = isinstance(inner, httpx2.HTTPTransport)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None:
            _note(request, attempt, tells=self._tells)
        response = self._inner.handle_request(request)
        if attempt is not None:
            attempt.was_sent = True
        return response

    def close(self) -> None:
        """Close the real transport."""
        self._inner.close()


def async_http_client(passes: Passes, **options: Any) -> httpx2.AsyncClient:
    """An HTTP client for ``AsyncAnthropic(http_client=...)``: the SDK's own, proxies too, behind guards.

    Args:
        passes: shared with the meter.
        options: what ``anthropic.DefaultAsyncHttpxClient`` takes.
    """
    client = DefaultAsyncHttpxClient(**options)
    limit = options.get("limits", DEFAULT_CONNECTION_LIMITS).max_connections or sys.maxsize
    direct = client._transport
    if isinstance(direct, httpx2.AsyncHTTPTransport):
        direct._pool = Lanes(direct._pool, limit=limit)  # type: ignore[assignment]
    # Wrapped afterwards: given a transport, the SDK would look neither for proxies nor to its socket options.
    client._transport = AsyncGuard(direct, passes)
    client._mounts = {
        pattern: None if mounted is None else AsyncGuard(mounted, passes)
        for pattern, mounted in client._mounts.items()
    }
    return client


def http_client(passes: Passes, **options: Any) -> httpx2.Client:
    """As ``async_http_client``, for ``Anthropic``."""
    client = DefaultHttpxClient(**options)
    client._transport = Guard(client._transport, passes)
    client._mounts = {
        pattern: None if mounted is None else Guard(mounted, passes)
        for pattern, mounted in client._mounts.items()
    }
    return client


def _note(request: httpx2.Request, attempt: Sending, *, tells: bool) -> None:
    assert attempt.hold is not None
    request.extensions = {**request.extensions, HOLD_HEADER: attempt.hold.id}
    if tells:
        request.stream = _Leaving(request.stream, attempt)
        if attempt.was_sent is None:
            # From here on it is known that it has not left.
            attempt.was_sent = False


class _Leaving(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """The body of a request; it is asked for once the head is out, and nothing is billed for a head alone."""

    def __init__(self, inner: Any, attempt: Sending) -> None:
        self._inner = inner
        self._attempt = attempt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._attempt.was_sent = True
        async for part in self._inner:
            yield part

    def __iter__(self) -> Iterator[bytes]:
        self._attempt.was_sent = True
        yield from self._inner
