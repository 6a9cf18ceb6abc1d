"""A killed process leaves no worker behind, whatever the moment, and its ledger is right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import SimulatorThread, running_simulator
from orchestrator.workers.launching import Launch, launch_of

from .working import TAG, alive, none_alive

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
    #
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


#: Has a child in a session of its own, which outlives it, and waits.
HAS_A_CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


def _supervised(folder: Path, *, waits: bool) -> tuple[Launch, subprocess.Popen[bytes]]:
    """A supervisor that is about to start a program."""
    launch = launch_of(
        [sys.executable, "-S", "-c", HAS_A_CHILD],
        env={TAG: str(folder)},
        inherit=frozenset({"PATH"}),
    )
    if waits:
        os.mkfifo(launch.folder / "pid.new")  # where it writes its pid, it waits for a reader
    return launch, subprocess.Popen(launch.command, env=dict(launch.full_env))


def _sleeps(pid: int) -> bool:
    """Whether it has been asleep for a while: it waits for something."""
    looks = []
    for _ in range(15):
        looks.append(psutil.Process(pid).status())
        time.sleep(0.02)
    return set(looks) == {psutil.STATUS_SLEEPING}


def test_no_program_runs_before_its_supervisor_is_known(tmp_path: Path) -> None:
    """Killed before it has written its pid, a supervisor has started nothing that could be left behind."""
    launch, supervisor = _supervised(tmp_path, waits=True)
    while not _sleeps(supervisor.pid):
        pass
    before = [one.pid for one in alive(tmp_path)]

    supervisor.kill()
    supervisor.wait()

    assert before == [supervisor.pid]
    assert alive(tmp_path) == []
    launch.close()


async def test_a_supervisor_killed_as_it_starts_a_program(tmp_path: Path) -> None:
    """At whatever moment from its pid on: that it is gone is seen, and what came of it is ended."""
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1):
        launch, supervisor = _supervised(tmp_path, waits=False)
        while not launch.tree.pid:
            await asyncio.sleep(0)
        time.sleep(delay_s)
        supervisor.kill()
        supervisor.wait()

        assert launch.tree.is_lost
        assert await launch.tree.end()
        assert none_alive(tmp_path, within_s=2)
        launch.close()
