"""Results: one row per path, durable as they come, in order at the end."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns.bulk import Results, Row


def row(path: str = "a.txt", outcome: Outcome = Outcome.OK, **fields: object) -> Row:
    label = "bug" if outcome is Outcome.OK else None
    return Row(path=path, outcome=outcome, **{"label": label, **fields})  # type: ignore[arg-type]


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    "one",
    [
        row(posted_nanos=1_234_567, calls=2, tokens={"input_tokens": 5, "output_tokens": 7}),
        row("b", Outcome.REFUSAL, reason="the model refused"),
        row("c", Outcome.BINARY, in_doubt_nanos=1, identity="x", sha256="y", encoding="utf-16"),
        row("д\u2028\udce9".encode(errors="replace").decode(), note="n", reused=True, bytes=9),
    ],
    ids=lambda one: one.outcome.value,
)
def test_a_row_comes_back_as_it_was(one: Row) -> None:
    """What is written is what is read, amounts exact."""
    read = Row.from_json(json.loads(json.dumps(one.to_json())))
    assert read.to_json() == one.to_json()
    assert one.to_json()["cost_usd"] == ("0.001234567" if one.calls == 2 else "0.00")


def test_rows_are_there_at_once_and_in_order_at_the_end(tmp_path: Path) -> None:
    """A crash loses none; ``finish`` sorts them and writes the table."""
    with Results(tmp_path / "deep" / "out") as results:
        for path in ("b", "a", "c"):
            results.add(row(path))
            assert len(lines(results.folder)) == len(results)
        results.finish()
    assert [line["path"] for line in lines(results.folder)] == ["a", "b", "c"]
    assert results.outcomes == {"ok": 3}
    assert results.labels == {"bug": 3}


def test_the_latest_row_of_a_path_counts(tmp_path: Path) -> None:
    """Also after reopening; outcomes count rows, not tries."""
    with Results(tmp_path) as results:
        results.add(row("a", Outcome.BUDGET))
        results.add(row("b"))
    with Results(tmp_path) as results:
        assert len(results) == 2
        results.add(row("a"))
        found = results.get("a")
        assert found is not None
        assert found.outcome is Outcome.OK
        results.finish()
    assert results.outcomes == {"ok": 2}
    assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize("torn", [b'{"path": "c", "outc', b"", b"\n", b"nonsense\n", b"[1]\n"])
def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path, torn: bytes) -> None:
    """A torn last line is cut off, so that the next row does not stick to it."""
    with Results(tmp_path) as results:
        results.add(row("a"))
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(torn)
    with Results(tmp_path) as results:
        assert [one.path for one in results.rows()] == ["a"]
        results.add(row("b"))
    with Results(tmp_path) as results:
        assert [one.path for one in results.rows()] == ["a", "b"]


def test_rows_of_files_that_are_gone_stay_if_they_cost(tmp_path: Path) -> None:
    """Money never disappears from the results."""
    with Results(tmp_path) as results:
        results.add(row("gone and paid", posted_nanos=5))
        results.add(row("gone in doubt", Outcome.IN_DOUBT, in_doubt_nanos=5))
        results.add(row("gone", Outcome.EMPTY))
        results.add(row("here"))
        results.finish({"here"})
    assert [line["path"] for line in lines(tmp_path)] == ["gone and paid", "gone in doubt", "here"]


@pytest.mark.parametrize("path", ["=cmd", "+1", "-1", "@x", "\tx", "\rx"])
def test_no_spreadsheet_runs_a_name(tmp_path: Path, path: str) -> None:
    """A cell that looks like a formula gets a mark before it."""
    with Results(tmp_path) as results:
        results.add(row(path))
        results.finish()
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as file:
        (line,) = csv.DictReader(file)
    assert line["path"] == f"'{path}"


def test_a_folder_that_can_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    """With a way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out"):
        Results(tmp_path / "file" / "out")


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """A row that can't be written is no silent hole."""
    (tmp_path / "results.jsonl.new").symlink_to("/dev/full")
    with Results(tmp_path) as results:
        results.add(row())
        with pytest.raises(ConfigError, match="can't be written"):
            results.finish()
    assert len(lines(tmp_path)) == 1


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Also where what was written last does not fit: the sentence says which file."""

    def fill() -> None:
        with Results(tmp_path / "out") as results:
            assert results._file is not None
            results._file.close()
            results._file = open("/dev/full", "r+b")  # noqa: SIM115, PTH123 - a real full disk
            results.add(row())

    with pytest.raises(ConfigError, match=r"results\.jsonl can't be written \(No space left"):
        fill()
