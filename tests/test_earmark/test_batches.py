"""``earmark batches``: what is listed, taken up, watched and cancelled, and what is said where that can't be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.batches import BatchJob, BatchSettings, Item, Polling
from orchestrator.run import Run
from orchestrator.simulator import SimulatorThread, running_simulator

from .conftest import Program

ROOT = Path(__file__).parents[2]
KEY = "sk-ant-test-batches"
MODEL = "claude-haiku-5-5"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatorThread]:
    """A stand-in for the API that holds its batches."""
    with running_simulator(batch_seconds=None) as running:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield running


def leave_a_job(folder: Path, name: str = "job", count: int = 6) -> None:
    """A job that was left while its batch was under way."""

    async def leave() -> None:
        with Ledger(folder / ".earmark" / "ledger.db", caps=[Cap("10")]) as ledger:
            run = Run("label", ledger=ledger, id=name, scope="app", cap="5", kill_switch=False)
            settings = BatchSettings(polling=Polling(first_s=0.02, longest_s=0.05))
            async with run, BatchJob(run, settings) as job:
                task = asyncio.create_task(_detach(job))
                assert [done async for done in job.results(items(count))] == []
                await task

    asyncio.run(leave())


async def _detach(job: BatchJob) -> None:
    while not any(row.id for row in job.progress().batches):
        await asyncio.sleep(0.01)
    job.detach()


def items(count: int) -> Iterator[Item]:
    for number in range(count):
        messages = [{"role": "user", "content": f"Document {number}"}]
        body = {"model": MODEL, "max_tokens": 20, "messages": messages}
        yield Item(identity=f"doc-{number}", body=body)


def test_nothing_to_list(earmark: Program) -> None:
    """Without runs there is an empty table, and nothing is made."""
    ran = earmark("batches", "list", "--json")

    assert ran.code == 0
    assert ran.json["jobs"] == []


def test_list_then_attach(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """A job that was left is listed with its hold, and taken up to its end; the ledger is the server's bill."""
    leave_a_job(folder)
    (row,) = earmark("batches", "list", "--json").json["jobs"]
    assert (row["run"], row["state"], row["items"], row["batches_under_way"]) == (
        "job",
        "open",
        6,
        1,
    )
    assert row["held_nanos"] > 0

    server.finish_batches()
    ran = earmark("batches", "attach", "job", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["outcomes"] == {"ok": 6}
    assert ran.json["posted_nanos"] == ran.json["batch_nanos"] == server.bill.nanos
    assert ran.json["direct_nanos"] == 2 * ran.json["batch_nanos"]
    assert earmark("batches", "list", "--json").json["jobs"] == []
    (row,) = earmark("batches", "list", "--all", "--json").json["jobs"]
    assert row["state"] == "complete"
    sums = earmark("runs", "show", "job", "--json").json
    assert (sums["posted_nanos"], sums["held_nanos"]) == (server.bill.nanos, 0)
    assert earmark("ledger", "check").code == 0


def test_the_table_for_people(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """The summary shows the four bills side by side, and the list fits a line per job."""
    leave_a_job(folder)
    assert "job" in earmark("batches", "list").out
    server.finish_batches()
    ran = earmark("batches", "watch", "job")

    assert ran.code == 0
    for words in ("6 of 6 items", "batches (this bill)", "direct calls without a cache"):
        assert words in ran.out


def test_cancel(earmark: Program, folder: Path, server: SimulatorThread) -> None:
    """Cancelling settles what was answered by then, and leaves nothing held."""
    leave_a_job(folder)
    server.call(lambda simulator: simulator.process_batches(2))
    ran = earmark("batches", "cancel", "job", "--json")

    assert ran.code == 1
    assert ran.json["outcomes"] == {"ok": 2, "cancelled": 4}
    assert (ran.json["held_nanos"], ran.json["posted_nanos"]) == (0, server.bill.nanos)


def test_another_key_is_one_sentence(
    earmark: Program, folder: Path, server: SimulatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another key nothing is lost and no traceback is shown (B-10)."""
    leave_a_job(folder)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-another")
    ran = earmark("batches", "attach", "job")

    assert ran.code == 1
    assert "another API key" in ran.err
    assert "Traceback" not in ran.err
    assert "sk-ant" not in ran.err


@pytest.mark.parametrize(
    ("run", "words"), [("nowhere", "there is none beside"), ("plain", "it has no batches")]
)
def test_mistakes(run: str, words: str, earmark: Program, folder: Path) -> None:
    """A run that is not there, or has no batches, is the user's mistake, in one sentence."""
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        Run("plain", ledger=ledger, id="plain", kill_switch=False).close()
    ran = earmark("batches", "attach", run)

    assert ran.code == 2
    assert words in ran.err


@pytest.mark.slow
def test_ctrl_c_leaves_the_batches_running(folder: Path, server: SimulatorThread) -> None:
    """Ctrl-C where nobody can be asked leaves the batches running, says so, and keeps the hold (B-03)."""
    leave_a_job(folder)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "earmark.main", "batches", "watch", "job", "--json"]
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "1 batches under way" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "go on at the provider" in err
    document = json.loads(out)
    assert (document["complete"], document["sent"]) == (False, 6)
    assert document["held_nanos"] > 0
