"""One ``earmark work`` from its request to its exit code: a worker, or a team, over a folder."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.settings import Settings, ledger_path
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run, new_run_id
from orchestrator.workers import READING, AgentSdkWorker, Share, WorkerResult

from . import output
from .doors import book_of, settings_of
from .exits import Exit
from .failures import Mistake
from .session import Session, check_free, figures_of, leave, spent
from .upstream import check_model, run_upstream
from .work_agents import agents_of

DEFAULT_CAP, MODEL = "1.5", "claude-sonnet-5-5"
ANSWER, COSTS = "report.md", "costs.json"
_WRITING = ("Edit", "Write")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked on the command line."""

    task: str
    folder: Path
    agents: Path | None
    cap: str | None
    write: bool
    model: str | None
    turns: int
    max_tokens: int
    timeout_s: float
    out: Path | None
    resume: str | None
    simulate: bool
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
    worker: AgentSdkWorker
    ledger: Path


def run_request(request: Request) -> int:
    """Do what was asked.

    Raises:
        Mistake, ConfigError, BudgetError: the user's mistake, or a ledger that can't be used; nothing was
            sent.
    """
    if not request.task.strip():
        raise Mistake("the task is empty; write what is to be done in quotes")
    if not request.folder.is_dir():
        raise Mistake(f"--in {request.folder}: there is no such folder")
    if request.out is not None:
        check_free(request.out, (ANSWER, COSTS))
    settings = settings_of(request.config)
    job = _Job(
        request=request,
        session=_session(request, settings, new_run_id("work")),
        prices=book_of(request.prices, settings),
        worker=_worker(request, settings, ledger_path(request.ledger).parent / "sessions"),
        ledger=ledger_path(request.ledger),
    )
    job.session.cap  # noqa: B018 - says now what is wrong with it
    for model in {job.worker.model, *(one.model for one in job.worker.agents.values())} - {None}:
        check_model(str(model), job.prices)
    job.worker.check_program()
    if request.resume is not None:
        _check_session(request.resume, job.worker)
    # What it would say of a session that we have ended is in the outcome already.
    logging.getLogger("claude_agent_sdk").setLevel(logging.CRITICAL)
    return run_upstream(lambda client: _work(job, client), simulate=request.simulate)


def _check_session(session: str, worker: AgentSdkWorker) -> None:
    try:
        worker.check_session(session)
    except ConfigError:
        raise Mistake(
            f"--resume: there is no session {session[:80]!r} in {worker.sessions}; its id stands behind `go on:` where "
            "a run stopped, and as `session` in --json; it is found with the --ledger of that run only"
        ) from None


def _session(request: Request, settings: Settings, run_id: str) -> Session:
    return Session(
        command="work",
        run=run_id,
        simulate=request.simulate,
        settings=settings,
        amount=DEFAULT_CAP if request.cap is None else request.cap,
    )


def _worker(request: Request, settings: Settings, sessions: Path) -> AgentSdkWorker:
    """Reads in the folder only; with ``--write`` it changes files there as well, and nowhere else."""
    return AgentSdkWorker(
        name="worker",
        model=request.model or settings.model or MODEL,
        cwd=request.folder,
        tools=(*READING, *_WRITING) if request.write else READING,
        permission_mode="acceptEdits" if request.write else "dontAsk",
        agents={} if request.agents is None else agents_of(request.agents, write=request.write),
        max_turns=request.turns,
        max_tokens=request.max_tokens,
        timeout_s=request.timeout_s,
        sessions=sessions,
    )


def _run(job: _Job, ledger: Ledger, client: dict[str, Any]) -> Run:
    return job.session.run_on(ledger, prices=job.prices, client=client)


async def _work(job: _Job, client: dict[str, Any]) -> int:
    from .live import watch  # rich, only where something is drawn

    with Ledger(job.ledger) as ledger:
        async with _run(job, ledger, client) as run:
            if job.request.simulate:
                output.remark("SIMULATED: a stand-in answers, nothing is spent")
            with watch(run):
                done = await job.worker.run(run, job.request.task, resume=job.request.resume)
            await run.drain()
            code = _exit_code(run, done)
            summary = _summary(job, run, done, code)
    if job.request.out is not None:
        _write(job.request.out, done, summary)
    if job.request.as_json:
        output.print_json(summary)
    else:
        for line in _lines(job, done, summary):
            output.say(line)
    return int(code)


def _exit_code(run: Run, done: WorkerResult) -> Exit:
    if run.stopped is not None:
        return Exit.INTERRUPTED
    if run.spend_limit is not None or done.outcome is Outcome.SPEND_LIMIT:
        return Exit.SPEND_LIMIT
    # A subagent that was declined is missing in the answer, however good it looks.
    if done.outcome is Outcome.BUDGET or done.report.declined:
        return Exit.CAP
    return Exit.OK if done.outcome is Outcome.OK else Exit.FAILED


# ---- what it leaves -------------------------------------------------------------------------------------


def _summary(job: _Job, run: Run, done: WorkerResult, code: Exit) -> dict[str, Any]:
    """The summary, as ``--json`` prints it and ``costs.json`` keeps it."""
    report, request = done.report, job.request
    return {
        **job.session.head(job.ledger),
        "task": request.task,
        "folder": str(request.folder),
        "exit_code": int(code),
        "outcome": done.outcome.value,
        "reason": done.reason,
        "text": done.text,
        "session": report.session,
        "turns": done.turns,
        **figures_of(run),
        **output.money("cli", report.cli_nanos),
        **output.money("cli_difference", report.difference_nanos),
        "calls": done.tally.calls,
        "declined": report.declined,
        "tokens": done.tally.tokens,
        "by_agent": [_share(one) for one in report.shares],
        "denied": list(report.denied),
        "wrote": request.write,
        "seconds": round(done.seconds, 3),
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "agent": share.agent,
        "calls": share.calls,
        "declined": share.declined,
        **output.money("posted", share.posted_nanos),
        **output.money("in_doubt", share.in_doubt_nanos),
    }


def _write(out: Path, done: WorkerResult, summary: dict[str, Any]) -> None:
    """The two files."""
    note = "> **Simulated**: a stand-in wrote this.\n\n" if summary["simulated"] else ""
    ended = "" if done.outcome is Outcome.OK else f"> {done.outcome.value}: {done.reason}\n\n"
    costs = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    leave(out, {COSTS: costs, ANSWER: f"{note}{ended}{done.text}\n"})


def _lines(job: _Job, done: WorkerResult, summary: dict[str, Any]) -> Iterator[str]:
    if done.text:
        yield done.text
        yield ""
    yield f"{done.outcome.value}{f': {done.reason}' if done.reason else ''}"
    for share in done.report.shares:
        yield f"  {share.agent}: {share.calls} calls, {output.dollars(share.posted_nanos)} posted"
    said = done.report.cli_nanos
    own = "" if said is None else f"; by Claude Code's own count {output.dollars(said)}"
    yield f"{spent(summary)}, {done.tally.calls} calls{own}"
    if done.report.declined:
        yield f"{done.report.declined} calls were declined by a cap: what they would have found is missing"
    if done.report.denied:
        yield f"not allowed, so not done: {', '.join(sorted(set(done.report.denied)))}"
    if done.outcome is not Outcome.OK and done.turns:
        folder = shlex.quote(str(job.request.folder))
        yield f"go on: earmark work 'Go on.' --in {folder} --resume {done.report.session}"
    yield f"more: earmark report {job.session.run}"
