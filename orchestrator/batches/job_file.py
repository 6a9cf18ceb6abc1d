"""The file of a job: opened, marked as ours, and written in durable steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from orchestrator.errors import ConfigError

from .tables import APPLICATION_ID, SCHEMA, VERSION

FILE = "batches.db"
_BUSY_MS = 10_000
#: What the machine is to blame for, not this program.
_MACHINE = (
    *(apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.BusyError, apsw.CantOpenError),
    *(apsw.CorruptError, apsw.NotADBError),
)


class JobFile:
    """One job's file.

    Args:
        path: the file; made if it is not there.
        read_only: only look.

    Raises:
        ConfigError: it is something else, or a later Earmark wrote it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        flags = (
            apsw.SQLITE_OPEN_READONLY
            if read_only
            else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        )
        try:
            self._db = apsw.Connection(str(path), flags=flags)
            self._db.set_busy_timeout(_BUSY_MS)
            self._prepare(read_only=read_only)
        except apsw.Error as error:
            raise ConfigError(f"{path}: can't be used as a job of batches ({error})") from error

    def _prepare(self, *, read_only: bool) -> None:
        db = self._db
        version, application = int(db.pragma("user_version")), int(db.pragma("application_id"))
        if version > VERSION or application not in {0, APPLICATION_ID}:
            db.close()
            raise ConfigError(
                f"{self.path}: this is not a job of batches that this Earmark knows; name another run"
            )
        if read_only:
            if version == 0:  # without tables there is nothing to look at
                db.close()
                raise ConfigError(f"{self.path}: this job is being made, or was never begun")
            return
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("cache_size", -32_000)
        if version == 0:
            with self.step():
                db.execute(SCHEMA)
                db.pragma("application_id", APPLICATION_ID)
                db.pragma("user_version", VERSION)

    @contextmanager
    def step(self) -> Iterator[apsw.Connection]:
        """One durable step; an exception undoes all of it.

        Raises:
            ConfigError: it can't be written: the disk is full, say.
        """
        try:
            with self._lock, self._db:
                yield self._db
        except apsw.Error as error:
            cause = _machine_fault(error)
            if cause is None:
                raise
            raise ConfigError(
                f"{self.path}: the job can't be written ({cause}); mend that, and take the run up again: "
                "what is under way keeps its hold"
            ) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._db.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a question."""
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # ---- facts about the job ------------------------------------------------------------------------

    def fact(self, name: str, default: str = "") -> str:
        """A fact that was noted; the default if it never was."""
        found = self.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return str(found[0][0]) if found else default

    def note(self, **facts: str) -> None:
        """Note facts."""
        with self.step() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))


def _machine_fault(error: BaseException | None) -> BaseException | None:
    """What lies behind an error: SQLite undoes a step on a full disk by itself, and then can't undo it again."""
    while error is not None and not isinstance(error, _MACHINE):
        error = error.__cause__ or error.__context__
    return error


def numbers_of(found: apsw.Cursor) -> list[int]:
    """The one column of a statement's rows, as numbers."""
    return [int(row[0]) for row in found.fetchall()]  # type: ignore[arg-type]
