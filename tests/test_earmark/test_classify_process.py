"""``earmark classify`` as a process: signals, other processes, terminals, code pages, pipes."""

# ruff: noqa: F811 (the server of the tests beside is a fixture here, too)

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal import read_journal
from orchestrator.simulator import Fault, SimulatorThread

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
from .test_classify import SIMULATED, answered, faults, healthy, running, server, until_stopped  # noqa: F401

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
        out, err = process.communicate(timeout=60)
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
        out, err = process.communicate(timeout=60)
    (journal,) = folder.rglob("journal.jsonl")
    ended = list(read_journal(journal))[-1]
    assert ended["event"] == "end"
    assert datetime.fromisoformat(ended["at"]) - pressed < timedelta(seconds=2)
    assert process.returncode == 130, err
    proof = Proof(where=folder).check(json.loads(out))
    assert proof.outcomes.keys() <= {"ok", "cancelled"}
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
        out, _ = first.communicate(timeout=60)
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
    ended = [process.communicate(timeout=100) for process in processes]
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
    out, _ = process.communicate(timeout=60)
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
