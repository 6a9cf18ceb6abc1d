"""``earmark research`` as a process: interrupted once or twice, or killed, it accounts for every call."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import Cue, Fault, SimulatorThread, running_simulator

from .classifying import environment
from .conftest import Program
from .test_classify import faults, until_stopped

TASKS = 3


@pytest.fixture
def server() -> Iterator[SimulatorThread]:
    """A stand-in whose lead gives out a few tasks, of which the second one hangs."""
    tasks = [
        {
            "title": f"t{number}",
            "objective": f"look at file {number}",
            "output_format": "a list",
            "boundaries": "none",
            "tools": [],
        }
        for number in range(TASKS)
    ]
    say = f"[[sim:text={json.dumps({'tasks': tasks, 'done': False})}]]"
    with running_simulator(cues=(Cue(match="You lead this work", say=say, times=0),)) as made:
        faults(made, Fault(kind="hang", match="Objective: look at file 1"))
        yield made


@contextmanager
def researching(folder: Path, server: SimulatorThread) -> Iterator[subprocess.Popen[bytes]]:
    """The program at work in a process of its own, which does not outlive the test."""
    (folder / "tickets").mkdir()
    (folder / "tickets" / "a.txt").write_text("I want a refund.")
    line = ["research", "Who wants a refund?", "--in", "tickets", "--rounds", "1", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "earmark", *line, "--json"],
        cwd=folder,
        env=environment(server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        server.arrived(1 + TASKS)
        yield process
    finally:
        process.kill()
        process.communicate()


def in_doubt(folder: Path) -> int:
    """Nano-dollars in doubt in the ledger, which adds up."""
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        check = ledger.check()
        assert check.ok
        assert check.held_nanos == 0
        return check.in_doubt_nanos


def test_interrupted_once_it_settles_and_hands_back_what_it_has(
    folder: Path, server: SimulatorThread
) -> None:
    """Calls in flight are waited for; exit 130, three files, nothing in doubt, the bill to the nano-dollar."""
    with researching(folder, server) as process:
        process.send_signal(signal.SIGINT)
        until_stopped(folder)
        server.release()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    summary = json.loads(out)
    assert (summary["stopped"], summary["in_doubt_nanos"]) == ("interrupted", 0)
    assert summary["posted_nanos"] == server.call(lambda simulator: simulator.bill.nanos)
    assert "**Incomplete**" in (folder / "out" / "report.md").read_text(encoding="utf-8")
    assert in_doubt(folder) == 0


def test_interrupted_twice_it_leaves_at_once(folder: Path, server: SimulatorThread) -> None:
    """What hangs is in doubt and not waited for; the files are there all the same."""
    with researching(folder, server) as process:
        process.send_signal(signal.SIGINT)
        until_stopped(folder)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert json.loads(out)["in_doubt_nanos"] == in_doubt(folder) > 0
    assert (folder / "out" / "costs.json").exists()


def test_killed_it_can_still_be_told(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """``report last`` shows the calls that ended, and names what is left in doubt."""
    with researching(folder, server) as process:
        process.kill()
        process.communicate()
    for form in ([], ["--json"], ["--html"]):
        ran = earmark("report", "last", *form)
        assert ran.code == 0, ran.err
        assert "Traceback" not in ran.err
    document = earmark("report", "last", "--json").json
    assert document["in_doubt_nanos"] == in_doubt(folder) > 0
    assert document["posted_nanos"] > 0
