"""The examples: each runs without a key, shows what it promises, and spends nothing; so does the README's command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LABELS = ("--labels", "billing,bug,feature,account,other")

#: What each example must show.
SHOWN = {
    "one_line": ("async:", "sync:", "declined, nothing was sent:", "proven: True"),
    "capped_fan_out": ("'ok':", "'budget':", "is in the way", "held $0.00"),
    "agent_with_tools": (
        "the tool was called",
        "ok:",
        "budget:",
        "journal: run, hold, settle, tool",
    ),
    "watch_caps": ("set by the team", "it opens again at", "declined again: False"),
}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python without a key, with warnings as errors."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_every_example_is_run() -> None:
    """No example is left out of these tests; ``stand_in`` is what they share."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN, "stand_in"}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """It ends well, says that it is simulated, shows its point, and leaves nothing behind."""
    done = python(str(EXAMPLES / f"{name}.py"), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stdout
    assert [words for words in SHOWN[name] if words not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_short(name: str) -> None:
    """One idea fits on a page."""
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 80


def test_the_tickets_are_all_classified(tmp_path: Path) -> None:
    """The README's main job ends with exit code 0, one row for each ticket, and no real money."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    command = ("-m", "earmark", "classify", "examples/tickets", *LABELS)
    rubric = ("--rubric", "examples/tickets-rubric.md", "--simulate", "--json")
    done = python(*command, *rubric, cwd=tmp_path)

    assert done.returncode == 0, done.stderr

    summary = json.loads(done.stdout)
    tickets = [path for path in (EXAMPLES / "tickets").rglob("*") if path.is_file()]

    assert summary["outcomes"] == {"ok": len(tickets)}
    assert summary["simulated"] is True
    assert summary["held_usd"] == summary["in_doubt_usd"] == "0.00"


def test_odd_files_get_rows_that_say_so(tmp_path: Path) -> None:
    """An empty file and a picture end as rows of their own, and the exit code is 1."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    command = ("-m", "earmark", "classify", "examples/odd-files", *LABELS, "--simulate", "--json")
    done = python(*command, cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["outcomes"] == {"binary": 1, "empty": 1}
