"""The journal: the append-only record of a run, one JSON line per event.

Holds events, never prompts or answers; those of one turn of an event loop are written at its end. Money is
decided by the ledger alone: a journal that can't be written says so once and lets the run go on.
``read_journal`` tolerates a torn last line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

logger = logging.getLogger("earmark")

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)
#: Events that gather in one turn of a loop before they are written all the same.
_PENDING_MAX = 256


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
        self._pending: list[bytes] = []
        self._due_in: asyncio.AbstractEventLoop | None = None
        self._listeners: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Unbuffered: a line that could not be written must not wait in a buffer, nor come twice.
                self._file = path.open("ab+", buffering=0)
                self._is_torn = not _ends_well(self._file)
            except OSError as error:
                self._complain(error)

    def listen(self, callback: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        """Hear every event from now on, also where no file is written.

        Args:
            callback: takes each event as it is written, in the thread that writes it; it must be quick, and
                what it raises is logged.

        Returns:
            What ends the listening.
        """
        with self._lock:
            self._listeners = (*self._listeners, callback)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not callback)

        return stop

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; fields that are None or empty strings are left out. Never raises."""
        listeners = self._listeners
        if self._file is None and not listeners:
            return
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": self._run,
            "event": event,
            **{name: value for name, value in fields.items() if value is not None and value != ""},
        }
        for listener in listeners:
            try:
                listener(line)
            except Exception:
                logger.exception("journal %s: a listener failed", self.path)
        if self._file is None:
            return
        data = _encoded(line)
        loop = _loop_here()
        with self._lock:
            self._pending.append(data)
            if loop is None or len(self._pending) >= _PENDING_MAX:
                self._write_pending()
            elif self._due_in is not loop:
                # One write for all events of a turn of the loop: they come in dozens.
                self._due_in = loop
                loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what has gathered in this turn of the event loop; may be called at any time."""
        with self._lock:
            self._due_in = None
            self._write_pending()

    def _write_pending(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if self._file is not None and data:
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
            self._write_pending()
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:
                    self._complain(error)
            self._file = None


def _encoded(line: dict[str, Any]) -> bytes:
    """One line of JSON, whatever its values are."""
    try:
        return to_json(line, fallback=str) + b"\n"
    except (PydanticSerializationError, ValueError):  # a lone surrogate, in the name of a file
        return _ENCODER.encode(line).encode(errors="backslashreplace") + b"\n"


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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
