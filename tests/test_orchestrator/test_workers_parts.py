"""Small parts of workers: the program's own cost, sweeping, sessions, tools, and who may import the SDK."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from budgets.owners import this_process
from orchestrator.errors import ConfigError
from orchestrator.workers import Subagent, sweep
from orchestrator.workers.cli_costs import CliCost
from orchestrator.workers.processes import ATTEMPT, STARTED_BY, starter_is_dead, this_starter
from orchestrator.workers.session_options import place_of, toolbox
from orchestrator.workers.watching import newest_age_s


@pytest.mark.parametrize(
    ("before", "totals", "nanos"),
    [
        pytest.param(0, [], None, id="nothing said"),
        pytest.param(0, [0.1, 0.3, 0.3], 300_000_000, id="totals are not summed (C-20)"),
        pytest.param(200_000_000, [0.3], 100_000_000, id="a resumed session goes on from its total"),
        pytest.param(200_000_000, [0.05], 50_000_000, id="a lower total began anew (C-21)"),
        pytest.param(0, [0.3, 0.1], 400_000_000, id="a drop is a reset, no refund (C-21)"),
        pytest.param(0, [0.1, "nonsense", -1, None], 100_000_000, id="nonsense is passed over"),
        pytest.param(0, [0.000718484999999], 718_485, id="binary fractions are rounded"),
    ],
)  # fmt: skip
def test_the_programs_own_cost(before: int, totals: list[object], nanos: int | None) -> None:
    """The cost of an attempt is the difference of a counter that may start again."""
    cost = CliCost(before)
    for total in totals:
        cost.hear(total)

    assert cost.nanos == nanos


def test_who_started_a_worker() -> None:
    """A starter that lives, or that can't be looked at, is never taken for dead."""
    own = this_process()

    assert not starter_is_dead(this_starter())
    assert starter_is_dead(f"{own.host}/{own.pid}/{own.started_ms + 5}")
    assert not starter_is_dead(f"another-machine#0-0/{own.pid}/5")
    assert not starter_is_dead("nonsense")


def test_the_sweep_ends_what_the_dead_have_left() -> None:
    """Processes of a worker whose starter is dead are ended at the next start; those of the living are not."""
    own = this_process()
    dead = f"{own.host}/{own.pid}/{own.started_ms + 5}"
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"]
    children = [
        subprocess.Popen(
            command,
            env={**os.environ, ATTEMPT: "a", STARTED_BY: starter},
            stdout=subprocess.PIPE,
        )
        for starter in (dead, this_starter())
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()

        swept = sweep()

        assert swept >= 1
        assert children[0].wait(5) == -9
        assert children[1].poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def test_a_session_is_found_again(tmp_path: Path) -> None:
    """Its folder is private, it remembers the program's total, and another id is refused."""
    place = place_of("w", None, tmp_path)
    place.leave(12)

    again = place_of("w", place.session, tmp_path)

    assert (again.folder, again.total_nanos, again.is_resumed) == (place.folder, 12, True)
    assert place.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("resume", ["00000000-0000-4000-8000-000000000000", "../..", ""])
def test_no_such_session(tmp_path: Path, resume: str) -> None:
    """An id that is none, or of no session here, is said; it never names another folder."""
    if not resume:
        resume = str(tmp_path)
    with pytest.raises(ConfigError, match="no session"):
        place_of("w", resume, tmp_path)


def test_tools_of_a_session() -> None:
    """What subagents need is there; only ours, and giving out work, may be used unasked."""
    agents = {"look": Subagent(description="d", prompt="p", tools=["Grep", "post"])}

    box = toolbox(["Read"], {"post": "mcp__earmark__post"}, agents, ["Bash(ls)"])

    assert box.base == ("Read", "Grep", "Agent")
    assert box.allowed == ("Bash(ls)", "mcp__earmark__post", "Agent")


def test_the_newest_file_of_a_folder(tmp_path: Path) -> None:
    """Files at any depth count as a sign of life."""
    assert newest_age_s(tmp_path) is None
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for folder in (tmp_path / "a", deep):
        os.utime(folder, (0, 0))
    (deep / "new.txt").write_text("x")
    os.utime(deep / "new.txt", (time.time() - 5,) * 2)
    os.utime(deep, (0, 0))

    age_s = newest_age_s(tmp_path)

    assert age_s is not None
    assert 4 < age_s < 60


def test_the_sdk_is_imported_late() -> None:
    """Workers can be imported, and everything else, where the Agent SDK is not installed."""
    code = (
        "import sys; sys.modules['claude_agent_sdk'] = None; "
        "import orchestrator.workers, patterns; from orchestrator.workers import AgentSdkWorker, ShellWorker"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
