"""``earmark results``: the rows of a run of classify, extract or map, and the command that goes on with it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import JsonOption, LedgerOption
from earmark.failures import Mistake

if TYPE_CHECKING:
    from patterns.bulk import Row

app = typer.Typer(help="Show the rows of a run of classify, extract or map.")

_ANSWER_SHOWN = 60
_SHOWN_MAX = 200


@dataclass(slots=True)
class _Run:
    """A run's results: where they are, what its record says, and what was asked for."""

    out: Path
    state: dict[str, Any]
    wanted: Callable[[Row], bool]
    counts: Counter[str] = field(default_factory=Counter)
    shown: int = 0

    def rows(self) -> Iterator[Row]:
        """The rows that were asked for; counts all meanwhile."""
        from patterns.bulk.results import latest_rows

        for row in latest_rows(self.out):
            self.counts[row.outcome.value] += 1
            if self.wanted(row):
                self.shown += 1
                yield row

    @property
    def go_on(self) -> str | None:
        """The command that tries again what can end better; None if nothing can."""
        from earmark.bulk_place import go_on
        from orchestrator.outcomes import Outcome

        can = any(Outcome(name).retry_helps for name in self.counts)
        again = self.state.get("command")
        return go_on(again, self.out) if can and isinstance(again, list) else None


@app.command()
def results(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of its results, its id, or the beginning of that."
        ),
    ],
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Only what is not ok.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="X", help="Only this label; may be repeated."),
    ] = None,
    outcome: Annotated[
        list[str] | None,
        typer.Option("--outcome", metavar="O", help="Only this outcome; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the rows to a .jsonl, .csv or .parquet file."
        ),
    ] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """The rows of a run, in order; filters may be combined."""
    from budgets.settings import ledger_path
    from earmark.bulk_place import find_state

    folder, state = find_state(run, ledger_path(ledger))
    found = _Run(folder, state, _filter(failed=failed, labels=label, outcomes=outcome))
    if out is not None:
        _write(found, out)
    if json:
        _print_json(found, out)
    elif out is None:
        _print_people(found)
    else:
        output.say(f"{found.shown:,} rows are in {out}")


def _filter(
    *, failed: bool, labels: list[str] | None, outcomes: list[str] | None
) -> Callable[[Row], bool]:
    from orchestrator.outcomes import Outcome

    words = {one.value for one in Outcome}
    for name in outcomes or ():
        if name not in words:
            raise Mistake(f"--outcome {name}: it is not one of {', '.join(sorted(words))}")

    def wanted(row: Row) -> bool:
        return (
            (not failed or row.outcome is not Outcome.OK)
            and (not labels or row.label in labels)
            and (not outcomes or row.outcome.value in outcomes)
        )

    return wanted


def _write(found: _Run, out: Path) -> None:
    import json

    from patterns.bulk.export import FORMATS, Export, Sheet, check_formats

    form = out.suffix.removeprefix(".")
    if form not in {"jsonl", *FORMATS}:
        raise Mistake(f"--out {out}: name a file that ends in .jsonl, .csv or .parquet")
    if out.resolve().parent == found.out.resolve():
        raise Mistake(f"--out {out}: the results themselves are there; name another place")
    if form == "jsonl":
        with out.open("wb") as lines:
            for row in found.rows():
                lines.write(json.dumps(row.to_json(), ensure_ascii=False).encode() + b"\n")
        return
    check_formats((form,))
    answers = tuple(found.state.get("answers") or ("label",))
    sheet = Sheet(
        answers=answers,
        cells=lambda value: _cells(value, answers),
        is_table=bool(found.state.get("is_table")),
    )
    with Export(out.parent, sheet, (form,), name=out.stem) as export:
        for row in found.rows():
            export.write(row)
    export.publish()


def _cells(value: Any, answers: tuple[str, ...]) -> dict[str, Any]:
    """A row's answer by column, without the schema that it was asked for by."""
    import json

    if answers in {("label",), ("value",)} and not isinstance(value, dict):
        return {answers[0]: value}
    found: dict[str, Any] = {}
    for name in answers:
        at: Any = value
        for step in [name] if isinstance(value, dict) and name in value else name.split("."):
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict | list):
            at = json.dumps(at, ensure_ascii=False)
        found[name] = at
    return found


def _print_json(found: _Run, out: Path | None) -> None:
    tail: dict[str, Any] = {}

    def rows() -> Iterator[dict[str, Any]]:
        if out is None:
            for row in found.rows():
                yield row.to_json()
        tail["count"] = found.shown
        tail["outcomes"] = dict(sorted(found.counts.items()))
        tail["go_on"] = found.go_on

    head = {
        "run": found.state["run"],
        "out": str(found.out),
        "simulated": found.state["simulated"],
        "written": None if out is None else str(out),
    }
    output.print_json_stream(head, "rows", rows(), tail)


def _print_people(found: _Run) -> None:
    from patterns.bulk.row import shown_place

    # A person does not read more of them; in a pipe nothing is cut.
    most = _SHOWN_MAX if sys.stdout.isatty() else None
    lines: list[tuple[str, ...]] = []
    for row in found.rows():
        if most is None or len(lines) < most:
            place, cost = shown_place(row.path, row.row), output.dollars(row.posted_nanos)
            lines.append((place, row.outcome.value, _short(row), cost))
    output.print_table(("document", "outcome", "answer or reason", output.right("cost")), lines)
    if found.shown > len(lines):
        output.say(f"... and {found.shown - len(lines):,} more: --json, or --out FILE")
    output.say(f"{found.shown:,} of {sum(found.counts.values()):,} rows of {found.state['run']}")
    if found.go_on is not None:
        more = " --cap MORE" if found.counts["budget"] else ""
        output.say(f"go on: {found.go_on}{more}")


def _short(row: Row) -> str:
    import json

    answer = row.label if row.value is None else row.value
    text = row.reason
    if answer is not None:
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    text = " ".join(text.split())
    return text if row.reason or len(text) <= _ANSWER_SHOWN else f"{text[:_ANSWER_SHOWN]}..."
