"""One ``earmark classify`` from its request to its exit code; what it shows is in ``classify_view``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
from anthropic import APIConnectionError, APIStatusError

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.scopes import SIMULATED, join_scope
from budgets.settings import Settings, caps_for, ledger_path
from orchestrator.documents import Document, Problem, find, read
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.run import Run, new_run_id
from patterns.classify import Progress, Quote, Results, Task, classify, quote
from patterns.classify.quote import likely_tokens

from .classify_view import View
from .doors import book_of, settings_of
from .exits import Exit
from .failures import Mistake

DEFAULT_MODEL = "claude-haiku-5-5"
STATE = "classify.json"
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
    run_id: str
    out: Path
    view: View

    @property
    def top(self) -> str:
        return SIMULATED if self.request.simulate else ""

    @property
    def scope(self) -> str:
        return join_scope(self.top, f"classify/{self.run_id}")

    @property
    def caps(self) -> tuple[Cap, ...]:
        return caps_for(
            self.settings, scope=self.top, session_cap=self.request.cap, session_scope=self.scope
        )

    @property
    def cap(self) -> Cap:
        return next(cap for cap in self.caps if cap.scope == self.scope)


def run_request(request: Request) -> int:
    """Do what was asked.

    Raises:
        Mistake, ConfigError, BudgetError, DocumentError: the user's mistake, or a ledger that can't be used;
            nothing was sent.
    """
    settings = settings_of(request.config)
    prices = book_of(request.prices, settings)
    model = request.model or settings.model or DEFAULT_MODEL
    _check_model(model, prices)
    task = Task(labels=request.labels, rubric=_read_rubric(request.rubric), model=model)
    _check_rubric(task, prices)
    find(
        request.folder, include=request.include, exclude=request.exclude
    )  # says at once what is wrong with it
    run_id, out = _place(request)
    job = _Job(request, settings, prices, task, run_id, out, View(as_json=request.as_json))
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
        return asyncio.run(_work(job, client))


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


def _place(request: Request) -> tuple[str, Path]:
    """The run's id and the folder of its results; an earlier run's, to go on with."""
    name = request.folder.resolve().name or "root"
    out = request.out
    if request.resume:
        out = out or _latest(name)
        return _read_state(out, request), out
    run_id = new_run_id("classify")
    out = out or Path("classified") / f"{name}-{run_id.removeprefix('classify-')}"
    if not request.dry_run and (out / STATE).exists():
        raise Mistake(
            f"results of an earlier run are in {out}: add --resume to go on with it, or name another --out"
        )
    if out.exists() and not out.is_dir():
        raise Mistake(f"--out {out}: it is a file, not a folder; name another")
    return run_id, out


def _latest(name: str) -> Path:
    found = sorted(
        Path("classified").glob(f"{name}-*/{STATE}"), key=lambda state: state.stat().st_mtime
    )
    if not found:
        raise Mistake(
            f"--resume: no earlier run of {name} is in {Path('classified')}; name its folder by --out"
        )
    return found[-1].parent


def _read_state(out: Path, request: Request) -> str:
    try:
        state = json.loads((out / STATE).read_text(encoding="utf-8"))
        run_id, simulated = str(state["run"]), bool(state["simulated"])
    except FileNotFoundError:
        raise Mistake(
            f"--resume: there is no run in {out}; leave --resume out to start one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Mistake(
            f"--resume: {out / STATE} can't be read; start a new run in another folder"
        ) from None
    if simulated != request.simulate:
        word = "simulated: add --simulate" if simulated else "real: leave --simulate out"
        raise Mistake(f"--resume: the run in {out} was {word}, or start a new one")
    return run_id


def _write_state(job: _Job) -> None:
    request = job.request
    state = {
        "run": job.run_id,
        "simulated": request.simulate,
        "folder": str(request.folder.resolve()),
        "labels": list(request.labels),
        "model": job.task.model,
        "ledger": str(ledger_path(request.ledger).resolve()),
        "scope": job.scope,
    }
    fresh = job.out / f"{STATE}.new"
    fresh.write_text(json.dumps(state, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(job.out / STATE)


def _documents(job: _Job) -> Iterator[Document | Problem]:
    request = job.request
    own = job.out.resolve()
    root = request.folder.resolve()
    inside = (
        f"{own.relative_to(root).as_posix()}/" if own.is_relative_to(root) and own != root else None
    )
    walk = find(
        request.folder, include=request.include, exclude=request.exclude, hidden=request.hidden
    )
    for found in walk:
        if inside is not None and found.path.startswith(inside):
            continue  # our own results are no documents
        yield read(found, max_bytes=request.max_bytes)
    job.view.skipped = walk.skipped


def _dry_run(job: _Job) -> int:
    job.task = job.task.with_cache(likely_tokens(job.task.system_text), job.prices)
    estimate = quote(job.task, job.view.watch(_documents(job)), job.prices)
    job.view.quote(job.task, estimate, job.cap)
    job.view.summary(_summary(job, estimate, None, None, Exit.OK))
    return int(Exit.OK)


# ---- the work -----------------------------------------------------------------------------------------


async def _work(job: _Job, client: dict[str, Any]) -> int:
    request, settings = job.request, job.settings
    caps = job.caps
    gate = Gate(
        width=request.width or settings.gate.width or 64,
        requests_per_minute=settings.gate.requests_per_minute,
        input_tokens_per_minute=settings.gate.input_tokens_per_minute,
        output_tokens_per_minute=settings.gate.output_tokens_per_minute,
    )
    with Ledger(ledger_path(request.ledger)) as ledger, Results(job.out) as results:
        async with Run(
            "classify",
            id=job.run_id,
            scope=job.top,
            caps=caps,
            ledger=ledger,
            gate=gate,
            prices=job.prices,
            client=client,
        ) as run:
            _write_state(job)
            job.task = job.task.with_cache(await _prefix_tokens(run, job.task), job.prices)
            done = _done(job.task, results) if len(results) else (lambda _: False)
            estimate = await asyncio.to_thread(
                quote, job.task, job.view.watch(_documents(job)), job.prices, is_done=done
            )
            job.view.quote(job.task, estimate, job.cap)
            code, progress = await _classify(job, run, results, estimate)
            summary = _summary(job, estimate, run, progress, code, results)
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
        work = asyncio.ensure_future(classify(run, job.task, documents(), results, on_row=show))
        run.track(work)
        try:
            progress = await work
        except asyncio.CancelledError:
            # The second Ctrl-C: what was in flight is in doubt, what is done is written.
            progress = Progress()
    interrupted = run.stopped is not None and not progress.fault
    results.finish(None if interrupted else seen)
    if progress.fault:
        job.view.say(f"stopped: {run.stopped}")
        return Exit.MISTAKE, progress
    return _exit_code(
        results, interrupted=interrupted, spend_limit=run.spend_limit is not None
    ), progress


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


def _exit_code(results: Results, *, interrupted: bool, spend_limit: bool) -> Exit:
    if interrupted:
        return Exit.INTERRUPTED
    if spend_limit:
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
    run: Run | None,
    progress: Progress | None,
    code: Exit,
    results: Results | None = None,
) -> dict[str, Any]:
    """The summary, as ``--json`` prints it."""
    from .output import money

    balance = None if run is None else run.balance
    return {
        "run": job.run_id,
        "simulated": job.request.simulate,
        "dry_run": job.request.dry_run,
        "exit_code": int(code),
        "model": job.task.model,
        "scope": job.scope,
        "ledger": str(ledger_path(job.request.ledger)),
        "out": str(job.out),
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
