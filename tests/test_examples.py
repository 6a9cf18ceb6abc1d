"""The examples: each runs without a key, shows what it promises, and spends nothing; so does the README's command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LABELS = ("--labels", "billing,bug,feature,account,other")

#: What each example must show.
SHOWN = {
    "tickets_in_batches": ("'billing': 17", "direct_without_cache", "37 of 38 answers"),
    "one_line": ("async:", "sync:", "declined, nothing was sent:", "proven: True"),
    "capped_fan_out": ("'ok':", "'budget':", "is in the way", "held $0.00"),
    "agent_with_tools": (
        "the tool was called for order '4711'",
        "ok: It was packed on Monday",
        "budget:",
        "journal: run, begin, hold, settle, tool",
    ),
    "watch_caps": ("set by the team", "it opens again at", "declined again: False"),
    "three_reviewers": ("a lawyer: ok", "5,950 tokens read", "merged:", "caching saved"),
    "several_voters": ("majority: {'answer': 'no'} (4 of 5", "counts: {'no': 3}; the judge: No"),
    "staged_pipeline": (
        "worst $0.0",
        "(topic ok > outline ok",
        "the gate after topic: there is no",
    ),
    "route_requests": ("billing (50% sure)", "outage (50% sure)", "person (by the fallback)"),
    "critic_loop": (
        "by code: accepted True",
        "cause: Name the cause.",
        "nothing is open",
        "budget",
    ),
    "planned_research": (
        "reader x6",
        "round 2: Declined cards again",
        "1.2 invalid: $0.0",
        "none of the files that it names holds 'The bank says that there is no money on it.'",
        "[2] email/2026-10-08-card-declined.txt, found by reader 2.1",
        "parts: 2 ok, 1 invalid",
    ),
    "team_of_teams": (
        "heating x2",
        "house/walls: budget",
        "mason: ok",
        "roofer: budget  not started: it will probably need",
        "the director: Almost",
    ),
    "hand_over": (
        "technician ($0.0",
        "was given billing: The second charge is sent back.",
        "stalled",
        "reception -> billing -> reception -> billing",
    ),
    "shared_board": ("(corrected since)", "2. surveyor: spring:", "historian concluded in round 3"),
    "five_agents": ("estimated: $1.45", "for 46 calls", "% off", "caching saved"),
    "three_subagents": (
        "ok: Three reports",
        "errors: 2 calls, $0.0",
        "by the ledger $0.0",
        "denied: nothing",
    ),
    "director_and_leads": (
        "cashier: ok  (",
        "engineer: ok  (",
        "refunds $0.0",
        "on the board by engineer: export: The export loses rows.",
        "the director: Customers complain",
        "12 calls, $0.00",
    ),
}
#: Examples that need the extra ``agents``.
WITH_THE_SDK = {"three_subagents", "director_and_leads"}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python without a key, with warnings as errors."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_every_example_is_run() -> None:
    """No example is left out of these tests; ``stand_in`` is what they share."""
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    assert there == {*SHOWN, "stand_in"}


def test_every_example_is_in_the_table() -> None:
    """A reader of the folder finds each of them, and what the stand-in says belongs to one."""
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    says = tomllib.loads((EXAMPLES / "stand-in-says.toml").read_text(encoding="utf-8"))
    assert [name for name in SHOWN if f"`python examples/{name}.py`" not in listed] == []
    assert set(says) <= set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """It ends well, says that it is simulated, shows its point, and leaves nothing behind."""
    if name in WITH_THE_SDK:
        pytest.importorskip("claude_agent_sdk", reason="the extra agents is not installed")
    done = python(str(EXAMPLES / f"{name}.py"), cwd=tmp_path)
    if name in WITH_THE_SDK and "Command failed with exit code" in done.stderr:
        # Now and then Claude Code ends at its start without a word of why: no fault of the example's.
        done = python(str(EXAMPLES / f"{name}.py"), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stdout
    assert [words for words in SHOWN[name] if words not in done.stdout] == [], done.stdout
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
