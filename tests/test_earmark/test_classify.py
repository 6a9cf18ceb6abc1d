"""``earmark classify``: messy folders, every exit code, every mistake, and what it prints."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from budgets.ledger import Ledger
from orchestrator.journal import read_journal
from orchestrator.simulator import Fault, SimulatorThread, running_simulator

from .classifying import (
    KEY,
    LABELS,
    Proof,
    arguments,
    command,
    environment,
    lines_of,
    start,
    write_documents,
)
from .conftest import Program


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
    """Exit 3; what had finished is kept; ``--resume --cap`` pays no document twice, then exit 0."""
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


# ---- mistakes -----------------------------------------------------------------------------------------

SIMULATED = "--simulate"


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


# ---- processes ----------------------------------------------------------------------------------------


def test_once_interrupted_it_settles_and_resumes(folder: Path, server: SimulatorThread) -> None:
    """A real SIGINT: calls in flight settle, nothing new starts, every file has its row, exit 130."""
    write_documents(folder / "docs", 60)
    faults(server, Fault(kind="hang", match="Ticket 20:"))
    with running(folder, server, "--json", "--width", "4") as process:
        server.arrived(21)
        process.send_signal(signal.SIGINT)
        until_stopped(folder)
        server.release()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    proof = Proof(where=folder).check(json.loads(out))
    assert proof.outcomes["ok"] == server.bill.requests
    assert proof.outcomes["ok"] + proof.outcomes["cancelled"] == 60
    assert (proof.posted, proof.in_doubt) == (server.bill.nanos, 0)
    done = subprocess.run(
        command("docs", "--resume"), cwd=folder, env=environment(server.url), capture_output=True
    )
    assert done.returncode == 0
    assert Proof(where=folder).check().outcomes == {"ok": 60}
    assert server.bill.requests == 60


def test_twice_interrupted_it_leaves_at_once(folder: Path, server: SimulatorThread) -> None:
    """Within two seconds; what was sent is in doubt, and nobody holds anything."""
    write_documents(folder / "docs", 20)
    faults(server, None, Fault(kind="hang", times=0))
    with running(folder, server, "--json", "--width", "4") as process:
        server.arrived(2)
        process.send_signal(signal.SIGINT)
        until_stopped(folder)
        pressed = datetime.now(UTC)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    (journal,) = folder.rglob("journal.jsonl")
    ended = list(read_journal(journal))[-1]
    assert ended["event"] == "end"
    assert datetime.fromisoformat(ended["at"]) - pressed < timedelta(seconds=2)
    assert process.returncode == 130, err
    proof = Proof(where=folder).check(json.loads(out))
    assert proof.outcomes == {"ok": 1, "cancelled": 19} | proof.outcomes
    assert proof.in_doubt > 0


def test_a_second_process_on_the_same_run_is_refused(folder: Path, server: SimulatorThread) -> None:
    """One sentence, exit 2; the first one is not disturbed."""
    write_documents(folder / "docs", 10)
    faults(server, None, Fault(kind="hang", times=0))
    env = environment(server.url)
    with running(folder, server, "--json", "--width", "2") as first:
        server.arrived(2)
        second = subprocess.run(
            command("docs", "--resume", "--cap", "900"), cwd=folder, env=env, capture_output=True
        )
        assert second.returncode == 2
        assert b"under way in another process" in second.stderr
        assert len(lines_of(second.stderr.decode())) == 1
        healthy(server)
        server.release()
        out, _ = first.communicate(timeout=20)
    assert first.returncode == 0
    summary = json.loads(out)
    assert Proof(where=folder).check(summary).outcomes == {"ok": 10}
    assert summary["cap_usd"] == "5.00"


def test_two_processes_share_a_days_cap(folder: Path, server: SimulatorThread) -> None:
    """Two runs at once on one ledger spend no more than the day allows, to the nano-dollar."""
    write_documents(folder / "docs", 60)
    (folder / "earmark.toml").write_text('[caps]\nday = "0.001"\nsession = "0.001"\n')
    env = environment(server.url)
    processes = [
        subprocess.Popen(
            [*command("docs", "--json")[:-3], "--out", f"out{number}", "--json"],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    ended = [process.communicate(timeout=40) for process in processes]
    assert [process.returncode for process in processes] == [3, 3], ended
    posted = sum(json.loads(out)["posted_nanos"] for out, _ in ended)
    assert posted == server.bill.nanos
    assert 700_000 < posted <= 1_000_000


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "LANG": "C"}], ids=str
)
def test_any_code_page_will_do(folder: Path, server: SimulatorThread, env: dict[str, str]) -> None:
    """Text goes out as UTF-8, and no label or name breaks it."""
    write_documents(folder / "docs", 2, extra=answered("größe"))
    line = command("docs")
    line[line.index(LABELS)] = "größe,ни то"
    ran = subprocess.run(line, cwd=folder, env=environment(server.url, **env), capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert "größe" in ran.stdout.decode("utf-8")


def test_a_reader_that_has_gone_changes_nothing(folder: Path, server: SimulatorThread) -> None:
    """``earmark classify ... | head -0``: the run ends as it would have."""
    write_documents(folder / "docs", 5)
    process = start(folder, environment(server.url))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(20) == 0
    assert Proof(where=folder).check().outcomes == {"ok": 5}


def test_in_a_terminal_it_shows_progress(folder: Path, server: SimulatorThread) -> None:
    """A bar with the count and the spend on the terminal; the document on standard output is whole."""
    write_documents(folder / "docs", 8)
    main, other = pty.openpty()
    process = subprocess.Popen(
        command("docs", "--json"),
        cwd=folder,
        env=environment(server.url, TERM="xterm", COLUMNS="120"),
        stdout=subprocess.PIPE,
        stderr=other,
    )
    os.close(other)
    shown: list[bytes] = []

    def watch() -> None:
        try:
            while chunk := os.read(main, 65_536):
                shown.append(chunk)
        except OSError:  # the other side is closed
            pass

    thread = threading.Thread(target=watch)
    thread.start()
    out, _ = process.communicate(timeout=20)
    thread.join()
    os.close(main)
    text = b"".join(shown).decode()
    assert "classifying" in text
    assert "8/8" in text
    assert "of $5.00" in text
    assert json.loads(out)["outcomes"] == {"ok": 8}


def test_nothing_that_is_written_has_the_key(folder: Path, server: SimulatorThread) -> None:
    """Neither files nor what is said."""
    write_documents(folder / "docs", 3)
    ran = subprocess.run(
        command("docs"), cwd=folder, env=environment(server.url), capture_output=True
    )
    written = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert KEY.encode() not in written + ran.stdout + ran.stderr
    assert len(list(folder.rglob("journal.jsonl"))) == 1


def test_it_says_that_it_is_simulated(earmark: Program, folder: Path) -> None:
    """With ``--simulate`` nothing is spent, and nobody can take the answers for real ones."""
    write_documents(folder / "docs", 3)
    ran = earmark(*arguments("docs", SIMULATED))
    assert ran.code == 0
    assert "SIMULATED" in ran.out
    summary: dict[str, Any] = earmark(*arguments("docs", SIMULATED, "--resume", "--json")).json
    assert summary["simulated"] is True
    assert summary["scope"].startswith("simulated/")
