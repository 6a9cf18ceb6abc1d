"""The records that leave this package: what was found, read, skipped, or could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ProblemOutcome = Literal["unreadable", "binary", "empty", "too_large"]


class DocumentError(ValueError):
    """The folder, a pattern or a limit can't be used; nothing was read.

    The message says what, where and what to do.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entry of the folder that must end in a row.

    Attributes:
        path: the path below the folder as printable text, parts joined by ``/``; no two entries
            of a folder share one. A folder that can't be listed ends in ``/``.
        file: where it is on disk (links resolved).
        trouble: why it can't be read, when the walk knows that already; else ``""``.
    """

    path: str
    file: Path
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that was read as text, or one row of a table.

    Attributes:
        path: as in ``Found``; of a row, the table's name.
        text: the whole text, without byte order mark; it can always be written as UTF-8.
        bytes: size of the file in bytes; of a row, of its text.
        encoding: the encoding that it was read as, by its Python name; of what is not text, its kind (``pdf``).
        sha256: hex digest of the file's bytes: the document's identity, whatever its name. Of a row, that of
            its text.
        note: what the reader of a report should know (characters replaced); else ``""``.
        row: of a row, its number; the first below the header is 1.
        key: of a row, what its key column says.
    """

    path: str
    text: str
    bytes: int
    encoding: str
    sha256: str
    note: str = ""
    row: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file, or a row of a table, that has no text to send, and why.

    Attributes:
        path: as in ``Found``.
        outcome: ``unreadable``, ``binary``, ``empty`` or ``too_large``; permanent for this content.
        reason: one sentence.
        row, key: as in ``Document``.
    """

    path: str
    outcome: ProblemOutcome
    reason: str
    row: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why some content has no text to send: an outcome and one sentence, not yet of any path."""

    outcome: ProblemOutcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """How many entries a walk has passed over on purpose so far; a skipped folder counts as one.

    Attributes:
        hidden: names that begin with a dot.
        excluded: matched by ``exclude``, or files not matched by ``include``.
        linked: links to something in the folder that has a row of its own.
    """

    hidden: int = 0
    excluded: int = 0
    linked: int = 0
