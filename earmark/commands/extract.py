"""``earmark extract``: facts out of every document, as fields of a schema, under a cap."""

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

app = typer.Typer(help="Take fields out of every document under a cap.")


@app.command()
def extract(
    source: options.SourceArgument,
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
    """Fill in the fields of SCHEMA from every document of SOURCE, by structured output.

    Nested fields are columns of results.csv (outer.inner), and whole in results.jsonl.

    Every document ends in exactly one outcome with its cost, in results.jsonl and results.csv. Before it starts it
    says what it will cost at worst and probably. A run that was stopped or killed goes on with --resume and
    pays no document twice.
    """
    from earmark.bulk_job import run_request
    from earmark.bulk_source import read_fields, read_words

    def make(model: str, max_tokens: int | None) -> Task:
        from patterns.bulk import Extract

        return Extract(
            fields=read_fields(schema),
            instructions=read_words(prompt, "prompt"),
            model=model,
            output_tokens=max_tokens,
        )

    return run_request(
        options.Request(
            command="extract",
            source=source,
            make_task=make,
            words=("--schema", schema, *(("--prompt", str(prompt)) if prompt else ())),
            facts={"schema": schema},
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
