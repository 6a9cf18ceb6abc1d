"""The spool: bodies on disk as they are taken in, so that a job of any size fits in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.wire.batches import CLOSES, OPENS, request_bytes
from orchestrator.wire.prefixes import join

from .ids import custom_id
from .tables import PrefixRow

FILE = "bodies.jsonl"
#: Requests are handed to the connection in pieces of about this size.
_PIECE = 256 * 1024


class Spool:
    """A file of bodies, each without what it shares with others; ``job_store`` knows where each lies.

    Args:
        path: the file; made if it is not there.
        size: what lies behind this was never put on record, and is overwritten.
    """

    def __init__(self, path: Path, size: int) -> None:
        path.touch(mode=0o600)
        self._path = path
        # One handle each: bodies are taken in by one thread while another reads what is to be sent.
        self._writer = path.open("r+b", buffering=0)
        self._reader = path.open("rb", buffering=0)
        self._size = size
        self._fresh: list[bytes] = []

    def put(self, body: bytes) -> int:
        """Take in a body; where it lies. It is safe only after ``flush``."""
        at = self._size
        self._fresh.append(body)
        self._size += len(body)
        return at

    def flush(self) -> None:
        """Have everything on disk: before it is put on record.

        Raises:
            ConfigError: the disk is full, say. Nothing of it may be put on record.
        """
        if not self._fresh:
            return
        data = b"".join(self._fresh)
        view = memoryview(data)
        try:
            self._writer.seek(self._size - len(data))
            while view:
                view = view[self._writer.write(view) :]
            os.fsync(self._writer.fileno())
        except OSError as error:
            raise ConfigError(
                f"{self._path}: can't be written ({error.strerror}); mend that, and take the run up again"
            ) from error
        self._fresh.clear()

    def get(self, at: int, length: int) -> bytes:
        """One body.

        Raises:
            OSError: it is not there any more.
        """
        self._reader.seek(at)
        body = self._reader.read(length)
        if len(body) != length:
            raise OSError(f"{self._reader.name}: a body is missing at {at}")
        return body

    def clear(self) -> None:
        """Drop all bodies: nothing will be sent any more."""
        self._fresh.clear()
        self._size = 0
        self._writer.truncate(0)

    def close(self) -> None:
        """Close the file, and remove it if it is empty; may be called twice."""
        self._writer.close()
        if not self._size:
            self._path.unlink(missing_ok=True)
        self._reader.close()


def body_pieces(
    spool: Spool,
    batch: int,
    items: Sequence[tuple[int, str, int, int, int]],
    prefixes: dict[int, PrefixRow],
    *,
    with_marks: bool,
) -> Iterator[bytes]:
    """The request that makes a batch, in pieces.

    Args:
        spool: where the bodies are.
        batch: number of the batch.
        items: number, digest, prefix, and place and length of the body, of each.
        prefixes: what they share.
        with_marks: prefixes that are to be cached carry their mark.
    """
    shared = {
        n: row.bytes_for(with_mark=with_marks and row.choice == "mark")
        for n, row in prefixes.items()
    }
    piece = [OPENS]
    size = 0
    for position, (_, digest, prefix, at, length) in enumerate(items):
        params = join(shared[prefix], spool.get(at, length))
        request = request_bytes(custom_id(digest, batch), params, first=position == 0)
        piece.append(request)
        size += len(request)
        if size >= _PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    piece.append(CLOSES)
    yield b"".join(piece)
