"""Rows of CSV, JSON Lines and Parquet files, lazily: each as its values, or as what is wrong with it."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from . import codepages
from .decoding import Decoded, decode
from .record import DocumentError, ProblemOutcome

_SAMPLE_BYTES = 256 * 1024
_CHUNK_BYTES = 1024 * 1024
_SNIFFED_ROWS = 50
_SCHEMA_ROWS = 200
_DELIMITERS = (",", ";", "\t", "|")
_PARQUET_ROWS = 256
#: What pyarrow's own errors derive from.
_PARQUET_ERRORS = (ValueError, OSError, NotImplementedError, KeyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row: its values by column, or why it has none."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    outcome: ProblemOutcome | None = None
    reason: str = ""
    note: str = ""


class Rows(Protocol):
    """A table that can be read as often as one likes.

    Attributes:
        columns: what it has; of JSON Lines, what its first rows have.
        encoding: how its text is written; ``parquet``.
    """

    columns: tuple[str, ...]
    encoding: str

    def rows(self) -> Iterator[TableRow]:
        """All rows from the first on, numbered from 1."""


class CsvRows:
    """A CSV file: delimiter and encoding are found out, the first row is the header.

    Args:
        path: the file.
        max_bytes: of a field; a longer one makes its row ``too_large``.

    Raises:
        DocumentError: no text, no header, or two columns of one name.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self.encoding = _encoding_of(path)
        # Of the whole process, hence only ever raised; Python's own limit is 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
        self._max_bytes = max_bytes
        with self._open() as file:
            sample = file.read(_SAMPLE_BYTES)
        self._named = sample.startswith("sep=") and sample[5:6] in {"\r", "\n"}
        self.delimiter = sample[4] if self._named else _delimiter_of(sample)
        header = next(self._records(), None)
        if not isinstance(header, list):
            raise DocumentError(f"{path.name}: there is no header row; write one.")
        names = [name.strip() or f"column {at}" for at, name in enumerate(header, 1)]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise DocumentError(f"{path.name}: two columns are called {twice!r}; rename one.")
        self.columns = tuple(names)

    def _open(self) -> io.TextIOWrapper:
        codec = {"utf-8": "utf-8-sig", "utf-16-le": "utf-16", "utf-16-be": "utf-16"}
        name = codec.get(self.encoding, self.encoding)
        with self._path.open("rb") as file:
            if name == "utf-16" and file.read(2) not in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
                name = self.encoding
        return self._path.open(encoding=name, errors="replace", newline="")

    def _records(self) -> Iterator[list[str] | csv.Error]:
        """Records that are not blank, the header first."""
        with self._open() as file:
            if self._named:
                file.readline()
            lines = _Lines(file, self._max_bytes)
            reader = csv.reader(lines, delimiter=self.delimiter)
            while True:  # ends with the file
                try:
                    record = next(reader, None)
                except csv.Error as error:
                    yield error
                    continue
                if record is None:
                    return
                if lines.ended:  # it asked for a further line: rows may have been swallowed
                    yield csv.Error("a quote that is never closed; the rest of the file is in it")
                    return
                if record and record != [""]:
                    yield record

    def rows(self) -> Iterator[TableRow]:
        """All rows; one of another length than the header is ``unreadable``."""
        records = self._records()
        next(records, None)
        for number, record in enumerate(records, 1):
            if isinstance(record, csv.Error):
                is_long = "field larger" in str(record)
                reason = (
                    f"a field of more than {csv.field_size_limit():,} bytes (a quote that is never closed?)"
                    if is_long
                    else f"not CSV: {record}"
                )
                yield TableRow(
                    number=number, outcome="too_large" if is_long else "unreadable", reason=reason
                )
            elif len(record) != len(self.columns):
                reason = f"the row has {_fields(len(record))}, the header {len(self.columns)}"
                yield TableRow(number=number, outcome="unreadable", reason=reason)
            else:
                lost = sum(cell.count("\ufffd") for cell in record)
                note = f"{lost:,} characters are not valid {self.encoding}" if lost else ""
                yield TableRow(
                    number=number, values=dict(zip(self.columns, record, strict=True)), note=note
                )


class JsonRows:
    """A JSON Lines file: one object a line.

    Raises:
        DocumentError: nothing in it, or a JSON array.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self.encoding = "utf-8"
        seen: dict[str, None] = {}
        for row in self.rows():
            seen.update(dict.fromkeys(row.values))
            if row.number >= _SCHEMA_ROWS:
                break
        self.columns = tuple(seen)

    def rows(self) -> Iterator[TableRow]:
        """All lines that are not blank."""
        # A line holds the fields and what JSON needs around them, escaped at worst as \\uXXXX.
        limit = 8 * self._max_bytes
        number = 0
        with self._path.open("rb") as file:
            if file.read(3) != codecs.BOM_UTF8:
                file.seek(0)
            while line := file.readline(limit + 1):
                is_long = len(line) > limit
                if is_long:
                    _skip_line(file, line)
                elif not line.strip():
                    continue
                number += 1
                if is_long:
                    reason = f"a line of more than {limit:,} bytes"
                    yield TableRow(number=number, outcome="too_large", reason=reason)
                else:
                    yield _json_row(number, line)


class ParquetRows:
    """A Parquet file; only the columns that are needed are read.

    Args:
        path: the file.
        needed: columns to read; the others are only named.

    Raises:
        DocumentError: pyarrow is missing, or it can't be read.
    """

    def __init__(self, path: Path, needed: tuple[str, ...]) -> None:
        try:
            from pyarrow import parquet  # type: ignore[import-untyped]
        except ImportError:
            raise DocumentError(
                f'{path.name}: Parquet takes a further library: pip install "earmark[parquet]".'
            ) from None
        self._path = path
        self._needed = list(needed)
        self._parquet = parquet
        self.encoding = "parquet"
        try:
            with parquet.ParquetFile(path) as file:
                self.columns = tuple(file.schema_arrow.names)
        except _PARQUET_ERRORS as error:
            raise _damaged(path, error) from None

    def rows(self) -> Iterator[TableRow]:
        """All rows, some hundred in memory at a time.

        Raises:
            DocumentError: the file is damaged further in.
        """
        number = 0
        try:
            with self._parquet.ParquetFile(self._path) as file:
                wanted = [name for name in self._needed if name in self.columns]
                for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=wanted):
                    for values in batch.to_pylist():
                        number += 1
                        yield TableRow(number=number, values=values)
        except _PARQUET_ERRORS as error:
            raise _damaged(self._path, error) from None


def _damaged(path: Path, error: Exception) -> DocumentError:
    said = " ".join(str(error).split())[:120]
    return DocumentError(f"{path.name}: it can't be read as Parquet ({said}).")


def _json_row(number: int, line: bytes) -> TableRow:
    note = ""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("utf-8", "replace")
        note = "characters that are not valid utf-8 were replaced"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return TableRow(number=number, outcome="unreadable", reason="the line is not JSON")
    if not isinstance(values, dict):
        return TableRow(number=number, outcome="unreadable", reason="the line is no JSON object")
    return TableRow(number=number, values=values, note=note)


def _skip_line(file: BinaryIO, piece: bytes) -> None:
    while piece and not piece.endswith(b"\n"):  # bounded by the file
        piece = file.readline(_CHUNK_BYTES)


class _Lines:
    """Lines, and pieces of lines that are longer than any row may be: ``csv`` refuses those then.

    Attributes:
        ended: more was asked for than there is.
    """

    def __init__(self, file: io.TextIOWrapper, limit: int) -> None:
        self._file = file
        self._limit = limit + _CHUNK_BYTES
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._limit)
        if not line:
            self.ended = True
            raise StopIteration
        return line


def _encoding_of(path: Path) -> str:
    """UTF-8 if all of the file is; else by a sample around the first byte that is not."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = b""
    with path.open("rb") as file:
        head = file.read(_SAMPLE_BYTES)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in head[:4096]:
            found = decode(head[: len(head) // 4 * 4])
            if isinstance(found, Decoded):
                return found.encoding
            raise DocumentError(f"{path.name}: it is no text ({found.reason}).")
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                return codepages.guess((before + chunk)[-2 * _SAMPLE_BYTES :])
            before = chunk[-_SAMPLE_BYTES:]
    return "utf-8"


def _delimiter_of(sample: str) -> str:
    """The one that cuts the first rows into equally many fields, and into most."""
    best, most = ",", (0, 0)
    for delimiter in _DELIMITERS:
        widths = []
        try:
            for record in csv.reader(io.StringIO(sample), delimiter=delimiter):
                if record:
                    widths.append(len(record))
                if len(widths) == _SNIFFED_ROWS:
                    break
        except csv.Error:
            continue
        first = widths[0] if widths else 0
        alike = sum(width == first for width in widths)
        score = (alike * 100 // max(len(widths), 1) if first > 1 else 0, first)
        if score > most:
            best, most = delimiter, score
    return best


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"
