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

from . import forks
from .file_lock import Turnstile, refuse_network_drive
from .protocol import EntryRefused, Reader, StoreBusy, Transaction
from .schema import migrate, version_of
from .sqlite_reader import SqliteReader
from .sqlite_transaction import Cache, SqliteTransaction

BUSY_MS = 30_000
#: How long a fork waits for the transaction under way, and for readers, before it goes ahead regardless.
_FORK_PATIENCE_S = 5.0
_READERS_PATIENCE_S = 0.2


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
        self._writing = threading.RLock()
        self._db: apsw.Connection | None = None
        self._turnstile: Turnstile | None = None
        self._readers: list[apsw.Connection] = []
        self._reading = 0
        self._readers_change = threading.Condition()
        self._inode = (0, 0)
        self._closed = self._held_for_fork = False
        self._may_wait = True
        with translated(self.name):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise LedgerUnavailable(f"ledger {self.name}: this is a folder; name a file")
            refuse_network_drive(path)
            self._open(create=True)
        forks.watch(self)

    # ---- connections ------------------------------------------------------------------------------

    def _open(self, *, create: bool) -> apsw.Connection:
        """The writer's connection, with the turnstile in front of it."""
        if create and self.path.exists() and forks.is_tainted(_inode_of(self.path)):
            raise LedgerUnavailable(
                f"ledger {self.name}: this process was forked while the file was being read; "
                "start processes by 'spawn', or finish reading before the fork"
            )
        turnstile = Turnstile(
            self.path.with_name(self.path.name + ".lock"), timeout_s=self._busy_ms / 1000
        )
        db = None
        try:
            with turnstile.passing():  # of many processes that begin at once, one makes the file
                db = self._connect(create=create)
                self._prepare(db)
            if create:
                self._inode = _inode_of(self.path)
        except BaseException:
            if db is not None:
                db.close()
            turnstile.close()
            raise
        self._cache.drop_all()
        self._db, self._turnstile = db, turnstile
        return db

    def _connect(self, *, create: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        db = apsw.Connection(self.name, flags=flags)
        started = 0.0

        def wait(tries: int) -> bool:
            # Finer than SQLite's own: only one process at a time stands here, for another's commit.
            nonlocal started
            if not self._may_wait:
                return False
            started = time.monotonic() if tries == 0 else started
            time.sleep(min(0.0001 * (tries + 1), 0.002))
            return time.monotonic() - started < self._busy_ms / 1000

        db.set_busy_handler(wait)
        return db

    def _prepare(self, db: apsw.Connection) -> None:
        version_of(db, self.name)  # before anything is changed: it may be somebody else's file
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

    def _stand_fast(self) -> None:
        """The name must still lead to the file that was opened: writing on to a deleted one loses money.

        Raises:
            LedgerUnavailable: it was deleted, moved or replaced.
        """
        if self._closed:
            raise LedgerUnavailable(f"ledger {self.name}: it was closed")
        try:
            found = _inode_of(self.path)
        except FileNotFoundError:
            raise LedgerUnavailable(
                f"ledger {self.name}: the file was deleted or moved while in use; put it back, or restart to begin anew"
            ) from None
        if found != self._inode:
            raise LedgerUnavailable(
                f"ledger {self.name}: the file was replaced by another while in use; restart to use that one"
            )

    def inode(self) -> tuple[int, int]:
        """Device and number of the file."""
        return self._inode

    # ---- work -------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, wait: bool = True) -> Iterator[Transaction]:
        """Begin an atomic step; leaving it without an exception makes it durable."""
        if not self._writing.acquire(blocking=wait):
            raise StoreBusy
        try:
            with translated(self.name):
                yield from self._transact(wait=wait)
        finally:
            self._writing.release()

    def _transact(self, *, wait: bool) -> Iterator[Transaction]:
        self._stand_fast()
        db = self._db or self._open(create=False)
        assert self._turnstile is not None
        self._may_wait = wait
        try:
            with self._turnstile.passing(wait=wait):
                db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            if wait:
                raise
            raise StoreBusy from None
        finally:
            self._may_wait = True
        try:
            self._cache.check(db)
            txn = SqliteTransaction(db, self._cache)
            yield txn
            txn.flush()
            db.execute("COMMIT")
        except BaseException:
            self._cache.drop_all()
            if db.in_transaction:
                with contextlib.suppress(apsw.Error):
                    db.execute("ROLLBACK")
            raise

    def changed_elsewhere(self) -> bool:
        """True if another process may have written since the last transaction."""
        with self._writing, translated(self.name):
            return self._db is None or self._cache.is_stale(self._db)

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
                self._give_back(db)

    def _borrow(self) -> apsw.Connection:
        with self._readers_change:
            self._stand_fast()
            db = self._readers.pop() if self._readers else self._connect()
            self._reading += 1
        db.pragma("query_only", 1)
        return db

    def _give_back(self, db: apsw.Connection) -> None:
        with self._readers_change:
            self._reading -= 1
            if self._closed:
                db.close()
            else:
                self._readers.append(db)
            self._readers_change.notify_all()

    # ---- forks and the end ------------------------------------------------------------------------

    def pause(self) -> bool:
        """Before a fork: close every connection. False if somebody is reading or writing for too long."""
        free = self._writing.acquire(timeout=_FORK_PATIENCE_S)
        self._readers_change.acquire()
        unread = self._readers_change.wait_for(lambda: not self._reading, _READERS_PATIENCE_S)
        for db in self._readers:
            db.close()
        self._readers.clear()
        if free:
            self._close_writer()
        self._held_for_fork = free
        return free and unread

    def resume(self) -> None:
        """After a fork, in parent and child: connections are opened again when they are needed."""
        self._readers_change.release()
        if self._held_for_fork:
            self._writing.release()

    def _close_writer(self) -> None:
        if self._db is not None:
            self._db.close()
        if self._turnstile is not None:
            self._turnstile.close()
        self._db = self._turnstile = None

    def close(self) -> None:
        """Close every connection; the last one to close folds the WAL back into the file."""
        with self._readers_change:
            self._closed = True
            readers, self._readers = self._readers, []
        for db in readers:
            db.close()
        with self._writing:
            self._close_writer()


def _inode_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


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
    except (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError) as error:
        raise EntryRefused(_text(error)) from error
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
