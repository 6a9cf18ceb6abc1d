"""Routes: what becomes of a request, by method and path. Whatever is not known is refused.

Only exact spellings are known: a doubled slash, an escape, a dot or another case never is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "messages",  # metered
    "count_tokens",  # free, but gated
    "free",  # passed on
    "hello",  # answered here: what clients ask at start-up
    "health",
    "metrics",
    "budget",
    "batches",  # refused, with a sentence
    "files",  # passed on where the operator allows it
    "unknown",  # refused
]

_LEASE = re.compile(r"/lease/([A-Za-z0-9_-]{1,128})(?=/|\Z)")
_MODELS = re.compile(r"/v1/models(?:/[A-Za-z0-9._-]{1,128})?")
_FILES = re.compile(r"/v1/files(?:/[A-Za-z0-9_-]{1,128}(?:/content)?)?")
_BATCHES = re.compile(r"/v1/messages/batches(?:/.*)?")
_OWN: dict[str, Kind] = {
    "/": "hello",
    "/api/hello": "hello",
    "/earmark/health": "health",
    "/earmark/metrics": "metrics",
    "/earmark/budget": "budget",
}
_POSTS: dict[str, Kind] = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
}
_DOTS = re.compile(r"\.{1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes.

    Attributes:
        kind: what becomes of it.
        path: without the lease in front of it.
        target: path and query as they go to the upstream.
        lease: the lease that the path names; ``""`` if it names none.
    """

    kind: Kind
    path: str
    target: str
    lease: str


def route_of(method: str, target: str) -> Route:
    """What becomes of a request.

    Args:
        method: the HTTP method.
        target: path and query, exactly as they came.
    """
    named = _LEASE.match(target)
    rest = target[named.end() :] if named else target
    path, _, _ = rest.partition("?")
    return Route(
        kind=_kind(method, path or "/"),
        path=path or "/",
        target=rest,
        lease=named[1] if named else "",
    )


def _kind(method: str, path: str) -> Kind:
    if method == "POST" and path in _POSTS:
        return _POSTS[path]
    if _BATCHES.fullmatch(path):
        return "batches"
    if _FILES.fullmatch(path) and method in {"GET", "POST", "DELETE"}:
        return "files"
    return _looked_at(path) if method in {"GET", "HEAD"} else "unknown"


def _looked_at(path: str) -> Kind:
    if _MODELS.fullmatch(path) and not _DOTS.fullmatch(path.rpartition("/")[2]):
        return "free"
    return _OWN.get(path, "unknown")
