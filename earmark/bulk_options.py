"""Options that ``classify``, ``extract`` and ``map`` share: declared once, and put behind those of each command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .doors import AskOption, ConfigOption, JsonOption, LedgerOption, PricesOption, SimulateOption

MAX_BYTES = 1_048_576
MAX_PAGES = 100


class Way(StrEnum):
    """How requests are sent."""

    DIRECT = "direct"
    BATCH = "batch"
    AUTO = "auto"


SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="A folder of documents, read recursively; or a table (.jsonl, .csv, .parquet), a document a row.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, in the order of the help. ``with_options`` gives them to a command."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="ID", help="The model; claude-haiku-5-5 if nothing else says."
        ),
    ] = None
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="USD", help="The most that this run may cost; 5 if nothing else says."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the results go; a new folder by default."),
    ] = None
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="A,B",
            help="Tables to write besides results.jsonl: csv, parquet, or both.",
        ),
    ] = "csv"
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Only these files; may be repeated."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GLOB", help="Not these files; may be repeated."),
    ] = None
    hidden: Annotated[bool, typer.Option("--hidden", help="Hidden files and folders, too.")] = False
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="TEXT|FILE",
            help="Of a table: how a row becomes a text, as in '{title}\\n{body}'; or a file that says so.",
        ),
    ] = None
    column: Annotated[
        str | None,
        typer.Option(
            "--column", metavar="NAME", help="Of a table: the column that holds the text."
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="NAME",
            help="Of a table: a column that names its rows, kept in results.",
        ),
    ] = None
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, metavar="N", help="A larger text is too_large.")
    ] = MAX_BYTES
    max_pages: Annotated[
        int, typer.Option("--max-pages", min=1, metavar="N", help="A longer PDF is too_large.")
    ] = MAX_PAGES
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, metavar="N", help="The most tokens of one answer."),
    ] = None
    width: Annotated[
        int | None, typer.Option("--width", min=1, metavar="N", help="Documents under way at once.")
    ] = None
    via: Annotated[
        Way,
        typer.Option(
            "--via",
            help="direct: at once. batch: message batches, half the price, within a day. "
            "auto: by the size of the job.",
        ),
    ] = Way.DIRECT
    urgent: Annotated[
        bool, typer.Option("--urgent", help="With --via auto: it can't wait for a batch.")
    ] = False
    failed_direct: Annotated[
        bool,
        typer.Option(
            "--failed-direct",
            help="Of batches: finish by direct calls what failed in its first batch.",
        ),
    ] = False
    notify: Annotated[
        str | None,
        typer.Option(
            "--notify",
            metavar="COMMAND",
            help="Of batches: run at the end, with counts as JSON on its input.",
        ),
    ] = None
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", help="Of batches: post counts there at the end."),
    ] = None
    ask: AskOption = False
    simulate: SimulateOption = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what it would cost; sends nothing, spends nothing."
        ),
    ] = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out (or the latest over this folder or table).",
        ),
    ] = False
    ledger: LedgerOption = None
    config: ConfigOption = None
    prices: PricesOption = None
    json: JsonOption = False


_GIVEN_AS = "options"


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """A command that takes all of these options behind its own, and is given them as ``options``.

    Typer reads a command's options from its signature: this one is put together here.
    """
    own = signature(command, eval_str=True)
    hints = get_type_hints(Options, include_extras=True)
    shared = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(Options)
    ]

    @wraps(command)
    def run(*arguments: Any, **given: Any) -> int:
        options = Options(**{one.name: given.pop(one.name) for one in shared})
        return command(*arguments, **given, **{_GIVEN_AS: options})

    kept = [one for one in own.parameters.values() if one.name != _GIVEN_AS]
    run.__signature__ = own.replace(parameters=[*kept, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*kept, *shared)}
    return run


def listed(text: str) -> tuple[str, ...]:
    """Words between commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
