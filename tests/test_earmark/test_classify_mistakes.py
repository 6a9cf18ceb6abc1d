"""``earmark classify``: every mistake is one sentence and exit code 2, and nothing is sent."""

# ruff: noqa: F811 (the server of the tests beside is a fixture here, too)

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import Fault, SimulatorThread

from .classifying import (
    KEY,
    LABELS,
    arguments,
    lines_of,
    write_documents,
)
from .conftest import Program
from .test_classify import SIMULATED, answered, faults, healthy, running, server, until_stopped  # noqa: F401

# ---- mistakes -----------------------------------------------------------------------------------------


def _prepare(folder: Path) -> None:
    write_documents(folder / "docs", 2)
    (folder / "file").write_text("x")
    (folder / "binary.md").write_bytes(b"\x89PNG\xff\xfe\x00")
    (folder / "long.md").write_text("word " * 1_000_000)
    write_documents(folder / "used", 1)
    (folder / "used" / "results.jsonl").write_text("{}\n")
    (folder / "corrupt.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000)
    Ledger(folder / "newer.db").close()
    with closing(sqlite3.connect(folder / "newer.db")) as newer:
        newer.execute("PRAGMA user_version = 999")
    (folder / "text.db").write_text("this is no ledger\n" * 500)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["nowhere", SIMULATED], "does not exist"),
        (["file", SIMULATED], "is a file, not a folder"),
        (["docs", SIMULATED, "--labels", "a,b,A"], "given twice"),
        (["docs", SIMULATED, "--labels", "a"], "at least two"),
        (["docs", SIMULATED, "--labels", ""], "at least two"),
        (["docs", SIMULATED, "--labels", "a,,b"], "can't be used"),
        (["docs", SIMULATED, "--model", "claude-haiku-5.6"], "claude-haiku-5-5"),
        (["docs", SIMULATED, "--model", "claude-3-opus-20240229"], "retired"),
        (["docs", SIMULATED, "--rubric", "nowhere.md"], "nowhere.md"),
        (["docs", SIMULATED, "--rubric", "docs"], "docs"),
        (["docs", SIMULATED, "--rubric", "binary.md"], "not UTF-8 text"),
        (["docs", SIMULATED, "--rubric", "long.md"], "shorten it"),
        (["docs"], "no API key"),
        (["docs", SIMULATED, "--out", "file"], "is a file, not a folder"),
        (["docs", SIMULATED, "--out", "used"], "something else"),
        (["docs", SIMULATED, "--resume", "--out", "used"], "no run in used"),
        (["docs", SIMULATED, "--resume"], "no earlier run"),
        (["docs", SIMULATED, "--cap", "5.0.0"], "5.0.0"),
        (["docs", SIMULATED, "--cap", "-1"], "-1"),
        (["docs", SIMULATED, "--cap", ""], "not an amount"),
        (["docs", SIMULATED, "--via", "batch", "--notify", '"x'], "mend its quotes"),
        (["docs", SIMULATED, "--via", "batch", "--webhook", "example.com"], "no URL"),
        (["docs", SIMULATED, "--cap", "1e3"], "1e3"),
        (["docs", SIMULATED, "--ledger", "corrupt.db"], "corrupt.db"),
        (["docs", SIMULATED, "--ledger", "text.db"], "text.db"),
        (["docs", SIMULATED, "--ledger", "newer.db"], "newer"),
        (["docs", SIMULATED, "--ledger", "docs"], "docs"),
        (["docs", SIMULATED, "--ledger", "file/ledger.db"], "file"),
        (["docs", SIMULATED, "--config", "nowhere.toml"], "nowhere.toml"),
        (["docs", SIMULATED, "--include", ""], "pattern"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(
    earmark: Program, folder: Path, line: list[str], sentence: str
) -> None:
    """Exit 2, one sentence on standard error, nothing sent, nothing left behind."""
    _prepare(folder)
    before = {path for path in folder.rglob("*") if ".earmark" not in path.parts}
    labels = [] if "--labels" in line else ["--labels", LABELS]
    ran = earmark("classify", *line, *labels)
    assert ran.code == 2, ran.err
    assert sentence in ran.err
    assert len(lines_of(ran.err)) == 1
    assert ran.out == ""
    after = {path for path in folder.rglob("*") if ".earmark" not in path.parts}
    left = after - before
    assert not left or "--ledger" in line


def test_a_key_that_is_wrong_is_one_sentence(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """401 from the API; the key is not in what is said, and the folder stays free for the next try."""
    write_documents(folder / "docs", 2)
    faults(server, Fault(kind="unauthorized", times=0, on="any"))
    ran = earmark(*arguments("docs"))
    assert (ran.code, len(lines_of(ran.err))) == (2, 1)
    assert "does not accept the key" in ran.err
    assert KEY not in ran.err
    assert not (folder / "out").exists()
    healthy(server)
    assert earmark(*arguments("docs")).code == 0


def test_an_api_that_can_not_be_reached_is_one_sentence(
    earmark: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent, and the address is named."""
    write_documents(folder / "docs", 2)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    ran = earmark(*arguments("docs"))
    assert ran.code == 2
    assert "can't be reached at http://127.0.0.1:9" in ran.err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["docs"], "was simulated: add --simulate"),
        (["more", SIMULATED], "was over"),
        (["docs", SIMULATED, "--ledger", "other.db"], "was paid from"),
    ],
)
def test_another_run_can_not_be_gone_on_with(
    earmark: Program, folder: Path, change: list[str], sentence: str
) -> None:
    """A resume that would pay again, or under a fresh cap, is a mistake."""
    write_documents(folder / "docs", 2)
    write_documents(folder / "more", 2)
    assert earmark(*arguments("docs", SIMULATED)).code == 0
    taken = earmark(*arguments("docs", SIMULATED))
    assert taken.code == 2
    assert "add --resume" in taken.err
    ran = earmark(*arguments(*change, "--resume"))
    assert ran.code == 2
    assert sentence in ran.err


def test_a_ledger_that_is_gone_is_not_replaced(earmark: Program, folder: Path) -> None:
    """What was paid is not known any more, so the run does not go on."""
    write_documents(folder / "docs", 2)
    assert earmark(*arguments("docs", SIMULATED)).code == 0
    for path in (folder / ".earmark").glob("ledger.db*"):
        path.unlink()
    ran = earmark(*arguments("docs", SIMULATED, "--resume"))
    assert ran.code == 2
    assert "is gone" in ran.err
