"""Tables of a job's file, and the records that are read from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Marks a SQLite file as a job of batches ("EaBt").
APPLICATION_ID: Final = 0x45614274
VERSION: Final = 1

SCHEMA: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE prefixes (
  n INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, model TEXT NOT NULL, plain BLOB NOT NULL, marked BLOB,
  choice TEXT NOT NULL DEFAULT '', tokens INTEGER, warm_at REAL
) STRICT;
CREATE TABLE shapes (
  n INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, verdict TEXT NOT NULL DEFAULT ''
) STRICT;
-- The mapping from our ids to identities: written before anything is sent. An identity is there once.
CREATE TABLE items (
  n INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, digest TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
  prefix INTEGER NOT NULL, shape INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL,
  bound INTEGER NOT NULL, bound_marked INTEGER NOT NULL, ttl TEXT, geo TEXT,
  word TEXT NOT NULL DEFAULT '',
  state TEXT NOT NULL, batch INTEGER, tries INTEGER NOT NULL DEFAULT 0, session INTEGER NOT NULL,
  outcome TEXT, reason TEXT NOT NULL DEFAULT '', via TEXT NOT NULL DEFAULT '', message TEXT,
  posted INTEGER NOT NULL DEFAULT 0, doubt INTEGER NOT NULL DEFAULT 0, usage TEXT,
  CHECK (state IN ('waiting', 'sent', 'again', 'direct', 'done'))
) STRICT;
CREATE INDEX items_waiting ON items (n) WHERE state = 'waiting';
CREATE INDEX items_open ON items (state, batch) WHERE state <> 'done';
CREATE TABLE batches (
  n INTEGER PRIMARY KEY, state TEXT NOT NULL, hold TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
  items INTEGER NOT NULL, bytes INTEGER NOT NULL, bound INTEGER NOT NULL, largest INTEGER NOT NULL,
  marked INTEGER NOT NULL, primes INTEGER NOT NULL, key_label TEXT NOT NULL DEFAULT '',
  workspace TEXT NOT NULL DEFAULT '', sending_at REAL, id TEXT UNIQUE, created_at REAL, ended_at REAL,
  posted INTEGER NOT NULL DEFAULT 0, without_cache INTEGER NOT NULL DEFAULT 0,
  direct INTEGER NOT NULL DEFAULT 0, direct_without INTEGER NOT NULL DEFAULT 0,
  results INTEGER NOT NULL DEFAULT 0, billed INTEGER NOT NULL DEFAULT 0, hits INTEGER NOT NULL DEFAULT 0,
  unpriced INTEGER NOT NULL DEFAULT 0, over INTEGER NOT NULL DEFAULT 0, usage TEXT NOT NULL DEFAULT '{}',
  word TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
  CHECK (state IN ('packed', 'held', 'sending', 'submitted', 'read', 'settled', 'void', 'doubt'))
) STRICT;
-- Results that no item of the batch belongs to: they cost money all the same, once.
CREATE TABLE strays (
  batch INTEGER NOT NULL, custom_id TEXT NOT NULL, PRIMARY KEY (batch, custom_id)
) STRICT, WITHOUT ROWID;
"""


class BatchLife(StrEnum):
    """Where a batch stands; each step is on disk before the next one is taken.

    ``packed`` (its items are chosen, its hold's id is written), ``held``, ``sending`` (it may have been
    sent), ``submitted`` (the provider's id is known), ``read`` (every result is here), and its end:
    ``settled``, ``void`` (certainly not made) or ``doubt``.
    """

    PACKED = "packed"
    HELD = "held"
    SENDING = "sending"
    SUBMITTED = "submitted"
    READ = "read"
    SETTLED = "settled"
    VOID = "void"
    DOUBT = "doubt"

    @property
    def is_open(self) -> bool:
        """Whether there is something left to do for it."""
        return self not in {BatchLife.SETTLED, BatchLife.VOID, BatchLife.DOUBT}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One batch of a job.

    Attributes:
        n: its number in the job.
        state: where it stands.
        hold: id of its hold.
        model, items, bytes: of its requests.
        bound_nanos, largest_nanos: the worst case of all items, and of the dearest.
        marked, primes: prefixes carry marks; it is the small batch that warms the cache for the others.
        key_label, workspace: whose key made it.
        sending_at, created_at, ended_at: seconds since 1970; None before.
        id: the provider's.
        posted_nanos: the cost of all its results so far.
        without_cache_nanos, direct_nanos, direct_without_nanos: what they would have cost otherwise.
        results, billed, hits: results so far, those with a cost, those that read from the cache.
        unpriced, over: results whose cost could not be worked out, or was above their bound.
        usage: totals of the token classes, JSON.
        word: limits of its items that are only the caller's word, apart by blanks.
        reason: why it ended as it did.
    """

    n: int
    state: BatchLife
    hold: str
    model: str
    items: int
    bytes: int
    bound_nanos: int
    largest_nanos: int
    marked: bool
    primes: bool
    key_label: str
    workspace: str
    sending_at: float | None
    id: str | None
    created_at: float | None
    ended_at: float | None
    posted_nanos: int
    without_cache_nanos: int
    direct_nanos: int
    direct_without_nanos: int
    results: int
    billed: int
    hits: int
    unpriced: int
    over: int
    usage: str
    word: str
    reason: str


BATCH_COLUMNS: Final = (
    "n, state, hold, model, items, bytes, bound, largest, marked, primes, key_label, workspace, sending_at, id, "
    "created_at, ended_at, posted, without_cache, direct, direct_without, results, billed, hits, unpriced, over, "
    "usage, word, reason"
)


def batch_of(row: tuple[object, ...]) -> BatchRow:
    """A row of ``BATCH_COLUMNS``."""
    names = BatchRow.__dataclass_fields__
    values = dict(zip(names, row, strict=True))
    values["state"] = BatchLife(str(values["state"]))
    values["marked"], values["primes"] = bool(values["marked"]), bool(values["primes"])
    return BatchRow(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An item that waits to be sent: where its body is, and what it can cost at worst."""

    n: int
    digest: str
    prefix: int
    at: int
    length: int
    bound_nanos: int
    bound_marked_nanos: int
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An item of a batch whose result is awaited."""

    n: int
    identity: str
    digest: str
    bound_nanos: int
    bound_marked_nanos: int
    ttl: str | None
    geo: str | None
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRow:
    """What requests share, as JSON with and without a mark, and whether it is marked."""

    n: int
    model: str
    plain: bytes
    marked: bytes | None
    choice: str
    tokens: int | None
    warm_at: float | None

    def bytes_for(self, *, with_mark: bool) -> bytes:
        """The JSON to be sent."""
        return self.marked if with_mark and self.marked is not None else self.plain
