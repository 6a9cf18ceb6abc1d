"""``earmark report``: where the money of a run went, what happened when, and what is left to resolve."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import JsonOption, LedgerOption, PricesOption, ledger_to_read, settings_of
from earmark.exits import Exit
from earmark.failures import Mistake
from earmark.run_places import RunPlace, find_run

if TYPE_CHECKING:
    from budgets.ledger import Ledger
    from budgets.prices import PriceBook
    from orchestrator.story import Story

app = typer.Typer(help="Show where the money of a run went.")


@app.command()
def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run's id (or its beginning), 'last', a run's folder or journal, or a log of calls.",
        ),
    ],
    *,
    html: Annotated[
        bool, typer.Option("--html", help="Write one HTML file that needs no network.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where the HTML goes; report.html in the run's folder, or beside the log.",
            show_default=False,
        ),
    ] = None,
    ledger: LedgerOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> int:
    """Which agent and which model the money went to, the tree, calls over time, spend against the caps.

    Reads a run of Earmark's, and any JSON-lines log of calls with the four usage fields (transcripts of Claude
    Code, too). Exits with 1 if a log has lines that can't be read, models without a price (its sums are then not the
    whole), or no calls at all.
    """
    if out is not None and not html:
        raise Mistake("--out says where the HTML goes; say --html, too")
    found = find_run(run, _ledger_path(ledger))
    book = _book(prices)
    if isinstance(found, Path):
        story, ledger_option = _of_file(found, book), ""
        target = out or found.with_name(f"{found.stem}.html")
    else:
        story, ledger_option = _of_run(found, ledger, book)
        target = out or found.folder / "report.html"
    if html:
        from earmark.report_html.page import page_of

        target.write_text(page_of(story, ledger_option), encoding="utf-8", errors="replace")
    _show(story, ledger_option, target if html else None, as_json=json)
    is_told = not story.is_log or (story.is_whole and bool(story.calls))
    return int(Exit.OK if is_told else Exit.FAILED)


def _show(story: Story, ledger_option: str, page: Path | None, *, as_json: bool) -> None:
    if as_json:
        from earmark.report_json import calls_of, document_of

        head: dict[str, Any] = document_of(story, ledger_option)
        head["html"] = None if page is None else str(page)
        output.print_json_stream(head, "calls", calls_of(story), {})
    elif page is not None:
        output.say(f"wrote {page}")
    else:
        from earmark.report_text import show

        show(story, ledger_option)


def _ledger_path(given: Path | None) -> Path:
    from budgets.settings import ledger_path

    return ledger_path(given)


def _book(given: Path | None) -> PriceBook:
    from earmark.doors import book_of

    return book_of(given, settings_of(None))


def _of_file(path: Path, book: PriceBook) -> Story:
    from orchestrator.story import is_journal, tell_log, tell_run

    if is_journal(path):
        return tell_run(path, book=book)
    return tell_log(path, book=book)


def _of_run(place: RunPlace, given: Path | None, book: PriceBook) -> tuple[Story, str]:
    from orchestrator.run_folder import is_under_way
    from orchestrator.story import tell_run

    with _ledger_of(place, given) as (ledger, option):
        story = tell_run(
            place.journal,
            ledger=ledger,
            record=place.record,
            is_under_way=is_under_way(place.folder),
            book=book,
        )
    return story, option


@contextmanager
def _ledger_of(place: RunPlace, given: Path | None) -> Iterator[tuple[Ledger | None, str]]:
    """The ledger that a run drew on, and the option that names it in commands."""
    path = given or place.ledger
    if path is None:
        yield None, ""
        return
    with ledger_to_read(path) as opened:
        yield (opened.ledger if opened.exists else None), f" --ledger {shlex.quote(str(path))}"
