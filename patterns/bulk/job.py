"""The job: a task for every document, over direct calls, each document ending in exactly one row."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from orchestrator.documents import Document, Problem
from orchestrator.errors import OrchestratorError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from patterns.crew import stream_out
from patterns.parts import Part

from .desk import Desk, Progress
from .paid import Spent
from .results import Results
from .row import Row
from .task import Task

#: So many equal failures in a row are a mistake in the set-up: the rest would only repeat it.
_SAME_FAILURES = 5
#: What a wrong key, model or address looks like; answers that can't be read cost money besides.
_SUSPECT = frozenset({Outcome.AUTH, Outcome.BAD_REQUEST, Outcome.IN_DOUBT})


async def answer_all(
    run: Run,
    task: Task,
    documents: Iterable[Document | Problem],
    results: Results,
    *,
    width: int | None = None,
    on_row: Callable[[Row, Progress], None] | None = None,
) -> Progress:
    """Ask about documents and write a row for each.

    The first document that is sent goes alone where the prefix is cached: it warms the cache for the rest.
    A document whose answer is there already, in the results or (after a crash) in the ledger, is not paid
    again; documents of the same content are paid once.

    Args:
        run: whose caps and client are used.
        task: what is asked.
        documents: drawn as needed, in a thread, one at a time.
        results: where rows go; rows that are there and final are kept.
        width: documents under way at once; by default the gate's width.
        on_row: hears of every row.

    Returns:
        Totals. Every document drawn has a row, whatever happened; none is drawn once the run is stopped or
        the provider's limit is reached.
    """
    job = _Job(run, task, results, width or run.gate.statistics().width)
    parts = stream_out(run, job.work, job.draw(documents), width=job.width)
    # Closed on every path: results that can't be written must stop the spending at once.
    async with contextlib.aclosing(parts):
        async for part in parts:
            row = job.row_of(part)
            if results.get(row.place) != row:
                results.add(row)
            job.written(row)
            if on_row is not None:
                on_row(row, job.progress)
    return job.progress


class _Job:
    """One job's state, shared by its workers."""

    def __init__(self, run: Run, task: Task, results: Results, width: int) -> None:
        self.run = run
        self.task = task
        self.width = width
        self.progress = Progress()
        self.desk = Desk(run, task, results)
        #: Documents that are being asked about, or whose row is not written yet, by identity.
        self._asking: dict[str, asyncio.Future[Row | None]] = {}
        self._warm = asyncio.Event()
        self._is_warming = False
        self._last: deque[tuple[Outcome, str]] = deque(maxlen=_SAME_FAILURES)
        self._set_up_right = False
        if not task.cached:
            self._warm.set()

    async def draw(
        self, documents: Iterable[Document | Problem]
    ) -> AsyncIterator[Document | Problem]:
        """Read ahead in a thread; after the first document that will be sent, wait until the cache is warm."""
        iterator: Iterator[Document | Problem] = iter(documents)
        while self._may_go_on():
            document = await asyncio.to_thread(next, iterator, None)
            if document is None:
                return
            yield document
            if self._is_warming:
                await self._warm.wait()

    def _may_go_on(self) -> bool:
        try:
            self.run.check()
        except OrchestratorError:
            return False
        return True

    async def work(self, document: Document | Problem) -> Row:
        """One document's row; the failures that have no answer come as exceptions."""
        identity = self.task.identity(document) if isinstance(document, Document) else ""
        while (other := self._asking.get(identity)) is not None:  # each turn waits for one asker
            # Shielded: a worker that is cancelled must not take the others' answer with it.
            row = await asyncio.shield(other)
            if row is not None and self.desk.is_final(row):
                assert isinstance(document, Document)
                return self.desk.same(document, row)
        known = self.desk.known(document)
        if known is not None:
            return known
        assert isinstance(document, Document)
        self.run.check()
        asking = self._asking[identity] = asyncio.get_running_loop().create_future()
        row = None
        try:
            row = await self._ask(document, identity)
        finally:
            # Else it stays until the row is written, and then the desk knows.
            if row is None or not self.desk.is_final(row):
                del self._asking[identity]
            asking.set_result(row)
        return row

    async def _ask(self, document: Document, identity: str) -> Row:
        self._is_warming = not self._warm.is_set()
        try:
            result = await self.task.agent.run(
                self.run,
                self.task.prompt(document),
                unit=identity,
                keep=self.desk.keeper(identity),
            )
        finally:
            self._warm.set()
        self.progress.sent += 1
        self._watch(result.outcome, result.reason)
        answer = self.task.valued(result.value) if result.outcome is Outcome.OK else None
        return self.desk.row(
            document, result.outcome, result.reason, answer=answer, now=result.tally
        )

    def row_of(self, part: Part[Document | Problem]) -> Row:
        """The row of a part; a document that could not even be asked about has one, too."""
        if isinstance(part.value, Row):
            return part.value
        now = Spent.of(part.calls, part.posted_nanos, part.in_doubt_nanos, part.tokens)
        return self.desk.row(part.item, part.outcome, part.reason, now=now)

    def written(self, row: Row) -> None:
        """Hear of a row that is in the results."""
        self.progress.count(row)
        self.desk.note(row)
        asking = self._asking.get(row.identity)
        # Not at the row of a twin that was cancelled: its asker may still be under way.
        if asking is not None and asking.done() and asking.result() is row:
            del self._asking[row.identity]

    def _watch(self, outcome: Outcome, reason: str) -> None:
        """Stop a job whose set-up is wrong before it has repeated its mistake for every document."""
        self._set_up_right |= outcome not in _SUSPECT
        self._last.append((outcome, reason))
        # A key may be withdrawn at any time; the rest is only suspected while nothing was right.
        suspect = outcome is Outcome.AUTH or (outcome in _SUSPECT and not self._set_up_right)
        if suspect and self._last.count((outcome, reason)) == _SAME_FAILURES:
            self.progress.fault = f"{outcome.value}: {reason}"
            self.run.stop(f"{_SAME_FAILURES} documents failed alike ({self.progress.fault})")
