"""Tables of results: CSV and Parquet join back on path and row, with the answer's fields as columns."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns.bulk import Extract, Results, Row, Sheet
from patterns.bulk.export import check_formats

TASK = Extract(
    fields={
        "properties": {
            "sum": {"type": "integer"},
            "path": {"type": "string"},
            "who": {"properties": {"name": {"type": "string"}}},
        }
    }
)
SHEET = Sheet(answers=TASK.columns, cells=TASK.cells, is_table=True)


def write(folder: Path, formats: tuple[str, ...]) -> None:
    with Results(folder) as results:
        for number in (10, 9, 100):
            results.add(
                Row(
                    path="t.csv",
                    row=number,
                    key=f"k{number}",
                    outcome=Outcome.OK,
                    value={"sum": number, "path": "=1", "who": {"name": "é\nx"}},
                )
            )
        results.add(Row(path="t.csv", row=11, outcome=Outcome.EMPTY, reason="no text"))
        results.finish(sheet=SHEET, formats=formats)


def test_both_tables_say_the_same(tmp_path: Path) -> None:
    """In the order of rows; a field that is called like one of ours is told apart; no cell is a formula."""
    write(tmp_path, ("csv", "parquet"))
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["9", "10", "11", "100"]
    assert (lines[0]["sum"], lines[0]["answer.path"], lines[0]["who.name"]) == ("9", "'=1", "é\nx")
    assert lines[2]["sum"] == ""
    table = parquet.read_table(tmp_path / "results.parquet")
    assert table.column_names == list(lines[0])
    rows = table.to_pylist()
    assert [(row["path"], row["row"], row["key"]) for row in rows] == [
        *(("t.csv", 9, "k9"), ("t.csv", 10, "k10"), ("t.csv", 11, ""), ("t.csv", 100, "k100")),
    ]
    assert (rows[0]["sum"], rows[0]["answer.path"], rows[2]["sum"]) == ("9", "=1", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("results.csv", "results.jsonl", "results.parquet"),
    ]


def test_only_what_is_asked_for_is_written(tmp_path: Path) -> None:
    """``results.jsonl`` always."""
    write(tmp_path, ())
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_rows_of_a_table_come_back(tmp_path: Path) -> None:
    """By path and row; values whole."""
    write(tmp_path, ())
    with Results(tmp_path) as results:
        (row,) = [row for row in results.rows() if row.row == 100]
        assert results.get(row.place) == row
        assert row.value["who"] == {"name": "é\nx"}


def test_a_format_that_can_not_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigError, match="'xlsx' is not one of csv, parquet"):
        check_formats(("csv", "xlsx"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"earmark\[parquet\]"):
        check_formats(("parquet",))
