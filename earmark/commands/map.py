"""``earmark map``: the same prompt over every document of a folder or table, under a cap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from earmark import bulk_options as options
from earmark.doors import (
    AskOption,
    ConfigOption,
    JsonOption,
    LedgerOption,
    PricesOption,
    SimulateOption,
)

if TYPE_CHECKING:
    from patterns.bulk import Task

app = typer.Typer(help="Run a prompt over every document under a cap.")


@app.command()
def map(  # noqa: A001 - the command's name
    source: options.SourceArgument,
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
    model: options.ModelOption = None,
    cap: options.CapOption = None,
    out: options.OutOption = None,
    format: options.FormatOption = "csv",  # noqa: A002 - the option's name
    include: options.IncludeOption = None,
    exclude: options.ExcludeOption = None,
    hidden: options.HiddenOption = False,
    template: options.TemplateOption = None,
    column: options.ColumnOption = None,
    key: options.KeyOption = None,
    max_bytes: options.MaxBytesOption = options.MAX_BYTES,
    max_pages: options.MaxPagesOption = options.MAX_PAGES,
    max_tokens: options.MaxTokensOption = None,
    width: options.WidthOption = None,
    via: options.ViaOption = options.Way.DIRECT,
    urgent: options.UrgentOption = False,
    failed_direct: options.FailedDirectOption = False,
    notify: options.NotifyOption = None,
    webhook: options.WebhookOption = None,
    ask: AskOption = False,
    simulate: SimulateOption = False,
    dry_run: options.DryRunOption = False,
    resume: options.ResumeOption = False,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> int:
    """Run the prompt in a file over every document of SOURCE: summaries, translations, judgements.

    Every document ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.bulk_job import run_request
    from earmark.bulk_source import read_fields, read_words

    def make(model: str, max_tokens: int | None) -> Task:
        from patterns.bulk import Map

        return Map(
            instructions=read_words(prompt, "prompt"),
            fields=read_fields(schema) if schema else None,
            model=model,
            output_tokens=max_tokens,
        )

    return run_request(
        options.Request(
            command="map",
            source=source,
            make_task=make,
            words=("--prompt", str(prompt), *(("--schema", schema) if schema else ())),
            facts={"prompt": str(prompt)},
            model=model,
            cap=cap,
            out=out,
            formats=options.listed(format),
            include=tuple(include or ()),
            exclude=tuple(exclude or ()),
            hidden=hidden,
            template=template,
            column=column,
            key=key,
            max_bytes=max_bytes,
            max_pages=max_pages,
            max_tokens=max_tokens,
            width=width,
            via=via,
            urgent=urgent,
            failed_direct=failed_direct,
            notify=notify,
            webhook=webhook,
            ask=ask,
            simulate=simulate,
            dry_run=dry_run,
            resume=resume,
            ledger=ledger,
            config=config,
            prices=prices,
            as_json=json,
        )
    )
