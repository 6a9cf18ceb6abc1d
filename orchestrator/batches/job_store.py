"""The job's file: batches of items and where each stands, durable step by step, beside the run.

What a step means is decided by whoever calls; here it is written in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from orchestrator.wire.prefixes import to_json

from .item_store import ItemStore, Judged
from .job_file import numbers_of
from .tables import BATCH_COLUMNS, BatchLife, BatchRow, Sent, batch_of

#: So many results tell how often the cache is hit.
_TELLING = 50
_SENT = "n, identity, digest, bound, bound_marked, ttl, geo, tries"


class JobStore(ItemStore):
    """The items and batches of one job."""

    def pack(self, batch: BatchRow, items: Sequence[int]) -> None:
        """A new batch, and which items are in it: before anything is held or sent."""
        with self.step() as db:
            db.execute(
                "INSERT INTO batches (n, state, hold, model, items, bytes, bound, largest, marked, primes, word) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(batch.n, batch.state, batch.hold, batch.model, batch.items, batch.bytes),
                    *(
                        batch.bound_nanos,
                        batch.largest_nanos,
                        batch.marked,
                        batch.primes,
                        batch.word,
                    ),
                ),
            )
            db.execute(
                "UPDATE items SET state = 'sent', batch = ?, tries = tries + 1 "
                "WHERE n IN (SELECT value FROM json_each(?))",
                (batch.n, to_json(list(items)).decode()),
            )

    def unpack(self, batch: int, state: BatchLife, reason: str) -> None:
        """A batch that certainly was not made: its items wait again, as if they had never been tried."""
        with self.step() as db:
            db.execute(
                "UPDATE batches SET state = ?, reason = ? WHERE n = ?", (state, reason, batch)
            )
            db.execute(
                "UPDATE items SET state = 'waiting', tries = tries - 1 WHERE batch = ? AND state = 'sent'",
                (batch,),
            )

    def next_batch(self) -> int:
        """The number of the next batch."""
        return int(self.rows("SELECT ifnull(max(n), 0) + 1 FROM batches")[0][0])

    # ---- the life of a batch ------------------------------------------------------------------------

    def batch(self, n: int) -> BatchRow:
        """One batch."""
        return batch_of(self.rows(f"SELECT {BATCH_COLUMNS} FROM batches WHERE n = ?", (n,))[0])

    def batches(self) -> list[BatchRow]:
        """All batches, in the order in which they were packed."""
        return [batch_of(r) for r in self.rows(f"SELECT {BATCH_COLUMNS} FROM batches ORDER BY n")]

    def advance(self, n: int, state: BatchLife, **fields: object) -> None:
        """A batch has come to a further point of its life."""
        names = "".join(f", {name} = ?" for name in fields)
        with self.step() as db:
            db.execute(
                f"UPDATE batches SET state = ?{names} WHERE n = ?", (state, *fields.values(), n)
            )

    def of_batch(self, n: int) -> list[tuple[int, str, int, int, int]]:
        """Items of a batch that is about to be sent: number, digest, prefix, and where the body is."""
        return [
            (row[0], row[1], row[2], row[3], row[4])
            for row in self.rows(
                "SELECT n, digest, prefix, at, length FROM items "
                "WHERE batch = ? AND state = 'sent' ORDER BY n",
                (n,),
            )
        ]

    def awaited(self, batch: int, digests: Sequence[str]) -> dict[str, Sent]:
        """Those of these items whose result in this batch is not here yet, by digest."""
        found = self.rows(
            f"SELECT {_SENT} FROM items WHERE digest IN (SELECT value FROM json_each(?)) "
            "AND batch = ? AND state = 'sent'",
            (to_json(list(digests)).decode(), batch),
        )
        return {row[2]: _sent(row) for row in found}

    def belongs(self, batch: int, digest: str) -> bool:
        """Whether an item was in this batch when it was sent last."""
        return bool(
            self.rows("SELECT 1 FROM items WHERE digest = ? AND batch = ?", (digest, batch))
        )

    def missing(self, batch: int, limit: int) -> list[Sent]:
        """Items of a batch that it brought no result for."""
        found = self.rows(
            f"SELECT {_SENT} FROM items WHERE batch = ? AND state = 'sent' ORDER BY n LIMIT ?",
            (batch, limit),
        )
        return [_sent(row) for row in found]

    def note_stray(self, batch: int, custom: str) -> bool:
        """Note a result that belongs to nobody; False if it was noted before."""
        with self.step() as db:
            db.execute("INSERT OR IGNORE INTO strays VALUES (?, ?)", (batch, custom))
            return bool(db.changes())

    def apply(
        self,
        batch: int,
        judged: Sequence[Judged],
        sums: Mapping[str, int],
        usage: Mapping[str, int],
    ) -> None:
        """Results of items, and what they add to the sums of their batch, in one step."""
        with self.step() as db:
            db.executemany(
                "UPDATE items SET state = ?, outcome = ?, reason = ?, via = 'batch', message = ?, "
                "posted = posted + ?, usage = ? WHERE n = ?",
                [
                    (j.state, j.outcome, j.reason, j.message, j.posted_nanos, j.usage, j.n)
                    for j in judged
                ],
            )
            before = from_json(db.execute("SELECT usage FROM batches WHERE n = ?", (batch,)).get)
            total = {name: before.get(name, 0) + usage.get(name, 0) for name in {*before, *usage}}
            names = ", ".join(f"{name} = {name} + ?" for name in sums)
            db.execute(
                f"UPDATE batches SET usage = ?{', ' if names else ''}{names} WHERE n = ?",
                (to_json(total).decode(), *sums.values(), batch),
            )

    def finish(
        self,
        batch: int,
        state: BatchLife,
        *,
        again: str,
        reason: str = "",
        ended_at: float | None = None,
    ) -> None:
        """A batch has ended; its items that are to be tried once more go to ``waiting`` or ``direct``."""
        with self.step() as db:
            db.execute(
                "UPDATE batches SET state = ?, reason = ?, ended_at = ifnull(ended_at, ?) WHERE n = ?",
                (state, reason, ended_at, batch),
            )
            db.execute(
                "UPDATE items SET state = ? WHERE batch = ? AND state = 'again'", (again, batch)
            )

    def prefixes_of(self, batch: int) -> set[int]:
        """Prefixes of the items of a batch."""
        return {
            row[0]
            for row in self.rows("SELECT DISTINCT prefix FROM items WHERE batch = ?", (batch,))
        }

    def hits_seen(self) -> int | None:
        """Reads from the cache, of a thousand results of marked batches so far; None while they are few."""
        billed, hits = self.rows(
            "SELECT ifnull(sum(billed), 0), ifnull(sum(hits), 0) FROM batches "
            "WHERE marked AND NOT primes AND state = 'settled'"
        )[0]
        return 1000 * hits // billed if billed >= _TELLING else None

    def end_batch_items(
        self, batch: int, outcome: str, reason: str, *, in_doubt: bool = False
    ) -> list[int]:
        """End the items of a batch that have no result; ``in_doubt`` says that they may have been billed."""
        with self.step() as db:
            found = db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ?, doubt = ? * bound "
                "WHERE batch = ? AND state = 'sent' RETURNING n",
                (outcome, reason, int(in_doubt), batch),
            )
            return numbers_of(found)


def _sent(row: tuple[Any, ...]) -> Sent:
    return Sent(
        n=row[0],
        identity=row[1],
        digest=row[2],
        bound_nanos=row[3],
        bound_marked_nanos=row[4],
        ttl=row[5],
        geo=row[6],
        tries=row[7],
    )
