"""The folder of a run: its record, its journal, and a lock so that nobody else goes on with it meanwhile."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, RunTaken

try:
    import fcntl

    _HAS_FLOCK = True
except ImportError:  # Windows: two runs of one id are then not told apart
    _HAS_FLOCK = False

logger = logging.getLogger("earmark")

RECORD = "run.json"
JOURNAL = "journal.jsonl"


class RunFolder:
    """Where a run keeps its record.

    Args:
        path: the folder; None keeps nothing.
        run: id of the run, for messages.

    Raises:
        RunTaken: a run of this id is under way.
        ConfigError: the folder can't be made.
    """

    def __init__(self, path: Path | None, run: str) -> None:
        self.path = path
        self.is_closed = False
        self._lock = -1
        if path is None:
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if _HAS_FLOCK:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            # Not "start another one": that would pay for everything again.
            raise RunTaken(
                f"run {run}: it is under way in another process; wait until that has ended"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"run {run}: its folder {path} can't be used ({error.strerror}); name another ledger"
            ) from error

    @property
    def journal(self) -> Path | None:
        """The journal's file."""
        return None if self.path is None else self.path / JOURNAL

    def save(self, record: Mapping[str, Any]) -> None:
        """Write the record, whole or not at all. A fault is logged: the ledger has the money."""
        if self.path is None or self.is_closed:
            return
        target, fresh = self.path / RECORD, self.path / f"{RECORD}.new"
        try:
            fresh.write_text(
                json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            fresh.replace(target)
        except OSError as error:
            logger.error("run record %s: can't be written (%s)", target, error.strerror)  # noqa: TRY400

    def close(self) -> None:
        """Let go of the lock; may be called twice."""
        self.is_closed = True
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_under_way(folder: Path) -> bool:
    """Whether a process holds the lock of a run's folder; False where that can't be seen (Windows)."""
    if not _HAS_FLOCK:
        return False
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
