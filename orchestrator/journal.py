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
from pathlib import Path
from typing import Any, TextIO

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
        self._file: TextIO | None = None
        self._complained = False
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8", newline="\n")
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
        with self._lock:
            try:
                self._file.write(text + "\n")
                self._file.flush()
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
            if self._file is not None and not self._file.closed:
                try:
                    self._file.close()
                except OSError as error:
                    self._complain(error)
            self._file = None


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
