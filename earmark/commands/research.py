"""``earmark research``: a question answered by a team, with a source per claim, for no more than was said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.doors import (
    AskOption,
    ConfigOption,
    JsonOption,
    LedgerOption,
    PricesOption,
    SimulateOption,
)

app = typer.Typer(help="Answer a question by research, under a cap.")


@app.command()
def research(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What is to be answered.")],
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--in", metavar="FOLDER", help="Look it up in these files instead of on the web."
        ),
    ] = None,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="USD", help="The most that this run may cost; 4 if nothing else says."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=50, metavar="N", help="Researchers in a round.")
    ] = 5,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=10, metavar="N", help="Rounds at most.")
    ] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where the report goes; a new folder by default."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="ID", help="Who plans and writes.")
    ] = None,
    worker_model: Annotated[
        str | None, typer.Option("--worker-model", metavar="ID", help="Who looks things up.")
    ] = None,
    searches: Annotated[
        int, typer.Option("--searches", min=1, metavar="N", help="Web searches in one turn.")
    ] = 4,
    fetches: Annotated[
        int, typer.Option("--fetches", min=1, metavar="N", help="Pages fetched in one turn.")
    ] = 4,
    fetch_tokens: Annotated[
        int, typer.Option("--fetch-tokens", min=1, metavar="N", help="Tokens of one page.")
    ] = 8_000,
    search_tokens: Annotated[
        int,
        typer.Option(
            "--search-tokens", min=1, metavar="N", help="Tokens that a search brings in: your word."
        ),
    ] = 25_000,
    ask: AskOption = False,
    simulate: SimulateOption = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the plan with its prices; sends nothing."),
    ] = False,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> int:
    """Answer QUESTION with a lead that plans, researchers that look things up, and a report with sources.

    Ends in report.md, sources.json and costs.json. The money for the report is set aside first, so that a run
    that hits its cap still hands back what it has (exit code 3).
    """
    from earmark.research_job import Request, run_request

    return run_request(
        Request(
            question=question,
            folder=folder,
            cap=cap,
            workers=workers,
            rounds=rounds,
            out=out,
            model=model,
            worker_model=worker_model,
            searches=searches,
            fetches=fetches,
            fetch_tokens=fetch_tokens,
            search_tokens=search_tokens,
            ask=ask,
            simulate=simulate,
            dry_run=dry_run,
            ledger=ledger,
            config=config,
            prices=prices,
            as_json=json,
        )
    )
