"""One ``earmark research`` from its request to its exit code, and the files that it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.settings import Settings, ledger_path
from orchestrator.documents import DocumentError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run, new_run_id
from orchestrator.story import Share, Story, tell_run
from orchestrator.trips import Ask
from patterns.research import LEAD_MODEL, WORKER_MODEL, ResearchResult, research

from . import output
from .doors import book_of, settings_of
from .exits import Exit
from .failures import Mistake
from .session import Session, check_free, figures_of, leave, spent
from .upstream import check_model, run_upstream

DEFAULT_CAP = "4"
REPORT, SOURCES, COSTS = "report.md", "sources.json", "costs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked on the command line."""

    question: str
    folder: Path | None
    cap: str | None
    workers: int
    rounds: int
    out: Path | None
    model: str | None
    worker_model: str | None
    searches: int
    fetches: int
    fetch_tokens: int
    search_tokens: int
    ask: bool
    simulate: bool
    dry_run: bool
    ledger: Path | None
    config: Path | None
    prices: Path | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Everything that is settled before the first call."""

    request: Request
    session: Session
    prices: PriceBook
    out: Path
    ledger: Path

    @property
    def models(self) -> tuple[str, str]:
        """Who plans and writes, and who looks things up."""
        lead = self.request.model or self.session.settings.model or LEAD_MODEL
        return lead, self.request.worker_model or self.session.settings.model or WORKER_MODEL


def run_request(request: Request) -> int:
    """Do what was asked.

    Raises:
        Mistake, ConfigError, BudgetError: the user's mistake, or a ledger that can't be used; nothing was
            sent.
    """
    if not request.question.strip():
        raise Mistake("the question is empty; write what is to be answered in quotes")
    settings = settings_of(request.config)
    run_id = new_run_id("research")
    out = request.out or Path("research") / run_id.removeprefix("research-")
    check_free(out, (REPORT, SOURCES, COSTS))
    job = _Job(
        request=request,
        session=_session(request, settings, run_id),
        prices=book_of(request.prices, settings),
        out=out,
        ledger=ledger_path(request.ledger),
    )
    _check_folder(request.folder)
    job.session.cap  # noqa: B018 - says now what is wrong with it
    for model in job.models:
        check_model(model, job.prices)
    if request.dry_run:
        return asyncio.run(_dry_run(job))
    return run_upstream(lambda client: _work(job, client), simulate=request.simulate)


def _session(request: Request, settings: Settings, run_id: str) -> Session:
    return Session(
        command="research",
        run=run_id,
        simulate=request.simulate,
        settings=settings,
        amount=DEFAULT_CAP if request.cap is None else request.cap,
    )


def _check_folder(folder: Path | None) -> None:
    if folder is None:
        return
    if not folder.exists():
        raise Mistake(f"--in {folder}: there is no such folder; name one that is there")
    if not folder.is_dir():
        raise Mistake(f"--in {folder}: it is a file; name the folder that it is in")
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise Mistake(f"--in {folder}: it can't be read ({error.strerror})") from None


async def _dry_run(job: _Job) -> int:
    """The plan, priced against the caps as they would be, on a ledger that nobody keeps."""
    with Ledger() as ledger, contextlib.redirect_stdout(_Nowhere()):
        options = {"api_key": "none", "base_url": "http://127.0.0.1:9"}
        async with _run(job, ledger, options, dry_run=True) as run:
            done = await _research(job, run, plan_only=True)
    plan = done.plan
    assert plan is not None
    if job.request.as_json:
        output.print_json(
            {
                **_head(job),
                "dry_run": True,
                **output.money("worst", plan.root.worst_nanos),
                **output.money("likely", plan.root.likely_nanos),
                "calls": plan.root.calls,
                "fits": plan.fits,
                "likely_fits": plan.likely_fits,
                "plan": str(plan),
            }
        )
    else:
        output.say(str(plan))
    return int(Exit.OK)


class _Nowhere:
    """Where a pattern's own print of its plan goes: it is shown once, at the end."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing to do."""


def _run(job: _Job, ledger: Ledger, client: dict[str, Any], *, dry_run: bool = False) -> Run:
    ask: dict[str, Any] = {}
    if job.request.ask:
        from .asking import approve_in_terminal, ask_in_terminal  # reads the terminal

        ask = {"on_trip": Ask(ask_in_terminal), "approve": approve_in_terminal}
    return job.session.run_on(
        ledger, prices=job.prices, client=client, kill_switch=not dry_run, **ask
    )


async def _research(job: _Job, run: Run, *, plan_only: bool = False) -> ResearchResult:
    request = job.request
    lead, worker = job.models
    try:
        return await research(
            run,
            request.question,
            folder=request.folder,
            workers=request.workers,
            rounds=request.rounds,
            lead_model=lead,
            worker_model=worker,
            searches=request.searches,
            fetches=request.fetches,
            fetch_tokens=request.fetch_tokens,
            search_tokens=request.search_tokens,
            plan_only=plan_only,
        )
    except DocumentError as error:
        raise Mistake(str(error)) from None


async def _work(job: _Job, client: dict[str, Any]) -> int:
    from .live import watch  # rich, only where something is drawn

    with Ledger(job.ledger) as ledger:
        async with _run(job, ledger, client) as run:
            if job.request.simulate:
                output.remark("SIMULATED: a stand-in answers, nothing is looked up or spent")
            with watch(run):
                done = await _research(job, run)
            # From here on a second Ctrl-C has nothing to cut short: what is paid for is written first.
            with contextlib.suppress(asyncio.CancelledError):
                await run.drain()
            code = _exit_code(run, done)
            assert run.journal.path is not None
            story = tell_run(run.journal.path, ledger=ledger, is_under_way=True, book=job.prices)
            summary = _summary(job, run, done, story, code)
            _write(job, done, summary)
    _show(job, done, summary)
    return int(code)


def _exit_code(run: Run, done: ResearchResult) -> Exit:
    if run.stopped is not None:
        return Exit.INTERRUPTED
    if run.spend_limit is not None:
        return Exit.SPEND_LIMIT
    if done.outcome is Outcome.BUDGET or any(p.outcome is Outcome.BUDGET for p in done.parts):
        return Exit.CAP
    return Exit.OK if done.ok and done.value else Exit.FAILED


# ---- what it leaves ---------------------------------------------------------------------------------------


def _head(job: _Job) -> dict[str, Any]:
    request = job.request
    return {
        **job.session.head(job.ledger),
        "question": request.question,
        "folder": None if request.folder is None else str(request.folder),
        "out": str(job.out),
    }


def _summary(job: _Job, run: Run, done: ResearchResult, story: Story, code: Exit) -> dict[str, Any]:
    """The summary, as ``--json`` prints it and ``costs.json`` keeps it."""
    return {
        **_head(job),
        "dry_run": False,
        "exit_code": int(code),
        "outcome": done.outcome.value,
        "reason": done.reason,
        "partial": done.partial,
        "rounds": done.rounds,
        "outcomes": done.outcomes,
        **figures_of(run),
        "calls": done.calls,
        "tokens": done.tokens,
        "cache": str(run.caching),
        "by_agent": [_share(one, "agent") for one in story.by_agent],
        "by_model": [_share(one, "model") for one in story.by_model],
        "sources": len(done.sources),
        "unknown_sources": list(done.unknown),
        "report": str(job.out / REPORT),
    }


def _share(share: Share, key: str) -> dict[str, Any]:
    return {
        key: share.key,
        "calls": share.sum.calls,
        **output.money("posted", share.sum.posted_nanos),
        **output.money("in_doubt", share.sum.in_doubt_nanos),
    }


def _sources(done: ResearchResult) -> list[dict[str, Any]]:
    cited = done.cited
    return [
        {
            "number": one.number,
            "title": one.title,
            "url": one.url,
            "found_by": list(one.found_by),
            "passages": list(one.passages),
            "cited": one.number in cited,
        }
        for one in done.sources
    ]


def _write(job: _Job, done: ResearchResult, summary: dict[str, Any]) -> None:
    """The three files."""
    note = "> **Simulated**: a stand-in wrote this; nothing was looked up.\n\n"
    report = (note if job.request.simulate else "") + done.markdown + "\n" + _money_of(summary)
    found = json.dumps(_sources(done), ensure_ascii=False, indent=2) + "\n"
    costs = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    leave(job.out, {SOURCES: found, COSTS: costs, REPORT: report})


def _money_of(summary: dict[str, Any]) -> str:
    """The cost by agent and by model, as the end of the report."""
    lines = [
        "## Cost",
        "",
        f"${summary['posted_usd']} of a cap of ${summary['cap_usd']}, {summary['calls']} calls.",
        "",
        "| | calls | posted |",
        "|---|---|---|",
    ]
    for kind in ("agent", "model"):
        lines += [
            f"| {kind} {_cell(one[kind])} | {one['calls']} | ${one['posted_usd']} |"
            for one in summary[f"by_{kind}"]
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "(none)"


def _show(job: _Job, done: ResearchResult, summary: dict[str, Any]) -> None:
    if job.request.as_json:
        output.print_json(summary)
        return
    for line in _lines(job, done, summary):
        output.say(line)


def _lines(job: _Job, done: ResearchResult, summary: dict[str, Any]) -> Iterator[str]:
    why = f": {done.reason}" if done.reason else ""
    yield f"{done.outcome.value}{why}"
    yield (
        f"{spent(summary)}, {done.calls} calls, {done.rounds} rounds, {len(done.sources)} sources; "
        f"{summary['cache']}"
    )
    if done.unknown:
        yield f"check yourself: the report cites {len(done.unknown)} numbers that are no source"
    yield f"report: {job.out / REPORT} (see also {SOURCES}, {COSTS}; earmark report {job.session.run})"
