"""The console: UTF-8 whatever its code page, and silence when nobody reads any more.

``make_ready`` is called once, by ``main``. What is written goes through ``output``.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing import Any

    from _typeshed import ReadableBuffer

#: What a write to a pipe without a reader says; Windows says EINVAL.
_NO_READER = {errno.EPIPE, errno.ESHUTDOWN} | ({errno.EINVAL} if os.name == "nt" else set())


class PatientPipe(io.RawIOBase):
    """A raw stream that swallows what is written after its reader has gone (``earmark ... | head``).

    The command then still ends as it would have, and with the same exit code: money is not left
    in doubt because a pager was closed.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.has_reader = True

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or pretend to."""
        size = memoryview(data).nbytes
        if not self.has_reader:
            return size
        try:
            written = self._raw.write(data)
        except OSError as error:
            if error.errno not in _NO_READER:
                raise
            self.has_reader = False
            return size
        return size if written is None else written

    def fileno(self) -> int:
        """That of the stream below."""
        return self._raw.fileno()

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return self._raw.isatty()


def make_ready() -> None:
    """Put UTF-8 and patience on standard output and standard error, for the rest of the process."""
    sys.stdout = _patient(sys.stdout)
    sys.stderr = _patient(sys.stderr)


def _patient(stream: TextIO | Any) -> TextIO:
    if stream is None:  # closed by the caller, or a program without a console
        return Path(os.devnull).open("w", encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # unbuffered streams (PYTHONUNBUFFERED) have no other
    if not isinstance(raw, io.RawIOBase):  # something that a test or a host program put there
        return stream
    stream.flush()
    pipe = PatientPipe(raw)
    # Names of files may hold what is no text; a backslash shows them, and is right in JSON too.
    return io.TextIOWrapper(
        io.BufferedWriter(pipe),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty() or stream is sys.stderr,
    )


def let_go() -> None:
    """Before the process ends: what can't be written (a full disk, reported before) is dropped.

    Otherwise the interpreter would try once more, and leave with a code of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pipe = _pipe_of(stream)
            if pipe is not None:
                pipe.has_reader = False
                stream.flush()


def has_reader() -> bool:
    """False once standard output's reader has gone, so that a long listing can stop early."""
    pipe = _pipe_of(sys.stdout)
    return pipe is None or pipe.has_reader


def _pipe_of(stream: TextIO) -> PatientPipe | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, PatientPipe) else None
