"""``earmark map``: the same prompt over every document of a folder or table, under a cap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.bulk_options import Options, SourceArgument, with_options

app = typer.Typer(help="Run a prompt over every document under a cap.")


@app.command()
@with_options
def map(  # noqa: A001 - the command's name
    source: SourceArgument,
    *,
    prompt: Annotated[
        Path,
        typer.Option("--prompt", metavar="FILE", help="What to do with each document, in words."),
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE|pydantic:MODULE:CLASS",
            help="Answers by a JSON schema or a pydantic model, not in free text.",
        ),
    ] = None,
    options: Options,
) -> int:
    """Run the prompt in a file over every document of SOURCE: summaries, translations, judgements.

    Every document ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.bulk_job import run_request
    from earmark.bulk_request import Request
    from earmark.bulk_wanted import Wanted, read_schema, read_words

    wanted = Wanted(command="map", words=read_words(prompt, "prompt"), schema=read_schema(schema))
    return run_request(
        Request.of(
            options,
            source=source,
            wanted=wanted,
            words=("--prompt", str(prompt), *(("--schema", schema) if schema else ())),
            facts={"prompt": str(prompt)},
        )
    )
