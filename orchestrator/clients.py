"""Clients that can't spend unmetered: the official ones, with a meter and a guard, retries of their own off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
from anthropic import Anthropic, AsyncAnthropic, Middleware

from .meter import Meter
from .transport import Passes, async_http_client, http_client


def guarded_async_client(
    meter: Meter, passes: Passes, *, pool: int, outer: Sequence[Middleware] = (), **options: Any
) -> AsyncAnthropic:
    """An async client whose every billable request is metered, and whose copies can't escape that.

    Args:
        meter: goes last in the middleware.
        passes: shared with the meter.
        pool: connections, at least the gate's width.
        outer: middleware of ours in front of the meter, outermost first; the caller's own stands before it.
        options: further arguments of ``AsyncAnthropic`` (``api_key``, ``base_url``, ``timeout``, ...).
    """
    http = async_http_client(passes, limits=_limits(pool), **_timeout(options))
    middleware = [*options.pop("middleware", ()), *outer, meter]
    return AsyncAnthropic(http_client=http, max_retries=0, middleware=middleware, **options)


def guarded_client(
    meter: Meter, passes: Passes, *, pool: int, outer: Sequence[Middleware] = (), **options: Any
) -> Anthropic:
    """The same for the sync client."""
    http = http_client(passes, limits=_limits(pool), **_timeout(options))
    middleware = [*options.pop("middleware", ()), *outer, meter]
    return Anthropic(http_client=http, max_retries=0, middleware=middleware, **options)


def _limits(pool: int) -> httpx2.Limits:
    return httpx2.Limits(max_connections=pool, max_keepalive_connections=pool)


def _timeout(options: dict[str, Any]) -> dict[str, Any]:
    return {"timeout": options["timeout"]} if options.get("timeout") is not None else {}
