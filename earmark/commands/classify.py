"""``earmark classify``: every document of a folder gets a label, under a cap that is never passed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.doors import ConfigOption, JsonOption, LedgerOption

app = typer.Typer(help="Classify every document of a folder under a cap.")


@app.command()
def classify(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The documents, read recursively.")
    ],
    *,
    labels: Annotated[
        str, typer.Option("--labels", metavar="A,B,C", help="The labels to choose from.")
    ],
    rubric: Annotated[
        Path | None,
        typer.Option(
            "--rubric", metavar="FILE", help="How to choose, in words; part of the prompt."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="ID", help="The model; claude-haiku-5-5 if nothing else says."
        ),
    ] = None,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="USD", help="The most that this run may cost; 5 if nothing else says."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the results go; a new folder by default."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Only these files; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GLOB", help="Not these files; may be repeated."),
    ] = None,
    hidden: Annotated[
        bool, typer.Option("--hidden", help="Hidden files and folders, too.")
    ] = False,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, metavar="N", help="A larger file is too_large.")
    ] = 1_048_576,
    width: Annotated[
        int | None, typer.Option("--width", min=1, metavar="N", help="Documents under way at once.")
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Against the built-in stand-in for the API: no key, nothing is spent.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what it would cost; sends nothing, spends nothing."
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in --out (or the latest of this folder)."
        ),
    ] = False,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE", help="Your own price file.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Label every document of a folder with one of LABELS, by structured output.

    Every file ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.classifying import Request, run_request

    return run_request(
        Request(
            folder=folder,
            labels=tuple(label.strip() for label in labels.split(",")),
            rubric=rubric,
            model=model,
            cap=cap,
            out=out,
            include=tuple(include or ()),
            exclude=tuple(exclude or ()),
            hidden=hidden,
            max_bytes=max_bytes,
            width=width,
            simulate=simulate,
            dry_run=dry_run,
            resume=resume,
            ledger=ledger,
            config=config,
            prices=prices,
            as_json=json,
        )
    )
