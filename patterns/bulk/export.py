"""Export: rows as tables, CSV and Parquet, which join back on path and row."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from orchestrator.errors import ConfigError

from .row import Row

CSV, PARQUET = "csv", "parquet"
FORMATS = (CSV, PARQUET)
_BEHIND = ("outcome", "reason", "cost_usd", "in_doubt_usd", "encoding", "bytes", "identity")
_PARQUET_ROWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The columns of a job's tables.

    Attributes:
        answers: columns of the answers.
        cells: takes a row's label or value and returns its cells by column.
        is_table: documents are rows of a table, so that tables have ``row`` and ``key``.
    """

    answers: tuple[str, ...] = ("label",)
    cells: Callable[[Any], Mapping[str, Any]] | None = None
    is_table: bool = False

    @property
    def front(self) -> tuple[str, ...]:
        """Columns before the answer."""
        return ("path", "row", "key") if self.is_table else ("path",)

    @property
    def columns(self) -> tuple[str, ...]:
        """All, in order. A field that is called like one of ours has ``answer.`` before its name."""
        return (*self.front, *map(self._named, self.answers), *_BEHIND, *self._twin)

    @property
    def _twin(self) -> tuple[str, ...]:
        return ("same_as",)

    def _named(self, name: str) -> str:
        ours = {*self.front, *_BEHIND, *self._twin}
        return f"answer.{name}" if name in ours else name

    def record(self, row: Row) -> dict[str, Any]:
        """One row's cells by column."""
        plain = row.to_json()
        answer: Mapping[str, Any] = {"label": row.label}
        if self.cells is not None:
            answer = self.cells(row.label if row.value is None else row.value)
        return {
            **{name: plain[name] for name in (*self.front, *_BEHIND, *self._twin)},
            **{self._named(name): answer.get(name) for name in self.answers},
        }


class Export:
    """Tables that are written beside their places, and put there by ``publish``.

    Args:
        folder: where they go.
        sheet: their columns.
        formats: of ``FORMATS``.

    Raises:
        ConfigError: Parquet, and pyarrow is missing.
    """

    def __init__(
        self, folder: Path, sheet: Sheet, formats: tuple[str, ...], *, name: str = "results"
    ) -> None:
        self._paths = [folder / f"{name}.{form}" for form in formats]
        self._sheet = sheet
        self._writers: list[_Writer] = []
        for path in self._paths:
            make = _Parquet if path.suffix == ".parquet" else _Csv
            self._writers.append(make(_fresh(path), sheet.columns))

    def write(self, row: Row) -> None:
        """Add a row to each table."""
        if self._writers:
            record = self._sheet.record(row)
            for writer in self._writers:
                writer.write(record)

    def publish(self) -> None:
        """Put the tables in their places."""
        for path in self._paths:
            _fresh(path).replace(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            writer.close()


def check_formats(formats: tuple[str, ...]) -> None:
    """Formats that can be written here.

    Raises:
        ConfigError: one that is not known, or whose library is missing.
    """
    for form in formats:
        if form not in FORMATS:
            raise ConfigError(f"format: {form!r} is not one of {', '.join(FORMATS)}")
    if PARQUET in formats:
        _arrow()


class _Writer(Protocol):
    def write(self, record: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class _Csv:
    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._file: TextIO = path.open("w", encoding="utf-8-sig", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow([cell(name) for name in columns])

    def write(self, record: Mapping[str, Any]) -> None:
        self._writer.writerow([cell(record[name]) for name in self._columns])

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """All columns are text, but for ``row`` and ``bytes``: a column has one type in every run."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        arrow, parquet = _arrow()
        self._arrow = arrow
        self._schema = arrow.schema(
            [
                (name, arrow.int64() if name in {"row", "bytes"} else arrow.string())
                for name in columns
            ]
        )
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, record: Mapping[str, Any]) -> None:
        self._rows.append(
            {
                name: value if name in {"row", "bytes"} else _words(value)
                for name, value in record.items()
            }
        )
        if len(self._rows) >= _PARQUET_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


def cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def _words(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            'format: Parquet takes a further library: pip install "earmark[parquet]"'
        ) from None
    return pa, parquet
