"""Rows of CSV, JSON Lines and Parquet become documents: numbered, with a key, each with one outcome."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.documents import Document, DocumentError, Problem, Table, Template, is_table
from orchestrator.documents.template import as_text


def rows(
    path: Path, template: str = "{text}", *, key: str | None = None, max_bytes: int = 1_000
) -> list[Document | Problem]:
    return list(Table(path, template=Template.of(template), key=key, max_bytes=max_bytes))


def said(found: list[Document | Problem]) -> list[str]:
    """Texts, and outcomes of what has none."""
    return [one.text if isinstance(one, Document) else one.outcome for one in found]


def put(folder: Path, content: bytes | str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# ---- CSV ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        pytest.param("id,text\n1,Grüße\n", "utf-8", id="utf-8"),
        pytest.param("\ufeffid,text\n1,Grüße\n", "utf-8", id="mark"),
        pytest.param("id;text\r\n1;Grüße\r\n", "utf-8", id="semicolons"),
        pytest.param("id\ttext\n1\tGrüße\n", "utf-8", id="tabs"),
        pytest.param("sep=|\nid|text\n1|Grüße\n", "utf-8", id="said by Excel"),
        pytest.param("id,text\n\n1,Grüße\n\n", "utf-8", id="blank lines"),
        pytest.param("text\nGrüße\n", "utf-8", id="one column"),
        pytest.param(
            "id;text\n1;Grüße\n".encode("cp1252") + b"2;x\n" * 9, "cp1252", id="old code page"
        ),
        pytest.param("id,text\n1,Grüße\n".encode("utf-16"), "utf-16-le", id="utf-16"),
        pytest.param("id,text\n1,Grüße\n".encode("utf-16-be"), "utf-16-be", id="without a mark"),
    ],
)
def test_csv_is_read_however_it_is_written(
    tmp_path: Path, content: bytes | str, encoding: str
) -> None:
    """Delimiter and encoding are found out; the first row below the header is row 1."""
    first = rows(put(tmp_path, content))[0]
    assert isinstance(first, Document)
    assert (first.text, first.row, first.encoding, first.path) == ("Grüße", 1, encoding, "t.csv")
    assert first.sha256 == hashlib.sha256("Grüße".encode()).hexdigest()


def test_an_odd_byte_far_into_a_file_is_found(tmp_path: Path) -> None:
    """The encoding is that of the whole file, not of its beginning."""
    line = b"plain words " * 50 + b"\n"
    content = b"text\n" + line * 3_000 + "Zürich und München\n".encode("cp1252")
    last = rows(put(tmp_path, content))[-1]
    assert isinstance(last, Document)
    assert (last.text, last.row, last.encoding) == ("Zürich und München", 3_001, "cp1252")


def test_line_breaks_and_quotes_belong_to_a_cell(tmp_path: Path) -> None:
    """What is quoted is one cell."""
    path = put(tmp_path, 'id,text\n1,"a\nb, ""c"""\n2,d\n')
    assert said(rows(path, "{id}: {text}")) == ['1: a\nb, "c"', "2: d"]


def test_rows_that_do_not_fit_are_rows(tmp_path: Path) -> None:
    """Ragged, empty, too long, binary: each ends in its outcome, and the next is read."""
    long = "x" * 1_001
    path = put(tmp_path, f"id,text\n1\n2,b,c\n3, \n4,{long}\n5,\x01\x02\x03\x04\x05\n6,ok\n")
    found = rows(path)
    assert said(found) == ["unreadable", "unreadable", "empty", "too_large", "binary", "ok"]
    assert [one.row for one in found] == [1, 2, 3, 4, 5, 6]
    assert isinstance(found[0], Problem)
    assert found[0].reason == "the row has 1 field, the header 2"


def test_a_quote_that_is_never_closed_is_bounded(tmp_path: Path) -> None:
    """It ends in an outcome instead of taking the rest of the file into memory."""
    path = put(tmp_path, 'text\n"open\n' + "filler\n" * 400_000)
    first = rows(path, max_bytes=1_000)[0]
    assert isinstance(first, Problem)
    assert (first.outcome, "never closed" in first.reason) == ("too_large", True)


# ---- JSON Lines, Parquet ----------------------------------------------------------------------------------


def test_a_quote_that_is_never_closed_swallows_no_row_in_silence(tmp_path: Path) -> None:
    """What stands behind it is no document: its row says why, and the rows before it are as they were."""
    found = rows(put(tmp_path, 'id,text\n1,a\n2,"b\n3,c\n4,d\n'))
    assert said(found) == ["a", "unreadable"]
    assert isinstance(found[1], Problem)
    assert "never closed" in found[1].reason
    assert said(rows(put(tmp_path, 'id,text\n1,"a\nb"'))) == ["a\nb"]


def test_json_lines_are_objects(tmp_path: Path) -> None:
    """Blank lines are none; a line that is no object, or lacks a field, is a row of its own."""
    long = json.dumps({"text": "x" * 9_000})
    content = f'{{"text": "a"}}\n\n[1]\nno\n{{"other": 1}}\n{{"text": null}}\n{long}\n{{"text": {{"b": [1]}}}}'
    found = rows(put(tmp_path, content, "t.jsonl"), max_bytes=1_000)
    assert said(found) == [
        *("a", "unreadable", "unreadable", "unreadable", "empty", "too_large", '{"b": [1]}'),
    ]
    assert [one.row for one in found] == [1, 2, 3, 4, 5, 6, 7]


def test_an_odd_byte_in_json_is_noted(tmp_path: Path) -> None:
    """F-02: it is replaced, not the end of the run."""
    (found,) = rows(put(tmp_path, b'{"text": "caf\xe9"}', "t.jsonl"))
    assert isinstance(found, Document)
    assert found.text == "caf\ufffd"
    assert "replaced" in found.note


def test_parquet_is_read_by_its_columns(tmp_path: Path) -> None:
    """Whatever the file is called; nulls are empty, what is nested is JSON."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"id": [7, 8, 9], "text": ["a", None, "c"], "more": [[1], [2], [3]], "big": ["x"] * 3}
    parquet.write_table(pa.table(columns), tmp_path / "t.bin")
    assert is_table(tmp_path / "t.bin")
    found = rows(tmp_path / "t.bin", "{text}{more}", key="id")
    assert said(found) == ["a[1]", "[2]", "c[3]"]
    assert [(one.row, one.key) for one in found] == [(1, "7"), (2, "8"), (3, "9")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a", "a"),
        (1, "1"),
        (True, "true"),
        (1.5, "1.5"),
        (Decimal("1.10"), "1.10"),
        (dt.date(2026, 11, 29), "2026-11-29"),
        (b"caf\xc3\xa9", "café"),
        ({"a": [dt.time(1, 2)]}, '{"a": ["01:02:00"]}'),
    ],
)
def test_cells_are_text(value: Any, text: str) -> None:
    """Whatever a file holds."""
    assert as_text(value) == text


# ---- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name", "template", "says"),
    [
        ("id,text\n1,a\n", "t.csv", "{body}", "no column 'body'; there are 'id', 'text'"),
        ("id,id\n1,a\n", "t.csv", "{id}", "two columns are called 'id'"),
        ("", "t.csv", "{a}", "nothing in it"),
        ('[{"a": 1}]', "t.jsonl", "{a}", "JSON array"),
        ("x", "t.parquet", "{a}", "no Parquet file"),
        (b"PAR1" + bytes(99), "t.parquet", "{a}", "can't be read as Parquet"),
        (b"\x00\x01\x02\x03" * 99, "t.csv", "{a}", "no text"),
        ("a\n1\n", "t.csv", "{a", "write {{ and }} for braces"),
        ("a\n1\n", "t.csv", "{a!r}", "a field is the name of a column and nothing else"),
        ("a\n1\n", "t.csv", "{a:>10}", "a field is the name of a column and nothing else"),
        ("a\n1\n", "t.csv", "{}", "a field is the name of a column and nothing else"),
        ("a\n1\n", "t.csv", "no field", "every row would be the same"),
        ("a\n1\n", "t.csv", "{a.__class__}", "no column 'a.__class__'"),
    ],
)
def test_what_can_not_be_used_is_said_before_anything_is_sent(
    tmp_path: Path, content: bytes | str, name: str, template: str, says: str
) -> None:
    """One sentence, when the table is opened."""
    path = put(tmp_path, content, name)
    with pytest.raises(DocumentError) as raised:
        Table(path, template=Template.of(template))
    assert says in str(raised.value)


def test_a_table_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    """As any other mistake."""
    with pytest.raises(DocumentError, match="it was there a moment ago"):
        Table(tmp_path / "t.csv", template=Template.column("a"))


def test_braces_can_be_written(tmp_path: Path) -> None:
    """Twice each; names of columns may have any characters."""
    path = put(tmp_path, "a b.c,d\n1,2\n")
    assert said(rows(path, "{{{a b.c}}} {d}")) == ["{1} 2"]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, name: str) -> None:
    """B-02: rows never overwrite each other; the sentence names both."""
    lines = ["id,text", "7,a", "8,b", "7,c"]
    if name == "t.jsonl":
        lines = [f'{{"id": {n}, "text": "x"}}' for n in (7, 8, 7)]
    with pytest.raises(DocumentError, match="'7' is in row 1 and in row 3"):
        rows(put(tmp_path, "\n".join(lines), name), key="id")


def test_a_key_that_is_empty_is_a_row(tmp_path: Path) -> None:
    """It has an outcome, and others without a key are no twins of it."""
    found = rows(put(tmp_path, "id,text\n,a\n,b\n1,c\n"), key="id")
    assert said(found) == ["unreadable", "unreadable", "c"]


@pytest.mark.parametrize(
    ("name", "is_one"), [("a.csv", True), ("a.NDJSON", True), ("a.txt", False), ("a.json", False)]
)
def test_tables_are_told_by_their_names(tmp_path: Path, name: str, is_one: bool) -> None:
    """Where the content does not tell; a folder of that name is a folder."""
    assert is_table(put(tmp_path, "x", name)) is is_one
    (tmp_path / "folder.csv").mkdir()
    assert not is_table(tmp_path / "folder.csv")
