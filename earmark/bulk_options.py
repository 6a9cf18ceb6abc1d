"""Options that ``classify``, ``extract`` and ``map`` share, and the request that they make together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Mistake

if TYPE_CHECKING:
    from patterns.bulk import Task


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
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="ID", help="The model; claude-haiku-5-5 if nothing else says."),
]
CapOption = Annotated[
    str | None,
    typer.Option(
        "--cap", metavar="USD", help="The most that this run may cost; 5 if nothing else says."
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where the results go; a new folder by default."),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="A,B",
        help="Tables to write besides results.jsonl: csv, parquet, or both.",
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Only these files; may be repeated."),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Not these files; may be repeated."),
]
HiddenOption = Annotated[bool, typer.Option("--hidden", help="Hidden files and folders, too.")]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="TEXT|FILE",
        help="Of a table: how a row becomes a text, as in '{title}\\n{body}'; or a file that says so.",
    ),
]
ColumnOption = Annotated[
    str | None,
    typer.Option("--column", metavar="NAME", help="Of a table: the column that holds the text."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="NAME", help="Of a table: a column that names its rows, kept in results."
    ),
]
MaxBytesOption = Annotated[
    int, typer.Option("--max-bytes", min=1, metavar="N", help="A larger text is too_large.")
]
MaxPagesOption = Annotated[
    int, typer.Option("--max-pages", min=1, metavar="N", help="A longer PDF is too_large.")
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, metavar="N", help="The most tokens of one answer."),
]
WidthOption = Annotated[
    int | None, typer.Option("--width", min=1, metavar="N", help="Documents under way at once.")
]
ViaOption = Annotated[
    Way,
    typer.Option(
        "--via",
        help="direct: at once. batch: message batches, half the price, within a day. auto: by the size of the job.",
    ),
]
UrgentOption = Annotated[
    bool, typer.Option("--urgent", help="With --via auto: it can't wait for a batch.")
]
FailedDirectOption = Annotated[
    bool,
    typer.Option(
        "--failed-direct", help="Of batches: finish by direct calls what failed in its first batch."
    ),
]
NotifyOption = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="COMMAND",
        help="Of batches: run at the end, with counts as JSON on its input.",
    ),
]
WebhookOption = Annotated[
    str | None,
    typer.Option("--webhook", metavar="URL", help="Of batches: post counts there at the end."),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Only say what it would cost; sends nothing, spends nothing."),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with the run in --out (or the latest over this folder or table)."
    ),
]

MAX_BYTES = 1_048_576
MAX_PAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked on the command line.

    Attributes:
        command: ``classify``, ``extract`` or ``map``.
        make_task: takes a model and returns the task; raises for what can't be used.
        words: the options that make the task, as they were written, for the command that goes on.
        facts: the task in the run's own record.
    """

    command: str
    source: Path
    make_task: Callable[[str, int | None], Task]
    words: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    cap: str | None = None
    out: Path | None = None
    formats: tuple[str, ...] = ("csv",)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hidden: bool = False
    template: str | None = None
    column: str | None = None
    key: str | None = None
    max_bytes: int = MAX_BYTES
    max_pages: int = MAX_PAGES
    max_tokens: int | None = None
    width: int | None = None
    via: Way = Way.DIRECT
    urgent: bool = False
    failed_direct: bool = False
    notify: str | None = None
    webhook: str | None = None
    ask: bool = False
    simulate: bool = False
    dry_run: bool = False
    resume: bool = False
    ledger: Path | None = None
    config: Path | None = None
    prices: Path | None = None
    as_json: bool = False

    @property
    def again(self) -> tuple[str, ...]:
        """The command line of this job after the program's name, without where its results are.

        Nor the webhook: it is written down and shown, and such a URL may carry a secret.
        """
        given: list[tuple[str, object]] = [
            ("--model", self.model),
            ("--max-tokens", self.max_tokens),
            ("--template", self.template),
            ("--column", self.column),
            ("--key", self.key),
            *(("--include", one) for one in self.include),
            *(("--exclude", one) for one in self.exclude),
            ("--max-bytes", None if self.max_bytes == MAX_BYTES else self.max_bytes),
            ("--max-pages", None if self.max_pages == MAX_PAGES else self.max_pages),
            ("--format", None if self.formats == ("csv",) else ",".join(self.formats)),
            ("--via", None if self.via is Way.DIRECT else self.via.value),
            ("--notify", self.notify),
        ]
        options = [
            str(word) for name, value in given if value is not None for word in (name, value)
        ]
        flags = [
            name
            for name, is_set in (
                ("--hidden", self.hidden),
                ("--urgent", self.urgent),
                ("--failed-direct", self.failed_direct),
                ("--simulate", self.simulate),
            )
            if is_set
        ]
        return (self.command, str(self.source), *self.words, *options, *flags)


def notified(request: Request) -> tuple[tuple[str, ...], str]:
    """The command and the webhook that are told at the end.

    Raises:
        Mistake: they can't be used; nothing was sent.
    """
    try:
        command = tuple(shlex.split(request.notify or ""))
    except ValueError as error:
        raise Mistake(
            f"--notify {request.notify}: it is no command ({error}); mend its quotes"
        ) from None
    webhook = request.webhook or ""
    if webhook and not webhook.startswith(("https://", "http://")):
        raise Mistake("--webhook: it is no URL; write one that begins with https:// or http://")
    return command, webhook


def listed(text: str) -> tuple[str, ...]:
    """Words between commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
