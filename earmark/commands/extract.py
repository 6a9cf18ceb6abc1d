"""``earmark extract``: facts out of every document, as fields of a schema, under a cap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.bulk_options import Options, SourceArgument, with_options

app = typer.Typer(help="Take fields out of every document under a cap.")


@app.command()
@with_options
def extract(
    source: SourceArgument,
    *,
    schema: Annotated[
        str,
        typer.Option(
            "--schema",
            metavar="FILE|pydantic:MODULE:CLASS",
            help="The fields: a JSON schema, or a pydantic model.",
        ),
    ],
    prompt: Annotated[
        Path | None,
        typer.Option("--prompt", metavar="FILE", help="How to fill them, in words."),
    ] = None,
    options: Options,
) -> int:
    """Fill in the fields of SCHEMA from every document of SOURCE, by structured output.

    Nested fields are columns of results.csv (outer.inner), and whole in results.jsonl.

    Every document ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.bulk_job import run_request
    from earmark.bulk_request import Request
    from earmark.bulk_wanted import Wanted, read_schema, read_words

    wanted = Wanted(
        command="extract", words=read_words(prompt, "prompt"), schema=read_schema(schema)
    )
    return run_request(
        Request.of(
            options,
            source=source,
            wanted=wanted,
            words=("--schema", schema, *(("--prompt", str(prompt)) if prompt else ())),
            facts={"schema": schema},
        )
    )
