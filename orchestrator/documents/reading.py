"""One file's bytes, never more than a limit of them, as a ``Document`` or a ``Problem``.

Blocking; holds no state, so it may run in any thread. ``decoding`` turns the bytes into text.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass

from .decoding import Decoded, decode
from .record import Document, DocumentError, Found, Problem, ProblemOutcome
from .signatures import HEAD_BYTES, format_of

MAX_BYTES = 1024 * 1024
"""The largest document unless the caller says otherwise: some 260,000 tokens of English."""

_CHUNK_BYTES = 64 * 1024
_ATTEMPTS = 2
# A pipe put in the file's place must not block us, nor a link lead us elsewhere. 0: not there.
_FLAGS = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)

# A file of nothing but white space and invisible characters says nothing.
_VISIBLE = re.compile("[^\\s\ufeff\u200b\u200c\u200d\u2060\u00ad\x00]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    outcome: ProblemOutcome
    reason: str


def read(found: Found, *, max_bytes: int = MAX_BYTES) -> Document | Problem:
    """Read one file. What goes wrong with the file is the ``Problem``'s reason, never an exception.

    Args:
        found: from ``find``.
        max_bytes: a larger file is ``too_large``; no more than this (plus one byte) is loaded.

    Raises:
        DocumentError: ``max_bytes`` is not a positive integer.
    """
    if type(max_bytes) is not int or max_bytes < 1:
        message = f"max_bytes is {max_bytes!r}; give a whole number of bytes, 1 or more."
        raise DocumentError(message)
    if found.trouble:
        return Problem(path=found.path, outcome="unreadable", reason=found.trouble)
    content = _content(found, max_bytes)
    if isinstance(content, _Refused):
        return Problem(path=found.path, outcome=content.outcome, reason=content.reason)
    return _document(found.path, content)


def why(error: OSError) -> str:
    """An operating system's refusal in plain words."""
    words = {
        errno.ENOENT: "it was there a moment ago and is gone",
        errno.ENOTDIR: "a folder on its path was replaced by something else",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ELOOP: "a link, or a loop of links, is in its place",
        errno.ENAMETOOLONG: "its path is too long for this system",
        errno.ENXIO: "a pipe, socket or device, not a file with content",
        errno.EMFILE: "this process has too many open files",
    }
    text = error.strerror or type(error).__name__
    return words.get(error.errno or 0, text[:1].lower() + text[1:])


def _document(path: str, content: bytes) -> Document | Problem:
    if not content:
        return Problem(path=path, outcome="empty", reason="the file has no content")
    form = format_of(content)
    if form:
        return Problem(path=path, outcome="binary", reason=f"{form}, not text")
    decoded = decode(content)
    if not isinstance(decoded, Decoded):
        return Problem(path=path, outcome="binary", reason=decoded.reason)
    if not _VISIBLE.search(decoded.text):
        return Problem(path=path, outcome="empty", reason="the file holds only white space")
    return Document(
        path=path,
        text=decoded.text,
        bytes=len(content),
        encoding=decoded.encoding,
        sha256=hashlib.sha256(content).hexdigest(),
        note=decoded.note,
    )


def _content(found: Found, max_bytes: int) -> bytes | _Refused:
    refused = _Refused(outcome="unreadable", reason="never read")
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(found.file, _FLAGS)
        except (OSError, ValueError) as error:
            reason = why(error) if isinstance(error, OSError) else "its path can't be opened"
            return _Refused(outcome="unreadable", reason=reason)
        try:
            content = _steady(descriptor, max_bytes)
        except OSError as error:
            reason = f"reading failed: {why(error)}"
            return _Refused(outcome="unreadable", reason=reason)
        finally:
            os.close(descriptor)
        if content is not None:
            return content
        reason = "it changed while it was being read; run again when it is finished"
        refused = _Refused(outcome="unreadable", reason=reason)
    return refused


def _steady(descriptor: int, max_bytes: int) -> bytes | _Refused | None:
    """The content, or None if it was written to meanwhile: half of each version is neither."""
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        return _Refused(outcome="unreadable", reason="something else than a file is in its place")
    if before.st_size > max_bytes:
        form = format_of(_taken(descriptor, min(HEAD_BYTES, max_bytes)))
        if form:  # a higher limit would not make it text
            return _Refused(outcome="binary", reason=f"{form}, not text")
        return _too_large(before.st_size, max_bytes)
    content = _taken(descriptor, max_bytes + 1)
    if len(content) > max_bytes:  # it grew, or has no size to tell (as in /proc)
        return _too_large(len(content), max_bytes, at_least=True)
    after = os.fstat(descriptor)
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    return content if same and len(content) >= after.st_size else None


def _taken(descriptor: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while left > 0:  # each turn takes at least one byte of the limit, or ends
        piece = os.read(descriptor, min(left, _CHUNK_BYTES))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _too_large(size: int, limit: int, *, at_least: bool = False) -> _Refused:
    held = f"at least {size:,}" if at_least else f"{size:,}"
    reason = f"{held} bytes, the limit is {limit:,}; split it, or raise the limit"
    return _Refused(outcome="too_large", reason=reason)
