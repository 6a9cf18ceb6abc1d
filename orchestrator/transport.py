"""The guard: a transport that sends nothing billable without a live hold.

Clients that ``Run`` builds have it, so that a copy of the client which drops the meter
(``with_options(middleware=[...])``) can't spend. It also tells the meter whether a request ever left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2

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


class Passes:
    """Attempts that may be on their way now, by hold id."""

    def __init__(self) -> None:
        self._live: weakref.WeakValueDictionary[str, Attempt] = weakref.WeakValueDictionary()

    def issue(self, attempt: Attempt) -> str:
        """Let this attempt through; returns what to put into ``HOLD_HEADER``."""
        assert attempt.hold is not None
        self._live[attempt.hold.id] = attempt
        attempt.was_sent = False
        return attempt.hold.id

    def check(self, request: httpx2.Request) -> Attempt | None:
        """Look at a request about to leave.

        Raises:
            Unmetered: it can bill and has no live hold. Nothing was sent.
        """
        hold_id = request.headers.pop(HOLD_HEADER, None)
        kind = classify_path(request.method, request.url.path)
        attempt = None if hold_id is None else self._live.get(hold_id)
        if attempt is not None and attempt.ended:
            attempt = None
        if kind in {"free", "count_tokens"}:
            return attempt
        if attempt is None:
            raise Unmetered(
                f"{request.method} {request.url.path}: this client has lost its meter, so the request has no hold; "
                "don't replace the middleware of a Run's client (add yours in front: [yours, *client.middleware])"
            )
        return attempt


class AsyncGuard(httpx2.AsyncBaseTransport):
    """Stands in front of the real transport of an async client."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, passes: Passes) -> None:
        self._inner = inner
        self._passes = passes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None and attempt.was_sent is False:
            request.extensions = {**request.extensions, "trace": _async_trace(attempt)}
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

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass it on, if it may leave."""
        attempt = self._passes.check(request)
        if attempt is not None and attempt.was_sent is False:
            request.extensions = {**request.extensions, "trace": _trace(attempt)}
        response = self._inner.handle_request(request)
        if attempt is not None:
            attempt.was_sent = True
        return response

    def close(self) -> None:
        """Close the real transport."""
        self._inner.close()


def _async_trace(attempt: Attempt) -> Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]]:
    async def note(event: str, info: dict[str, Any]) -> None:
        if event in _SENDING:
            attempt.was_sent = True

    return note


def _trace(attempt: Attempt) -> Callable[[str, dict[str, Any]], None]:
    def note(event: str, info: dict[str, Any]) -> None:
        if event in _SENDING:
            attempt.was_sent = True

    return note
