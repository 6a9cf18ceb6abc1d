"""Incoming: the HTTP response behind whatever the caller asked the client to make of it."""

from __future__ import annotations

from typing import Any

import httpx2

from .errors import ConfigError


def plain_of(response: Any) -> httpx2.Response:
    """The HTTP response, whatever the caller asked the client to make of it."""
    if isinstance(response, httpx2.Response):
        return response
    plain = getattr(response, "http_response", None)
    if not isinstance(plain, httpx2.Response):
        raise ConfigError(
            f"Meter: a middleware behind it answered with a {type(response).__name__} of its own; "
            "the meter goes last in the list of middleware"
        )
    return plain


def do_not_repeat(response: httpx2.Response) -> None:
    """Tell the SDK's own retries to leave this answer alone."""
    response.headers["x-should-retry"] = "false"
