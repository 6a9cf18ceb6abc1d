"""Templates: how the columns of a row become one text, as in ``{title}`` and ``{body}`` on lines of their own."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from .record import DocumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A text with fields; a field is the name of a column, whatever characters it has.

    Attributes:
        parts: text and, after it, the name of a column (None after the last text).
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Read a template. ``{{`` and ``}}`` stand for braces.

        Raises:
            DocumentError: a brace without its partner, a field without a name, a conversion or a format.
        """
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise DocumentError(
                f"template: {error}; write {{{{ and }}}} for braces that are no fields."
            ) from None
        for _, name, form, conversion in parsed:
            if name is not None and (not name.strip() or form or conversion):
                shown = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
                raise DocumentError(
                    f"template: {shown} can't be used; a field is the name of a column and nothing else."
                )
        if not any(name is not None for _, name, _, _ in parsed):
            raise DocumentError(
                "template: there is no field in it, so that every row would be the same; write {column}."
            )
        return cls(parts=tuple((text, name) for text, name, _, _ in parsed))

    @classmethod
    def column(cls, name: str) -> Template:
        """The text of one column alone."""
        return cls(parts=(("", name),))

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that it takes, each once, in order."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def check(self, columns: Iterable[str], where: str) -> None:
        """Compare the fields with what there is.

        Raises:
            DocumentError: a column that a table does not have.
        """
        known = list(columns)
        for name in self.fields:
            if name not in known:
                raise DocumentError(f"{where}: there is no column {name!r}; {_there_are(known)}.")

    def render(self, values: Mapping[str, Any]) -> str:
        """The text of a row.

        Raises:
            KeyError: a column that this row does not have.
        """
        return "".join(
            text + ("" if name is None else as_text(values[name])) for text, name in self.parts
        )


def as_text(value: object) -> str:
    """A cell as text: nothing for null, JSON for what is nested."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=as_text)


def _there_are(columns: list[str]) -> str:
    shown = ", ".join(repr(name) for name in columns[:20])
    more = f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    return f"there are {shown}{more}" if shown else "there are none"
