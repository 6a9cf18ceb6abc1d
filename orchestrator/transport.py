"""The guard: a transport that sends nothing billable without a live hold.

Clients that ``Run`` builds have it, so that a copy of the client which drops the meter
(``with_options(middleware=[...])``) can't spend. It also tells the meter whether a request ever left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
from anthropic import AnthropicError, DefaultAsyncHttpxClient, DefaultHttpxClient

from .attempt import Attempt
from .errors import Unmetered
from .wire import classify_path

#: Carries the hold's id from the meter to the guard; it never goes on the wire.
HOLD_HEADER = "x-earmark-hold"
_SENDING = (
    "http11.send_request_headers.started",
    "http2.send_request_headers.started",
    "http11.send_request_body.started",
    "http2.send_request_body.started",
)


class LostMeter(Unmetered, AnthropicError):
    """A billable request without a hold. An error of the SDK's family too, so that it passes unwrapped."""


class Passes:
    """Attempts that may be on their way now, by hold id.

    Args:
        base_url: the client's, if it has a path of its own (a gateway's prefix, say).
    """

    def __init__(self, base_url: str = "") -> None:
        self._prefix = httpx2.URL(base_url).path.rstrip("/")
        self._live: weakref.WeakValueDictionary[str, Attempt] = weakref.WeakValueDictionary()

    def issue(self, attempt: Attempt) -> str:
        """Let this attempt through; returns what to put into ``HOLD_HEADER``."""
        assert attempt.hold is not None
        self._live[attempt.hold.id] = attempt
        return attempt.hold.id

    def check(self, request: httpx2.Request) -> Attempt | None:
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

    def _attempt_of(self, request: httpx2.Request) -> Attempt | None:
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
        #: Other transports don't say when a request leaves.
        self._tells = isinstance(inner, httpx2.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None:
            request.extensions = _noted(request, attempt, _async_trace(attempt), tells=self._tells)
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
        #: Other transports don't say when a request leaves.
        self._tells = isinstance(inner, httpx2.HTTPTransport)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None:
            request.extensions = _noted(request, attempt, _trace(attempt), tells=self._tells)
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
    # Wrapped afterwards: given a transport, the SDK would look neither for proxies nor to its socket options.
    client._transport = AsyncGuard(client._transport, passes)
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


def _noted(
    request: httpx2.Request, attempt: Attempt, trace: object, *, tells: bool
) -> dict[str, Any]:
    assert attempt.hold is not None
    if tells and attempt.was_sent is None:
        # From here on it is known that it has not left.
        attempt.was_sent = False
    return {**request.extensions, HOLD_HEADER: attempt.hold.id, "trace": trace}


def _async_trace(attempt: Attempt) -> Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]]:
    async def note(event: str, _: dict[str, Any]) -> None:
        if event in _SENDING:
            attempt.was_sent = True

    return note


def _trace(attempt: Attempt) -> Callable[[str, dict[str, Any]], None]:
    def note(event: str, _: dict[str, Any]) -> None:
        if event in _SENDING:
            attempt.was_sent = True

    return note
