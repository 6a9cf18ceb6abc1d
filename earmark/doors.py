"""Doors: where a command finds its ledger and its settings, and the options that name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .failures import Mistake
from .output import remark

if TYPE_CHECKING:
    from budgets.ledger import Ledger
    from budgets.prices import PriceBook
    from budgets.settings import Settings

LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="The ledger; else $EARMARK_HOME/ledger.db, else .earmark/ledger.db.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings; else $EARMARK_CONFIG, else the nearest earmark.toml.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")
]
AskOption = Annotated[
    bool, typer.Option("--ask", help="Ask here what to do when a cap is in the way.")
]
SimulateOption = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Against the built-in stand-in for the API: no key, nothing is spent."
    ),
]
PricesOption = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Your own price file.")
]
ScopeOption = Annotated[
    str,
    typer.Option("--scope", metavar="PATH", help="A scope such as app/run-1.", show_default=False),
]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        "--tz", metavar="ZONE", help="A time zone such as Europe/Berlin.", show_default=False
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From this day or moment on (ISO 8601)."),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Up to this moment, or to the end of this day."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLedger:
    """A ledger for one command.

    Attributes:
        ledger: the ledger; an empty one in memory where the file doesn't exist.
        path: the file.
        exists: whether the file was there.
    """

    ledger: Ledger
    path: Path
    exists: bool


@contextmanager
def ledger_to_read(given: Path | None, *, quiet: bool = False) -> Iterator[OpenLedger]:
    """The ledger for a question. Nothing is made where there is none; that is said on standard error.

    As at every opening, the holds of processes that are dead go in doubt. No caps are set.

    Args:
        given: what ``--ledger`` says.
        quiet: don't say that there is no ledger yet.

    Raises:
        Mistake: it is a folder.
        LedgerUnavailable, LedgerCorrupt, LedgerTooNew: it can't be used; it was left as it is.
    """
    from budgets.ledger import Ledger

    path = _file_of(given)
    exists = path.exists() and path.stat().st_size > 0
    if not exists and not quiet:
        remark(f"no ledger yet at {path}")
    with Ledger(path if exists else None, fallback=()) as ledger:
        yield OpenLedger(ledger=ledger, path=path, exists=exists)


@contextmanager
def ledger_to_write(given: Path | None, *, create: bool = False) -> Iterator[OpenLedger]:
    """The ledger for a change.

    Args:
        given: what ``--ledger`` says.
        create: make it where there is none.

    Raises:
        Mistake: there is none, or it is a folder.
        LedgerUnavailable, LedgerCorrupt, LedgerTooNew: it can't be used; it was left as it is.
    """
    from budgets.ledger import Ledger

    path = _file_of(given)
    exists = path.exists()
    if not exists and not create:
        raise Mistake(f"no ledger yet at {path}; name one by --ledger or EARMARK_HOME")
    with Ledger(path, fallback=() if exists else None) as ledger:
        yield OpenLedger(ledger=ledger, path=path, exists=exists)


def _file_of(given: Path | None) -> Path:
    from budgets.settings import ledger_path

    path = ledger_path(given)
    if path.is_dir():
        raise Mistake(f"ledger {path}: this is a folder; name a file in it, such as ledger.db")
    return path


def settings_of(given: Path | None) -> Settings:
    """The settings that apply here.

    Raises:
        InvalidSettings: they can't be used; names file and key.
    """
    from budgets.settings import load_settings

    return load_settings(given)


def book_of(given: Path | None, settings: Settings) -> PriceBook:
    """List prices and the price file: the one given, or that of the settings.

    Raises:
        InvalidPriceFile: it can't be used; names file, entry and field.
    """
    from budgets.prices import PriceBook, default_book

    path = given or settings.price_file
    return default_book() if path is None else PriceBook(path)


def moment(text: str | None, tz: str, *, option: str, is_end: bool = False) -> datetime | None:
    """An option's time as an instant.

    Args:
        text: an ISO date or date and time; without an offset it is in ``tz``. None stays None.
        tz: a time zone.
        option: its name, for messages.
        is_end: a date alone means the end of that day.

    Raises:
        Mistake: not a time.
        InvalidCap: not a time zone.
    """
    if text is None:
        return None
    from datetime import UTC, date, timedelta

    from budgets.windows import window_of, zone_of

    zone = zone_of(tz)
    try:
        if len(text) == len("2026-11-29"):
            # Noon exists on every day; the window knows where its day begins and ends.
            noon = datetime.combine(date.fromisoformat(text), datetime.min.time(), zone)
            window = window_of("day", tz, noon + timedelta(hours=12))
            return window.ends if is_end else window.starts
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Mistake(
            f"{option}: {text!r} is not a time; write 2026-11-29 or 2026-11-29T14:30"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
