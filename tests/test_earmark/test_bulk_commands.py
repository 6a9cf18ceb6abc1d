"""``earmark extract``, ``map`` and ``results``, tables as inputs, and every mistake with them."""

# ruff: noqa: F811 (the server of the tests beside is a fixture here, too)

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.simulator import Fault, SimulatorThread
from tests.test_orchestrator.papers import docx, pdf

from .classifying import LABELS, lines_of, rows_of, write_documents
from .conftest import Program
from .test_classify import SIMULATED, faults, healthy, server  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "string"},
        "party": {"type": "object", "properties": {"name": {"type": ["string", "null"]}}},
        "lines": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["number"],
}
MODELS = """
from pydantic import BaseModel

class Invoice(BaseModel):
    number: str
    total: float | None = None
"""
TABLE = "id;title;body\n1;Invoice;wrong\n2;Login;lost\n3;Invoice;wrong\n4;;\n5;short\n"


@pytest.fixture
def files(folder: Path) -> Path:
    """A folder of documents, a table, a schema, a prompt."""
    write_documents(folder / "docs", 3)
    (folder / "docs" / "a.pdf").write_bytes(pdf("Invoice 7"))
    (folder / "docs" / "b.dat").write_bytes(docx("Order 8"))
    (folder / "t.csv").write_text(TABLE)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    (folder / "invoices.py").write_text(MODELS)
    (folder / "prompt.txt").write_text("Summarise it.")
    return folder


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_extract_fills_the_fields_of_a_schema(
    earmark: Program, files: Path, server: SimulatorThread
) -> None:
    """Nested fields are columns in the table, and whole in JSON; PDF and Word are read."""
    ran = earmark("extract", "docs", "--schema", "schema.json", "--out", "out", "--json")
    assert (ran.code, ran.json["outcomes"], ran.json["command"]) == (0, {"ok": 5}, "extract")
    rows = {row["path"]: row for row in rows_of(files / "out")}
    assert rows["a.pdf"]["encoding"] == "pdf"
    assert "Invoice 7" in rows["a.pdf"]["value"]["number"]
    assert "Order 8" in rows["b.dat"]["value"]["number"]
    assert set(rows["a.pdf"]["value"]) >= {"number", "party", "lines"}
    first = table_of(files / "out" / "results.csv")[0]
    assert list(first)[:4] == ["path", "number", "party.name", "lines"]
    assert json.loads(first["lines"]) == rows["a.pdf"]["value"]["lines"]
    assert ran.json["posted_nanos"] == server.bill.nanos


def test_extract_takes_a_pydantic_model(earmark: Program, files: Path) -> None:
    """Out of a module in the working folder, which is not left on the path."""
    ran = earmark(
        *("extract", "docs", "--schema", "pydantic:invoices:Invoice", "--out", "out", "--json"),
        SIMULATED,
    )
    assert (ran.code, ran.json["outcomes"]) == (0, {"ok": 5})
    assert set(rows_of(files / "out")[0]["value"]) == {"number", "total"}
    assert str(files) not in sys.path


@pytest.mark.parametrize("schema", [(), ("--schema", "schema.json")], ids=["text", "schema"])
def test_map_runs_a_prompt(
    earmark: Program, files: Path, server: SimulatorThread, schema: tuple[str, ...]
) -> None:
    """In free text, or by a schema; Parquet beside CSV."""
    ran = earmark(
        *("map", "docs", "--prompt", "prompt.txt", *schema, "--out", "out", "--json"),
        *("--format", "csv,parquet"),
    )
    assert (ran.code, ran.json["outcomes"]) == (0, {"ok": 5})
    value = rows_of(files / "out")[0]["value"]
    assert isinstance(value, dict) if schema else "Invoice 7" in value
    assert (files / "out" / "results.parquet").exists()


def test_a_long_answer_is_cut_where_one_says(
    earmark: Program, files: Path, server: SimulatorThread
) -> None:
    """``--max-tokens``: the row says so, and goes on with more."""
    (files / "docs" / "a.pdf").write_bytes(pdf("[[sim:output=80]]"))
    line = ("map", "docs", "--prompt", "prompt.txt", "--out", "out", "--json")
    first = earmark(*line, "--max-tokens", "40")
    assert (first.code, first.json["outcomes"]) == (1, {"ok": 4, "truncated": 1})
    again = earmark(*line, "--max-tokens", "100", "--resume")
    assert (again.code, again.json["outcomes"]) == (0, {"ok": 5})
    assert server.bill.requests == 6


# ---- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_of_a_table_are_documents(
    earmark: Program, files: Path, server: SimulatorThread, kind: str
) -> None:
    """Each ends in one row of the results, by its number and its key; equal ones are paid once."""
    records = [
        dict(zip(("id", "title", "body"), line.split(";"), strict=True))
        for line in TABLE.split()[1:5]
    ]
    if kind == "jsonl":
        (files / "t.jsonl").write_text("\n".join(map(json.dumps, records)))
    elif kind == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(records), files / "t.parquet")
    name = f"t.{kind}"
    line = ("classify", name, "--labels", LABELS, "--template", "{title}\\n{body}", "--key", "id")
    ran = earmark(*line, "--out", "out", "--json")
    rows = rows_of(files / "out")
    expected = ["ok", "ok", "ok", "empty", "unreadable"][: 5 if kind == "csv" else 4]
    assert [row["outcome"] for row in rows] == expected
    assert [row["row"] for row in rows] == list(range(1, len(expected) + 1))
    assert [row["key"] for row in rows][:4] == ["1", "2", "3", "4"]
    assert {row["path"] for row in rows} == {name}
    assert (rows[2]["same_as"], rows[2]["label"]) == (f"{name}#1", rows[0]["label"])
    assert (server.bill.requests, ran.json["same"]) == (2, 1)
    table = table_of(files / "out" / "results.csv")
    assert [(line["path"], line["row"]) for line in table] == [
        (name, str(row["row"])) for row in rows
    ]
    again = earmark(*line, "--out", "out", "--json", "--resume")
    assert again.json["outcomes"] == ran.json["outcomes"]
    assert server.bill.requests == 2


def test_a_template_may_be_a_file(earmark: Program, files: Path) -> None:
    """As long as it has a field."""
    (files / "template.md").write_text("# {title}\n{body}\n")
    line = ("map", "t.csv", "--prompt", "prompt.txt", "--template", "template.md", SIMULATED)
    ran = earmark(*line, "--out", "out", "--json")
    assert ran.json["outcomes"]["ok"] == 4
    assert "# Invoice" in rows_of(files / "out")[0]["value"]


def test_rows_that_a_run_did_not_come_to_are_rows(
    earmark: Program, files: Path, server: SimulatorThread
) -> None:
    """A cap stops; what is left says so, and the way on is printed as it must be typed."""
    (files / "many.csv").write_text("text\n" + "\n".join(f"Ticket {n} bug" for n in range(40)))
    line = ("map", "many.csv", "--prompt", "prompt.txt", "--column", "text", "--out", "out")
    ran = earmark(*line, "--cap", "0.0003", "--max-tokens", "40", "--width", "1")
    assert ran.code == 3
    rows = rows_of(files / "out")
    assert [row["row"] for row in rows] == list(range(1, 41))
    assert {row["outcome"] for row in rows} == {"ok", "budget"}
    (on,) = [text for text in ran.out.splitlines() if text.startswith("go on")]
    words = shlex.split(on.removeprefix("go on").strip())
    assert words[0] == "earmark"
    words[words.index("MORE")] = "5"
    done = earmark(*words[1:], "--json")
    assert (done.code, done.json["outcomes"]) == (0, {"ok": 40})
    assert server.bill.requests == 40


# ---- results ------------------------------------------------------------------------------------------


@pytest.fixture
def ran(earmark: Program, files: Path, server: SimulatorThread) -> dict[str, Any]:
    """A run of which some documents failed."""
    (files / "docs" / "x.bin").write_bytes(b"\x7fELF" + bytes(99))
    faults(server, Fault(kind="unauthorized"))
    line = ("classify", "docs", "--labels", LABELS, "--out", "out", "--width", "1", "--json")
    summary = earmark(*line).json
    healthy(server)
    assert summary["outcomes"] == {"auth": 1, "binary": 1, "ok": 4}
    return dict(summary)


@pytest.mark.parametrize("how", ["folder", "id", "beginning"])
def test_results_finds_a_run(earmark: Program, files: Path, ran: dict[str, Any], how: str) -> None:
    """By its folder, its id, or the beginning of that."""
    name = {"folder": "out", "id": ran["run"], "beginning": ran["run"][:-2]}[how]
    found = earmark("results", name, "--json").json
    assert (found["run"], found["count"], found["outcomes"]) == (ran["run"], 6, ran["outcomes"])


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        (["--failed"], ["auth", "binary"]),
        (["--outcome", "auth"], ["auth"]),
        (["--outcome", "ok", "--outcome", "binary"], ["ok"] * 4 + ["binary"]),
        (["--failed", "--outcome", "ok"], []),
        ([], ["auth", "ok", "ok", "ok", "ok", "binary"]),
    ],
    ids=str,
)
def test_results_are_filtered(
    earmark: Program,
    files: Path,
    ran: dict[str, Any],
    options: list[str],
    outcomes: list[str],
) -> None:
    """Filters may be combined; rows come in order."""
    found = earmark("results", "out", *options, "--json").json
    assert sorted(row["outcome"] for row in found["rows"]) == sorted(outcomes)
    assert [row["path"] for row in found["rows"]] == sorted(row["path"] for row in found["rows"])


def test_results_of_a_label(earmark: Program, files: Path, ran: dict[str, Any]) -> None:
    """The documents that got it."""
    wanted = next(row["label"] for row in rows_of(files / "out") if row["label"])
    found = earmark("results", "out", "--label", wanted, "--json").json
    assert {row["label"] for row in found["rows"]} == {wanted}
    assert found["count"] == ran["labels"][wanted]


def test_the_command_that_goes_on_mends_what_can_be_mended(
    earmark: Program, files: Path, ran: dict[str, Any], server: SimulatorThread
) -> None:
    """It is printed, and works as it stands; what failed for good is not tried again."""
    said = earmark("results", "out", "--failed")
    (on,) = [line for line in said.out.splitlines() if line.startswith("go on: ")]
    words = shlex.split(on.removeprefix("go on: "))
    done = earmark(*words[1:], "--json")
    assert done.json["outcomes"] == {"binary": 1, "ok": 5}
    assert server.bill.requests == 5


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_rows_are_written_where_one_says(
    earmark: Program, files: Path, ran: dict[str, Any], form: str
) -> None:
    """In the form that the name says, with the columns of the run."""
    said = earmark("results", "out", "--failed", "--out", f"failed.{form}")
    assert said.code == 0
    assert "2 rows" in said.out
    if form == "csv":
        assert [line["path"] for line in table_of(files / "failed.csv")] == ["a.pdf", "x.bin"]
    assert (files / f"failed.{form}").stat().st_size > 0


def test_results_of_an_extraction_keep_their_columns(earmark: Program, files: Path) -> None:
    """Without the schema, which may have changed since."""
    line = ("extract", "docs", "--schema", "schema.json", "--out", "out", SIMULATED)
    assert earmark(*line).code == 0
    (files / "schema.json").unlink()
    assert earmark("results", "out", "--out", "rows.csv").code == 0
    mine, theirs = table_of(files / "rows.csv"), table_of(files / "out" / "results.csv")
    assert mine == theirs
    assert "party.name" in mine[0]


# ---- mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("map docs --prompt nowhere.txt", "nowhere.txt"),
        ("map docs --prompt empty.txt", "prompt: it is empty"),
        ("extract docs --schema nowhere.json", "nowhere.json"),
        ("extract docs --schema prompt.txt", "not JSON"),
        ("extract docs --schema list.json", "no JSON object"),
        ("extract docs --schema pydantic:invoices", "write pydantic:module:Class"),
        ("extract docs --schema pydantic:nowhere:X", "can't be imported"),
        ("extract docs --schema pydantic:leaves:X", "can't be imported (SystemExit"),
        ("extract docs --schema pydantic:invoices:BaseModel2", "no pydantic model"),
        ("extract docs --schema pydantic:json:loads", "no pydantic model"),
        ("map t.csv --prompt prompt.txt", "by --column NAME or by --template"),
        ("map t.csv --prompt prompt.txt --column body --template {body}", "by --column NAME or"),
        ("map t.csv --prompt prompt.txt --column nope", "no column 'nope'"),
        ("map t.csv --prompt prompt.txt --template nope.txt", "has no field such as"),
        ("map t.csv --prompt prompt.txt --column body --include x", "are for folders"),
        ("map t.csv --prompt prompt.txt --column id --key title", "is in row 1 and in row 3"),
        ("map docs --prompt prompt.txt --column body", "is for tables"),
        ("map docs --prompt prompt.txt --format xlsx", "not one of csv, parquet"),
        ("map prompt.txt --prompt prompt.txt", "is a file, not a folder"),
        ("map docs --prompt prompt.txt --resume", "no earlier run of docs is in mapped"),
        ("results nowhere", "no results of it are known here"),
        ("results docs", "no results of it are known here"),
        ("results used --out x.txt", "ends in .jsonl, .csv or .parquet"),
        ("results used --out used/x.csv", "name another place"),
        ("results used --outcome fine", "is not one of"),
    ],
)
def test_a_mistake_is_one_sentence(earmark: Program, files: Path, line: str, sentence: str) -> None:
    """J-07: exit 2, nothing sent, nothing left behind."""
    (files / "empty.txt").write_text(" ")
    (files / "list.json").write_text("[1]")
    (files / "leaves.py").write_text("raise SystemExit(3)\n")
    state = {"run": "map-1", "simulated": True, "folder": "docs", "ledger": "x"}
    (files / "used").mkdir()
    (files / "used" / "map.json").write_text(json.dumps(state))
    before = {path for path in files.rglob("*") if "__pycache__" not in path.parts}
    words = line.split()
    ran = earmark(*words, *(() if words[0] == "results" else (SIMULATED,)))
    assert ran.code == 2, ran.err
    assert sentence in ran.err
    assert len(lines_of(ran.err)) == 1
    assert ran.out == ""
    after = {path for path in files.rglob("*") if "__pycache__" not in path.parts}
    assert {path for path in after - before if ".earmark" not in path.parts} == set()


def test_a_dry_run_says_what_it_would_cost(
    earmark: Program, files: Path, server: SimulatorThread
) -> None:
    """At worst and probably; nothing is sent."""
    line = ("extract", "t.csv", "--schema", "schema.json", "--column", "body", "--dry-run")
    summary = earmark(*line, "--json").json
    assert float(summary["worst_usd"]) > float(summary["likely_usd"]) > 0
    assert (summary["same"], summary["documents"]) == (1, 5)
    assert server.simulator.stats.arrived == 0
