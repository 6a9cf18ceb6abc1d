"""Tables: each row of a CSV, JSON Lines or Parquet file is a document, by a template of its columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .names import printable
from .reading import MAX_BYTES, text_of, why
from .record import Document, DocumentError, Problem, Refused
from .table_rows import CsvRows, JsonRows, ParquetRows, Rows, TableRow
from .template import Template, as_text

#: How files of rows are called; the first bytes say which of them it is, where they can.
SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


class Table:
    """The documents of one table; iterate over it as often as needed.

    Args:
        path: the file. What it is, is told by its first bytes: Parquet, JSON Lines, else CSV.
        template: how a row becomes a text.
        key: a column whose values name the rows; they must differ.
        max_bytes: a longer text makes its row ``too_large``.

    Attributes:
        path: the file; ``name`` is what its documents have as their path.
        columns: what it has.

    Raises:
        DocumentError: it can't be read, or there is no such column. Raised here, not while iterating, but
            for keys that are there twice.
    """

    def __init__(
        self, path: Path, *, template: Template, key: str | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = path
        self.name = printable(path.name)
        self._template = template
        self._key = key
        self._max_bytes = max_bytes
        needed = (*template.fields, *([key] if key else []))
        try:
            self._rows = _opened(path, max_bytes, tuple(dict.fromkeys(needed)))
        except OSError as error:
            raise DocumentError(f"{self.name}: it can't be read: {why(error)}.") from None
        self.columns = self._rows.columns
        template.check(self.columns, self.name)
        if key is not None and key not in self.columns:
            Template.column(key).check(self.columns, self.name)

    def __iter__(self) -> Iterator[Document | Problem]:
        seen: dict[bytes, int] = {}
        for row in self._rows.rows():
            yield self._document(row, seen)

    def _document(self, row: TableRow, seen: dict[bytes, int]) -> Document | Problem:
        key = self._key_of(row, seen)
        refused = self._refused(row, key)
        if refused is None:
            try:
                text = self._template.render(row.values)
            except KeyError as error:
                reason = f"the row has no field {error.args[0]!r}"
                refused = Refused(outcome="unreadable", reason=reason)
            else:
                read = self._read(text)
                if isinstance(read, bytes):
                    return Document(
                        path=self.name,
                        text=read.decode(),
                        bytes=len(read),
                        encoding=self._rows.encoding,
                        sha256=hashlib.sha256(read).hexdigest(),
                        note=row.note,
                        row=row.number,
                        key=key or "",
                    )
                refused = read
        return Problem(
            path=self.name,
            outcome=refused.outcome,
            reason=refused.reason,
            row=row.number,
            key=key or "",
        )

    def _refused(self, row: TableRow, key: str | None) -> Refused | None:
        if row.outcome is not None:
            return Refused(outcome=row.outcome, reason=row.reason)
        if self._key is not None and not key:
            return Refused(outcome="unreadable", reason=f"its key column {self._key!r} is empty")
        return None

    def _read(self, text: str) -> bytes | Refused:
        """The text as UTF-8, if it can be sent."""
        data = text.replace("\x00", "\ufffd").encode("utf-8", "replace")
        if len(data) > self._max_bytes:
            reason = f"{len(data):,} bytes, the limit is {self._max_bytes:,}; shorten it, or raise max_bytes"
            return Refused(outcome="too_large", reason=reason)
        if not text.strip():
            return Refused(outcome="empty", reason="the row has no text")
        told = text_of(data[:4096])
        if isinstance(told, Refused) and told.outcome == "binary":
            return told
        return data

    def _key_of(self, row: TableRow, seen: dict[bytes, int]) -> str | None:
        if self._key is None:
            return None
        key = as_text(row.values.get(self._key))
        if key:
            digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=12).digest()
            earlier = seen.setdefault(digest, row.number)
            if earlier != row.number:
                raise DocumentError(
                    f"{self.name}: the key {self._key} = {key[:80]!r} is in row {earlier} and in row "
                    f"{row.number}; keys must differ, so choose another column or mend the file."
                )
        return key


def is_table(path: Path) -> bool:
    """Whether a path is a file of rows, by its name or its first bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _opened(path: Path, max_bytes: int, needed: tuple[str, ...]) -> Rows:
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"PAR1"):
        return ParquetRows(path, needed)
    if path.suffix.lower() == ".parquet":
        raise DocumentError(f"{path.name}: it is no Parquet file.")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise DocumentError(f"{path.name}: there is nothing in it.")
    if start.startswith(b"[") and path.suffix.lower() not in {".csv", ".tsv"}:
        raise DocumentError(
            f"{path.name}: it is a JSON array, not JSON Lines; write one object a line (jq -c '.[]')."
        )
    if start.startswith(b"{") or path.suffix.lower() in {".jsonl", ".ndjson"}:
        return JsonRows(path, max_bytes)
    return CsvRows(path, max_bytes)
