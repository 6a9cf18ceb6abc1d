"""Results of a job: one row per document, durable as they come, and in order at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from orchestrator.errors import ConfigError

from .export import CSV, Export, Sheet
from .row import Row

JSONL = "results.jsonl"
ANSWERS = "answers.jsonl"


class Results:
    """The results of one run, in a folder.

    Rows are appended to ``results.jsonl`` as they come; ``finish`` leaves one row per document in it, in order,
    and writes the tables beside it. Answers that are too long for the ledger are filed in ``answers.jsonl``
    before they are paid for, until their rows are written.

    Args:
        folder: made if it doesn't exist. One process at a time may have it open.

    Attributes:
        outcomes, labels: how many rows have which; counted by ``finish``.

    Raises:
        ConfigError: it can't be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self._where: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._file: BinaryIO | None = None
        self._answers: BinaryIO | None = None
        self._filed: dict[str, int] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / JSONL).open("a+b")
        except OSError as error:
            raise ConfigError(
                f"results: {folder} can't be written ({error.strerror}); name another by --out"
            ) from error
        self._load()

    def _load(self) -> None:
        """Find the last row of every document; a line torn by a crash is cut off."""
        assert self._file is not None
        self._file.seek(0)
        position = 0
        for line in self._file:
            if line.endswith(b"\n"):
                row = read_row(line)
                if row is not None:
                    self._where[row.place] = (position, len(line))
                position += len(line)
        self._file.truncate(position)
        self._end = position

    def __len__(self) -> int:
        return len(self._where)

    def get(self, place: str) -> Row | None:
        """The row of a document, by its ``Row.place`` (of a file, its path)."""
        line = self._line(place)
        return None if line is None else read_row(line)

    def _line(self, place: str) -> bytes | None:
        where = self._where.get(place)
        if where is None or self._file is None:
            return None
        self._file.flush()
        self._file.seek(where[0])
        return self._file.read(where[1])

    def add(self, row: Row) -> None:
        """Append a row, at once.

        Raises:
            ConfigError: it can't be written.
        """
        assert self._file is not None
        line = json.dumps(row.to_json(), ensure_ascii=False).encode() + b"\n"
        try:
            self._file.seek(0, 2)
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"results: {self.folder / JSONL} can't be written ({error.strerror})"
            ) from error
        self._where[row.place] = (self._end, len(line))
        self._end += len(line)

    def rows(self) -> Iterator[Row]:
        """The latest row of every document, in the order of paths and rows."""
        for place in sorted(self._where):
            row = self.get(place)
            if row is not None:
                yield row

    # ---- answers on their way -----------------------------------------------------------------------

    def file_answer(self, identity: str, text: str) -> None:
        """Write an answer down before it is paid for, at once.

        Raises:
            ConfigError: it can't be written.
        """
        line = json.dumps([identity, text]).encode() + b"\n"
        try:
            if self._answers is None:
                self._answers = (self.folder / ANSWERS).open("ab")
                if self._answers.tell():
                    self._answers.write(b"\n")  # the last line may be torn
            self._answers.write(line)
            self._answers.flush()
        except OSError as error:
            raise ConfigError(
                f"results: {self.folder / ANSWERS} can't be written ({error.strerror})"
            ) from error

    def filed_answer(self, identity: str) -> str | None:
        """The latest answer that was filed for a document, by an earlier process."""
        path = self.folder / ANSWERS
        if self._filed is None:
            self._filed = dict(_filed_in(path))
        position = self._filed.get(identity)
        if position is None:
            return None
        with path.open("rb") as file:
            file.seek(position)
            return str(json.loads(file.readline())[1])

    # ---- the end ------------------------------------------------------------------------------------------

    def finish(
        self,
        keep: set[str] | None = None,
        *,
        sheet: Sheet | None = None,
        formats: tuple[str, ...] = (CSV,),
    ) -> None:
        """Put the files in order.

        Args:
            keep: documents (``Row.place``) that are part of this run; rows of others (files that are gone) are
                dropped, unless they cost something. None keeps all.
            sheet: the columns of the tables; by default those of a classification.
            formats: tables to write besides ``results.jsonl``.

        Raises:
            ConfigError: they can't be written; the rows are still there as they came.
        """
        try:
            self._finish(keep, sheet or Sheet(), formats)
        except OSError as error:
            raise ConfigError(
                f"results: {self.folder} can't be written ({error.strerror}); the rows so far are in {JSONL}"
            ) from error

    def _finish(self, keep: set[str] | None, sheet: Sheet, formats: tuple[str, ...]) -> None:
        self.outcomes.clear()
        self.labels.clear()
        fresh = self.folder / f"{JSONL}.new"
        with fresh.open("wb") as lines, Export(self.folder, sheet, formats) as export:
            for place in sorted(self._where):
                line = self._line(place)
                row = None if line is None else read_row(line)
                if row is None or line is None:
                    continue
                costs = row.posted_nanos or row.in_doubt_nanos
                if keep is not None and place not in keep and not costs:
                    continue
                self.outcomes[row.outcome.value] += 1
                if row.label is not None:
                    self.labels[row.label] += 1
                lines.write(line)
                export.write(row)
        fresh.replace(self.folder / JSONL)
        export.publish()
        self.close()
        (self.folder / ANSWERS).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; may be called twice."""
        for file in (self._file, self._answers):
            if file is not None:
                file.close()
        self._file = self._answers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError as failed:
            if error is None:  # else what could not be written has been said
                raise ConfigError(
                    f"results: {self.folder / JSONL} can't be written ({failed.strerror})"
                ) from failed


def latest_rows(folder: Path) -> Iterator[Row]:
    """The latest row of every document, for looking at only: also of a run that is under way.

    Args:
        folder: of results. Where it has none, there are no rows.
    """
    where: dict[str, int] = {}
    try:
        file = (folder / JSONL).open("rb")
    except FileNotFoundError:
        return
    with file:
        position = 0
        for line in file:
            row = read_row(line) if line.endswith(b"\n") else None
            if row is not None:
                where[row.place] = position
            position += len(line)
        for place in sorted(where):
            file.seek(where[place])
            row = read_row(file.readline())
            if row is not None:
                yield row


def _filed_in(path: Path) -> Iterator[tuple[str, int]]:
    """Where each answer of a file begins; a line torn by a crash is asked about again."""
    if not path.exists():
        return
    position = 0
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"[") and line.endswith(b"]\n"):
                yield json.loads(line)[0], position
            position += len(line)


def read_row(line: bytes) -> Row | None:
    """A line of ``results.jsonl``; None if it is no row."""
    try:
        return Row.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
