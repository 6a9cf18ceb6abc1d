"""``earmark batches``: jobs of message batches, over all runs: list them, watch, go on with, or cancel one."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import ConfigOption, JsonOption, LedgerOption
from earmark.exits import Exit
from earmark.failures import Mistake
from earmark.run_places import RunPlace, named_run, runs_beside

if TYPE_CHECKING:
    from orchestrator.batches import JobRecord, Progress

app = typer.Typer(
    no_args_is_help=True, help="Jobs of message batches: list, watch, attach, cancel."
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Its id, or the beginning of it.")]
_ASKED_AGAIN_BY = "what was cancelled is asked again only by: {}"
#: The provider drops results after 29 days; this is said from here on.
_OLD_DAYS = 26


@app.command("list")
def list_(
    *,
    every: Annotated[bool, typer.Option("--all", help="Those that are complete, too.")] = False,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Jobs, and where each stands; nothing is sent and nothing is changed."""
    from budgets.settings import ledger_path
    from orchestrator.batches import jobs_beside

    path = ledger_path(ledger)
    jobs = [job for job in jobs_beside(path) if every or not job.is_complete]
    rows = [_row(job) for job in jobs]
    if json:
        output.print_json({"ledger": str(path), "jobs": rows, "count": len(rows)})
        return
    columns = (
        "run",
        "state",
        output.right("items"),
        output.right("ended"),
        output.right("waiting"),
    )
    output.print_table(
        (*columns, output.right("under way"), output.right("posted"), output.right("held"), "age"),
        [
            (
                row["run"],
                row["state"],
                row["items"],
                row["ended"],
                row["waiting"],
                row["batches_under_way"],
                output.dollars(row["posted_nanos"]),
                output.dollars(row["held_nanos"]),
                "" if row["oldest_days"] is None else f"{row['oldest_days']:.1f} days",
            )
            for row in rows
        ],
    )
    for row in rows:
        if row["fault"]:
            output.remark(row["fault"])
        if (row["oldest_days"] or 0) > _OLD_DAYS:
            output.remark(
                f"run {row['run']}: the provider drops results after 29 days: "
                f"'earmark batches attach {row['run']}' fetches them"
            )


@app.command()
def attach(
    run: RunArgument,
    *,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Go on with a job that was left or killed, until every item has ended.

    The rows and the summary of a job of classify, extract or map are written as by its own command.
    """
    from earmark.batch_owner import refuse_taken
    from orchestrator.errors import RunTaken

    try:
        return _attach(run, ledger, config, json=json)
    except RunTaken:
        refuse_taken(_place(run, ledger))
        raise


@app.command()
def cancel(
    run: RunArgument,
    *,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Cancel a job's batches, and settle what was answered by then; the rest is not billed.

    What was answered is billed, and so its rows are written; the others say that they were cancelled.
    A process that is at the job is asked to end it, and waited for.
    """
    return _cancel(run, ledger, config, json=json)


@app.command()
def watch(
    run: RunArgument,
    *,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 5.0,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Show where a job stands until it is complete; go on with it if nobody else does."""
    from earmark.batch_watch import watch_other
    from orchestrator.errors import RunTaken

    with suppress(RunTaken):
        return _attach(run, ledger, config, json=json, only_looks=True)
    return _end(watch_other(_place(run, ledger).folder, every_s=every), json=json)


def _attach(
    run: str,
    ledger: Path | None,
    config: Path | None,
    *,
    json: bool,
    only_looks: bool = False,
) -> int:
    """Go on with a job: a bulk job as its own command would, any other until all its items have ended."""
    from earmark.batch_watch import take_up
    from earmark.bulk_again import job_again, rows_by
    from earmark.doors import book_of, settings_of

    place = _place(run, ledger)
    was_cancelled = _was_cancelled(place)
    with job_again(
        place, config=config, json=json, sends=not was_cancelled, only_looks=only_looks
    ) as job:
        if job is not None:
            from earmark.bulk_job import do

            code = do(job)
            if was_cancelled:
                output.remark(_ASKED_AGAIN_BY.format(rows_by(place)))
            return code
    code = _end(take_up(place, book_of(None, settings_of(config)), cancels=False), json=json)
    if (command := rows_by(place)) is not None:
        output.remark(f"the rows of its documents are written by: {command}")
    return code


def _cancel(run: str, ledger: Path | None, config: Path | None, *, json: bool) -> int:
    """End a job, first of all; then write the rows of a bulk job, with the answers that there were by then."""
    from earmark.batch_owner import end_elsewhere
    from earmark.batch_watch import take_up
    from earmark.bulk_again import job_again, rows_by
    from earmark.doors import book_of, settings_of
    from orchestrator.errors import RunTaken
    from orchestrator.run_folder import is_under_way

    place = _place(run, ledger)
    was_taken, progress = is_under_way(place.folder), None
    while progress is None:  # somebody may take it up just when it is free
        if (ended := end_elsewhere(place)) is not None:
            return _end(ended, json=json)
        with suppress(RunTaken):
            progress = take_up(place, book_of(None, settings_of(config)), cancels=True)
    if not progress.is_complete:
        return _end(progress, json=json)
    command = rows_by(place)
    # The process that has ended the job tells of it.
    with job_again(place, config=config, json=json, sends=False, only_looks=was_taken) as job:
        if job is not None:
            from earmark.bulk_job import do

            code = do(job)
            output.remark(_ASKED_AGAIN_BY.format(command))
            return code
    if command is not None:
        output.remark(
            f"the rows of its documents are written by (it asks again about what was cancelled): {command}"
        )
    return _end(progress, json=json)


def _was_cancelled(place: RunPlace) -> bool:
    """Whether a person has ended the job: then nobody who only comes to look has it paid for once more."""
    from orchestrator.batches import read_job

    job = read_job(place.folder)
    progress = None if job is None else job.progress
    return progress is not None and progress.is_complete and bool(progress.done.get("cancelled"))


def _place(run: str, ledger: Path | None) -> RunPlace:
    from budgets.settings import ledger_path
    from orchestrator.batches import read_job

    path = ledger_path(ledger)
    place = named_run(runs_beside(path), run, path)
    if read_job(place.folder) is None:
        raise Mistake(
            f"run {place.id}: it has no batches; 'earmark batches list --all' shows runs that do"
        )
    return place


def _end(progress: Progress, *, json: bool) -> int:
    """Say what came of it; the exit code."""
    from earmark.batch_watch import summary

    if json:
        output.print_json(summary(progress))
    else:
        _show(progress)
    if not (progress.is_complete and progress.all_taken_in):
        return int(Exit.INTERRUPTED)
    if progress.done.get("budget"):
        return int(Exit.CAP)
    if progress.done.get("spend_limit"):
        return int(Exit.SPEND_LIMIT)
    return int(Exit.FAILED if progress.failed else Exit.OK)


def _show(progress: Progress) -> None:
    from earmark.batch_watch import summary
    from earmark.bulk_view import BILLS

    outcomes = ", ".join(f"{count:,} {word}" for word, count in sorted(progress.done.items()))
    output.say(f"{progress.ended:,} of {progress.items:,} items have ended: {outcomes or 'none'}")
    output.say(
        f"posted {output.dollars(progress.posted_nanos)}, held {output.dollars(progress.held_nanos)}"
    )
    bills = progress.bills
    if not bills.results:
        return
    told = summary(progress)
    output.print_table(
        ("the same answers", output.right("bill")),
        [(words, output.dollars(told[f"{name}_nanos"])) for name, words in BILLS.items()],
    )
    if bills.hits:
        share = 100 * bills.hits / bills.results
        output.say(
            f"{bills.hits:,} of {bills.results:,} answers ({share:.0f}%) read their prefix from the cache"
        )


def _row(job: JobRecord) -> dict[str, Any]:
    progress = job.progress
    days = job.oldest_days(time.time())
    return {
        "run": job.run,
        "state": "unreadable" if job.fault else "complete" if job.is_complete else "open",
        "items": progress.items if progress else 0,
        "ended": progress.ended if progress else 0,
        "failed": progress.failed if progress else 0,
        "waiting": progress.waiting if progress else 0,
        "batches": len(progress.batches) if progress else 0,
        "batches_under_way": (
            sum(row.state.is_open for row in progress.batches) if progress else 0
        ),
        **output.money("posted", progress.posted_nanos if progress else 0),
        **output.money("held", progress.held_nanos if progress else 0),
        "oldest_days": None if days is None else round(days, 1),
        "folder": str(job.folder),
        "fault": job.fault,
    }
