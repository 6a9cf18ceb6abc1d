"""Output: JSON documents and lines for programs, tables and sentences for people.

With ``--json`` exactly one document goes to standard output and nothing else; sentences for people then
go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

_BAR_CELLS = 20
#: Of a dollar, in nano-dollars.
_TEN_THOUSANDTH = 100_000


@dataclass(slots=True)
class _State:
    """Whether a document was begun: a failure must not begin a second one."""

    json_begun: bool = False


_state = _State()


def forget() -> None:
    """A new command begins in the same process."""
    _state.json_begun = False


def json_begun() -> bool:
    """Whether a JSON document has been begun on standard output."""
    return _state.json_begun


# ---- for programs -------------------------------------------------------------------------------------


def usd(nanos: int) -> str:
    """Nano-dollars as exact dollars, without a sign of currency: ``1.50``, ``0.000125``."""
    from budgets.money import to_decimal

    return f"{to_decimal(nanos):f}"


def money(name: str, nanos: int | None) -> dict[str, Any]:
    """An amount for a document, as ``<name>_usd`` (text, exact) and ``<name>_nanos``."""
    return {f"{name}_usd": None if nanos is None else usd(nanos), f"{name}_nanos": nanos}


def instant(at: datetime | None) -> str | None:
    """An instant for a document: ISO 8601 in UTC."""
    return None if at is None else at.isoformat()


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one document."""
    _state.json_begun = True
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2, default=str) + "\n")


def print_json_line(document: Mapping[str, Any]) -> None:
    """Print one line of JSON Lines."""
    _state.json_begun = True
    sys.stdout.write(_compact(document) + "\n")


def print_json_stream(
    head: Mapping[str, Any], name: str, rows: Iterable[Mapping[str, Any]], tail: Mapping[str, Any]
) -> None:
    """Print one document with a long list in it, without having the list in memory.

    Args:
        head: fields before the list.
        name: the list's name.
        rows: its entries.
        tail: fields after the list, which ``rows`` may fill in while it runs.
    """
    _state.json_begun = True
    write = sys.stdout.write
    write(_compact(head)[:-1] + ("," if head else "") + f"\n{json.dumps(name)}:[")
    for number, row in enumerate(rows):
        write(f"{',' if number else ''}\n{_compact(row)}")
    write("\n]" + ("," + _compact(tail)[1:] if tail else "}") + "\n")


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, default=str)


# ---- for people ---------------------------------------------------------------------------------------


def say(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{shown(text)}\n")


def remark(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def dollars(nanos: int) -> str:
    """An amount in a table for people: exact up to four decimals, rounded to four beyond."""
    from budgets.money import format_usd

    return format_usd(nanos, places=4 if nanos % _TEN_THOUSANDTH else None)


def shown(value: object) -> str:
    """Text that does nothing to a terminal: control characters become a mark."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, and which side its cells lean to."""

    title: str
    side: Literal["left", "right"] = "left"


def right(title: str) -> Column:
    """A column of figures."""
    return Column(title, "right")


def print_table(columns: Sequence[Column | str], rows: Iterable[Sequence[object]]) -> None:
    """A table: drawn on a terminal, plain and untruncated in a pipe."""
    heads = [Column(each) if isinstance(each, str) else each for each in columns]
    cells = [[shown("" if cell is None else cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_drawn(heads, cells)
    else:
        _print_plain(heads, cells)


def _print_plain(heads: Sequence[Column], rows: list[list[str]]) -> None:
    titles = [head.title for head in heads]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            cell.rjust(width) if head.side == "right" else cell.ljust(width)
            for cell, width, head in zip(row, widths, heads, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _print_drawn(heads: Sequence[Column], rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head.title, justify=head.side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    terminal().print(table)


def terminal(*, stderr: bool = False) -> Console:
    """The rich console of this process: it honours ``NO_COLOR`` and knows whether a person looks."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def bar(used: int, of: int) -> str:
    """How full a cap is, in characters that every font has: ``[#####---------------]  25%``."""
    share = min(used, of) * 100 // of if of > 0 else 100
    filled = share * _BAR_CELLS // 100
    return f"[{'#' * filled}{'-' * (_BAR_CELLS - filled)}] {share:3d}%"
