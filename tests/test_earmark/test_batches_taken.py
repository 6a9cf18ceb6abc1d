"""A job that another process is at: it can be cancelled from outside, and is never to be paid a second time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.batches import jobs_beside
from orchestrator.simulator import SimulatorThread, running_simulator

from .classifying import KEY, Proof, arguments, environment, start, write_documents
from .conftest import Program
from .test_batches import leave_a_job
from .test_bulk_again import NOTIFY, VIA, told

pytestmark = pytest.mark.slow


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatorThread]:
    """A stand-in that holds its batches."""
    with running_simulator(batch_seconds=None) as simulator:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield simulator


def run_when_sent(folder: Path) -> str:
    """The run of a bulk job, once its batch has been made and that is on record."""
    while True:
        for job in jobs_beside(folder / ".earmark" / "ledger.db"):
            if job.progress is not None and any(batch.id for batch in job.progress.batches):
                return job.run
        time.sleep(0.02)


def test_a_job_under_way_is_cancelled_by_its_own_process(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """Whoever cancels sees how it ended; what was answered by then has rows, the end is told once."""
    write_documents(folder / "docs", 5)
    with start(folder, environment(server.url), *VIA, *NOTIFY, "--json") as process:
        run = run_when_sent(folder)
        server.call(lambda simulator: simulator.process_batches(2))
        cancelled = earmark("batches", "cancel", run, "--json")
        out, said = process.communicate(timeout=60)

    assert (cancelled.code, process.returncode) == (1, 1), cancelled.err
    assert f"process {process.pid} is at it" in cancelled.err
    assert b"another process asks to cancel it" in said
    assert cancelled.json["outcomes"] == json.loads(out)["outcomes"] == {"cancelled": 3, "ok": 2}
    assert Proof(where=folder).check(cancelled.json).posted == server.bill.nanos > 0
    assert server.call(lambda simulator: simulator.world.stats.arrived) == 0
    assert len(told(folder)) == 1


def test_a_job_whose_process_is_killed_meanwhile_is_cancelled_all_the_same(
    folder: Path, server: SimulatorThread
) -> None:
    """A process that was asked and died before it could heed leaves the work to the one who asked."""
    write_documents(folder / "docs", 3)
    with start(folder, environment(server.url), *VIA) as owner:
        run = run_when_sent(folder)
        owner.send_signal(signal.SIGSTOP)
        line = [sys.executable, "-m", "earmark", "batches", "cancel", run, "--json"]
        with subprocess.Popen(
            line,
            cwd=folder,
            env=environment(server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            assert f"process {owner.pid} is at it".encode() in process.stderr.readline()
            owner.kill()
            out, _ = process.communicate(timeout=60)

    assert process.returncode == 1
    assert json.loads(out)["outcomes"] == {"cancelled": 3}
    Proof(where=folder).check(json.loads(out))


def test_any_job_is_cancelled_from_outside(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """One that a program of its own began too, while somebody attends it."""
    leave_a_job(folder)
    server.call(lambda simulator: simulator.process_batches(2))
    line = [sys.executable, "-m", "earmark", "batches", "attach", "job"]
    with subprocess.Popen(
        line, cwd=folder, env={**os.environ, **environment(server.url)}, stderr=subprocess.PIPE
    ) as owner:
        assert owner.stderr is not None
        assert b"1 batches under way" in owner.stderr.readline()
        ran = earmark("batches", "cancel", "job", "--json")
        owner.communicate(timeout=60)

    assert (ran.code, owner.returncode) == (1, 1), ran.err
    assert ran.json["outcomes"] == {"ok": 2, "cancelled": 4}
    assert (ran.json["held_nanos"], ran.json["posted_nanos"]) == (0, server.bill.nanos)


def test_who_can_not_go_on_hears_what_to_do_instead(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """Which process is at it, how to look on and how to end it: never another run, which would be paid again."""
    write_documents(folder / "docs", 2)
    with start(folder, environment(server.url), *VIA) as process:
        run = run_when_sent(folder)
        for line in (("batches", "attach", run), (*arguments(), *VIA, "--resume")):
            ran = earmark(*line)
            assert ran.code == 2
            assert f"process {process.pid} is at it" in ran.err
            for words in (f"earmark batches watch {run}", f"earmark batches cancel {run}"):
                assert words in ran.err
            assert "another run" not in ran.err
        server.finish_batches()
        process.communicate(timeout=60)
    assert process.returncode == 0
