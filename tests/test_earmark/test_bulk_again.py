"""``earmark batches attach`` and ``cancel`` of bulk jobs write their rows; who is told of the end is told once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

from orchestrator.simulator import SimulatorThread, running_simulator

from .classifying import KEY, Proof, arguments, environment, rows_of, start, write_documents
from .conftest import Program

VIA = ("--via", "batch")
NOTIFY = ("--notify", "tee -a told.json")


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatorThread]:
    """A stand-in that holds its batches."""
    with running_simulator(batch_seconds=None) as simulator:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield simulator


def leave(
    folder: Path,
    server: SimulatorThread,
    *more: str,
    by: int = signal.SIGINT,
    source: str = "docs",
) -> str:
    """Begin a job in a process of its own, and leave it when its batch has been made; the run."""
    with start(folder, environment(server.url), *VIA, *more, folder=source) as process:
        with Anthropic(base_url=server.url, api_key=KEY) as client:
            while not client.messages.batches.list().data:
                pass
        process.send_signal(by)
        process.communicate(timeout=60)
    run: str = json.loads((folder / "out" / "classify.json").read_text())["run"]
    return run


def told(folder: Path) -> list[dict[str, Any]]:
    """What the command of ``--notify`` was given, each time that it ran."""
    text = (folder / "told.json").read_text() if (folder / "told.json").exists() else ""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=["left", "killed"])
def test_who_attaches_gets_rows_and_summary(
    folder: Path, server: SimulatorThread, earmark: Program, by: signal.Signals
) -> None:
    """As from the job's own command, from any folder, by the rubric that it began with; nobody was told before."""
    write_documents(folder / "docs", 4)
    (folder / "docs" / "odd.txt").write_text('Odd. [[sim:text={"label": "weather"}]]')
    (folder / "rubric.txt").write_text("Money goes to billing.")
    run = leave(folder, server, "--rubric", "rubric.txt", *NOTIFY, by=by)
    assert told(folder) == []
    (folder / "rubric.txt").write_text("Something else.")
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    server.finish_batches()

    ledger = ("--ledger", str(folder / ".earmark" / "ledger.db"))
    attached = earmark("batches", "attach", run, *ledger, "--json")
    assert attached.code == 1, attached.err
    assert attached.json["outcomes"] == {"invalid": 1, "ok": 4}
    assert Proof(where=folder).check(attached.json).posted == server.bill.nanos
    assert len([row for row in server.bill.rows if row.nanos]) == 6
    (once,) = told(folder / "elsewhere")
    assert (once["end"], once["done"]) == ("complete", {"invalid": 1, "ok": 4})
    assert once["posted_usd"] == attached.json["posted_usd"]


@pytest.mark.slow
def test_who_cancels_gets_the_rows_that_are_paid(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """What was answered by then is billed and so it has a row; the rest says that it was cancelled; nothing is sent."""
    write_documents(folder / "docs", 5)
    run = leave(folder, server)
    server.call(lambda simulator: simulator.process_batches(2))
    cancelled = earmark("batches", "cancel", run, "--json")

    assert cancelled.code == 1, cancelled.err
    assert cancelled.json["outcomes"] == {"cancelled": 3, "ok": 2}
    assert Proof(where=folder).check(cancelled.json).posted == server.bill.nanos
    reasons = {row["reason"] for row in rows_of(folder / "out") if row["outcome"] == "cancelled"}
    assert len(reasons) == 1
    assert "cancelled" in reasons.pop()
    assert "asked again only by: earmark classify" in cancelled.err
    assert server.call(lambda simulator: simulator.world.stats.arrived) == 0

    billed = server.bill.nanos
    for word in ("attach", "watch"):  # whoever only comes to look has nothing asked again
        again = earmark("batches", word, run, "--json")
        assert again.json["outcomes"] == {"cancelled": 3, "ok": 2}, again.err
    with Anthropic(base_url=server.url, api_key=KEY) as client:
        assert len(client.messages.batches.list().data) == 1
    assert server.bill.nanos == billed


@pytest.mark.slow
@pytest.mark.parametrize("word", ["attach", "cancel"])
def test_where_the_rows_cannot_be_written_the_job_is_settled_all_the_same(
    folder: Path, server: SimulatorThread, earmark: Program, word: str
) -> None:
    """It says why, and by which command they come later; that costs nothing more."""
    write_documents(folder / "docs", 3)
    run = leave(folder, server)
    (folder / "docs").rename(folder / "away")
    server.finish_batches()
    ran = earmark("batches", word, run)

    assert ran.code == 0, ran.err
    assert "its rows can't be written now" in ran.err
    assert "--resume" in ran.err
    (folder / "away").rename(folder / "docs")
    billed = server.bill.nanos
    again = earmark(*arguments(), *VIA, "--resume", "--json")
    assert again.json["outcomes"] == {"ok": 3}
    assert server.bill.nanos == billed == again.json["posted_nanos"]


@pytest.mark.slow
def test_another_template_is_not_paid_for(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """Who attaches does not pay for other prompts than those that the job began with."""
    (folder / "docs.csv").write_text("body\nan invoice\na crash\n")
    (folder / "template.txt").write_text("Ticket: {body}")
    run = leave(folder, server, "--template", "template.txt", source="docs.csv")
    (folder / "template.txt").write_text("Other: {body}")
    server.finish_batches()
    ran = earmark("batches", "attach", run)

    assert ran.code == 0, ran.err
    assert "not the one that it began with" in ran.err
    assert len([row for row in server.bill.rows if row.nanos]) == 2


def test_told_once_at_the_end_with_the_final_figures(folder: Path, earmark: Program) -> None:
    """After corrections and stragglers, in counts and dollars and without content."""
    write_documents(folder / "docs", 4)
    (folder / "docs" / "odd.txt").write_text('Odd. [[sim:text={"label": "weather"}]]')
    (folder / "docs" / "slow.txt").write_text("A slow error. [[sim:batch=expired]]")
    ran = earmark(*arguments(), "--simulate", "--json", *VIA, "--failed-direct", *NOTIFY)

    (once,) = told(folder)
    assert once["done"] == ran.json["outcomes"] == {"invalid": 1, "ok": 5}
    assert (once["end"], once["exit_code"]) == ("complete", ran.code)
    assert once["posted_usd"] == ran.json["posted_usd"]
    assert once["held_usd"] == "0.00"
    assert "invoice" not in (folder / "told.json").read_text()


def test_told_of_an_end_by_a_cap(folder: Path, earmark: Program) -> None:
    """The money is gone: whoever waits is told, with what there is."""
    write_documents(folder / "docs", 4)
    ran = earmark(*arguments(), "--simulate", "--json", *VIA, *NOTIFY, "--cap", "0.0001")

    assert ran.code == 3, ran.err
    (once,) = told(folder)
    assert once["done"] == ran.json["outcomes"]
    assert once["exit_code"] == 3


def test_told_of_small_jobs_that_auto_sends_directly(folder: Path, earmark: Program) -> None:
    """Whoever asked to be told is told, whichever way is taken."""
    write_documents(folder / "docs", 2)
    ran = earmark(*arguments(), "--simulate", "--json", "--via", "auto", *NOTIFY)

    (once,) = told(folder)
    assert (once["via"], once["done"]) == ("direct", ran.json["outcomes"])


@pytest.mark.slow
def test_told_of_a_fault(
    folder: Path, server: SimulatorThread, earmark: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that needs a person says so, by the name of what is wrong and no more."""
    write_documents(folder / "docs", 2)
    run = leave(folder, server, *NOTIFY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-another")
    ran = earmark("batches", "attach", run)

    assert ran.code == 1
    assert "another API key" in ran.err
    (once,) = told(folder)
    assert (once["end"], once["fault"], once["run"]) == ("fault", "JobFault", run)
    assert "sk-ant" not in (folder / "told.json").read_text()


@pytest.mark.slow
def test_who_watches_a_job_of_another_process_only_looks(
    folder: Path, server: SimulatorThread, earmark: Program
) -> None:
    """Its own process writes the rows and tells of the end, once."""
    write_documents(folder / "docs", 3)
    with start(folder, environment(server.url), *VIA, *NOTIFY) as process:
        with Anthropic(base_url=server.url, api_key=KEY) as client:
            while not client.messages.batches.list().data:
                pass
        run = json.loads((folder / "out" / "classify.json").read_text())["run"]
        server.finish_batches()
        watched = earmark("batches", "watch", run, "--every", "0.2", "--json")
        process.communicate(timeout=60)

    assert (watched.code, process.returncode) == (0, 0), watched.err
    assert watched.json["outcomes"] == {"ok": 3}
    assert len(told(folder)) == 1
    assert Proof(where=folder).check().posted == server.bill.nanos


def test_an_end_is_told_once_however_often_its_job_is_touched(
    folder: Path, earmark: Program
) -> None:
    """By attach, watch, cancel and --resume; told again after work that came to another end."""
    write_documents(folder / "docs", 2)
    line = (*arguments(), "--simulate", "--json", *VIA, *NOTIFY)
    run = earmark(*line).json["run"]
    for touch in (("attach", run), ("watch", run), ("cancel", run), ("attach", run)):
        assert earmark("batches", *touch).code == 0
    assert earmark(*line, "--resume", "--cap", "9").code == 0
    assert len(told(folder)) == 1

    write_documents(folder / "docs", 3)
    assert earmark(*line, "--resume").json["outcomes"] == {"ok": 3}
    assert [one["done"] for one in told(folder)] == [{"ok": 2}, {"ok": 3}]


def test_who_watches_a_finished_job_does_not_tell(folder: Path, earmark: Program) -> None:
    """Killed before its end was told (or that was written), its end is told by attach, and not by watch."""
    write_documents(folder / "docs", 2)
    run = earmark(*arguments(), "--simulate", "--json", *VIA, *NOTIFY).json["run"]
    (folder / "told.json").unlink()
    notice = folder / ".earmark" / "runs" / run / "notice.json"
    notice.write_text(json.dumps({"end": json.loads(notice.read_text())["end"]}))

    assert earmark("batches", "watch", run).code == 0
    assert told(folder) == []
    assert earmark("batches", "attach", run).code == 0
    assert len(told(folder)) == 1


def test_who_attaches_begins_no_other_run(folder: Path, earmark: Program) -> None:
    """Where the folder of the results is gone the job is settled as it is, and nothing is asked anew."""
    write_documents(folder / "docs", 2)
    run = earmark(*arguments(), "--simulate", "--json", *VIA).json["run"]
    (folder / "out").rename(folder / "away")
    ran = earmark("batches", "attach", run)

    assert ran.code == 0, ran.err
    assert "its rows can't be written now" in ran.err
    assert [one.name for one in (folder / ".earmark" / "runs").iterdir()] == [run]


def test_a_simulated_job_is_never_looked_for_at_the_provider(
    folder: Path, earmark: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stand-in is gone with its process; its play money is in doubt, and no key is needed to say so."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    write_documents(folder / "docs", 2)
    ran = earmark(*arguments(), "--simulate", "--json", *VIA)
    again = earmark("batches", "cancel", ran.json["run"], "--json")

    assert again.code == 0, again.err
    assert again.json["outcomes"] == {"ok": 2}
