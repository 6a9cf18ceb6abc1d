"""The job: every document of a folder classified, each ending in exactly one row."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.answers import Answers
from orchestrator.context import Tally
from orchestrator.documents import Document, Problem
from orchestrator.errors import OrchestratorError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from patterns.fan_out import Part, stream_out

from .paid import PaidAnswer, Spending, Spent, kept
from .results import Results, Row
from .task import Task

#: So many equal failures in a row are a mistake in the set-up: the rest would only repeat it.
_SAME_FAILURES = 5
#: What a wrong key, model or address looks like; answers that can't be read cost money besides.
_SUSPECT = frozenset({Outcome.AUTH, Outcome.BAD_REQUEST, Outcome.IN_DOUBT})


@dataclass(slots=True)
class Progress:
    """How far a job is; handed to ``on_row`` after every row.

    Attributes:
        done: rows so far; ``sent``: documents that were sent now; ``reused``: answers that were there.
        posted_nanos, in_doubt_nanos: of this job's rows.
        fault: why the job stopped early, if its set-up is wrong.
    """

    done: int = 0
    sent: int = 0
    reused: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    fault: str = ""


async def classify(
    run: Run,
    task: Task,
    documents: Iterable[Document | Problem],
    results: Results,
    *,
    width: int | None = None,
    on_row: Callable[[Row, Progress], None] | None = None,
) -> Progress:
    """Classify documents and write a row for each.

    The first document that is sent goes alone where the prefix is cached: it warms the cache for the rest.
    A document whose answer is there already, in the results or (after a crash) in the ledger, is not paid
    again.

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
            if results.get(row.path) != row:
                results.add(row)
            job.count(row)
            if on_row is not None:
                on_row(row, job.progress)
    return job.progress


class _Job:
    """One job's state, shared by its workers."""

    def __init__(self, run: Run, task: Task, results: Results, width: int) -> None:
        self.run = run
        self.task = task
        self.results = results
        self.width = width
        self.progress = Progress()
        self.agent = task.agent
        self._answers = Answers(task.schema, None)
        self._spending = Spending(run, results)
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
        if isinstance(document, Problem):
            return self._row(document, Outcome(document.outcome), document.reason)
        identity = self.task.identity(document)
        known = self._known(document, identity)
        if known is not None:
            return known
        self.run.check()
        self._is_warming = not self._warm.is_set()
        try:
            result = await self.agent.run(
                self.run, self.task.prompt(document), unit=identity, keep=kept
            )
        finally:
            self._warm.set()
        self.progress.sent += 1
        self._watch(result.outcome, result.reason)
        label = result.value["label"] if result.outcome is Outcome.OK else None
        return self._row(document, result.outcome, result.reason, label=label, now=result.tally)

    def _known(self, document: Document, identity: str) -> Row | None:
        """The row of an answer that was paid before."""
        row = self.results.get(document.path)
        if row is not None and row.identity == identity and row.outcome.is_final:
            if not self._spending.differs(identity):
                return row.as_reused()
            # Killed before the end of its call was on disk: the ledger's word on the money counts.
            return self._row(document, row.outcome, row.reason, label=row.label).as_reused()
        paid = self._spending.answer(identity)
        if paid is None:
            return None
        if paid.stop_reason and not self._is_owed(paid, invalid=paid.stop_reason == "unusable"):
            outcome, label = _STOPPED.get(paid.stop_reason, Outcome.TRUNCATED), None
            return self._row(document, outcome, f"as before: {paid.stop_reason}").as_reused()
        value, problem = self._answers.read(paid.text)
        if self._is_owed(paid, invalid=bool(problem)):
            return None
        outcome, label = (Outcome.INVALID, None) if problem else (Outcome.OK, value["label"])
        return self._row(document, outcome, problem, label=label).as_reused()

    def _is_owed(self, paid: PaidAnswer, *, invalid: bool) -> bool:
        """Whether the run was killed before the corrective try of an answer that can't be used."""
        return invalid and paid.answers <= self.agent.repairs

    def row_of(self, part: Part[Document | Problem]) -> Row:
        """The row of a part; a document that could not even be asked about has one, too."""
        if isinstance(part.value, Row):
            return part.value
        now = Spent.of(part.calls, part.posted_nanos, part.in_doubt_nanos, part.tokens)
        return self._row(part.item, part.outcome, part.reason, now=now)

    def _row(
        self,
        document: Document | Problem,
        outcome: Outcome,
        reason: str,
        *,
        label: str | None = None,
        now: Tally | Spent | None = None,
    ) -> Row:
        """A new row for a path; it takes over what earlier tries cost, so that no money gets lost."""
        facts: dict[str, str | int] = {}
        identity = ""
        if isinstance(document, Document):
            identity = self.task.identity(document)
            facts = {
                "identity": identity,
                "sha256": document.sha256,
                "encoding": document.encoding,
                "bytes": document.bytes,
                "note": document.note,
            }
        spent = self._spending.take(document.path, identity)
        if now is not None:
            spent.add(now.calls, now.posted_nanos, now.in_doubt_nanos, now.tokens)
        return Row(
            path=document.path,
            outcome=outcome,
            label=label,
            reason=reason,
            posted_nanos=spent.posted_nanos,
            in_doubt_nanos=spent.in_doubt_nanos,
            calls=spent.calls,
            tokens=spent.tokens,
            **facts,  # type: ignore[arg-type]
        )

    def _watch(self, outcome: Outcome, reason: str) -> None:
        """Stop a job whose set-up is wrong before it has repeated its mistake for every document."""
        self._set_up_right |= outcome not in _SUSPECT
        self._last.append((outcome, reason))
        # A key may be withdrawn at any time; the rest is only suspected while nothing was right.
        suspect = outcome is Outcome.AUTH or (outcome in _SUSPECT and not self._set_up_right)
        if suspect and self._last.count((outcome, reason)) == _SAME_FAILURES:
            self.progress.fault = f"{outcome.value}: {reason}"
            self.run.stop(f"{_SAME_FAILURES} documents failed alike ({self.progress.fault})")

    def count(self, row: Row) -> None:
        """Add a row to the totals."""
        progress = self.progress
        progress.done += 1
        progress.reused += row.reused
        progress.posted_nanos += row.posted_nanos
        progress.in_doubt_nanos += row.in_doubt_nanos


_STOPPED = {"refusal": Outcome.REFUSAL, "unusable": Outcome.INVALID}
