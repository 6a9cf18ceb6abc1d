"""The journal: the append-only record of a run, one JSON line per event.

Holds events, never prompts or answers. Money is decided by the ledger alone: a journal that can't be
written says so once and lets the run go on. ``read_journal`` tolerates a torn last line.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

logger = logging.getLogger("earmark")


class Journal:
    """Writes events of one run.

    Args:
        path: the file, made with its folder; None writes nowhere.
        run: id of the run, in every line.
    """

    def __init__(self, path: Path | None, run: str) -> None:
        self.path = path
        self._run = run
        self._lock = threading.Lock()
        self._file: FileIO | None = None
        self._is_torn = False
        self._complained = False
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Unbuffered: a line that could not be written must not wait in a buffer, nor come twice.
                self._file = path.open("ab+", buffering=0)
                self._is_torn = not _ends_well(self._file)
            except OSError as error:
                self._complain(error)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; fields that are None or empty strings are left out. Never raises."""
        if self._file is None:
            return
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": self._run,
            "event": event,
        }
        line.update(
            (name, value) for name, value in fields.items() if value is not None and value != ""
        )
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)
        data = text.encode(errors="backslashreplace") + b"\n"
        with self._lock:
            if self._file is not None:
                self._append(self._file, data)

    def _append(self, file: FileIO, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data  # what a crash or a full disk cut off ends here
        try:
            written = file.write(data)
            self._is_torn = written != len(data)
        except (OSError, ValueError) as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            reason = getattr(error, "strerror", None) or error
            logger.error(
                "journal %s: can't be written (%s); the run goes on without it", self.path, reason
            )

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:
                    self._complain(error)
            self._file = None


def _ends_well(file: FileIO) -> bool:
    """Whether the last line is whole."""
    if not file.seekable() or file.seek(0, 2) == 0:
        return True
    file.seek(-1, 2)
    return file.read(1) == b"\n"


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a journal, in order. A line that was torn by a crash is passed over."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
