"""``earmark classify``: every document of a folder or table gets a label, under a cap that is never passed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.bulk_options import Options, SourceArgument, with_options

app = typer.Typer(help="Classify every document of a folder or table under a cap.")


@app.command()
@with_options
def classify(
    source: SourceArgument,
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
    options: Options,
) -> int:
    """Label every document of SOURCE with one of LABELS, by structured output.

    Every document ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.bulk_job import run_request
    from earmark.bulk_request import Request
    from earmark.bulk_wanted import Wanted, read_words

    given = tuple(label.strip() for label in labels.split(","))
    wanted = Wanted(command="classify", labels=given, words=read_words(rubric, "rubric"))
    return run_request(
        Request.of(
            options,
            source=source,
            wanted=wanted,
            words=("--labels", labels, *(("--rubric", str(rubric)) if rubric else ())),
            facts={"labels": list(given)},
        )
    )
