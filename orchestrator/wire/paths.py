"""Paths: which requests to the provider can cost money, by method and path.

What is not known to be free is ``unmetered``: it may bill and nothing here can price it, so it must
not be sent. Only exact spellings are known: a doubled slash, an escape or another case never is.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

PathKind = Literal["messages", "count_tokens", "batches_create", "free", "unmetered"]

_POSTS: dict[str, PathKind] = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/messages/batches": "batches_create",
    "/v1/files": "free",
    "/v1/skills": "free",
}
_FREE_POSTS = re.compile(
    r"/v1/(?:messages/batches/[A-Za-z0-9_-]+/cancel|skills/[A-Za-z0-9_-]+/versions)"
)
#: Reading and deleting never bills.
_FREE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_ODD = re.compile(r"[\x00-\x20\x7f-\uffff\\]")


def classify_path(method: str, path: str) -> PathKind:
    """What kind of request this is.

    Args:
        method: the HTTP method, in any case.
        path: a path such as ``/v1/messages``, or an absolute URL; a query does not matter.
    """
    verb = method.upper()
    if verb == "POST" and path in _POSTS:
        return _POSTS[path]
    if verb in _FREE_METHODS:
        return "free"
    # urlsplit drops line breaks and tabs silently: a path with any is not known.
    if verb != "POST" or _ODD.search(path):
        return "unmetered"
    try:
        plain = urlsplit(path).path
    except ValueError:
        return "unmetered"
    known = _POSTS.get(plain)
    if known is not None:
        return known
    return "free" if _FREE_POSTS.fullmatch(plain) else "unmetered"
