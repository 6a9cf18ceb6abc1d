"""``earmark classify``: messy folders, every exit code, every mistake, and what it prints."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.simulator import Fault, SimulatorThread, running_simulator

from .classifying import (
    KEY,
    LABELS,
    Proof,
    arguments,
    environment,
    start,
    write_documents,
)
from .conftest import Program

SIMULATED = "--simulate"


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatorThread]:
    """A server that the program finds by its environment."""
    with running_simulator() as simulator:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield simulator


def faults(server: SimulatorThread, *script: Fault | str | None) -> None:
    server.call(lambda simulator: simulator.faults.extend(script))


def healthy(server: SimulatorThread) -> None:
    server.call(lambda simulator: simulator.faults.clear())


def until_stopped(folder: Path) -> None:
    """Wait until the run has heard the signal: a second one sent before would be lost in the first."""
    (journal,) = folder.rglob("journal.jsonl")
    while b'"event":"stop"' not in journal.read_bytes():
        pass


@contextmanager
def running(folder: Path, server: SimulatorThread, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a process of its own, which does not outlive the test."""
    process = start(folder, environment(server.url), *more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answered(label: str) -> str:
    return f'[[sim:text={{"label": "{label}"}}]]'


# ---- folders ------------------------------------------------------------------------------------------


def write_mess(docs: Path) -> dict[str, str]:
    """One of everything, and the outcome that it must have."""
    (docs / "deep" / "deeper").mkdir(parents=True)
    (docs / "plain.txt").write_text("The invoice is wrong.")
    (docs / "deep" / "utf16.txt").write_bytes("Die Rechnung ist falsch.".encode("utf-16"))
    (docs / "deep" / "bom.txt").write_bytes(b"\xef\xbb\xbfPassword lost")
    (docs / "deep" / "deeper" / "cp1252.txt").write_bytes(
        "Gr\xfc\xdfe aus Z\xfcrich, 5 \x80".encode("latin-1")
    )
    (docs / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (docs / "empty.txt").write_bytes(b"")
    (docs / "blank.txt").write_text(" \n\t\n")
    with (docs / "huge.txt").open("wb") as file:
        file.truncate(2 << 30)
    (docs / "dangling").symlink_to("nowhere")
    (docs / "loop").symlink_to("loop")
    os.mkfifo(docs / "pipe")
    (docs / "=formula.txt").write_text("The app crashes")
    (docs / "новый.txt").write_text("Please add a dark mode")
    (docs / os.fsdecode(b"caf\xe9.txt")).write_text("An error")
    ok = ["plain.txt", "deep/utf16.txt", "deep/bom.txt", "deep/deeper/cp1252.txt", "=formula.txt"]
    return {
        **dict.fromkeys([*ok, "новый.txt"], "ok"),
        "picture.png": "binary",
        "empty.txt": "empty",
        "blank.txt": "empty",
        "huge.txt": "too_large",
        "dangling": "unreadable",
        "loop": "unreadable",
        "pipe": "unreadable",
    }


def test_every_file_of_a_messy_folder_ends_in_one_row(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Whatever a file is: one row, one outcome; rows, ledger and the server's bill agree."""
    expected = write_mess(folder / "docs")
    ran = earmark(*arguments("docs", "--json"))
    proof = Proof(where=folder).check(ran.json)
    found = {row["path"]: row["outcome"] for row in proof.rows}
    assert expected.items() <= found.items()
    (odd,) = found.keys() - expected.keys()
    assert odd.startswith("caf")
    assert found[odd] == "ok"
    assert ran.code == 1
    assert proof.posted == server.bill.nanos
    assert server.bill.requests == 7
    assert all(row["reason"] for row in proof.rows if row["outcome"] != "ok")
    assert "'=formula.txt" in (folder / "out" / "results.csv").read_text(encoding="utf-8-sig")


def test_the_summary_is_one_document_of_exact_amounts(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """With ``--json`` standard output is one document, whose amounts are strings."""
    write_documents(folder / "docs", 3)
    summary = earmark(*arguments("docs", "--json", "--cap", "2.50")).json
    assert summary["outcomes"] == {"ok": 3}
    assert summary["cap_usd"] == "2.50"
    assert (summary["held_usd"], summary["in_doubt_usd"]) == ("0.00", "0.00")
    assert round(float(summary["posted_usd"]) * 1e9) == server.bill.nanos > 0
    assert summary["run"].startswith("classify-")


def test_own_results_and_books_are_no_documents(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Results of this and of earlier runs, the ledger and the journals may lie in the folder."""
    write_documents(folder, 3)
    first = earmark(*arguments(".", "--json", "--ledger", "books/ledger.db"))
    second = earmark(
        "classify", ".", "--labels", LABELS, "--json", "--hidden", "--ledger", "books/ledger.db"
    )
    assert (first.json["outcomes"], second.json["outcomes"]) == ({"ok": 3}, {"ok": 3})


def test_a_file_that_vanishes_has_a_row_all_the_same(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """It was counted before the run; the results say that it is gone."""
    write_documents(folder / "docs", 30)
    faults(server, Fault(kind="hang", match="Ticket 0:"))

    def remove() -> None:
        server.arrived(1)
        (folder / "docs" / "t0029.txt").unlink()
        server.release()

    thread = threading.Thread(target=remove)
    thread.start()
    ran = earmark(*arguments("docs", "--json", "--width", "1"))
    thread.join()
    proof = Proof(where=folder).check(ran.json)
    assert proof.outcomes == {"ok": 29, "unreadable": 1}
    assert "gone" in proof.rows[-1]["reason"]


def test_include_exclude_and_an_empty_folder(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Patterns choose; nothing to do is no failure, and is said."""
    write_documents(folder / "docs", 12)
    ran = earmark(*arguments("docs", "--json", "--include", "t000*", "--exclude", "t0001.txt"))
    assert ran.json["outcomes"] == {"ok": 9}
    nothing = earmark("classify", "docs", "--labels", LABELS, "--include", "*.md")
    assert nothing.code == 0
    assert "no file matches" in nothing.err
    assert server.bill.requests == 9


# ---- answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "outcome", "calls"),
    [
        (answered("nonsense"), "invalid", 2),
        (answered("bug"), "ok", 1),
        ("[[sim:refuse]]", "refusal", 1),
        ("[[sim:refuse=20]]", "refusal", 1),
        ("[[sim:output=5000]]", "truncated", 1),
    ],
)
def test_answers_have_their_outcome_at_their_price(
    earmark: Program, folder: Path, server: SimulatorThread, text: str, outcome: str, calls: int
) -> None:
    """An answer outside the labels gets one corrective try; nothing else is success, and each is paid."""
    write_documents(folder / "docs", 1, extra=text)
    ran = earmark(*arguments("docs", "--json"))
    proof = Proof(where=folder).check(ran.json)
    assert (proof.outcomes, proof.rows[0]["calls"]) == ({outcome: 1}, calls)
    assert proof.posted == server.bill.nanos
    assert (proof.rows[0]["label"] == "bug") is (outcome == "ok")
    assert ran.code == (0 if outcome == "ok" else 1)
    again = earmark(*arguments("docs", "--json", "--resume"))
    Proof(where=folder).check(again.json)
    assert again.json["reused"] == (0 if outcome == "infra" else 1)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (
            Fault(kind="error", status=400, message="prompt is too long: 9 tokens > 8 maximum"),
            "too_large",
        ),
        (Fault(kind="error", status=413, message="Request exceeds the maximum size"), "too_large"),
    ],
)
def test_a_prompt_that_is_too_long_is_terminal(
    earmark: Program, folder: Path, server: SimulatorThread, fault: Fault, outcome: str
) -> None:
    """F-05, F-07: it is sent once, in this run and in every later one."""
    write_documents(folder / "docs", 2)
    faults(server, fault)
    assert earmark(*arguments("docs", "--json")).json["outcomes"] == {"ok": 1, outcome: 1}
    arrived = server.simulator.stats.arrived
    again = earmark(*arguments("docs", "--json", "--resume"))
    assert again.json["outcomes"] == {"ok": 1, outcome: 1}
    assert server.simulator.stats.arrived == arrived


def test_storms_are_weathered(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """429s, 529s, 500s and cut connections: the run finishes, and nothing has leaked."""
    write_documents(folder / "docs", 60)
    rates = {"overloaded": 0.06, "server_error": 0.06, "reset": 0.04, "rate_limited": 0.0}
    server.call(lambda simulator: simulator.faults.set_rates(rates, seed=7))
    faults(server, *[Fault(kind="rate_limited", retry_after=0.05)] * 5)
    ran = earmark(*arguments("docs", "--json"))
    proof = Proof(where=folder).check(ran.json)
    assert proof.outcomes == {"ok": 60}
    assert proof.posted <= server.bill.nanos <= proof.posted + proof.in_doubt


# ---- caps and limits ----------------------------------------------------------------------------------


def test_a_cap_stops_and_a_bigger_one_goes_on(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Exit 3; what had finished is kept; ``--resume --cap`` pays no document twice, then exit 0 (Z-04, Z-07)."""
    write_documents(folder / "docs", 40)
    first = earmark(*arguments("docs", "--json", "--cap", "0.0005"))
    stopped = Proof(where=folder).check(first.json)
    assert first.code == 3
    assert stopped.outcomes.keys() == {"ok", "budget"}
    assert 0 < stopped.posted <= 500_000
    again = earmark(*arguments("docs", "--json", "--resume"))
    assert (again.code, again.json["cap_usd"]) == (3, "0.0005")
    last = earmark(*arguments("docs", "--json", "--resume", "--cap", "5"))
    proof = Proof(where=folder).check(last.json)
    assert (last.code, proof.outcomes) == (0, {"ok": 40})
    assert server.bill.requests == 40
    assert proof.posted == server.bill.nanos
    third = earmark(*arguments("docs", "--json", "--resume"))
    assert (third.code, third.json["outcomes"]) == (0, {"ok": 40})
    assert server.bill.requests == 40


@pytest.mark.parametrize("kind", ["enforced_spend_limit", "own_spend_limit", "billing"])
def test_the_providers_limit_stops_and_resumes(
    earmark: Program, folder: Path, server: SimulatorThread, kind: str
) -> None:
    """Exit 4 for each of its three forms, without a storm; later the run goes on where it was."""
    write_documents(folder / "docs", 30)
    faults(server, *[None] * 10, Fault(kind=kind, times=0))
    first = earmark(*arguments("docs", "--json", "--width", "2"))
    proof = Proof(where=folder).check(first.json)
    assert first.code == 4
    assert proof.outcomes == {"ok": 10, "spend_limit": 20}
    assert server.simulator.stats.arrived <= 12
    healthy(server)
    last = earmark(*arguments("docs", "--resume"))
    assert last.code == 0
    assert Proof(where=folder).check().posted == server.bill.nanos
    assert server.bill.requests == 30


def test_a_set_up_that_is_wrong_stops_early(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """J-07: five equal refusals before any success are a mistake, exit 2, not thousands of calls."""
    write_documents(folder / "docs", 100)
    wrong = Fault(kind="error", status=404, message="model: no such model", times=0)
    faults(server, wrong)
    ran = earmark(*arguments("docs", "--json", "--width", "1"))
    assert ran.code == 2
    assert "no such model" in ran.json["stopped"]
    assert server.simulator.stats.arrived == 5
    assert Proof(where=folder).check().outcomes == {"bad_request": 5, "cancelled": 95}


def test_a_key_that_is_withdrawn_stops_early(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Also in the middle of a run."""
    write_documents(folder / "docs", 100)
    faults(server, *[None] * 10, Fault(kind="unauthorized", times=0))
    ran = earmark(*arguments("docs", "--json", "--width", "1"))
    assert ran.code == 2
    assert server.simulator.stats.arrived == 15
    assert Proof(where=folder).check().outcomes == {"auth": 5, "cancelled": 85, "ok": 10}


# ---- dry run, cache -----------------------------------------------------------------------------------


def test_a_dry_run_sends_nothing(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """It says what it would cost at worst and probably, and leaves nothing behind."""
    write_documents(folder / "docs", 5)
    summary = earmark(*arguments("docs", "--dry-run", "--json")).json
    assert float(summary["worst_usd"]) > float(summary["likely_usd"]) > 0
    assert summary["posted_usd"] == "0.00"
    assert server.simulator.stats.arrived == 0
    assert not (folder / "out").exists()


def test_the_quote_is_a_bound(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """No run costs more than was said at worst, also with a corrective try for every document."""
    write_documents(folder / "docs", 5, extra=answered("nonsense"))
    summary = earmark(*arguments("docs", "--json")).json
    assert summary["outcomes"] == {"invalid": 5}
    assert summary["posted_nanos"] <= summary["worst_nanos"]


@pytest.mark.parametrize("words", [10, 6_000], ids=["short", "long"])
def test_a_prefix_is_cached_where_it_helps(
    earmark: Program, folder: Path, server: SimulatorThread, words: int
) -> None:
    """A long prefix is written once, by the first document alone, and read by all others; a short one is
    not marked at all.
    """
    write_documents(folder / "docs", 25)
    (folder / "rubric.md").write_text("rubric word " * words)
    ran = earmark(*arguments("docs", "--json", "--rubric", "rubric.md"))
    rows = Proof(where=folder).check(ran.json).rows
    written = [row for row in rows if row["cache_write_tokens"]]
    read = [row for row in rows if row["cache_read_tokens"]]
    is_long = words > 1_000
    assert ran.json["cached_prefix"] is is_long
    assert (len(written), len(read)) == ((1, 24) if is_long else (0, 0))
    if is_long:
        assert written[0]["path"] == "t0000.txt"
