"""``earmark work``: a session over a folder, its figures by agent, and mistakes in one sentence."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from budgets.ledger import Ledger

from .conftest import Program

pytest.importorskip("claude_agent_sdk")
pytestmark = pytest.mark.slow

TEAM = """
[look]
description = "looks at one file"
prompt = "You look at a file."
tools = ["Read"]
"""


@pytest.fixture
def place(folder: Path) -> Path:
    """A folder with a file."""
    made = folder / "place"
    made.mkdir()
    (made / "a.txt").write_text("the first file")
    return made


def test_a_team_over_a_folder(place: Path, folder: Path, earmark: Program) -> None:
    """The answer, the share of each agent, exact figures, no real money, and a run that can be reported."""
    (folder / "team.toml").write_text(TEAM)
    asks = '[[sim:tool=Agent {"description": "d", "prompt": "Look", "subagent_type": "look"}]]'
    arguments = ("--in", "place", "--agents", "team.toml", "--simulate", "--out", "out", "--json")

    ran = earmark("work", f"Look at it {asks}", *arguments)

    assert ran.code == 0, ran.err
    summary = ran.json
    assert (summary["outcome"], summary["cap_usd"], summary["held_usd"]) == ("ok", "1.50", "0.00")
    assert sorted(one["agent"] for one in summary["by_agent"]) == ["look", "main"]
    assert sum(one["posted_nanos"] for one in summary["by_agent"]) == summary["posted_nanos"] > 0
    assert abs(summary["cli_difference_nanos"]) < 10
    assert json.loads(Path("out/costs.json").read_text(encoding="utf-8")) == summary
    assert "**Simulated**" in Path("out/report.md").read_text(encoding="utf-8")
    assert sorted(one.name for one in place.iterdir()) == ["a.txt"]
    with Ledger(Path(summary["ledger"])) as ledger:
        assert ledger.balance(summary["scope"]).posted_nanos == summary["posted_nanos"]
        assert ledger.balance().posted_nanos == 0
    report = earmark("report", summary["run"], "--json")
    assert report.code == 0, report.err
    assert report.json["posted_nanos"] == summary["posted_nanos"]


@pytest.mark.parametrize("write", [False, True], ids=["read-only", "--write"])
def test_it_writes_only_where_it_may(place: Path, earmark: Program, write: bool) -> None:
    """Nothing is changed unless that was said, and then in the folder only."""
    asks = "".join(
        f'[[sim:tool=Write {{"file_path": "{path}", "content": "new"}}]]'
        for path in (place / "b.txt", place.parent / "c.txt")
    )

    ran = earmark(
        "work", f"Write {asks}", "--in", "place", "--simulate", *["--write"][: int(write)]
    )

    assert ran.code == 0, ran.err
    assert (place / "b.txt").exists() is write
    assert not (place.parent / "c.txt").exists()
    assert "of $1.50 posted" in ran.out


def test_a_cap_in_the_way(place: Path, earmark: Program) -> None:
    """Out of money is exit code 3, with the cap in the sentence, and nothing above it."""
    ran = earmark("work", "Look", "--in", "place", "--simulate", "--cap", "0.001", "--json")

    assert ran.code == 3
    assert (ran.json["outcome"], ran.json["posted_usd"]) == ("budget", "0.00")
    assert "the cap of $0.001" in ran.json["reason"]


def test_a_session_that_had_to_stop_is_gone_on_with(place: Path, earmark: Program) -> None:
    """Out of money in the middle is exit code 3, with the command that goes on; the new run costs only what is new."""
    loop = '[[sim:tool=Glob {"pattern": "*"}]] [[sim:turns=4]] [[sim:output=300]]'
    common = ("--in", "place", "--simulate", "--max-tokens", "500")
    stopped = earmark("work", f"Look {loop}", *common, "--cap", "0.018")

    assert stopped.code == 3, stopped.out
    assert "go on: earmark work 'Go on.' --in place --resume " in stopped.out
    session = stopped.out.partition("--resume ")[2].split()[0]

    ran = earmark("work", "Go on [[sim:text=all done]]", *common, "--resume", session, "--json")

    assert (ran.code, ran.json["text"], ran.json["session"]) == (0, "all done", session)
    assert abs(ran.json["cli_difference_nanos"]) < 10
    assert ran.json["calls"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--in", "place", "--resume", "no-session"), "--resume: there is no session 'no-session'"),
        (("--in", "place", "--resume", "../../x"), "with the --ledger of that run only"),
        (("--in", "nowhere"), "no such folder"),
        (("--in", "place", "--cap", "lots"), "lots"),
        (("--in", "place", "--model", "claude-none-1"), "claude-none-1"),
        (("--in", "place", "--agents", "none.toml"), "No such file"),
        (("--in", "place", "--agents", "bad.toml"), "there is no field 'promt'"),
        (("--in", "place", "--agents", "writes.toml"), "read-only without --write"),
        (("--in", "place", "--agents", "empty.json"), "there is no agent in it"),
    ],
)
def test_mistakes(
    place: Path, folder: Path, earmark: Program, arguments: tuple[str, ...], said: str
) -> None:
    """A mistake is one sentence and exit code 2; no program is started."""
    (folder / "bad.toml").write_text('[look]\ndescription = "d"\npromt = "p"\n')
    (folder / "writes.toml").write_text('[a]\ndescription = "d"\nprompt = "p"\ntools = ["Write"]\n')
    (folder / "empty.json").write_text("{}")

    ran = earmark("work", "Look", "--simulate", *arguments)

    assert ran.code == 2
    assert said in ran.err
    assert "sessions=" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.fixture
def hangs() -> Iterator[tuple[str, threading.Event]]:
    """An API that takes every request and never answers, and when the first message has come."""
    asked = threading.Event()

    class Hanging(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.set()
            over.wait()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    over = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hanging) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        over.set()
        server.shutdown()
        serving.join()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("presses", "within_s"), [(1, 12), (2, 8)], ids=["once", "twice"])
def test_ctrl_c_while_the_api_hangs(
    place: Path, folder: Path, hangs: tuple[str, threading.Event], presses: int, within_s: float
) -> None:
    """Once it ends in a few seconds (8 at most), twice at once; nothing is alive, and the hold is in doubt."""
    url, asked = hangs
    process = subprocess.Popen(
        [sys.executable, "-m", "earmark", "work", "Look", "--in", "place", "--json"],
        env={**os.environ, "ANTHROPIC_API_KEY": "no-key", "ANTHROPIC_BASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(60)
    below = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    if presses == 2:
        while "stopping" not in "".join(
            one.read_text() for one in folder.rglob("journal.jsonl")
        ):  # the first one has been heard
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert time.monotonic() - began < within_s
    assert below
    psutil.wait_procs(below, timeout=1)
    assert [one for one in below if one.is_running()] == []
    if presses == 1:
        summary = json.loads(out)
        assert (summary["outcome"], summary["held_usd"]) == ("cancelled", "0.00")
        assert summary["in_doubt_nanos"] > 0
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        assert ledger.balance().held_nanos == 0
        assert ledger.balance().in_doubt_nanos > 0
        assert ledger.check().findings == []
