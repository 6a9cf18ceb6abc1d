"""kill -9 in the middle of ``earmark classify``: resumed, it pays each document once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import running_simulator

from .classifying import Proof, arguments, command, environment, rows_of, start, write_documents

DOCUMENTS, KILLS, WIDTH = 240, 10, 8


class Server:
    """``earmark simulate`` in a process of its own."""

    def __init__(self, where: Path) -> None:
        line = [sys.executable, "-m", "earmark", "simulate", "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*line, "--latency-ms", "15"],
            cwd=where,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        text = b""
        while not text.rstrip().endswith(b"}"):
            text += self.process.stdout.readline()
        self.url = str(json.loads(text)["url"])

    def ask(self, path: str) -> Any:
        """One of its own pages."""
        with urllib.request.urlopen(f"{self.url}/sim/{path}", timeout=10) as reply:
            return json.load(reply)

    @property
    def arrived(self) -> int:
        """Messages so far."""
        return int(self.ask("stats")["arrived"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Beside the program, and ended with the test."""
    beside = Server(tmp_path)
    try:
        yield beside
    finally:
        beside.process.terminate()
        beside.process.communicate()


def settled(where: Path) -> Counter[str]:
    """How often each document was paid, by the ledger."""
    with Ledger(where / ".earmark" / "ledger.db", fallback=()) as ledger:
        return Counter(str(line.note["unit"]) for line in ledger.lines() if line.kind == "settle")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_killed_at_random_moments_it_pays_each_document_once(
    tmp_path: Path, server: Server
) -> None:
    """Z-02: after ten kills the bill is that of one pass, but for the calls in flight at each kill."""
    write_documents(tmp_path / "docs", DOCUMENTS)
    env = environment(server.url)
    chance = random.Random(20261129)
    for _ in range(KILLS):
        resume = ["--resume"] if (tmp_path / "out" / "classify.json").exists() else []
        process = start(tmp_path, env, "--width", str(WIDTH), *resume)
        target = server.arrived + chance.randint(1, 2 * DOCUMENTS // KILLS - 10)
        while process.poll() is None and server.arrived < target:
            time.sleep(0.005)  # asked without a pause, the server would do little else
        process.kill()
        process.communicate()
    done = subprocess.run(
        command("docs", "--resume", "--json"), cwd=tmp_path, env=env, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    proof = Proof(where=tmp_path).check(json.loads(done.stdout))
    assert proof.outcomes == {"ok": DOCUMENTS}
    # An answer whose end was not on disk at a kill is in doubt, and not settled; none is settled twice.
    paid = settled(tmp_path)
    assert set(paid.values()) == {1}
    assert DOCUMENTS - KILLS * WIDTH <= len(paid) <= DOCUMENTS
    bill = server.ask("bill")
    assert DOCUMENTS <= bill["requests"] <= DOCUMENTS + KILLS * WIDTH
    # In doubt is charged at its bound, so that the bill can't be above what the ledger says.
    assert proof.posted <= bill["nanos"] <= proof.posted + proof.in_doubt
    one_pass = proof.posted * DOCUMENTS / len(paid)
    assert bill["nanos"] <= one_pass * 1.01 + KILLS * WIDTH * one_pass / DOCUMENTS


_KILLED_BEFORE_A_ROW = """
import gc, os, signal, sys
from budgets.caps import Cap
from budgets.ledger import Ledger
from patterns.bulk.results import Results
write, rows = Results.add, []

def add(self, row):
    rows.append(row)
    if len(rows) == 5:
        for one in gc.get_objects():
            if isinstance(one, Ledger):
                one.drop_cap(Cap("0", scope="nothing"))  # what was handed to it before is on disk now
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, row)

Results.add = add
from earmark.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("extra", "outcome"),
    [("", "ok"), ("[[sim:refuse=9]]", "refusal"), ('[[sim:text={"label": "zzz"}]]', "invalid")],
    ids=["ok", "refusal", "invalid"],
)
def test_an_answer_that_was_paid_is_not_paid_again(
    tmp_path: Path, extra: str, outcome: str
) -> None:
    """Killed between the line that pays and the row that says so: the answer comes from the ledger."""
    write_documents(tmp_path / "docs", 12, extra=extra)
    with running_simulator() as server:
        env = environment(server.url)
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED_BEFORE_A_ROW, *arguments("docs", "--width", "1")],
            cwd=tmp_path,
            env=env,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL
        assert len(rows_of(tmp_path / "out")) == 4
        done = subprocess.run(
            command("docs", "--resume", "--json"), cwd=tmp_path, env=env, capture_output=True
        )
        proof = Proof(where=tmp_path).check(json.loads(done.stdout))
        assert proof.outcomes == {outcome: 12}
        assert proof.rows[4]["path"] == "t0004.txt"
        assert proof.rows[4]["reused"] is True
        answers = 2 if outcome == "invalid" else 1
        assert proof.rows[4]["calls"] == answers
        assert settled(tmp_path)[proof.rows[4]["identity"]] == answers
        assert proof.posted <= server.bill.nanos <= proof.posted + proof.in_doubt


def test_a_torn_row_is_cut_off(tmp_path: Path) -> None:
    """A line that a crash left half written is no row, and the next one does not stick to it."""
    write_documents(tmp_path / "docs", 6)
    with running_simulator() as server:
        env = environment(server.url)
        subprocess.run(command(), cwd=tmp_path, env=env, capture_output=True, check=True)
        file = tmp_path / "out" / "results.jsonl"
        file.write_bytes(file.read_bytes()[:-40])
        done = subprocess.run(
            command("docs", "--resume", "--json"), cwd=tmp_path, env=env, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert Proof(where=tmp_path).check(json.loads(done.stdout)).outcomes == {"ok": 6}
        assert server.bill.requests == 6
