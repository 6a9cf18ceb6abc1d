"""A killed process leaves no worker behind, whatever the moment, and its ledger is right."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import SimulatorThread, running_simulator

from .working import none_alive

pytest.importorskip("claude_agent_sdk")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told by Linux"),
]
ROUNDS = 10
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """Who forks processes with workers."""
    command = [sys.executable, "-m", "tests.test_orchestrator.worker_child"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def start(forks: subprocess.Popen[str], folder: Path, simulator: SimulatorThread) -> int:
    """A process that begins to work; its pid."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{folder} {simulator.url}\n")
    forks.stdin.flush()
    return int(forks.stdout.readline())


def await_end(forks: subprocess.Popen[str]) -> None:
    """It is gone, and was waited for."""
    assert forks.stdout is not None
    assert forks.stdout.readline() == "ended\n"


@pytest.mark.timeout(120)
def test_killed_at_random_moments(tmp_path: Path, forks: subprocess.Popen[str]) -> None:
    """After SIGKILL no program is alive in 5 s, no call is made, and the dead owner's holds are in doubt."""
    chance = random.Random(7)
    with running_simulator() as simulator:
        for number in range(ROUNDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            simulator.reset()
            pid = start(forks, folder, simulator)
            time.sleep(chance.uniform(0, 2.0))

            os.kill(pid, signal.SIGKILL)
            await_end(forks)

            assert none_alive(folder, within_s=5)
            calls = simulator.simulator.stats.arrived
            with Ledger(folder / "ledger.db") as ledger:
                check, balance = ledger.check(), ledger.balance("")
            assert check.findings == []
            assert balance.held_nanos == 0
            assert balance.posted_nanos + balance.in_doubt_nanos >= simulator.bill.nanos
            assert simulator.simulator.stats.arrived == calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_ended_by_a_signal(
    tmp_path: Path, forks: subprocess.Popen[str], number: signal.Signals
) -> None:
    """The gentler ways to end a process leave nothing behind either."""
    with running_simulator() as simulator:
        pid = start(forks, tmp_path, simulator)
        time.sleep(0.5)

        os.kill(pid, number)
        await_end(forks)

    assert none_alive(tmp_path, within_s=5)
