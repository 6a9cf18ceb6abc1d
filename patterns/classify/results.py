"""Results of a classification: one row per file, durable as they come, and in order at the end."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from budgets.money import format_usd
from orchestrator.context import TOKENS
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome

JSONL, CSV = "results.jsonl", "results.csv"
_COLUMNS = (
    "path",
    "label",
    "outcome",
    "reason",
    "cost_usd",
    "in_doubt_usd",
    "encoding",
    "bytes",
    "identity",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one file.

    Attributes:
        path: relative to the folder.
        outcome: one word of the closed set; ``label`` is set only for ``ok``.
        reason: one sentence, empty for ``ok``.
        posted_nanos, in_doubt_nanos: what it cost over all its calls, and what is in doubt.
        calls: HTTP attempts.
        tokens: the four disjoint classes.
        identity: hash of content, prompt, schema and model; empty where there was nothing to send.
        sha256, encoding, bytes, note: of the file, as it was read.
        reused: the answer was there from an earlier, interrupted try; nothing was paid again.
    """

    path: str
    outcome: Outcome
    label: str | None = None
    reason: str = ""
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    calls: int = 0
    tokens: Mapping[str, int] = field(default_factory=dict)
    identity: str = ""
    sha256: str = ""
    encoding: str = ""
    bytes: int = 0
    note: str = ""
    reused: bool = False

    def to_json(self) -> dict[str, Any]:
        """The row as it is written: amounts as exact strings of dollars, nano-dollars beside them."""
        record = asdict(self)
        record["outcome"] = self.outcome.value
        del record["tokens"]
        record["cost_usd"] = format_usd(self.posted_nanos).removeprefix("$")
        record["in_doubt_usd"] = format_usd(self.in_doubt_nanos).removeprefix("$")
        record.update({name: int(self.tokens.get(name, 0)) for name in TOKENS})
        return record

    def as_reused(self) -> Row:
        """The same, as an answer that was there before."""
        return replace(self, reused=True)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Row:
        """A written row.

        Raises:
            KeyError, ValueError, TypeError: not a row.
        """
        return cls(
            path=record["path"],
            outcome=Outcome(record["outcome"]),
            label=record.get("label"),
            reason=record.get("reason", ""),
            posted_nanos=int(record.get("posted_nanos", 0)),
            in_doubt_nanos=int(record.get("in_doubt_nanos", 0)),
            calls=int(record.get("calls", 0)),
            tokens={name: int(record.get(name, 0)) for name in TOKENS},
            identity=record.get("identity", ""),
            sha256=record.get("sha256", ""),
            encoding=record.get("encoding", ""),
            bytes=int(record.get("bytes", 0)),
            note=record.get("note", ""),
            reused=bool(record.get("reused", False)),
        )


class Results:
    """The results of one run, in a folder.

    Rows are appended to ``results.jsonl`` as they come; ``finish`` leaves one row per path in it, in order,
    and writes ``results.csv``.

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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / JSONL).open("a+b")
        except OSError as error:
            raise ConfigError(
                f"results: {folder} can't be written ({error.strerror}); name another by --out"
            ) from error
        self._load()

    def _load(self) -> None:
        """Find the last row of every path; a line torn by a crash is cut off."""
        assert self._file is not None
        self._file.seek(0)
        position = 0
        for line in self._file:
            if line.endswith(b"\n"):
                row = _read(line)
                if row is not None:
                    self._where[row.path] = (position, len(line))
                position += len(line)
        self._file.truncate(position)
        self._end = position

    def __len__(self) -> int:
        return len(self._where)

    def get(self, path: str) -> Row | None:
        """The row of a path."""
        where = self._where.get(path)
        if where is None or self._file is None:
            return None
        self._file.flush()
        self._file.seek(where[0])
        return _read(self._file.read(where[1]))

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
        self._where[row.path] = (self._end, len(line))
        self._end += len(line)

    def rows(self) -> Iterator[Row]:
        """The latest row of every path, in the order of paths."""
        for path in sorted(self._where):
            row = self.get(path)
            if row is not None:
                yield row

    def finish(self, keep: set[str] | None = None) -> None:
        """Put the files in order.

        Args:
            keep: paths that are part of this run; rows of others (files that are gone) are dropped, unless
                they cost something. None keeps all.

        Raises:
            ConfigError: they can't be written; the rows are still there as they came.
        """
        try:
            self._finish(keep)
        except OSError as error:
            raise ConfigError(
                f"results: {self.folder} can't be written ({error.strerror}); the rows so far are in {JSONL}"
            ) from error

    def _finish(self, keep: set[str] | None) -> None:
        self.outcomes.clear()
        self.labels.clear()
        fresh = self.folder / f"{JSONL}.new"
        with (
            fresh.open("wb") as lines,
            (self.folder / f"{CSV}.new").open("w", encoding="utf-8-sig", newline="") as table,
        ):
            writer = csv.writer(table)
            writer.writerow(_COLUMNS)
            for row in self.rows():
                costs = row.posted_nanos or row.in_doubt_nanos
                if keep is not None and row.path not in keep and not costs:
                    continue
                self.outcomes[row.outcome.value] += 1
                if row.label is not None:
                    self.labels[row.label] += 1
                record = row.to_json()
                lines.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                writer.writerow([_cell(record[name]) for name in _COLUMNS])
        fresh.replace(self.folder / JSONL)
        (self.folder / f"{CSV}.new").replace(self.folder / CSV)
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _read(line: bytes) -> Row | None:
    try:
        return Row.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError):
        return None


def _cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
