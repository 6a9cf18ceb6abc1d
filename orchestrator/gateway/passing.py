"""Headers that pass through, in both directions: an open list, less what belongs to one connection only."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from multidict import CIMultiDict, CIMultiDictProxy

from orchestrator.encodings import is_readable

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
    dropped = _NOT_UPSTREAM | _named_by_connection(pairs)
    for name, value in pairs:
        text = name.decode("ascii", "replace")
        lower = text.lower()
        if lower in dropped:
            continue
        try:
            said = value.decode()
        except UnicodeDecodeError:
            raise BadHeader(f"the header {text} is not UTF-8") from None
        headers.add(text, _readable(said) if lower == "accept-encoding" else said)
    headers.add(*credentials)
    return headers


def to_client(raw: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """The upstream's headers as they go to the client. The length stands if it is known."""
    headers: CIMultiDict[str] = CIMultiDict()
    pairs = list(raw)
    dropped = _HOP_BY_HOP | _named_by_connection(pairs)
    for name, value in pairs:
        text = name.decode("ascii", "replace")
        if text.lower() not in dropped:
            headers.add(text, value.decode("utf-8", "replace"))
    return headers


def betas_of(headers: CIMultiDictProxy[str]) -> tuple[str, ...]:
    """Values of the ``anthropic-beta`` header."""
    said = headers.getall("anthropic-beta", ())
    return tuple(part.strip() for line in said for part in line.split(","))


def _named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    named = [value for name, value in raw if name.lower() == b"connection"]
    words = (word.strip().lower() for value in named for word in value.split(b","))
    return frozenset(word.decode("ascii", "replace") for word in words)


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
