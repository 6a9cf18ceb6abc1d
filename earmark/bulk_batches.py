"""A bulk job over message batches: documents in, rows out, and the batches' own summary with the four bills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from orchestrator.batches import BatchJob, BatchSettings, Item, Polling
from orchestrator.documents import Document, Problem
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from patterns.bulk import BatchedJob, Progress, Results, Row, Task
from patterns.bulk.row import place_of
from patterns.crew import work_through

from . import output
from .batch_watch import View, listening, summary
from .bulk_request import Request

#: The stand-in's batches end within seconds.
_QUICK = Polling(first_s=0.1, longest_s=1.0)
_LEFT = "its batch goes on at the provider: --resume fetches its answer"
_CANCELLED = "the job was cancelled before it had an answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a job over batches.

    Attributes:
        progress: totals of its rows.
        summary: of the batches, with the four bills.
        rest: in which outcome, and why, documents end that it did not come to; None if it came to all.
    """

    progress: Progress
    summary: dict[str, Any]
    rest: tuple[Outcome, str] | None = None


def settings_of(request: Request) -> BatchSettings:
    """How the batches are done, as the options say. Who is told of the end is told later: see ``bulk_notice``."""
    polling = _QUICK if request.simulate else Polling()
    return BatchSettings(failed_direct=request.failed_direct, polling=polling)


async def answer_by_batches(
    run: Run,
    task: Task,
    documents: Callable[[], Iterable[Document | Problem]],
    results: Results,
    *,
    request: Request,
    on_row: Callable[[Row, Progress], None],
    sends: bool = True,
) -> Answered:
    """Ask about all documents over batches; answers that don't fit get one corrective direct call.

    Ctrl-C asks whether to leave the batches running or to cancel them; left, the rest has rows that say so.

    Args:
        run: with a folder. Its kill switch is not heard while batches are waited for: leaving is another thing here.
        task: what is asked; its prefix is marked by the batches' own rules.
        documents: all of them, each time it is called.
        results, on_row: as for ``answer_all``.
        request: the options.
        sends: False writes the rows of a job that was cancelled, and asks nothing.

    Raises:
        JobFault: a person is needed; the job can be taken up again.
    """
    asked = BatchedJob(run, task, results, on_row=on_row)
    view = View()
    async with BatchJob(run, settings_of(request), on_progress=view.show) as job:
        if sends:
            with listening(job):
                async with aclosing(job.results(_items(asked, documents()))) as ends:
                    async for done in ends:
                        asked.done(done)
        progress = job.progress()
        for choice in progress.choices:
            output.remark(choice)
        if job.is_detached:
            run.stop(_LEFT)
            asked.left(Outcome.CANCELLED, _LEFT)
            output.remark(
                "the batches go on at the provider and their holds stay; --resume, or "
                f"'earmark batches attach {run.id}', goes on with them"
            )
            return Answered(progress=asked.progress, summary=summary(progress))
        if job.is_cancelled or not sends:
            await asyncio.to_thread(_end_cancelled, asked, job, documents)
            rest = (Outcome.CANCELLED, _CANCELLED)
            return Answered(progress=asked.progress, summary=summary(progress), rest=rest)
        await _correct(run, job, asked, documents, results)
        return Answered(progress=asked.progress, summary=summary(job.progress()))


def _end_cancelled(
    asked: BatchedJob, job: BatchJob, documents: Callable[[], Iterable[Document | Problem]]
) -> None:
    """Rows of all documents: of those that were answered before the job was cancelled, their answers."""
    asked.expect(documents())
    for done in job.ended():
        asked.done(done)
    asked.left(Outcome.CANCELLED, _CANCELLED)


def _items(asked: BatchedJob, documents: Iterable[Document | Problem]) -> Iterator[Item]:
    for identity, body in asked.items(documents):
        yield Item(identity=identity, body=body)


async def _correct(
    run: Run,
    job: BatchJob,
    asked: BatchedJob,
    documents: Callable[[], Iterable[Document | Problem]],
    results: Results,
) -> None:
    """One more try, by a direct call, for each answer that does not fit."""

    def unfit() -> Iterator[Document]:
        for document in documents():
            if job.is_to_be_cancelled:
                return
            row = results.get(place_of(document.path, document.row))
            if isinstance(document, Document) and row is not None and asked.needs_correction(row):
                yield document

    async def once_more(document: Document) -> Row:
        return await asked.correct(run, document)

    if any(asked.needs_correction(row) for row in results.rows()):
        await work_through(run, once_more, unfit())
