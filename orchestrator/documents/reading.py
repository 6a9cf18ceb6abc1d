"""One file's bytes, never more than a limit of them, as a ``Document`` or a ``Problem``.

Blocking; holds no state, so it may run in any thread. ``decoding`` turns the bytes into text.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib

from .decoding import Decoded, NotText, decode
from .extractor import Extractor
from .kinds import Kind, kind_of, may_be_larger
from .record import Document, DocumentError, Found, Problem, Refused
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
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)


def read(
    found: Found, *, max_bytes: int = MAX_BYTES, extractor: Extractor | None = None
) -> Document | Problem:
    """Read one file. What goes wrong with the file is the ``Problem``'s reason, never an exception.

    Args:
        found: from ``find``.
        max_bytes: a larger text is ``too_large``; of a file of text, no more than this (plus one byte) is
            loaded.
        extractor: takes text out of PDF, Word, HTML, e-mail and gzip; of such a file, its own limit is what is
            loaded. Without one they are ``binary``, or (HTML and e-mail) the text that they are written in.

    Raises:
        DocumentError: ``max_bytes`` is not a positive integer.
    """
    if type(max_bytes) is not int or max_bytes < 1:
        message = f"max_bytes is {max_bytes!r}; give a whole number of bytes, 1 or more."
        raise DocumentError(message)
    if found.trouble:
        return Problem(path=found.path, outcome="unreadable", reason=found.trouble)
    content = _content(found, max_bytes, extractor)
    told = content
    if isinstance(content, bytes):
        text = _text(content, max_bytes, extractor)
        if isinstance(text, Decoded):
            return Document(
                path=found.path,
                text=text.text,
                bytes=len(content),
                encoding=text.encoding,
                sha256=hashlib.sha256(content).hexdigest(),
                note=text.note,
            )
        told = text
    assert isinstance(told, Refused)
    return Problem(path=found.path, outcome=told.outcome, reason=told.reason)


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


def text_of(content: bytes) -> Decoded | Refused:
    """The text in bytes that are, or may be, plain text."""
    if not content:
        return Refused(outcome="empty", reason="the file has no content")
    form = format_of(content)
    if form:
        return Refused(outcome="binary", reason=f"{form}, not text")
    decoded = decode(content)
    if isinstance(decoded, NotText):
        return Refused(outcome="binary", reason=decoded.reason)
    return _visible(decoded)


def _visible(decoded: Decoded) -> Decoded | Refused:
    if not _VISIBLE.search(decoded.text):
        return Refused(outcome="empty", reason="the file holds only white space")
    return decoded


def _text(content: bytes, max_bytes: int, extractor: Extractor | None) -> Decoded | Refused:
    kind: Kind = "" if extractor is None else kind_of(content)
    if extractor is None or not kind:
        return text_of(content)
    if kind == "gzip":
        return _unzipped(content, max_bytes, extractor)
    given = _as_utf8(content) if kind == "html" else content
    text = extractor.text(kind, given, max_bytes=max_bytes)
    return text if isinstance(text, Refused) else _visible(Decoded(text=text, encoding=kind))


def _unzipped(content: bytes, max_bytes: int, extractor: Extractor) -> Decoded | Refused:
    """What one gzip file holds, never more of it than the limits."""
    inner, rest, is_whole = b"", content, True
    try:
        head = zlib.decompressobj(wbits=31).decompress(content, HEAD_BYTES)
        limit = extractor.max_file_bytes if may_be_larger(head) else max_bytes
        while rest.startswith(b"\x1f\x8b") and len(inner) <= limit:  # each turn unpacks one member
            unpacker = zlib.decompressobj(wbits=31)
            inner += unpacker.decompress(rest, limit + 1 - len(inner))
            rest, is_whole = unpacker.unused_data, unpacker.eof
    except zlib.error:
        return Refused(outcome="unreadable", reason="a gzip file that is damaged")
    if len(inner) > limit:
        return _too_large(len(inner), limit, at_least=True)
    if not is_whole:
        return Refused(outcome="unreadable", reason="a gzip file that is cut off")
    if kind_of(inner) == "gzip":
        return Refused(outcome="binary", reason="a gzip file in a gzip file, not text")
    text = _text(inner, max_bytes, extractor)
    if isinstance(text, Refused):
        return text
    return Decoded(text=text.text, encoding=f"gzip, {text.encoding}", replaced=text.replaced)


def _as_utf8(content: bytes) -> bytes:
    """An HTML page as UTF-8: by its mark, by being UTF-8, by what it says itself, or by its letters."""
    declared = _CHARSET.search(content[:HEAD_BYTES])
    if declared is not None and not content.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            try:
                return content.decode(declared.group(1).decode()).encode()
            except (LookupError, UnicodeError):
                pass
    decoded = decode(content)
    return decoded.text.encode() if isinstance(decoded, Decoded) else content


def _content(found: Found, max_bytes: int, extractor: Extractor | None) -> bytes | Refused:
    refused = Refused(outcome="unreadable", reason="never read")
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(found.file, _FLAGS)
        except (OSError, ValueError) as error:
            reason = why(error) if isinstance(error, OSError) else "its path can't be opened"
            return Refused(outcome="unreadable", reason=reason)
        try:
            content = _steady(descriptor, max_bytes, extractor)
        except OSError as error:
            reason = f"reading failed: {why(error)}"
            return Refused(outcome="unreadable", reason=reason)
        finally:
            os.close(descriptor)
        if content is not None:
            return content
        reason = "it changed while it was being read; run again when it is finished"
        refused = Refused(outcome="unreadable", reason=reason)
    return refused


def _steady(descriptor: int, max_bytes: int, extractor: Extractor | None) -> bytes | Refused | None:
    """The content, or None if it was written to meanwhile: half of each version is neither."""
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        return Refused(outcome="unreadable", reason="something else than a file is in its place")
    limit, head = max_bytes, b""
    if before.st_size > max_bytes:
        head = _taken(descriptor, min(HEAD_BYTES, max_bytes))
        if extractor is not None and may_be_larger(head):
            limit = max(extractor.max_file_bytes, max_bytes)
        elif form := format_of(head):  # a higher limit would not make it text
            return Refused(outcome="binary", reason=f"{form}, not text")
    if before.st_size > limit:
        return _too_large(before.st_size, limit)
    content = head + _taken(descriptor, limit + 1 - len(head))
    if len(content) > limit:  # it grew, or has no size to tell (as in /proc)
        return _too_large(len(content), limit, at_least=True)
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


def _too_large(size: int, limit: int, *, at_least: bool = False) -> Refused:
    held = f"at least {size:,}" if at_least else f"{size:,}"
    reason = f"{held} bytes, the limit is {limit:,}; split it, or raise max_bytes"
    return Refused(outcome="too_large", reason=reason)
