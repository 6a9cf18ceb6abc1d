"""``--via batch``: the same rows at half the price, through Ctrl-C and SIGKILL, and why ``auto`` chooses what."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

from budgets.ledger import Ledger
from orchestrator.simulator import Fault, Faults, SimulatorThread, running_simulator

from .classifying import (
    KEY,
    Proof,
    arguments,
    command,
    environment,
    rows_of,
    start,
    write_documents,
)
from .conftest import Program

VIA = ("--via", "batch")


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatorThread]:
    """A stand-in whose batches take a while."""
    with running_simulator(batch_seconds=3.0) as simulator:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield simulator


def _billed(server: SimulatorThread) -> int:
    return server.call(lambda simulator: simulator.bill.nanos)


def _wait_for_batch(server: SimulatorThread) -> None:
    """Until a batch has been made."""
    with Anthropic(base_url=server.url, api_key=KEY) as client:
        while not client.messages.batches.list().data:
            pass


def test_batches_give_the_rows_of_direct_calls_for_less(folder: Path, earmark: Program) -> None:
    """Label for label, with the four bills beside each other, each what it says."""
    write_documents(folder / "docs", 60)
    direct = earmark(*arguments(), "--simulate", "--json")
    labels = {row["path"]: row["label"] for row in rows_of(folder / "out")}
    (folder / "out").rename(folder / "direct")
    batch = earmark(*arguments(), "--simulate", "--json", *VIA)
    assert (direct.code, batch.code) == (0, 0), batch.err
    assert {row["path"]: row["label"] for row in rows_of(folder / "out")} == labels
    Proof(where=folder).check(batch.json)
    assert (direct.json["via"], batch.json["via"]) == ("direct", "batch")
    assert direct.json["batches"] is None
    bills = batch.json["batches"]
    assert bills["batch_nanos"] == batch.json["posted_nanos"]
    assert bills["batch_nanos"] * 2 == bills["direct_nanos"]
    assert batch.json["posted_nanos"] < direct.json["posted_nanos"]


def test_an_answer_outside_the_labels_gets_one_corrective_direct_call(
    folder: Path, earmark: Program
) -> None:
    """And ends as invalid if that does not fit either; each call is in its row's cost."""
    write_documents(folder / "docs", 3)
    (folder / "docs" / "odd.txt").write_text('Odd. [[sim:text={"label": "weather"}]]')
    ran = earmark(*arguments(), "--simulate", "--json", *VIA)
    assert ran.code == 1
    Proof(where=folder).check(ran.json)
    odd = next(row for row in rows_of(folder / "out") if row["path"] == "odd.txt")
    assert (odd["outcome"], odd["calls"]) == ("invalid", 2)
    assert ran.json["outcomes"] == {"invalid": 1, "ok": 3}


@pytest.mark.parametrize(
    ("count", "more", "via", "word"),
    [
        pytest.param(5, (), "direct", "soon done", id="small"),
        pytest.param(400, ("--urgent",), "direct", "urgent", id="urgent"),
        pytest.param(400, (), "batch", "saves about", id="large"),
    ],
)
def test_auto_says_what_it_takes_and_why(
    folder: Path, earmark: Program, count: int, more: tuple[str, ...], via: str, word: str
) -> None:
    """Before anything is spent."""
    write_documents(folder / "docs", count, extra="The same words again and again. " * 80)
    ran = earmark(*arguments(), "--dry-run", "--json", "--via", "auto", *more)
    assert ran.json["via"] == via
    assert word in ran.json["why"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=["left by Ctrl-C", "killed"])
def test_a_job_that_was_left_is_gone_on_with_and_nothing_is_paid_twice(
    folder: Path, server: SimulatorThread, by: signal.Signals
) -> None:
    """The batch goes on at the provider, its hold stays; --resume fetches what it answered."""
    write_documents(folder / "docs", 30)
    with start(folder, environment(server.url), *VIA) as process:
        _wait_for_batch(server)
        process.send_signal(by)
        _, said = process.communicate(timeout=60)
    if by == signal.SIGINT:
        assert process.returncode == 130, said
        assert b"go on at the provider" in said
        assert {row["outcome"] for row in rows_of(folder / "out")} == {"cancelled"}
    again = subprocess.run(
        [*command("docs", *VIA), "--resume", "--json"],
        cwd=folder,
        env=environment(server.url),
        capture_output=True,
        timeout=120,
    )
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert summary["outcomes"] == {"ok": 30}
    assert Proof(where=folder).check(summary).posted == _billed(server)


@pytest.mark.parametrize("is_left", [False, True], ids=["nothing there", "killed before it began"])
def test_a_command_that_is_repeated_can_always_say_resume(
    folder: Path, earmark: Program, *, is_left: bool
) -> None:
    """Where no run is there yet one begins, and that is said; the next time it is gone on with."""
    write_documents(folder / "docs", 2)
    if is_left:  # the file is made before the run's own record
        (folder / "out").mkdir()
        (folder / "out" / "results.jsonl").touch()
    line = (*arguments(), "--simulate", "--json", *VIA, "--resume")
    first, second = earmark(*line), earmark(*line)

    assert (first.code, second.code) == (0, 0), first.err
    assert "there is no run in out yet, so this begins one" in first.err
    assert "begins one" not in second.err
    assert second.json["run"] == first.json["run"]
    assert second.json["reused"] == 2


def test_a_webhook_is_kept_nowhere(folder: Path, earmark: Program) -> None:
    """Its URL may carry a secret: it is in no file and in nothing that is printed, also if nobody answers there."""
    write_documents(folder / "docs", 2)
    hook = ("--webhook", "http://127.0.0.1:9/hook?key=do-not-tell")
    ran = earmark(*arguments(), "--simulate", "--json", *VIA, *hook)
    assert ran.code == 0, ran.err
    assert "do-not-tell" not in ran.out + ran.err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path.name for path in files if b"do-not-tell" in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer", [b"c\n", b"l\n", b"\x03"], ids=["cancel", "leave", "Ctrl-C again"]
)
def test_ctrl_c_asks_at_a_terminal(folder: Path, server: SimulatorThread, answer: bytes) -> None:
    """Cancelled, nothing is held; left, or pressed twice, the program ends at once and the hold stays."""
    write_documents(folder / "docs", 3)
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        command("docs", *VIA),
        cwd=folder,
        env=environment(server.url),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        _wait_for_batch(server)
        process.send_signal(signal.SIGINT)
        said = b""
        while b"cancel them [c]?" not in said:
            said += os.read(mine, 4096)
        if answer == b"\x03":
            process.send_signal(signal.SIGINT)
        else:
            os.write(mine, answer)
        with contextlib.suppress(OSError):  # the terminal's end
            while os.read(mine, 4096):
                pass
        assert process.wait(timeout=60) == (1 if answer == b"c\n" else 130)
    os.close(mine)
    with Ledger(folder / ".earmark" / "ledger.db", fallback=()) as ledger:
        assert (ledger.balance().held_nanos == 0) == (answer == b"c\n")
    if answer == b"c\n":
        ends = {(row["outcome"], row["reason"]) for row in rows_of(folder / "out")}
        assert ends == {("cancelled", "the job was cancelled")}


@pytest.mark.parametrize(
    "more",
    [
        ("--failed-direct",),
        ("--notify", "true"),
        ("--webhook", "http://127.0.0.1:9/"),
        ("--urgent", *VIA),
    ],
    ids=lambda more: more[0],
)
def test_an_option_that_means_nothing_here_is_said(
    folder: Path, earmark: Program, more: tuple[str, ...]
) -> None:
    """It is not passed over in silence."""
    write_documents(folder / "docs", 2)
    ran = earmark(*arguments(), "--simulate", *more)
    assert ran.code == 2
    assert more[0] in ran.err
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_a_corrective_call_that_was_cut_off_is_not_made_again(folder: Path) -> None:
    """It may have been billed: its price stays in doubt, its document is as it was, and nothing is asked again."""
    write_documents(folder / "docs", 3)
    (folder / "docs" / "odd.txt").write_text('Odd. [[sim:text={"label": "weather"}]]')
    hang = Faults([Fault(kind="hang", billed=True)])
    with running_simulator(batch_seconds=0.1, faults=hang) as server:
        with start(folder, environment(server.url), *VIA) as process:
            server.arrived(1)
            process.kill()
            process.communicate(timeout=60)
        again = _resume(folder, server)
        assert again["outcomes"] == {"invalid": 1, "ok": 3}
        assert again["in_doubt_nanos"] > 0
        Proof(where=folder).check(again)
        odd = next(row for row in rows_of(folder / "out") if row["path"] == "odd.txt")
        assert "may have been billed" in odd["reason"]
        assert _resume(folder, server)["posted_nanos"] == again["posted_nanos"]
        assert server.call(lambda simulator: simulator.world.stats.arrived) == 1


@pytest.mark.slow
def test_ctrl_c_ends_corrections(folder: Path) -> None:
    """Once the batches have ended Ctrl-C means what it means for direct calls: twice leaves at once."""
    write_documents(folder / "docs", 3)
    (folder / "docs" / "odd.txt").write_text('Odd. [[sim:text={"label": "weather"}]]')
    hang = Faults([Fault(kind="hang")])
    with (
        running_simulator(batch_seconds=0.1, faults=hang) as server,
        start(folder, environment(server.url), *VIA) as process,
    ):
        server.arrived(1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while b"Ctrl-C" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(rows_of(folder / "out")) == 4


def _resume(folder: Path, server: SimulatorThread, *more: str) -> dict[str, Any]:
    again = subprocess.run(
        [*command("docs", *VIA), "--resume", "--json", *more],
        cwd=folder,
        env=environment(server.url),
        capture_output=True,
        timeout=60,
    )
    assert not again.stderr.count(b"Traceback"), again.stderr
    summary: dict[str, Any] = json.loads(again.stdout)
    return summary
