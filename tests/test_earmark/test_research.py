"""``earmark research``: a report with sources whatever happens, for no more than was said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from budgets.ledger import Ledger
from orchestrator.simulator import Cue, SimulatorThread, running_simulator

from .classifying import KEY
from .conftest import Program

QUESTION = "Which tickets ask for a refund?"


@pytest.fixture
def tickets(folder: Path) -> Path:
    """A few files to look things up in."""
    place = folder / "tickets"
    place.mkdir()
    (place / "a.txt").write_text("I want a refund of the invoice of May.")
    (place / "b.txt").write_text("The page is slow since Monday.")
    return place


def test_a_folder_is_researched_and_the_report_is_there(tickets: Path, earmark: Program) -> None:
    """Three files, figures that agree with the ledger, and no real money."""
    ran = earmark("research", QUESTION, "--in", "tickets", "--simulate", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    summary = ran.json
    assert (summary["outcome"], summary["simulated"], summary["cap_usd"]) == ("ok", True, "4.00")
    assert (summary["held_usd"], summary["in_doubt_usd"]) == ("0.00", "0.00")
    posted = sum(one["posted_nanos"] for one in summary["by_agent"])
    assert posted == sum(one["posted_nanos"] for one in summary["by_model"])
    assert posted == summary["posted_nanos"] > 0
    report = Path("out/report.md").read_text(encoding="utf-8")
    assert QUESTION in report
    assert "**Simulated**" in report
    assert f"${summary['posted_usd']}" in report
    sources = json.loads(Path("out/sources.json").read_text(encoding="utf-8"))
    assert len(sources) == summary["sources"]
    assert all(one["found_by"] for one in sources)
    assert json.loads(Path("out/costs.json").read_text(encoding="utf-8")) == summary
    with Ledger(Path(summary["ledger"])) as ledger:
        assert ledger.balance(summary["scope"]).posted_nanos == posted
        assert ledger.balance().posted_nanos == 0
        assert ledger.check().ok


def _plan(count: int, *tools: str) -> str:
    """What the lead says: so many tasks."""
    tasks = [
        {
            "title": f"t{number}",
            "objective": f"look at file {number}",
            "output_format": "a list",
            "boundaries": "none",
            "tools": list(tools),
        }
        for number in range(count)
    ]
    return json.dumps({"tasks": tasks, "done": False})


@contextmanager
def _server(monkeypatch: pytest.MonkeyPatch, plan: str) -> Iterator[SimulatorThread]:
    """A stand-in whose lead says this plan, found by the environment."""
    cue = Cue(match="You lead this work", say=f"[[sim:text={plan}]]", times=0)
    with running_simulator(cues=(cue,)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield server


def test_the_web_is_researched_by_tools_with_bounds(
    earmark: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found is in the sources; its searches are the caller's word in the ledger."""
    question = "What is a hold? [[sim:searches=2]]"
    with _server(monkeypatch, _plan(1, "web_search")):
        ran = earmark("research", question, "--rounds", "1", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    sources = json.loads(Path("out/sources.json").read_text(encoding="utf-8"))
    assert [one["url"] for one in sources] == ["https://simulated.example.com/"]
    with Ledger(Path(ran.json["ledger"])) as ledger:
        searched = [line for line in ledger.lines() if (line.usage or {}).get("web_searches")]
        assert [line.note["caller_word"] for line in searched] == [["web_search_tokens"]]


def test_a_cap_that_is_hit_hands_back_what_there_is(
    tickets: Path, earmark: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, a report that says that it is incomplete, and not a nano-dollar above the cap."""
    with _server(monkeypatch, _plan(20)) as server:
        ran = earmark(
            "research", QUESTION, "--in", "tickets", "--out", "out", "--cap", "0.6",
            "--workers", "20", "--rounds", "1", "--json",
        )  # fmt: skip
        billed = server.call(lambda simulator: simulator.bill.nanos)
    summary = ran.json
    assert ran.code == 3, ran.err
    assert billed == summary["posted_nanos"] <= 600_000_000
    assert summary["outcomes"]["ok"] > 0
    assert summary["outcomes"]["budget"] > 0
    assert (summary["partial"], summary["outcome"]) == (True, "budget")
    report = Path("out/report.md").read_text(encoding="utf-8")
    assert "**Incomplete** (budget)" in report
    assert "There is no report" not in report


def test_a_cap_below_the_reports_own_cost_spends_nothing(tickets: Path, earmark: Program) -> None:
    """It is declined before anything is sent."""
    ran = earmark(
        "research", QUESTION, "--in", "tickets", "--simulate", "--out", "out", "--cap", "0.01", "--json"
    )  # fmt: skip
    assert ran.code == 3
    assert ran.json["posted_nanos"] == 0
    assert "nothing was started" in ran.json["reason"]


def test_a_dry_run_shows_the_plan_and_leaves_nothing(tickets: Path, earmark: Program) -> None:
    """Its worst and likely price, and whether the cap carries it."""
    before = sorted(Path().rglob("*"))
    ran = earmark("research", QUESTION, "--in", "tickets", "--dry-run")
    assert ran.code == 0, ran.err
    assert "researcher x10" in ran.out
    assert "$4.00 can still be spent" in ran.out
    ran = earmark("research", QUESTION, "--in", "tickets", "--dry-run", "--json")
    assert ran.json["worst_nanos"] > ran.json["likely_nanos"] > 0
    assert ran.json["likely_fits"] is True
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["  "], "question is empty", id="no question"),
        pytest.param([QUESTION, "--in", "nowhere"], "nowhere", id="no folder"),
        pytest.param([QUESTION, "--model", "claude-zebra-9"], "claude-zebra-9", id="no model"),
        pytest.param([QUESTION, "--cap", "much"], "much", id="no amount"),
        pytest.param([QUESTION, "--out", "tickets/a.txt"], "not a folder", id="a file"),
        pytest.param([QUESTION, "--in", "tickets/a.txt"], "a.txt", id="in a file"),
    ],
)
def test_mistakes_are_one_sentence(
    tickets: Path, earmark: Program, arguments: list[str], words: str
) -> None:
    """Exit code 2, nothing written, nothing sent."""
    ran = earmark("research", *arguments, "--simulate")
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert not list(Path().rglob("report.md"))
    # Said before a run is begun: no folder of it, no line about how it goes.
    assert not list(Path().rglob("journal.jsonl"))
    assert len(ran.err.strip().splitlines()) == 1


def test_without_a_key_it_says_so(tickets: Path, earmark: Program) -> None:
    """And offers the stand-in."""
    ran = earmark("research", QUESTION)
    assert (ran.code, "--simulate" in ran.err) == (2, True)


def test_an_earlier_report_is_not_overwritten(tickets: Path, earmark: Program) -> None:
    """Another folder must be named."""
    arguments = ("research", QUESTION, "--in", "tickets", "--simulate", "--out", "out")
    assert earmark(*arguments).code == 0
    ran = earmark(*arguments)
    assert ran.code == 2
    assert "report.md already" in ran.err
