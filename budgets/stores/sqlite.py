"""The durable store: one SQLite file, many processes, nothing lost.

Settings and why: WAL (readers never block writers), synchronous=FULL (a commit survives power loss),
immediate transactions (the lock is taken before anything is read), a busy handler, and a turnstile in
front of it all, since the busy handler alone lets processes starve. Accounts, caps and open holds
are cached between transactions for as long as no other process has written (``data_version``), and each
transaction writes with a handful of multi-row statements: the writer's thread then needs the
interpreter lock only a few times per commit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from budgets.errors import BudgetError, LedgerCorrupt, LedgerUnavailable

from .file_lock import Turnstile, refuse_network_drive
from .protocol import Reader, Transaction
from .schema import migrate
from .sqlite_reader import SqliteReader
from .sqlite_transaction import Cache, SqliteTransaction

BUSY_MS = 30_000


class SqliteStore:
    """A ledger file.

    Args:
        path: the file; it and its folder are made if they don't exist.
        busy_ms: how long to wait for another process's transaction before a call is declined.

    Raises:
        LedgerUnavailable: can't be opened or written (folder, rights, read-only, full, network drive).
        LedgerCorrupt, LedgerTooNew: it is not a ledger that this version can use; left as it is.
    """

    durable = True

    def __init__(self, path: Path, *, busy_ms: int = BUSY_MS) -> None:
        self.path = path
        self.name = str(path)
        self._busy_ms = busy_ms
        self._cache = Cache()
        self._readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        with translated(self.name):
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_network_drive(path)
            self._turnstile = Turnstile(
                path.with_name(path.name + ".lock"), timeout_s=busy_ms / 1000
            )
            self._db = self._connect()
            self._prepare()

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(self.name)
        started = 0.0

        def wait(tries: int) -> bool:
            # Finer than SQLite's own: only one process at a time stands here, for another's commit.
            nonlocal started
            started = time.monotonic() if tries == 0 else started
            time.sleep(min(0.0001 * (tries + 1), 0.002))
            return time.monotonic() - started < self._busy_ms / 1000

        db.set_busy_handler(wait)
        return db

    def _prepare(self) -> None:
        db = self._db
        try:
            mode = db.pragma("journal_mode", "wal")
            if str(mode).lower() != "wal":
                raise LedgerUnavailable(
                    f"ledger {self.name}: the file system does not allow write-ahead logging; name a file on a local disk"
                )
            db.pragma("synchronous", "full")
            db.pragma("foreign_keys", 1)
            migrate(db, self.name)
            # A write now, so that a read-only file or a full disk shows before any call depends on it.
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin an atomic step; leaving it without an exception makes it durable."""
        with translated(self.name):
            db = self._db
            with self._turnstile:
                db.execute("BEGIN IMMEDIATE")
            try:
                self._cache.check(db)
                txn = SqliteTransaction(db, self._cache)
                yield txn
                txn.flush()
                db.execute("COMMIT")
            except BaseException:
                self._cache.drop()
                if db.in_transaction:
                    with contextlib.suppress(apsw.Error):
                        db.execute("ROLLBACK")
                raise

    def changed_elsewhere(self) -> bool:
        """True if another process may have written since the last transaction."""
        with translated(self.name):
            return self._cache.is_stale(self._db)

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """A view of what is committed; its own connection, so that it never holds up a call."""
        with translated(self.name):
            db = self._borrow()
            try:
                db.execute("BEGIN")
                yield SqliteReader(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                with self._readers_lock:
                    self._readers.append(db)

    def _borrow(self) -> apsw.Connection:
        with self._readers_lock:
            if self._readers:
                return self._readers.pop()
        db = self._connect()
        db.pragma("query_only", 1)
        return db

    def close(self) -> None:
        """Close every connection; the last one to close folds the WAL back into the file."""
        with self._readers_lock:
            readers, self._readers = self._readers, []
        for db in readers:
            db.close()
        self._db.close()
        self._turnstile.close()


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the storage engine's errors into the ledger's, one clear sentence each."""
    try:
        yield
    except BudgetError:
        raise
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise LedgerCorrupt(
            f"ledger {name}: the file is damaged or not a ledger ({_text(error)}); it was left as it is: "
            "restore a copy or name another file"
        ) from error
    except apsw.BusyError as error:
        raise LedgerUnavailable(
            f"ledger {name}: another process keeps it locked; try again"
        ) from error
    except apsw.FullError as error:
        raise LedgerUnavailable(
            f"ledger {name}: the disk is full; free some space and try again"
        ) from error
    except apsw.ReadOnlyError as error:
        raise LedgerUnavailable(
            f"ledger {name}: the file or its folder is read-only; make it writable"
        ) from error
    except apsw.CantOpenError as error:
        raise LedgerUnavailable(
            f"ledger {name}: the file can't be opened; check that its folder exists and is writable"
        ) from error
    except apsw.ConnectionClosedError as error:
        raise LedgerUnavailable(f"ledger {name}: it was closed") from error
    except apsw.Error as error:
        raise LedgerUnavailable(
            f"ledger {name}: the disk failed ({_text(error)}); nothing was written"
        ) from error
    except OSError as error:
        raise LedgerUnavailable(
            f"ledger {name}: {error.strerror or error}; name a file that can be written"
        ) from error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
