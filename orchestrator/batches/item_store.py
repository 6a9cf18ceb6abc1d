"""Items on record: taken in once, what they share, and how each ends. Batches of them are in ``job_store``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from budgets.shape import Geo, Ttl
from orchestrator.wire.prefixes import to_json

from .job_file import JobFile, numbers_of
from .tables import PrefixRow, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """An item that was checked and priced, its body in the spool."""

    identity: str
    digest: str
    model: str
    prefix: int
    shape: int
    at: int
    length: int
    bound_nanos: int
    bound_marked_nanos: int
    ttl: Ttl | None
    geo: Geo | None
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the result of one item comes to.

    Attributes:
        n: the item.
        state: ``done``, or ``again`` if it will be sent once more when its batch is settled.
        outcome, reason, message, posted_nanos, usage: as in ``Done``; JSON text.
    """

    n: int
    state: str
    outcome: str
    reason: str = ""
    message: str | None = None
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    usage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An item that has ended, as it is read back."""

    n: int
    identity: str
    outcome: str
    reason: str
    via: str
    message: str | None
    posted_nanos: int
    in_doubt_nanos: int
    usage: str | None
    tries: int


_ENDED = "n, identity, outcome, reason, via, message, posted, doubt, usage, tries"


class ItemStore(JobFile):
    """The items of one job.

    Attributes:
        since: items that no session from this one on has drawn are not sent: nobody asks for them any more.
    """

    since = 0

    # ---- taking items in ----------------------------------------------------------------------------

    def known(self, identities: Sequence[str]) -> dict[str, tuple[int, str, str | None, int, int]]:
        """Items that are there already: identity to number, state, outcome, session and output tokens."""
        found = self.rows(
            "SELECT identity, n, state, outcome, session, ifnull(usage ->> 'output_tokens', 0) FROM items "
            "WHERE identity IN (SELECT value FROM json_each(?))",
            (to_json(list(identities)).decode(),),
        )
        return {row[0]: (row[1], row[2], row[3], row[4], int(row[5])) for row in found}

    def add(
        self,
        items: Sequence[NewItem],
        ended: Iterable[tuple[str, str, str, str]],
        *,
        seen: Sequence[int],
        reopened: Sequence[tuple[int, NewItem]],
        refused: Sequence[tuple[str, str, int]] = (),
        session: int,
    ) -> None:
        """Take items in.

        Args:
            items: new ones that will be sent.
            ended: new ones that never will: identity, digest, outcome, reason.
            seen: numbers of items that were drawn again.
            reopened: those of them to be sent again, with their bodies as they are now.
            refused: those of them that can't be sent (any more): outcome, reason, number.
            session: number of this process's go at the job.
        """
        with self.step() as db:
            db.executemany(
                "INSERT INTO items (identity, digest, model, prefix, shape, at, length, bound, bound_marked, ttl, "
                "geo, word, state, session) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?)",
                [
                    (
                        *(i.identity, i.digest, i.model, i.prefix, i.shape, i.at, i.length),
                        *(i.bound_nanos, i.bound_marked_nanos, i.ttl, i.geo, i.word, session),
                    )
                    for i in items
                ],
            )
            db.executemany(
                "INSERT INTO items (identity, digest, model, prefix, shape, at, length, bound, bound_marked, state, "
                "outcome, reason, session) VALUES (?, ?, '', 0, 0, 0, 0, 0, 0, 'done', ?, ?, ?)",
                [(*each, session) for each in ended],
            )
            db.executemany("UPDATE items SET session = ? WHERE n = ?", [(session, n) for n in seen])
            db.executemany(
                "UPDATE items SET state = 'waiting', outcome = NULL, reason = '', tries = 0, model = ?, prefix = ?, "
                "shape = ?, at = ?, length = ?, bound = ?, bound_marked = ?, ttl = ?, geo = ?, word = ? WHERE n = ?",
                [
                    (
                        *(i.model, i.prefix, i.shape, i.at, i.length, i.bound_nanos),
                        *(i.bound_marked_nanos, i.ttl, i.geo, i.word, n),
                    )
                    for n, i in reopened
                ],
            )
            db.executemany("UPDATE items SET outcome = ?, reason = ? WHERE n = ?", refused)

    def prefix(self, digest: bytes, model: str, plain: bytes, with_mark: bytes | None) -> int:
        """The number of a prefix, which is kept once."""
        with self.step() as db:
            db.execute(
                "INSERT OR IGNORE INTO prefixes (digest, model, plain, marked) VALUES (?, ?, ?, ?)",
                (digest, model, plain, with_mark),
            )
            return int(db.execute("SELECT n FROM prefixes WHERE digest = ?", (digest,)).get)

    def shape(self, digest: bytes) -> int:
        """The number of a shape."""
        with self.step() as db:
            db.execute("INSERT OR IGNORE INTO shapes (digest) VALUES (?)", (digest,))
            return int(db.execute("SELECT n FROM shapes WHERE digest = ?", (digest,)).get)

    def spooled_bytes(self) -> int:
        """Where the next body goes: behind the last that is on record."""
        return int(self.rows("SELECT ifnull(max(at + length), 0) FROM items")[0][0])

    def forget_bodies(self) -> None:
        """No item's body is on disk any more; one that is sent again brings its own."""
        with self.step() as db:
            db.execute("UPDATE items SET at = 0, length = 0 WHERE length > 0")

    # ---- shapes and prefixes ------------------------------------------------------------------------

    def untried_shapes(self, limit: int) -> list[tuple[int, int]]:
        """Shapes of waiting items without a verdict, each with one of its items."""
        return [
            (row[0], row[1])
            for row in self.rows(
                "SELECT shape, min(n) FROM items WHERE state = 'waiting' AND session >= ? AND shape IN "
                "(SELECT n FROM shapes WHERE verdict = '') GROUP BY shape LIMIT ?",
                (self.since, limit),
            )
        ]

    def judge_shape(
        self, shape: int, verdict: str, *, refused: tuple[str, str] | None
    ) -> list[int]:
        """Note what the trial of a shape said; ``refused`` (outcome, reason) ends its waiting items."""
        with self.step() as db:
            db.execute("UPDATE shapes SET verdict = ? WHERE n = ?", (verdict, shape))
            if refused is None:
                return []
            found = db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ? "
                "WHERE shape = ? AND state = 'waiting' RETURNING n",
                (*refused, shape),
            )
            return numbers_of(found)

    def prefixes(self, numbers: Iterable[int]) -> dict[int, PrefixRow]:
        """Prefixes by number."""
        found = self.rows(
            "SELECT n, model, plain, marked, choice, tokens, warm_at FROM prefixes "
            "WHERE n IN (SELECT value FROM json_each(?))",
            (to_json(sorted(set(numbers))).decode(),),
        )
        names = PrefixRow.__dataclass_fields__
        return {row[0]: PrefixRow(**dict(zip(names, row, strict=True))) for row in found}

    def choose_prefix(self, n: int, choice: str, tokens: int | None) -> None:
        """Note whether a prefix is marked, and why."""
        with self.step() as db:
            db.execute(
                "UPDATE prefixes SET choice = ?, tokens = ? WHERE n = ?", (choice, tokens, n)
            )

    def warm_prefixes(self, batch: int, at: float) -> None:
        """The prefixes of a batch were in use at this time."""
        with self.step() as db:
            db.execute(
                "UPDATE prefixes SET warm_at = ? WHERE n IN (SELECT prefix FROM items WHERE batch = ?)",
                (at, batch),
            )

    # ---- what waits ---------------------------------------------------------------------------------

    def waiting(self) -> Iterator[Waiting]:
        """Waiting items of the model whose turn it is, in the order in which they were drawn."""
        model = self.rows(
            "SELECT model FROM items WHERE state = 'waiting' AND session >= ? ORDER BY n LIMIT 1",
            (self.since,),
        )
        after = 0
        while model:
            found = self.rows(
                "SELECT n, digest, prefix, at, length, bound, bound_marked, word FROM items "
                "WHERE state = 'waiting' AND session >= ? AND model = ? AND n > ? ORDER BY n LIMIT 5000",
                (self.since, model[0][0], after),
            )
            if not found:
                return
            after = found[-1][0]
            for row in found:
                yield Waiting(
                    n=row[0],
                    digest=row[1],
                    prefix=row[2],
                    at=row[3],
                    length=row[4],
                    bound_nanos=row[5],
                    bound_marked_nanos=row[6],
                    word=row[7],
                )

    def waiting_models(self) -> list[str]:
        """Models of the items that wait."""
        found = self.rows("SELECT DISTINCT model FROM items WHERE state = 'waiting'")
        return [str(row[0]) for row in found]

    def waiting_bodies(self, model: str, after: int, limit: int) -> list[tuple[int, int, int, int]]:
        """Where bodies of waiting items behind a number are: number, prefix, place, length."""
        return [
            (row[0], row[1], row[2], row[3])
            for row in self.rows(
                "SELECT n, prefix, at, length FROM items "
                "WHERE state = 'waiting' AND model = ? AND n > ? ORDER BY n LIMIT ?",
                (model, after, limit),
            )
        ]

    def set_bounds(self, bounds: Sequence[tuple[int, int, int]]) -> None:
        """New bounds of waiting items: without and with a mark, and the item's number."""
        with self.step() as db:
            db.executemany("UPDATE items SET bound = ?, bound_marked = ? WHERE n = ?", bounds)

    # ---- items that end without a batch -------------------------------------------------------------

    def end_items(self, state: str, outcome: str, reason: str) -> list[int]:
        """End every item that is in this state; their numbers."""
        with self.step() as db:
            found = db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ? WHERE state = ? RETURNING n",
                (outcome, reason, state),
            )
            return numbers_of(found)

    def end_unasked(self, outcome: str, reason: str) -> None:
        """End what waits and was not drawn since ``since``; drawn again, it is sent after all."""
        with self.step() as db:
            db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ? "
                "WHERE state IN ('waiting', 'direct') AND session < ?",
                (outcome, reason, self.since),
            )

    def end_dearer(self, nanos: int, outcome: str, reason: str) -> list[int]:
        """End waiting items whose bound is above a cap on single calls."""
        with self.step() as db:
            found = db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ? "
                "WHERE state = 'waiting' AND max(bound, bound_marked) > ? RETURNING n",
                (outcome, reason, nanos),
            )
            return numbers_of(found)

    def direct_items(self) -> list[tuple[int, str, int, int, int]]:
        """Items that are to be called for directly: number, identity, prefix, and where the body is."""
        return [
            (row[0], row[1], row[2], row[3], row[4])
            for row in self.rows(
                "SELECT n, identity, prefix, at, length FROM items WHERE state = 'direct' AND session >= ? "
                "ORDER BY n",
                (self.since,),
            )
        ]

    def end_direct(self, judged: Judged, calls: int) -> None:
        """What a direct call for an item came to."""
        with self.step() as db:
            db.execute(
                "UPDATE items SET state = 'done', outcome = ?, reason = ?, via = 'direct', message = ?, "
                "posted = posted + ?, doubt = ?, usage = ?, tries = tries + ? WHERE n = ?",
                (
                    *(judged.outcome, judged.reason, judged.message, judged.posted_nanos),
                    judged.in_doubt_nanos,
                    *(judged.usage, calls, judged.n),
                ),
            )

    def bodies(self, numbers: Iterable[int]) -> list[tuple[int, int, int, int]]:
        """Where the bodies of items are: number, prefix, place, length."""
        return [
            (row[0], row[1], row[2], row[3])
            for row in self.rows(
                "SELECT n, prefix, at, length FROM items WHERE n IN (SELECT value FROM json_each(?))",
                (to_json(list(numbers)).decode(),),
            )
        ]

    # ---- reading ------------------------------------------------------------------------------------

    def ended(self, numbers: Sequence[int]) -> list[Ended]:
        """Items that have ended, by number."""
        found = self.rows(
            f"SELECT {_ENDED} FROM items WHERE n IN (SELECT value FROM json_each(?)) AND state = 'done' ORDER BY n",
            (to_json(list(numbers)).decode(),),
        )
        names = list(Ended.__dataclass_fields__)
        return [Ended(**dict(zip(names, row, strict=True))) for row in found]

    def ended_numbers(self) -> list[int]:
        """All items that have ended, in the order in which they were drawn."""
        return [
            int(row[0]) for row in self.rows("SELECT n FROM items WHERE state = 'done' ORDER BY n")
        ]

    def counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """How many items there are of each state and outcome, and what they cost."""
        found = self.rows(
            "SELECT state, ifnull(outcome, ''), count(*), sum(posted) FROM items GROUP BY 1, 2"
        )
        return {(row[0], row[1]): (row[2], row[3]) for row in found}

    def waiting_size(self) -> tuple[int, int]:
        """Items that wait, and the bytes of their bodies without what they share."""
        row = self.rows(
            "SELECT count(*), ifnull(sum(length), 0) FROM items WHERE state = 'waiting' AND session >= ?",
            (self.since,),
        )[0]
        return int(row[0]), int(row[1])

    def prefix_counts(self) -> dict[int, int]:
        """Waiting items by prefix."""
        found = self.rows(
            "SELECT prefix, count(*) FROM items WHERE state = 'waiting' AND session >= ? GROUP BY prefix",
            (self.since,),
        )
        return {row[0]: row[1] for row in found}
