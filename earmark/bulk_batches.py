"""A bulk job over message batches: documents in, rows out, and the batches' own summary with the four bills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from orchestrator.batches import BatchJob, BatchSettings, Item, Notify, Polling
from orchestrator.documents import Document, Problem
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from patterns.bulk import BatchedJob, Progress, Results, Row, Task
from patterns.bulk.row import place_of
from patterns.crew import work_through

from . import output
from .batch_watch import View, listening, summary
from .bulk_options import Request, notified

#: The stand-in's batches end within seconds.
_QUICK = Polling(first_s=0.1, longest_s=1.0)
_LEFT = "its batch goes on at the provider: --resume fetches its answer"


def settings_of(request: Request) -> BatchSettings:
    """How the batches are done, as the options say."""
    command, webhook = notified(request)
    polling = _QUICK if request.simulate else Polling()
    return BatchSettings(
        failed_direct=request.failed_direct,
        polling=polling,
        notify=Notify(command=command, webhook=webhook),
    )


async def answer_by_batches(
    run: Run,
    task: Task,
    documents: Callable[[], Iterable[Document | Problem]],
    results: Results,
    *,
    request: Request,
    on_row: Callable[[Row, Progress], None],
) -> tuple[Progress, dict[str, Any]]:
    """Ask about all documents over batches; answers that don't fit get one corrective direct call.

    Ctrl-C asks whether to leave the batches running or to cancel them; left, the rest has rows that say so.

    Args:
        run: with a folder; its kill switch is off, since leaving is another thing here.
        task: what is asked; its prefix is marked by the batches' own rules.
        documents: all of them, each time it is called.
        results, on_row: as for ``answer_all``.
        request: the options.

    Returns:
        Totals, and the summary of the batches with the four bills.

    Raises:
        JobFault: a person is needed; the job can be taken up again.
    """
    asked = BatchedJob(run, task, results, on_row=on_row)
    view = View()
    async with BatchJob(run, settings_of(request), on_progress=view.show) as job:
        with listening(job):
            async with aclosing(job.results(_items(asked, documents()))) as ends:
                async for done in ends:
                    asked.done(done)
            if not job.is_detached:
                await _correct(run, asked, documents, results)
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
        return asked.progress, summary(progress)


def _items(asked: BatchedJob, documents: Iterable[Document | Problem]) -> Iterator[Item]:
    for identity, body in asked.items(documents):
        yield Item(identity=identity, body=body)


async def _correct(
    run: Run,
    asked: BatchedJob,
    documents: Callable[[], Iterable[Document | Problem]],
    results: Results,
) -> None:
    """One more try, by a direct call, for each answer that does not fit."""

    def unfit() -> Iterator[Document]:
        for document in documents():
            row = results.get(place_of(document.path, document.row))
            if isinstance(document, Document) and row is not None and asked.needs_correction(row):
                yield document

    async def once_more(document: Document) -> Row:
        return await asked.correct(run, document)

    if any(asked.needs_correction(row) for row in results.rows()):
        await work_through(run, once_more, unfit())
