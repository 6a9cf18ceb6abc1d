"""``earmark runs``: the runs whose folders lie beside the ledger, and what one of them cost."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import JsonOption, LedgerOption, OpenLedger, ledger_to_read
from earmark.run_places import RunPlace, named_run, runs_beside

if TYPE_CHECKING:
    from budgets.report import ReportRow

app = typer.Typer(no_args_is_help=True, help="List runs and show one.")


@app.command("list")
def list_(
    *,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Runs, the latest first, each with its outcome and what it cost."""
    with ledger_to_read(ledger) as opened:
        found = runs_beside(opened.path)[:limit]
        rows = [{**_run_json(run), **_sums_json(opened, run)} for run in found]
    if json:
        output.print_json(
            {"ledger": str(opened.path), "exists": opened.exists, "runs": rows, "count": len(rows)}
        )
        return
    columns = ("run", "started", "outcome", output.right("posted"), output.right("in doubt"))
    output.print_table(
        (*columns, "scope", "command"),
        [
            (
                row["run"],
                row["started"],
                row["outcome"],
                output.dollars(row["posted_nanos"]),
                output.dollars(row["in_doubt_nanos"]),
                row["scope"],
                row["command"] or row["name"],
            )
            for row in rows
        ],
    )


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, or the beginning of it.")],
    *,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """One run: its outcome and counts, its journal in numbers, and where its money went."""
    from budgets.report import report

    with ledger_to_read(ledger) as opened:
        found = named_run(runs_beside(opened.path), run, opened.path)
        kinds, torn = _journal(found.journal)
        sums = _sums_json(opened, found)
        lines = list(opened.ledger.lines(found.scope)) if found.scope else []
    by_model, by_agent = report(lines, "model"), report(lines, "agent")
    if json:
        output.print_json(
            {
                **_run_json(found),
                "folder": str(found.folder),
                **sums,
                "journal": {"events": sum(kinds.values()), "kinds": dict(kinds), "torn": torn},
                "by_model": [_group_json(row) for row in by_model],
                "by_agent": [_group_json(row) for row in by_agent],
                "record": dict(found.record),
            }
        )
    else:
        _show_people(found, sums, kinds, torn=torn, groups={"model": by_model, "agent": by_agent})


def _journal(path: Path) -> tuple[Counter[str], bool]:
    """Events by kind, and whether the last line was cut by a kill."""
    kinds: Counter[str] = Counter()
    torn = False
    if not path.exists():
        return kinds, torn
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = jsonlib.loads(line)
            except ValueError:
                torn = True
                continue
            name = event.get("event") or event.get("kind") if isinstance(event, dict) else None
            kinds[str(name or "event")] += 1
    return kinds, torn


def _run_json(run: RunPlace) -> dict[str, Any]:
    return {
        "run": run.id,
        "started": run.record.get("started"),
        "ended": run.record.get("ended"),
        "outcome": run.outcome,
        "scope": run.scope,
        "name": run.record.get("name"),
        "command": run.record.get("command"),
        "counts": run.record.get("counts") or {},
    }


def _sums_json(opened: OpenLedger, run: RunPlace) -> dict[str, Any]:
    # A run without a scope can't be told from everything else in the ledger.
    balance = opened.ledger.balance(run.scope) if run.scope else None
    return {
        **output.money("posted", balance.posted_nanos if balance else 0),
        **output.money("held", balance.held_nanos if balance else 0),
        **output.money("in_doubt", balance.in_doubt_nanos if balance else 0),
    }


def _group_json(row: ReportRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "calls": row.calls,
        **output.money("posted", row.posted_nanos),
        **output.money("held", row.held_nanos),
        **output.money("in_doubt", row.in_doubt_nanos),
        **row.tokens,
        "web_searches": row.searches,
    }


def _show_people(
    run: RunPlace,
    sums: dict[str, Any],
    kinds: Counter[str],
    *,
    torn: bool,
    groups: dict[str, list[ReportRow]],
) -> None:
    output.say(f"run {run.id}: {run.outcome}")
    for name in ("command", "scope", "started", "ended"):
        if run.text(name):
            output.say(f"  {name}: {run.text(name)}")
    output.say(f"  folder: {run.folder}")
    output.say(
        f"  posted ${sums['posted_usd']}, held ${sums['held_usd']}, "
        f"in doubt ${sums['in_doubt_usd']}"
    )
    counts = run.record.get("counts")
    if isinstance(counts, dict) and counts:
        output.say("  " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    events = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
    output.say(f"  journal: {events or 'empty'}{' (its last line was cut)' if torn else ''}")
    for name, rows in groups.items():
        if rows:
            output.say()
            output.print_table(
                (name, output.right("calls"), output.right("posted"), output.right("output")),
                [
                    (
                        row.key,
                        row.calls,
                        output.dollars(row.posted_nanos),
                        row.tokens["output_tokens"],
                    )
                    for row in rows
                ],
            )
