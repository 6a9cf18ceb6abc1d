"""``earmark ledger``: read the lines, list what is open, prove the whole, and report where money went."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from earmark import output
from earmark.console import has_reader
from earmark.doors import (
    JsonOption,
    LedgerOption,
    OpenLedger,
    ScopeOption,
    SinceOption,
    UntilOption,
    ledger_to_read,
    moment,
)
from earmark.exits import Exit

from . import corrections

if TYPE_CHECKING:
    from budgets.check import CheckResult
    from budgets.records import Line, Sums
    from budgets.report import ReportRow

app = typer.Typer(no_args_is_help=True, help="Read, prove and correct the ledger.")


class LineKind(StrEnum):
    """Kinds of lines; the words are those of ``budgets.records``."""

    HOLD = "hold"
    SETTLE = "settle"
    VOID = "void"
    DOUBT = "doubt"
    RESOLVE = "resolve"
    ADJUST = "adjust"


ZoneOption = Annotated[
    str, typer.Option("--tz", metavar="ZONE", help="The calendar of days without an offset.")
]


# ---- lines --------------------------------------------------------------------------------------------


@app.command()
def lines(
    *,
    scope: ScopeOption = "",
    hold: Annotated[
        str | None, typer.Option("--hold", metavar="ID", help="The lines of one hold.")
    ] = None,
    kind: Annotated[
        list[LineKind] | None, typer.Option("--kind", help="Only these; may be given again.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    after: Annotated[int, typer.Option("--after", min=0, help="Begin behind this line id.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One line of JSON per line, for long ledgers.")
    ] = False,
) -> None:
    """The lines of the ledger in the order they were written. Lines are never changed."""
    start = moment(since, tz, option="--since")
    end = moment(until, tz, option="--until", is_end=True)
    wanted = {str(each) for each in kind or ()}

    def chosen(opened: OpenLedger) -> Iterator[Line]:
        count = 0
        for line in opened.ledger.lines(scope, hold=hold, after=after):
            if (wanted and line.kind not in wanted) or (start and line.at < start):
                continue
            if end and line.at >= end:
                continue
            if not has_reader():
                return
            yield line
            count += 1
            if count == limit:
                return

    with ledger_to_read(ledger) as opened:
        if jsonl:
            for line in chosen(opened):
                output.print_json_line(line_json(line))
        elif json:
            _lines_json(opened, chosen(opened))
        else:
            _lines_people(chosen(opened))


def line_json(line: Line) -> dict[str, Any]:
    """A line of the ledger for a document."""
    return {
        "id": line.id,
        "hold": line.hold,
        "kind": line.kind,
        "at": output.instant(line.at),
        "held_at": output.instant(line.held_at),
        "scope": line.scope,
        "model": line.model,
        "agent": line.note.get("agent"),
        **output.money("amount", line.nanos),
        **output.money("posted", line.posted),
        **output.money("held", line.held),
        **output.money("in_doubt", line.in_doubt),
        "owner": line.owner,
        "usage": None if line.usage is None else dict(line.usage),
        "note": dict(line.note),
    }


def _lines_json(opened: OpenLedger, found: Iterator[Line]) -> None:
    sums = {"posted": 0, "held": 0, "in_doubt": 0}
    tail: dict[str, Any] = {"count": 0, "last_id": None}

    def rows() -> Iterator[dict[str, Any]]:
        for line in found:
            sums["posted"] += line.posted
            sums["held"] += line.held
            sums["in_doubt"] += line.in_doubt
            tail["count"] += 1
            tail["last_id"] = line.id
            yield line_json(line)
        for name, nanos in sums.items():
            tail.update(output.money(name, nanos))

    head = {"ledger": str(opened.path), "exists": opened.exists}
    output.print_json_stream(head, "lines", rows(), tail)


def _lines_people(found: Iterator[Line]) -> None:
    from budgets.money import format_usd

    columns = (
        output.right("id"),
        "at (UTC)",
        "kind",
        output.right("amount"),
        output.right("posted"),
        output.right("held"),
        output.right("in doubt"),
        "scope",
        "model",
        "hold",
    )
    output.print_table(
        columns,
        (
            (
                line.id,
                f"{line.at:%Y-%m-%d %H:%M:%S}",
                line.kind,
                format_usd(line.nanos),
                *(format_usd(n) if n else "" for n in (line.posted, line.held, line.in_doubt)),
                line.scope,
                line.model,
                line.hold,
            )
            for line in found
        ),
    )


# ---- check --------------------------------------------------------------------------------------------


@app.command()
def check(*, ledger: LedgerOption = None, json: JsonOption = False) -> int:
    """Prove the ledger from its lines: balances, ends, caps at every line, the file itself.

    Exits with 1 if something is wrong.
    """
    with ledger_to_read(ledger) as opened:
        result = opened.ledger.check()
        with opened.ledger.reader() as reader:
            real, play = reader.sums("", None, None), reader.sums("simulated", None, None)
    if json:
        output.print_json(_check_json(opened, result, real, play))
    else:
        _check_people(opened, result, real, play)
    return Exit.OK if result.ok else Exit.FAILED


def _sums_json(sums: Sums) -> dict[str, Any]:
    return {
        **output.money("posted", sums.posted),
        **output.money("held", sums.held),
        **output.money("in_doubt", sums.in_doubt),
    }


def _check_json(opened: OpenLedger, result: CheckResult, real: Sums, play: Sums) -> dict[str, Any]:
    return {
        "ledger": str(opened.path),
        "exists": opened.exists,
        "ok": result.ok,
        "findings": result.findings,
        "lines": result.lines,
        "holds": result.holds,
        "open_holds": result.open_holds,
        "doubts": result.doubts,
        "reserves": result.reserves,
        **output.money("posted", result.posted_nanos),
        **output.money("held", result.held_nanos),
        **output.money("in_doubt", result.in_doubt_nanos),
        "overruns": result.overruns,
        "unpriced": result.unpriced,
        "caller_word": result.caller_word,
        "real": _sums_json(real),
        "simulated": _sums_json(play),
    }


def _check_people(opened: OpenLedger, result: CheckResult, real: Sums, play: Sums) -> None:
    for finding in result.findings:
        output.say(f"wrong: {finding}")
    for hold in result.overruns:
        output.say(f"overrun: hold {hold} cost more than its bound (posted in full)")
    rows = [("real", real), ("simulated", play)]
    output.print_table(
        ("", output.right("posted"), output.right("held"), output.right("in doubt")),
        [
            (name, *(output.dollars(n) for n in (sums.posted, sums.held, sums.in_doubt)))
            for name, sums in rows
        ],
    )
    reserved = f"{result.reserves} reserved, " if result.reserves else ""
    output.say(
        f"{opened.path}: {result.lines} lines, {result.holds} holds, {result.open_holds} under way, "
        f"{reserved}{result.doubts} in doubt, {len(result.overruns)} overruns, {result.unpriced} unpriced, "
        f"{result.caller_word} bounded by the caller's word: "
        f"{'proven' if result.ok else f'{len(result.findings)} findings'}"
    )


# ---- report -------------------------------------------------------------------------------------------


@app.command()
def report(
    *,
    by: Annotated[
        Literal["day", "model", "scope", "agent"], typer.Option("--by", help="What to group by.")
    ] = "day",
    scope: ScopeOption = "",
    since: SinceOption = None,
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Where the money went, by day, model, scope or agent. Days are those of the holds."""
    from budgets.report import report as group

    start = moment(since, tz, option="--since")
    end = moment(until, tz, option="--until", is_end=True)
    with ledger_to_read(ledger) as opened:
        rows = group(opened.ledger.lines(scope), by, tz=tz, since=start, until=end)
    if json:
        document = {
            "ledger": str(opened.path),
            "exists": opened.exists,
            "by": by,
            "scope": scope,
            "tz": tz,
            "rows": [_row_json(row) for row in rows],
            **output.money("posted", sum(row.posted_nanos for row in rows)),
            **output.money("held", sum(row.held_nanos for row in rows)),
            **output.money("in_doubt", sum(row.in_doubt_nanos for row in rows)),
        }
        output.print_json(document)
    else:
        _report_people(by, rows)


def _row_json(row: ReportRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "calls": row.calls,
        "settled": row.settled,
        "voided": row.voided,
        "doubted": row.doubted,
        **output.money("posted", row.posted_nanos),
        **output.money("held", row.held_nanos),
        **output.money("in_doubt", row.in_doubt_nanos),
        **row.tokens,
        "web_searches": row.searches,
    }


def _report_people(by: str, rows: list[ReportRow]) -> None:
    columns = ("calls", "posted", "held", "in doubt", "input", "cache writes", "cache reads")
    output.print_table(
        (by, *map(output.right, (*columns, "output", "searches"))),
        [
            (
                row.key,
                row.calls,
                *(
                    output.dollars(n)
                    for n in (row.posted_nanos, row.held_nanos, row.in_doubt_nanos)
                ),
                *(f"{count:,}" for count in row.tokens.values()),
                row.searches,
            )
            for row in rows
        ],
    )


app.command()(corrections.holds)
app.command()(corrections.resolve)
app.command()(corrections.adjust)
