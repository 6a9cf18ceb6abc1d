"""Tables of a ledger file, and the ordered steps from one schema version to the next.

Each step runs together with its own bookkeeping row in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from budgets.errors import LedgerCorrupt, LedgerTooNew

#: Marks a SQLite file as an Earmark ledger ("EaMk").
APPLICATION_ID = 0x45614D6B

_V1 = """
CREATE TABLE lines (
  id INTEGER PRIMARY KEY, hold TEXT NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL,
  held_at INTEGER NOT NULL, scope TEXT NOT NULL, nanos INTEGER NOT NULL,
  posted INTEGER NOT NULL, held INTEGER NOT NULL, in_doubt INTEGER NOT NULL,
  model TEXT NOT NULL, owner TEXT NOT NULL, usage TEXT, note TEXT NOT NULL,
  CHECK (kind IN ('hold', 'settle', 'void', 'doubt', 'resolve', 'adjust'))
) STRICT;
-- A hold begins once, is doubted at most once, and ends once: a second fence behind the rules. Corrections
-- are NULL here, and so may be many. One index for all of it: each costs pages to write per line.
CREATE UNIQUE INDEX lines_hold ON lines (
  hold, CASE kind WHEN 'hold' THEN 0 WHEN 'doubt' THEN 1 WHEN 'adjust' THEN NULL ELSE 2 END
);
CREATE INDEX lines_scope ON lines (scope, held_at);
CREATE INDEX lines_held_at ON lines (held_at);
CREATE TRIGGER lines_never_change BEFORE UPDATE ON lines
BEGIN SELECT RAISE(ABORT, 'ledger lines are never changed'); END;
CREATE TRIGGER lines_never_go BEFORE DELETE ON lines
BEGIN SELECT RAISE(ABORT, 'ledger lines are never deleted'); END;
-- Only for holds that draw on more than one path: the further ones.
CREATE TABLE extra_scopes (scope TEXT NOT NULL, hold TEXT NOT NULL, PRIMARY KEY (scope, hold)) STRICT, WITHOUT ROWID;
CREATE TABLE open_holds (
  id TEXT PRIMARY KEY, nanos INTEGER NOT NULL, scopes TEXT NOT NULL, kinds TEXT NOT NULL,
  held_at INTEGER NOT NULL, model TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL, note TEXT NOT NULL,
  CHECK (state IN ('held', 'doubt'))
) STRICT, WITHOUT ROWID;
CREATE TABLE caps (
  id INTEGER PRIMARY KEY, scope TEXT NOT NULL, per TEXT NOT NULL, tz TEXT NOT NULL, nanos INTEGER NOT NULL,
  owner TEXT NOT NULL, since INTEGER NOT NULL, fallback INTEGER NOT NULL, dropped INTEGER NOT NULL,
  -- the last line before it: lines and caps keep their order though clocks may be set back
  after INTEGER NOT NULL
) STRICT;
CREATE TABLE accounts (
  cap_scope TEXT NOT NULL, cap_per TEXT NOT NULL, cap_tz TEXT NOT NULL, subject TEXT NOT NULL, window TEXT NOT NULL,
  posted INTEGER NOT NULL, held INTEGER NOT NULL, in_doubt INTEGER NOT NULL, latched INTEGER NOT NULL,
  begun INTEGER NOT NULL,
  PRIMARY KEY (cap_scope, cap_per, cap_tz, subject, window)
) STRICT, WITHOUT ROWID;
CREATE TABLE owners (
  id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, started_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE waiting (
  ticket INTEGER PRIMARY KEY, owner TEXT NOT NULL, nanos INTEGER NOT NULL, blocked TEXT NOT NULL,
  tied INTEGER NOT NULL
) STRICT;
"""

Step = Callable[[apsw.Connection], None]


def _first(db: apsw.Connection) -> None:
    db.execute(_V1)


#: Step n brings version n to n + 1.
STEPS: tuple[Step, ...] = (_first,)
VERSION = len(STEPS)


def migrate(db: apsw.Connection, name: str) -> None:
    """Bring a file to the current version, or refuse it unchanged.

    Raises:
        LedgerTooNew: a later Earmark wrote it.
        LedgerCorrupt: it is a database, but not a ledger.
    """
    version = version_of(db, name)
    if version == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited for the lock.
        for number in range(version_of(db, name), VERSION):
            STEPS[number](db)
            db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def version_of(db: apsw.Connection, name: str) -> int:
    """The schema version of a file, 0 if it is empty; looks without changing anything.

    Raises:
        LedgerTooNew, LedgerCorrupt: as ``migrate``.
    """
    version = int(db.pragma("user_version"))
    application = int(db.pragma("application_id"))
    if application == 0 and version == 0:
        if db.execute("SELECT count(*) FROM sqlite_schema").get:
            raise LedgerCorrupt(
                f"ledger {name}: this is a database of something else, not an Earmark ledger; name another file"
            )
        return 0
    if application != APPLICATION_ID:
        raise LedgerCorrupt(
            f"ledger {name}: this is a database of another program; name another file"
        )
    if version > VERSION:
        raise LedgerTooNew(
            f"ledger {name}: it has schema {version}, written by a later Earmark (this one knows {VERSION}); "
            "upgrade Earmark or name another file"
        )
    return version
