"""One bulk job (classify, extract, map) from its request to its exit code; what it shows is in ``bulk_view``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anthropic import APIConnectionError, APIStatusError

from budgets.ledger import Ledger
from budgets.money import format_usd
from budgets.prices import PriceBook
from orchestrator.documents import Document, Extractor, Problem
from orchestrator.errors import OrchestratorError, RunTaken
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.wire.markers import likely_tokens
from patterns.bulk import Progress, Quote, Results, Row, Sheet, Task, answer_all, quote
from patterns.bulk.export import check_formats
from patterns.bulk.row import place_of

from .bulk_notice import EndNotice
from .bulk_place import Place, go_on, new_place, own_files, place_to_go_on, write_state
from .bulk_request import Request, keep, notified
from .bulk_source import Source, template_text
from .bulk_view import View
from .bulk_way import Way, check_way, choose
from .doors import book_of, settings_of
from .exits import Exit
from .failures import Mistake
from .output import money
from .run_places import run_at
from .session import Session, figures_of
from .upstream import check_model, run_upstream

if TYPE_CHECKING:
    from .bulk_batches import Answered

DEFAULT_MODEL = "claude-haiku-5-5"
#: A short answer comes within seconds; a server that takes this long has hung.
_ANSWER_S = 120.0
#: Output tokens that certainly come within that time; what may be longer gets more of it.
_QUICK_TOKENS = 4_608


@dataclass(slots=True)
class Job:
    """Everything that is settled before the first call; see ``prepared``.

    Attributes:
        sends: False only writes the rows of a job that was cancelled.
        only_looks: does not tell of an end that the job had come to before.
        has_begun: the run is this process's.
        places: of the documents that there were before the first call.
    """

    request: Request
    session: Session
    prices: PriceBook
    task: Task
    source: Source
    place: Place
    view: View
    sends: bool = True
    only_looks: bool = False
    has_begun: bool = False
    places: set[str] = field(default_factory=set)

    @property
    def fingerprint(self) -> str:
        """Of all that the prompts are made of: with another one every answer is another answer."""
        template = self.request.template
        text = "" if template is None else template_text(template)
        return hashlib.sha256(f"{self.task.fingerprint}:{text}".encode()).hexdigest()


def run_request(request: Request) -> int:
    """Do what was asked.

    Raises:
        Mistake, ConfigError, BudgetError: the user's mistake, or a ledger that can't be used;
            nothing was sent.
    """
    with prepared(request) as job:
        try:
            return do(job)
        except RunTaken:
            from .batch_owner import refuse_taken

            refuse_taken(run_at(job.place.run_folder))
            raise


@contextlib.contextmanager
def prepared(request: Request, *, may_begin: bool = True) -> Iterator[Job]:
    """A job that can begin.

    Args:
        request: what is asked for.
        may_begin: whether a run that is to be gone on with, and is not there, is begun.

    Raises:
        Mistake, ConfigError, BudgetError: what was asked for can't be done.
    """
    check_way(request)
    settings = settings_of(request.config)
    prices = book_of(request.prices, settings)
    model = request.model or settings.model or DEFAULT_MODEL
    check_model(model, prices)
    check_formats(request.formats)
    notified(request)
    task = request.wanted.task(model, request.max_tokens)
    _check_instructions(task, prices)
    with Extractor(max_pages=request.max_pages) as extractor:
        source = Source(request, extractor)
        place = _place(request, may_begin=may_begin)
        session = Session(
            command=request.command,
            run=place.run,
            simulate=request.simulate,
            settings=settings,
            amount=place.cap if request.cap is None else request.cap,
        )
        session.cap  # noqa: B018 - says now what is wrong with it
        yield Job(request, session, prices, task, source, place, View(as_json=request.json))


def do(job: Job) -> int:
    """Do a job; its exit code."""
    request = job.request
    if request.dry_run:
        return _dry_run(job)
    return run_upstream(lambda client: _work(job, client), simulate=request.simulate)


# ---- before the first call --------------------------------------------------------------------------------


def _check_instructions(task: Task, prices: PriceBook) -> None:
    window = prices.context_window(task.model)
    if likely_tokens(task.system_text) > window:
        raise Mistake(
            f"{_WORDS[task.name]}: with what goes with it, it is about {likely_tokens(task.system_text):,} tokens, "
            f"more than the {window:,} that {task.model} can read; shorten it"
        )


#: What the user's words in the prompt are called.
_WORDS = {"classify": "rubric", "extract": "prompt", "map": "prompt"}


def _place(request: Request, *, may_begin: bool) -> Place:
    if request.resume:
        return place_to_go_on(
            request.command,
            request.source,
            request.out,
            request.ledger,
            simulated=request.simulate,
            dry_run=request.dry_run,
            may_begin=may_begin,
        )
    return new_place(
        request.command, request.source, request.out, request.ledger, dry_run=request.dry_run
    )


def _write_state(job: Job) -> None:
    request = job.request
    facts = {
        "simulated": request.simulate,
        "folder": str(request.source.resolve()),
        **request.facts,
        "model": job.task.model,
        "scope": job.session.scope,
        "cap": format_usd(job.session.cap.nanos).removeprefix("$"),
        "command": list(request.again),
        "answers": list(job.task.columns),
        "is_table": job.source.is_table,
    }
    write_state(job.place, facts)


def _documents(job: Job) -> Iterator[Document | Problem]:
    yield from job.source.documents(own_files(job.place))
    job.view.skipped = job.source.skipped


def _scan(job: Job, run: Run | None) -> Iterator[Document | Problem]:
    """Every document once, before anything is sent; ends early if the run is stopped."""
    for document in job.view.watch(_documents(job)):
        if run is not None and run.stopped is not None:
            return
        job.places.add(place_of(document.path, document.row))
        yield document


def _dry_run(job: Job) -> int:
    job.task = job.task.with_cache(likely_tokens(job.task.system_text), job.prices)
    estimate = quote(job.task, _scan(job, None), job.prices)
    way = choose(job.request, estimate, None)
    job.view.quote(job.task, estimate, job.session.cap, way)
    summary = {**_summary(job, estimate, Exit.OK), "via": way.name, "why": way.why, "batches": None}
    job.view.summary(summary, formats=job.request.formats)
    return int(Exit.OK)


# ---- the work -----------------------------------------------------------------------------------------


async def _work(job: Job, client: dict[str, Any]) -> int:
    """The work; whoever wants to know of its end is told when all is written and shown."""
    place = job.place
    notice = EndNotice(job.request, place.run, place.run_folder, only_looks=job.only_looks)
    try:
        summary = await _worked(job, client, notice)
        job.view.summary(summary, formats=job.request.formats)
    except Exception as error:
        if job.has_begun:  # else another process is at it
            await notice.tell_of_fault(error)
        raise
    await notice.tell(summary)
    return int(summary["exit_code"])


async def _worked(job: Job, client: dict[str, Any], notice: EndNotice) -> dict[str, Any]:
    """Everything until the results are in order; the summary."""
    request = job.request
    client.setdefault("timeout", _ANSWER_S * max(1.0, job.task.max_tokens / _QUICK_TOKENS))
    with Ledger(job.place.ledger) as ledger:
        async with job.session.run_on(
            ledger,
            prices=job.prices,
            client=client,
            width=request.width,
            default_width=64,
            **_asking(request),
        ) as run:
            job.has_begun = True
            if job.sends:
                job.task = job.task.with_cache(await _prefix_tokens(run, job.task), job.prices)
            # Not before: a mistake leaves no folder behind, and the run's lock keeps others out of it.
            with Results(job.place.out) as results:
                _write_state(job)
                estimate, way = await _estimate(job, run, results)
                code, progress, batches = await _answer(job, run, results, estimate, way)
                await run.drain()
                summary = _summary(job, estimate, code, run=run, progress=progress, results=results)
                summary.update(via=way.name, why=way.why, batches=batches)
                notice.reached(summary)
                return summary


async def _estimate(job: Job, run: Run, results: Results) -> tuple[Quote, Way]:
    """What it will cost, and which way it goes; said, if anything will be sent."""
    done = _done(job.task, results) if len(results) else (lambda _: False)
    estimate = await asyncio.to_thread(quote, job.task, _scan(job, run), job.prices, is_done=done)
    way = choose(job.request, estimate, run)
    is_new = estimate.documents and not estimate.reused
    if job.sends and is_new and any(row.posted_nanos for row in results.rows()):
        job.view.say(
            f"no earlier answer was to {_ASKED[job.task.name]} and model: all documents are paid again"
        )
    if job.sends and run.stopped is None:
        job.view.quote(job.task, estimate, job.session.cap, way)
    return estimate, way


def _asking(request: Request) -> dict[str, Any]:
    if not request.ask:
        return {}
    from orchestrator.trips import Ask

    from .asking import ask_in_terminal

    return {"on_trip": Ask(ask_in_terminal)}


#: What an answer is an answer to, beside the model.
_ASKED = {
    "classify": "these labels, rubric",
    "extract": "this schema, prompt",
    "map": "this prompt",
}


async def _answer(
    job: Job, run: Run, results: Results, estimate: Quote, way: Way
) -> tuple[Exit, Progress, dict[str, Any] | None]:
    """Ask about all documents, and put the results in order; of batches, with their own summary."""
    seen: set[str] = set()

    def documents() -> Iterator[Document | Problem]:
        for document in _documents(job):
            seen.add(place_of(document.path, document.row))
            yield document

    batches, rest = None, None
    if way.is_batch:
        answered = await _over_batches(job, run, results, documents)
        progress, batches, rest = answered.progress, answered.summary, answered.rest
    else:
        with job.view.progress(run, job.task, job.session.cap, estimate.files) as show:
            progress = await answer_all(run, job.task, documents(), results, on_row=show)
    _fill(job, run, results, job.places | seen, rest)
    sheet = Sheet(answers=job.task.columns, cells=job.task.cells, is_table=job.source.is_table)
    results.finish(job.places | seen, sheet=sheet, formats=job.request.formats)
    if progress.fault:
        job.view.say(f"stopped: {run.stopped}")
        return Exit.MISTAKE, progress, batches
    return _exit_code(run, results), progress, batches


async def _over_batches(
    job: Job, run: Run, results: Results, documents: Callable[[], Iterator[Document | Problem]]
) -> Answered:
    from .bulk_batches import answer_by_batches

    if run.folder.path is not None:  # so that 'earmark batches attach' can go on with it
        keep(job.request, run.folder.path, out=job.place.out, fingerprint=job.fingerprint)
    # The batches mark the prefix by their own rules: for an hour, where that pays.
    task = replace(job.task, cached=False)
    return await answer_by_batches(
        run, task, documents, results,
        request=job.request, on_row=lambda *_: None, sends=job.sends,
    )  # fmt: skip


def _fill(
    job: Job, run: Run, results: Results, places: set[str], rest: tuple[Outcome, str] | None
) -> None:
    """Rows for documents that were there before the run and that it did not come to; ``rest`` says why not."""
    outcome, reason = rest or (Outcome.UNREADABLE, "it was there a moment ago and is gone")
    try:
        run.check()
    except OrchestratorError as error:
        outcome, reason = outcome_of(error)
    for place in sorted(places):
        if results.get(place) is None:
            path, number = place, None
            if job.source.is_table:
                path, _, digits = place.rpartition("#")
                number = int(digits)
            results.add(Row(path=path, row=number, outcome=outcome, reason=reason))


def _done(task: Task, results: Results) -> Any:
    def is_done(document: Document) -> bool:
        row = results.get(place_of(document.path, document.row))
        return row is not None and row.outcome.is_final and row.identity == task.identity(document)

    return is_done


async def _prefix_tokens(run: Run, task: Task) -> int:
    """Tokens of the prefix, by the free token counter; guessed where it does not answer.

    Raises:
        Mistake: a key that is wrong, or a rubric that no prompt can hold.
    """
    client = run.client.with_options(max_retries=2)
    try:
        counted = await client.messages.count_tokens(
            model=task.model, system=task.system_text, messages=[{"role": "user", "content": "-"}]
        )
    except APIStatusError as error:
        if error.status_code in {401, 403}:
            raise Mistake(
                f"the API does not accept the key ({error.status_code} at {client.base_url}): check ANTHROPIC_API_KEY"
            ) from None
        return likely_tokens(task.system_text)
    except APIConnectionError as error:
        raise Mistake(
            f"the API can't be reached at {client.base_url} ({error.__cause__ or error}); check ANTHROPIC_BASE_URL"
        ) from None
    window = run.prices.context_window(task.model)
    if counted.input_tokens >= window:
        raise Mistake(
            f"{_WORDS[task.name]}: it is {counted.input_tokens:,} tokens, more than {task.model} can read ({window:,})"
        )
    return counted.input_tokens


def _exit_code(run: Run, results: Results) -> Exit:
    if run.stopped is not None:
        return Exit.INTERRUPTED
    if run.spend_limit is not None:
        return Exit.SPEND_LIMIT
    if results.outcomes[Outcome.BUDGET.value]:
        return Exit.CAP
    failed = sum(
        count for outcome, count in results.outcomes.items() if outcome != Outcome.OK.value
    )
    return Exit.FAILED if failed else Exit.OK


def _summary(
    job: Job,
    estimate: Quote,
    code: Exit,
    *,
    run: Run | None = None,
    progress: Progress | None = None,
    results: Results | None = None,
) -> dict[str, Any]:
    """The summary, as ``--json`` prints it."""
    return {
        **job.session.head(job.place.ledger),
        "dry_run": job.request.dry_run,
        "exit_code": int(code),
        "model": job.task.model,
        "out": str(job.place.out),
        "documents": estimate.files,
        "outcomes": dict(sorted(results.outcomes.items())) if results else dict(estimate.problems),
        "labels": dict(results.labels.most_common()) if results else {},
        "reused": progress.reused if progress else estimate.reused,
        "same": progress.same if progress else estimate.same,
        **figures_of(run),
        **money("worst", estimate.worst_nanos),
        **money("likely", estimate.likely_nanos),
        "cached_prefix": job.task.cached,
        "tokens": run.tally.tokens if run else {},
        "go_on": go_on(job.request.again, job.place.out),
    }
