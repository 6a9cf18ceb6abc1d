"""Headers that pass through, in both directions: an open list, less what belongs to one connection only."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from multidict import CIMultiDict, CIMultiDictProxy

from orchestrator.encodings import is_readable

from .blotting import Blot

#: Of one connection, not of the request (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate"),
        *("proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
#: Made anew by the connection to the upstream, or the client's own credentials.
_NOT_UPSTREAM = frozenset(
    {"host", "content-length", "expect", "authorization", "x-api-key", *_HOP_BY_HOP}
)

_NONE: frozenset[str] = frozenset()


class BadHeader(Exception):
    """A header that can't be passed on as it is; the message says which."""


def to_upstream(
    raw: Iterable[tuple[bytes, bytes]], credentials: tuple[str, str]
) -> CIMultiDict[str]:
    """The client's headers as they go to the upstream: same names, same values, same order.

    Args:
        raw: as they came.
        credentials: takes the place of the client's own.

    Raises:
        BadHeader: a value that is not UTF-8.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    pairs = list(raw)
    named = _named_by_connection(pairs)
    for name, value in pairs:
        text, lower = _spelled(name)
        if lower in _NOT_UPSTREAM or lower in named:
            continue
        try:
            said = value.decode()
        except UnicodeDecodeError:
            raise BadHeader(f"the header {text} is not UTF-8") from None
        headers.add(text, _readable(said) if lower == "accept-encoding" else said)
    headers.add(*credentials)
    return headers


def to_client(raw: Iterable[tuple[bytes, bytes]], blot: Blot) -> CIMultiDict[str]:
    """The upstream's headers as they go to the client, without its key. The length stands if it is known."""
    headers: CIMultiDict[str] = CIMultiDict()
    pairs = list(raw)
    named = _named_by_connection(pairs)
    for name, value in pairs:
        text, lower = _spelled(blot.blotted(name))
        if lower not in _HOP_BY_HOP and lower not in named:
            headers.add(text, blot.blotted(value).decode("utf-8", "replace"))
    return headers


def betas_of(headers: CIMultiDictProxy[str]) -> tuple[str, ...]:
    """Values of the ``anthropic-beta`` header."""
    said = headers.getall("anthropic-beta", ())
    return tuple(part.strip() for line in said for part in line.split(","))


def _named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    named = [value for name, value in raw if len(name) == 10 and name.lower() == b"connection"]
    if not named:
        return _NONE
    words = (word.strip().lower() for value in named for word in value.split(b","))
    return frozenset(word.decode("ascii", "replace") for word in words)


@lru_cache(maxsize=1024)
def _spelled(name: bytes) -> tuple[str, str]:
    """A header's name as text, and in lower case: clients use the same few in every request."""
    text = name.decode("ascii", "replace")
    return text, text.lower()


@lru_cache(maxsize=256)
def _readable(accepted: str) -> str:
    """What the client accepts, less encodings that can't be read here: their usage would be lost."""
    parts = accepted.split(",")
    kept = [part for part in parts if _can_read(part.partition(";")[0])]
    if len(kept) == len(parts):
        return accepted
    return ",".join(kept).strip() or "identity"


def _can_read(coding: str) -> bool:
    # "*" would allow any encoding there is.
    return coding.strip() != "*" and is_readable(coding)
