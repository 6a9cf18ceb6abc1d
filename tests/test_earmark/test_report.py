"""earmark report: one run or log, told in a terminal, as JSON and as a page, always with the ledger's figures."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from budgets.ledger import Ledger
from orchestrator.agent import Agent
from orchestrator.retry import Retry
from orchestrator.run import Run
from orchestrator.simulator import Fault, SimulatorThread, running_simulator
from patterns import fan_out

from .classifying import KEY, ROOT, environment
from .conftest import Program

NASTY = '<img src=x onerror="alert(1)"> & </script><b>bold</b>'
MODEL = "claude-haiku-5-5"


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorThread]:
    """A stand-in for the API."""
    with running_simulator() as running:
        yield running


async def _work(url: str, count: int, cap: str) -> str:
    reader = Agent(name="reader", model=MODEL, max_tokens=200, system="Read.")
    fixed = {"base_url": url, "api_key": KEY}
    retry = Retry(first_s=0.001, longest_s=0.002)
    async with Run("work", cap=cap, client=fixed, retry=retry, kill_switch=False) as run:

        async def one(item: int) -> Any:
            if item % 4 == 3:
                raise ValueError(f"item {item}: {NASTY}")
            return await reader.run(run, f"Item {item}", unit=f"{NASTY} {item}")

        await fan_out(run, one, range(count), width=2)
        return run.id


@pytest.fixture
def run_id(folder: Path, simulator: SimulatorThread) -> str:
    """A run at the usual place with a retry, a call in doubt, and names that are markup."""
    simulator.reset()
    simulator.call(lambda sim: sim.faults.extend(["overloaded", Fault(kind="reset")]))
    return asyncio.run(_work(simulator.url, 8, "1"))


class _Page(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


# ---- a run --------------------------------------------------------------------------------------------


def test_json_says_what_the_ledger_says(earmark: Program, run_id: str) -> None:
    """The sums of the whole, of the agents, the models, the calls and the tree are the ledger's."""
    document = earmark("report", run_id, "--json").json
    with Ledger(Path(document["ledger"]), fallback=()) as ledger:
        balance = ledger.balance(document["scope"])
    assert document["posted_nanos"] == balance.posted_nanos > 0
    assert document["in_doubt_nanos"] == balance.in_doubt_nanos > 0
    for name in ("by_agent", "by_model", "calls"):
        assert sum(row["posted_nanos"] for row in document[name]) == balance.posted_nanos
        assert sum(row["in_doubt_nanos"] for row in document[name]) == balance.in_doubt_nanos
    assert document["tree"]["posted_nanos"] == balance.posted_nanos
    assert document["caps"][0]["cap_usd"] == "1.00"
    assert document["caps"][0]["run_nanos"] == balance.posted_nanos + balance.in_doubt_nanos
    assert len(document["calls"]) == document["calls_count"]
    assert {moment["kind"] for moment in document["moments"]} == {"retry"}
    assert document["outcome"] == "ok"
    assert not document["under_way"]


def test_what_is_in_doubt_is_resolved_by_the_command_that_is_named(
    earmark: Program, run_id: str
) -> None:
    """The sentence in the report can be typed as it stands, with an amount."""
    (doubt,) = earmark("report", run_id, "--json").json["in_doubt"]
    assert doubt["resolve"] in earmark("report", run_id).out
    words = doubt["resolve"].replace("AMOUNT", "0.01").split()[1:]
    assert earmark(*words).code == 0
    after = earmark("report", run_id, "--json").json
    assert after["in_doubt"] == []
    assert [c["posted_usd"] for c in after["calls"] if c["state"] == "resolved"] == ["0.01"]


def test_the_terminal_shows_money_tree_and_time(earmark: Program, run_id: str) -> None:
    """Where the money went, who worked below whom, what failed and why, and nothing that cannot be printed."""
    ran = earmark("report", "last")
    assert ran.code == 0
    for text in (
        run_id,
        "by agent",
        "by model",
        "└─ ",
        "reader",
        "✗ infra",
        "Spend over time",
        "retry",
    ):
        assert text in ran.out
    assert all(c.isprintable() or c == "\n" for c in ran.out)


@pytest.mark.parametrize("how", ["id", "beginning", "last", "folder", "journal", "record"])
def test_a_run_is_found_by_whatever_names_it(earmark: Program, run_id: str, how: str) -> None:
    """Id, beginning of an id, 'last', its folder and the files in it are the same run and ledger."""
    folder = Path(".earmark") / "runs" / run_id
    names = {"id": run_id, "beginning": run_id[:-2], "last": "last", "folder": str(folder)}
    names |= {"journal": str(folder / "journal.jsonl"), "record": str(folder / "run.json")}
    document = earmark("report", names[how], "--json").json
    assert (document["run"], document["source"]) == (run_id, "run")
    assert document["ledger"].endswith("ledger.db")


def test_a_moved_journal_alone_is_told_by_its_own_figures(
    earmark: Program, run_id: str, folder: Path
) -> None:
    """Where the ledger is not there any more, a note says whose word it is."""
    away = folder / "elsewhere" / "journal.jsonl"
    away.parent.mkdir()
    away.write_bytes((folder / ".earmark" / "runs" / run_id / "journal.jsonl").read_bytes())
    (folder / ".earmark").rename(folder / "gone")
    before = json.loads((folder / "gone" / "runs" / run_id / "run.json").read_text())
    document = earmark("report", str(away), "--json").json
    assert document["posted_usd"] == before["posted_usd"]
    assert document["ledger"] is None
    assert any("the journal's word" in note for note in document["notes"])


def test_a_run_that_does_not_exist_is_one_sentence(earmark: Program, run_id: str) -> None:
    """With the names of the latest runs; exit code 2."""
    ran = earmark("report", "nope")
    assert (ran.code, ran.out) == (2, "")
    assert run_id in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("last",), "there are no runs"),
        (("nope",), "no runs there at all"),
        ((".",), "holds no journal.jsonl"),
        (("last", "--out", "x.html"), "--html"),
    ],
)
def test_mistakes_are_one_sentence(earmark: Program, arguments: tuple[str, ...], said: str) -> None:
    """What, where and what to do; exit code 2."""
    ran = earmark("report", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_results_of_a_bulk_job_name_their_run(earmark: Program, folder: Path) -> None:
    """The folder that a person knows is enough."""
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("invoice")
    job = ("classify", "docs", "--labels", "a,b", "--simulate", "--out", "out", "--json")
    done = earmark(*job).json
    document = earmark("report", "out", "--json").json
    assert (document["run"], document["simulated"]) == (done["run"], True)
    assert document["posted_nanos"] == done["posted_nanos"]


def test_a_killed_run_is_told_to_its_last_line(
    earmark: Program, folder: Path, simulator: SimulatorThread
) -> None:
    """SIGKILL in the middle of calls: they are in doubt, the run has not ended, and the journal may be cut."""
    simulator.reset()
    simulator.call(lambda sim: sim.faults.extend([None, Fault(kind="hang"), Fault(kind="hang")]))
    script = folder / "job.py"
    script.write_text(
        "import asyncio\n"
        "from tests.test_earmark.test_report import _work\n"
        f"asyncio.run(_work({simulator.url!r}, 8, '1'))\n"
    )
    child = subprocess.Popen([sys.executable, str(script)], env=environment(), cwd=folder)
    try:
        simulator.arrived(3)
    finally:
        child.kill()
        child.wait()
        simulator.release()
    (journal,) = folder.glob(".earmark/runs/*/journal.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"at":"2026-')
    document = earmark("report", "last", "--json").json
    assert document["outcome"] == "not ended"
    assert document["tree"]["outcome"] == "not ended"
    assert document["in_doubt"]
    assert document["held_nanos"] == 0
    assert any("can't be read" in note for note in document["notes"])
    assert earmark("report", "last", "--html").code == 0


# ---- the page -----------------------------------------------------------------------------------------


def test_the_page_needs_no_network_and_runs_no_data(earmark: Program, run_id: str) -> None:
    """One file: no address, no source, one script (ours); names that are markup stand there as text."""
    ran = earmark("report", run_id, "--html")
    assert ran.code == 0
    path = Path(".earmark") / "runs" / run_id / "report.html"
    assert str(path) in ran.out
    text = path.read_text(encoding="utf-8")
    page = _Page(text)
    assert page.tags.count("script") == 1
    assert page.tags.count("style") == 1
    assert not {"img", "link", "iframe", "object", "base"} & set(page.tags)
    assert [n for n, _ in page.attributes if n in {"src", "href"} or n.startswith("on")] == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert NASTY in page.text
    assert NASTY not in text
    assert {"svg", "rect", "path", "details", "table"} <= set(page.tags)


def test_the_page_goes_where_it_is_told(earmark: Program, run_id: str, folder: Path) -> None:
    """--out names the file; the JSON says it too."""
    document = earmark("report", run_id, "--html", "--out", "page.html", "--json").json
    assert document["html"] == "page.html"
    assert "<!doctype html>" in (folder / "page.html").read_text(encoding="utf-8")


def test_neither_keys_nor_prompts_leave_with_a_report(earmark: Program, run_id: str) -> None:
    """In none of the three forms."""
    earmark("report", run_id, "--html", "--out", "page.html")
    text, document = earmark("report", run_id).out, earmark("report", run_id, "--json").out
    everything = text + document + Path("page.html").read_text(encoding="utf-8")
    assert KEY not in everything
    assert "Item 0" not in everything


# ---- logs ---------------------------------------------------------------------------------------------


def _line(number: int, model: str = MODEL) -> str:
    usage = {"input_tokens": 1000, "output_tokens": 100}
    at = f"2026-11-20T10:00:{number:02d}Z"
    return json.dumps({"id": f"m{number}", "model": model, "timestamp": at, "usage": usage})


@pytest.mark.parametrize(
    ("more", "code"),
    [((), 0), (("{cut",), 1), ((_line(9, "claude-haiku-55"),), 1)],
    ids=["whole", "unreadable", "unpriced"],
)
def test_a_log_of_calls_is_told_like_a_run(
    earmark: Program, folder: Path, more: tuple[str, ...], code: int
) -> None:
    """Exit code 1 says that the sums are not the whole: a line can't be read, or a model has no price."""
    (folder / "calls.jsonl").write_text("\n".join([_line(1), _line(2), *more]) + "\n")
    ran = earmark("report", "calls.jsonl", "--json")
    assert ran.code == code
    document = ran.json
    assert document["source"] == "log"
    assert document["posted_usd"] == "0.0003"
    assert sum(call["posted_nanos"] or 0 for call in document["calls"]) == document["posted_nanos"]
    text = earmark("report", "calls.jsonl").out
    assert ("claude-haiku-55" in text) is (more == (_line(9, "claude-haiku-55"),))
    assert earmark("report", "calls.jsonl", "--html").code == code
    assert (folder / "calls.html").exists()


@pytest.mark.parametrize("content", ["", "\n", '{"x": 1}\n', "nonsense\n"])
def test_a_file_without_a_call_is_no_success(earmark: Program, folder: Path, content: str) -> None:
    """Empty, or a log of something else: exit code 1, and it says that it has no call."""
    (folder / "log.jsonl").write_text(content)
    ran = earmark("report", "log.jsonl")
    assert ran.code == 1
    assert "no line has a usage" in ran.out


def test_the_documented_fields_are_the_fields(earmark: Program, run_id: str) -> None:
    """docs/cli.md names every field of the document and of its parts."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## earmark report")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    document = earmark("report", run_id, "--json").json
    fields = set(document)
    for name in ("by_agent", "by_model", "calls", "caps", "moments", "in_doubt", "spend"):
        fields |= set(document[name][0])
    fields |= set(document["tree"]) | set(document["tree"]["children"][0]["units"][0])
    fields |= set(document["cache"])
    unnamed = {n for n in fields if n not in named and n.replace("_nanos", "_usd") not in named}
    assert unnamed == set()
