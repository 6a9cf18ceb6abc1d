"""One ``earmark classify`` from its request to its exit code; what it shows is in ``classify_view``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
from anthropic import APIConnectionError, APIStatusError

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import format_usd
from budgets.prices import PriceBook
from budgets.scopes import SIMULATED, join_scope
from budgets.settings import Settings, caps_for
from orchestrator.documents import Document, DocumentError, Problem, Walk, find, read
from orchestrator.errors import OrchestratorError
from orchestrator.failures import outcome_of
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from patterns.classify import Progress, Quote, Results, Row, Task, classify, quote
from patterns.classify.quote import likely_tokens

from .classify_place import Place, earlier_place, new_place, own_files, write_state
from .classify_view import View
from .doors import book_of, settings_of
from .exits import Exit
from .failures import Mistake

DEFAULT_MODEL = "claude-haiku-5-5"
#: A label comes within seconds; a server that takes this long has hung.
_ANSWER_S = 120.0
_RUBRIC_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked on the command line."""

    folder: Path
    labels: tuple[str, ...]
    rubric: Path | None
    model: str | None
    cap: str | None
    out: Path | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    hidden: bool
    max_bytes: int
    width: int | None
    simulate: bool
    dry_run: bool
    resume: bool
    ledger: Path | None
    config: Path | None
    prices: Path | None
    as_json: bool


@dataclass(slots=True)
class _Job:
    """Everything that is settled before the first call."""

    request: Request
    settings: Settings
    prices: PriceBook
    task: Task
    place: Place
    view: View
    paths: set[str] = field(default_factory=set)

    @property
    def top(self) -> str:
        return SIMULATED if self.request.simulate else ""

    @property
    def scope(self) -> str:
        return join_scope(self.top, f"classify/{self.place.run}")

    @property
    def caps(self) -> tuple[Cap, ...]:
        return caps_for(
            self.settings,
            scope=self.top,
            session_cap=self.request.cap or self.place.cap,
            session_scope=self.scope,
        )

    @property
    def cap(self) -> Cap:
        return next(cap for cap in self.caps if cap.scope == self.scope)


def run_request(request: Request) -> int:
    """Do what was asked.

    Raises:
        Mistake, ConfigError, BudgetError: the user's mistake, or a ledger that can't be used;
            nothing was sent.
    """
    settings = settings_of(request.config)
    prices = book_of(request.prices, settings)
    model = request.model or settings.model or DEFAULT_MODEL
    _check_model(model, prices)
    task = Task(labels=request.labels, rubric=_read_rubric(request.rubric), model=model)
    _check_rubric(task, prices)
    _walk(request)  # says at once what is wrong with it
    place = _place(request)
    job = _Job(request, settings, prices, task, place, View(as_json=request.as_json))
    job.cap  # noqa: B018 - says now what is wrong with it
    if request.dry_run:
        return _dry_run(job)
    if not request.simulate and not _has_key():
        raise Mistake(
            "there is no API key: set ANTHROPIC_API_KEY, or add --simulate to try it without one"
        )
    with contextlib.ExitStack() as stack:
        client: dict[str, Any] = {}
        if request.simulate:
            from orchestrator.simulator import (
                SimulatorThread,
            )  # a web server, only when it is needed

            simulator = stack.enter_context(SimulatorThread())
            client = {"base_url": simulator.url, "api_key": "simulated"}
        try:
            return asyncio.run(_work(job, client))
        except asyncio.CancelledError:  # the second Ctrl-C, before anything was sent
            raise KeyboardInterrupt from None


# ---- before the first call --------------------------------------------------------------------------------


def _check_model(model: str, prices: PriceBook) -> None:
    known = prices.resolve(model)
    retired = prices.retired_on(known)
    if retired is not None and retired <= datetime.now(UTC).date():
        raise Mistake(
            f"model {model}: it was retired by {retired.isoformat()}; choose another (earmark prices)"
        )


def _read_rubric(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        if path.stat().st_size > _RUBRIC_MAX:
            raise Mistake(f"rubric {path}: it is larger than {_RUBRIC_MAX >> 20} MiB; shorten it")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Mistake(f"rubric {path}: it is not UTF-8 text; save it as UTF-8") from None


def _check_rubric(task: Task, prices: PriceBook) -> None:
    window = prices.context_window(task.model)
    if likely_tokens(task.system_text) > window:
        raise Mistake(
            f"rubric: with the labels it is about {likely_tokens(task.system_text):,} tokens, more than the "
            f"{window:,} that {task.model} can read; shorten it"
        )


def _has_key() -> bool:
    """Whether the SDK finds credentials: in the environment, or in a profile of its own."""
    try:
        client = anthropic.Anthropic()
    except anthropic.AnthropicError:
        return False
    with client:
        return bool(client.api_key or client.auth_token or getattr(client, "credentials", None))


def _place(request: Request) -> Place:
    if request.resume:
        return earlier_place(
            request.folder, request.out, request.ledger, simulated=request.simulate
        )
    return new_place(request.folder, request.out, request.ledger, dry_run=request.dry_run)


def _write_state(job: _Job) -> None:
    request = job.request
    facts = {
        "simulated": request.simulate,
        "folder": str(request.folder.resolve()),
        "labels": list(request.labels),
        "model": job.task.model,
        "scope": job.scope,
        "cap": format_usd(job.cap.nanos).removeprefix("$"),
    }
    write_state(job.place, facts)


def _walk(request: Request) -> Walk:
    try:
        return find(
            request.folder, include=request.include, exclude=request.exclude, hidden=request.hidden
        )
    except DocumentError as error:
        raise Mistake(str(error)) from None


def _documents(job: _Job) -> Iterator[Document | Problem]:
    request = job.request
    walk = _walk(request)
    is_own = own_files(job.place)
    for found in walk:
        if not is_own(found.file):
            yield read(found, max_bytes=request.max_bytes)
    job.view.skipped = walk.skipped


def _scan(job: _Job, run: Run | None) -> Iterator[Document | Problem]:
    """Every document once, before anything is sent; ends early if the run is stopped."""
    for document in job.view.watch(_documents(job)):
        if run is not None and run.stopped is not None:
            return
        job.paths.add(document.path)
        yield document


def _dry_run(job: _Job) -> int:
    job.task = job.task.with_cache(likely_tokens(job.task.system_text), job.prices)
    estimate = quote(job.task, _scan(job, None), job.prices)
    job.view.quote(job.task, estimate, job.cap)
    job.view.summary(_summary(job, estimate, Exit.OK))
    return int(Exit.OK)


# ---- the work -----------------------------------------------------------------------------------------


async def _work(job: _Job, client: dict[str, Any]) -> int:
    request, settings = job.request, job.settings
    client.setdefault("timeout", _ANSWER_S)
    gate = Gate(
        width=request.width or settings.gate.width or 64,
        requests_per_minute=settings.gate.requests_per_minute,
        input_tokens_per_minute=settings.gate.input_tokens_per_minute,
        output_tokens_per_minute=settings.gate.output_tokens_per_minute,
    )
    with Ledger(job.place.ledger) as ledger:
        async with Run(
            "classify",
            id=job.place.run,
            scope=job.top,
            caps=job.caps,
            ledger=ledger,
            gate=gate,
            prices=job.prices,
            client=client,
        ) as run:
            job.task = job.task.with_cache(await _prefix_tokens(run, job.task), job.prices)
            # Not before: a mistake leaves no folder behind, and the run's lock keeps others out of it.
            with Results(job.place.out) as results:
                _write_state(job)
                done = _done(job.task, results) if len(results) else (lambda _: False)
                estimate = await asyncio.to_thread(
                    quote, job.task, _scan(job, run), job.prices, is_done=done
                )
                if len(results) and estimate.documents and not estimate.reused:
                    job.view.say(
                        "no earlier answer was to these labels, rubric and model: all documents are paid again"
                    )
                if run.stopped is None:
                    job.view.quote(job.task, estimate, job.cap)
                code, progress = await _classify(job, run, results, estimate)
                await run.drain()
                summary = _summary(job, estimate, code, run=run, progress=progress, results=results)
        job.view.summary(summary)
    return int(code)


async def _classify(
    job: _Job, run: Run, results: Results, estimate: Quote
) -> tuple[Exit, Progress]:
    seen: set[str] = set()

    def documents() -> Iterator[Document | Problem]:
        for document in _documents(job):
            seen.add(document.path)
            yield document

    with job.view.progress(run, job.cap, estimate.files) as show:
        progress = await classify(run, job.task, documents(), results, on_row=show)
    _fill(run, results, job.paths | seen)
    results.finish(job.paths | seen)
    if progress.fault:
        job.view.say(f"stopped: {run.stopped}")
        return Exit.MISTAKE, progress
    return _exit_code(run, results), progress


def _fill(run: Run, results: Results, paths: set[str]) -> None:
    """Rows for files that were there before the run and that it did not come to."""
    outcome, reason = Outcome.UNREADABLE, "it was there a moment ago and is gone"
    try:
        run.check()
    except OrchestratorError as error:
        outcome, reason = outcome_of(error)
    for path in sorted(paths):
        if results.get(path) is None:
            results.add(Row(path=path, outcome=outcome, reason=reason))


def _done(task: Task, results: Results) -> Any:
    def is_done(document: Document) -> bool:
        row = results.get(document.path)
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
            f"rubric: it is {counted.input_tokens:,} tokens, more than {task.model} can read ({window:,})"
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
    job: _Job,
    estimate: Quote,
    code: Exit,
    *,
    run: Run | None = None,
    progress: Progress | None = None,
    results: Results | None = None,
) -> dict[str, Any]:
    """The summary, as ``--json`` prints it."""
    from .output import money

    balance = None if run is None else run.balance
    return {
        "run": job.place.run,
        "simulated": job.request.simulate,
        "dry_run": job.request.dry_run,
        "exit_code": int(code),
        "model": job.task.model,
        "scope": job.scope,
        "ledger": str(job.place.ledger),
        "out": str(job.place.out),
        "documents": estimate.files,
        "outcomes": dict(sorted(results.outcomes.items())) if results else dict(estimate.problems),
        "labels": dict(results.labels.most_common()) if results else {},
        "reused": progress.reused if progress else estimate.reused,
        **money("posted", balance.posted_nanos if balance else 0),
        **money("held", balance.held_nanos if balance else 0),
        **money("in_doubt", balance.in_doubt_nanos if balance else 0),
        **money("cap", job.cap.nanos),
        **money("worst", estimate.worst_nanos),
        **money("likely", estimate.likely_nanos),
        "cached_prefix": job.task.cached,
        "tokens": run.tally.tokens if run else {},
        "stopped": None if run is None else run.stopped,
        "pid": os.getpid(),
    }
