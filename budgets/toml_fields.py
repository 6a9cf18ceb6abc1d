"""Reading the fields of a TOML file strictly: a wrong one is refused with file, entry and field."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from .errors import InvalidInput

_C = TypeVar("_C", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One table of a file.

    Attributes:
        where: names file and entry in messages.
        table: what was read.
        error: the class of what is raised.
    """

    where: str
    table: Mapping[str, object]
    error: type[InvalidInput]

    def only(self, known: Collection[str]) -> None:
        """Refuse every field that is not known, with the nearest that is."""
        for field in self.table:
            if field not in known:
                near = difflib.get_close_matches(field, sorted(known), n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
                )
                self.refuse(field, f"is not a known field; {hint}")

    def count(self, field: str, *, most: int, least: int = 0, default: int | None = None) -> int:
        """A whole number in a range; refused if it is neither written nor has a default."""
        value = self.table.get(field, default)
        if value is None:
            self.refuse(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(field, f"{value!r} is not a whole number from {least} to {most:,}")
        return value

    def text(self, field: str, *, default: str | None = None) -> str:
        """Text that is not blank; refused if it is neither written nor has a default."""
        value = self.table.get(field, default)
        if value is None:
            self.refuse(field, "is missing")
        if not isinstance(value, str) or not value.strip():
            self.refuse(field, f"{value!r} is not a name")
        return value

    def yes(self, field: str) -> bool:
        """True or false; false if it is not written."""
        value = self.table.get(field, False)
        if not isinstance(value, bool):
            self.refuse(field, f"{value!r} is neither true nor false")
        return value

    def sub(self, field: str, known: Collection[str]) -> Fields | None:
        """The fields of a table within this one, None if it is not written."""
        value = self.table.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(field, "write a table, such as { input = '2', output = '10' }")
        inner = Fields(where=f"{self.where}, {field}", table=value, error=self.error)
        inner.only(known)
        return inner

    def choice(self, field: str, choices: tuple[_C, ...]) -> _C:
        """One of the choices; the first is the default."""
        value = self.table.get(field, choices[0])
        found = [choice for choice in choices if choice == value]
        if not found:
            self.refuse(field, f"{value!r} is not one of {', '.join(choices)}")
        return found[0]

    def refuse(self, field: str, why: str) -> NoReturn:
        """Raise the error about a field."""
        msg = f"{self.where}: {field}: {why}"
        raise self.error(msg)


def read_toml(path: Path, *, what: str, error: type[InvalidInput]) -> dict[str, object]:
    """The tables of a TOML file in UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        what: names its kind in messages, such as ``price file``.
        error: the class of what is raised when it can't be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as cause:
        msg = f"{what} {path} can't be read: {cause.strerror or cause}"
        raise error(msg) from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        msg = f"{what} {path} is not valid TOML: {cause}"
        raise error(msg) from cause


def entries_of(
    value: object, *, where: str, heading: str, error: type[InvalidInput]
) -> tuple[Fields, ...]:
    """The tables of a list that is headed ``[[heading]]``, each named by its number.

    Args:
        value: what the file has under the heading.
        where: names the file in messages.
        heading: as the file writes it.
        error: the class of what is raised if it is no list of tables.
    """
    if not isinstance(value, list) or not value:
        msg = f"{where}: {heading}: the file needs at least one entry headed [[{heading}]]"
        raise error(msg)
    found = []
    for number, table in enumerate(value, start=1):
        entry = f"{where}, [[{heading}]] number {number}"
        if not isinstance(table, dict):
            msg = f"{entry}: {heading}: write a table headed [[{heading}]]"
            raise error(msg)
        found.append(Fields(where=entry, table=table, error=error))
    return tuple(found)
