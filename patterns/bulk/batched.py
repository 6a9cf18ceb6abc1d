"""The same job over batches: documents become items, and what became of each item becomes rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from orchestrator.context import TOKENS
from orchestrator.documents import Document, Problem
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .desk import Desk, Progress
from .paid import Spent
from .results import Results
from .row import Row, place_of
from .task import Task

#: Why an answer stays as it is. What may have been paid for is not asked again over batches.
_CUT_OFF = "its corrective call was cut off and may have been billed, so it is not made again"


class Ended(Protocol):
    """How one item of a batch ended, as ``orchestrator.batches`` hands it out (``Done``).

    ``ok`` says that an answer is there, not that it is right; ``tries`` counts what it was sent in.
    """

    @property
    def identity(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def message(self) -> Mapping[str, Any] | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def posted_nanos(self) -> int: ...
    @property
    def in_doubt_nanos(self) -> int: ...
    @property
    def usage(self) -> Mapping[str, Any]: ...
    @property
    def tries(self) -> int: ...


class BatchedJob:
    """A job whose requests are sent by somebody else, and answered in any order.

    Items may be drawn in one thread while answers come in another.

    Args:
        run: whose ledger knows what was paid before.
        task: what is asked.
        results: where rows go.
        on_row: hears of every row.

    Attributes:
        progress: totals so far.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        results: Results,
        *,
        on_row: Callable[[Row, Progress], None] | None = None,
    ) -> None:
        self.task = task
        self.progress = Progress()
        self._desk = Desk(run, task, results)
        self._results = results
        self._on_row = on_row
        #: Documents (without their texts) that wait for an answer, by identity.
        self._waiting: dict[str, list[Document]] = {}
        #: Rows of those that this process has asked about in vain: their twins are not sent again, either.
        self._vain: dict[str, Row] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def items(
        self, documents: Iterable[Document | Problem]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Identity and request body of each document that must be asked about, each identity once.

        Documents that need no answer (unreadable, answered before) get their rows meanwhile.

        Raises:
            ConfigError: the results can't be written.
        """
        for document in documents:
            with self._lock:
                identity = self._asked(document)
            if identity and isinstance(document, Document):
                yield identity, self.task.body(document)

    def expect(self, documents: Iterable[Document | Problem]) -> None:
        """Wait for the answers of documents without asking; those that ``items`` has drawn already are passed over.

        Raises:
            ConfigError: the results can't be written.
        """
        for document in documents:
            with self._lock:
                if place_of(document.path, document.row) not in self._seen:
                    self._asked(document)

    def _asked(self, document: Document | Problem) -> str:
        """The identity of a document that must be asked about now, else empty."""
        self._seen.add(place_of(document.path, document.row))
        identity = self.task.identity(document) if isinstance(document, Document) else ""
        waiting = self._waiting.get(identity)
        if waiting is not None:
            assert isinstance(document, Document)
            waiting.append(replace(document, text=""))
            return ""
        known = self._desk.known(document)
        if known is not None:
            self._write(_told(known))
            return ""
        assert isinstance(document, Document)
        if identity in self._vain:
            self._write(self._desk.same(document, self._vain[identity]))
            return ""
        self._waiting[identity] = [replace(document, text="")]
        return identity

    def done(self, ended: Ended) -> list[Row]:
        """Write the rows of an item that has ended: its document's, and those of the same content.

        An identity that nobody waits for (answered already) has none.

        Raises:
            ConfigError: the results can't be written.
        """
        rows: list[Row] = []
        with self._lock:
            for document in self._waiting.pop(ended.identity, []):
                row = self._desk.same(document, rows[0]) if rows else self._row(document, ended)
                self._write(row)
                rows.append(row)
            if rows and not self._desk.is_final(rows[0]):
                self._vain[ended.identity] = rows[0]
            self.progress.sent += bool(rows)
        return rows

    def left(self, outcome: Outcome, reason: str) -> None:
        """Write rows for all that still wait, when nothing more will come."""
        with self._lock:
            for documents in self._waiting.values():
                for document in documents:
                    self._write(self._desk.row(document, outcome, reason))
            self._waiting.clear()

    def needs_correction(self, row: Row) -> bool:
        """Whether an answer does not fit and had no corrective try yet, not even one that was cut off."""
        tries = row.calls - row.batch.get("calls", 0) - row.earlier.get("calls", 0)
        return row.outcome is Outcome.INVALID and tries < self.task.repairs and not row.same_as

    async def correct(self, run: Run, document: Document) -> Row:
        """Ask once more, directly, about a document whose answer does not fit, and write its row.

        Args:
            run: whose client and caps are used.
            document: with its text.
        """
        identity = self.task.identity(document)
        with self._lock:
            before = self._results.get(place_of(document.path, document.row))
        problem = before.reason if before is not None else "it did not fit"
        result = await self.task.corrector.run(
            run,
            self.task.corrected(document, problem),
            unit=identity,
            keep=self._desk.keeper(identity),
        )
        answer = self.task.valued(result.value) if result.outcome is Outcome.OK else None
        with self._lock:
            row = self._desk.row(
                document, result.outcome, result.reason, answer=answer, now=result.tally
            )
            self._write(row)
        return row

    def _row(self, document: Document, ended: Ended) -> Row:
        outcome, reason, answer = ended.outcome, ended.reason, None
        if ended.message is not None:
            outcome, reason, answer = self.task.read(ended.message)
        tokens = {name: int(ended.usage.get(name, 0)) for name in TOKENS}
        now = Spent.of(ended.tries, ended.posted_nanos, ended.in_doubt_nanos, tokens)
        before = self._results.get(place_of(document.path, document.row))
        if before is not None and before.identity == ended.identity:
            # It tells what an item cost in all, also to an earlier process that wrote a row of it.
            now.plus(Spent.of_counts(before.batch), -1)
        return self._desk.row(document, outcome, reason, answer=answer, now=now, is_batch=True)

    def _write(self, row: Row) -> None:
        if self._results.get(row.place) != row:
            self._results.add(row)
        self._desk.note(row)
        self.progress.count(row)
        if self._on_row is not None:
            self._on_row(row, self.progress)


def _told(row: Row) -> Row:
    """A row from before; it says why its answer is not corrected, if its corrective call was cut off."""
    others = (part.get("in_doubt_nanos", 0) for part in (row.batch, row.earlier))
    is_cut_off = row.in_doubt_nanos > sum(others)
    if row.outcome is not Outcome.INVALID or not is_cut_off or _CUT_OFF in row.reason:
        return row
    return replace(row, reason=f"{row.reason}; {_CUT_OFF}")
