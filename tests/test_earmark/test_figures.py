"""earmark estimate, prices and runs: figures that people plan with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Past, Program

EXAMPLE = Path(__file__).parents[2] / "examples" / "research-plan.toml"


def test_the_public_example_is_reproduced(earmark: Program) -> None:
    """To the cent: with and without caching, per run, day, week, month and year."""
    document = earmark("estimate", str(EXAMPLE), "--at", "2026-11-29", "--json").json
    cached = document["with_caching"]
    assert cached["run_usd"] == "1.4568"
    assert document["without_caching"]["run_usd"] == "2.204"
    assert [f"{float(cached[f'{span}_usd']):.2f}" for span in ("day", "week", "month", "year")] == [
        "29.14",
        "145.68",
        "640.99",
        "7691.90",
    ]
    assert [agent["name"] for agent in document["agents"]] == ["lead", "worker"]
    assert sum(agent["with_caching_nanos"] for agent in document["agents"]) == cached["run_nanos"]
    out = earmark("estimate", str(EXAMPLE), "--at", "2026-11-29").out
    for text in ("$1.4568", "$2.2040", "$29.14", "$145.68", "$640.99", "$7,691.90"):
        assert text in out


def test_a_plan_with_a_mistake_names_the_agent_and_the_field(
    earmark: Program, folder: Path
) -> None:
    """As everywhere: file, entry, field, and what to write."""
    (folder / "plan.toml").write_text('[[agent]]\nmodel = "claude-opus-5-5"\n', encoding="utf-8")
    ran = earmark("estimate", "plan.toml")
    assert ran.code == 2
    assert "plan.toml" in ran.err
    assert "turns" in ran.err


def test_prices_are_those_of_the_list(earmark: Program) -> None:
    """Dollars per million tokens, every class, batch and the dearer tier of long prompts."""
    [model] = earmark("prices", "claude-haiku-5-5", "--at", "2026-11-29", "--json").json["models"]
    standard = model["standard"]
    assert (standard["input_usd_per_mtok"], standard["output_usd_per_mtok"]) == ("0.10", "0.50")
    assert standard["tiers"][0]["over_prompt_tokens"] == 100_000
    assert standard["tiers"][0]["input_usd_per_mtok"] == "0.50"
    assert model["batch"]["input_usd_per_mtok"] == "0.05"
    assert model["fast"] is None
    assert model["serves"] is True


def test_retired_models_keep_their_price(earmark: Program) -> None:
    """A table for people leaves them out and says so; --all, --json and their name show them."""
    document = earmark("prices", "--json").json
    retired = [model for model in document["models"] if not model["serves"]]
    assert retired
    assert all(model["standard"]["input_usd_per_mtok"] for model in retired)
    name = retired[0]["id"]
    short, whole = earmark("prices").out, earmark("prices", "--all").out
    assert f"{len(retired)} retired models are left out" in short
    assert f"{name} " not in short
    assert f"{name} " in whole
    assert earmark("prices", name).code == 0


def test_a_price_file_of_ones_own_is_used(earmark: Program, folder: Path) -> None:
    """By --prices, or by the settings."""
    (folder / "p.toml").write_text(
        '[[price]]\nmodel = "claude-example-6"\ninput = "4"\noutput = "20"\n', encoding="utf-8"
    )
    (folder / "earmark.toml").write_text('[prices]\nfile = "p.toml"\n', encoding="utf-8")
    for arguments in (("--prices", "p.toml"), ()):
        [model] = earmark("prices", "claude-example-6", *arguments, "--json").json["models"]
        assert model["standard"]["input_usd_per_mtok"] == "4.00"
        assert "p.toml" in model["source"]


# ---- runs ---------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(past: Past) -> Past:
    """Two runs beside the ledger: one that ended, and one that was killed while it wrote."""
    for name, record, journal in (
        (
            "classify-1",
            {
                "run": "classify-1",
                "name": "classify",
                "scope": "app/run-1",
                "started": "2026-11-29T10:00:00+00:00",
                "ended": "2026-11-29T10:05:00+00:00",
                "outcome": "ok",
                "counts": {"ok": 2},
            },
            '{"event":"call"}\n{"event":"call"}\n{"event":"end"}\n',
        ),
        (
            "other-2",
            {"run": "other-2", "scope": "app/run-9", "started": "2026-11-29T11:00:00+00:00"},
            '{"event":"call"}\n{"event":"ca',
        ),
    ):
        folder = past.path.parent / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
        (folder / "journal.jsonl").write_text(journal, encoding="utf-8")
    return past


def test_runs_are_listed_latest_first_with_their_cost(earmark: Program, two_runs: Past) -> None:
    """Outcome and sums of each, from its record and the ledger."""
    rows = earmark("runs", "list", "--json").json["runs"]
    assert [(row["run"], row["outcome"], row["posted_usd"]) for row in rows] == [
        ("other-2", "not ended", "0.00"),
        ("classify-1", "ok", "0.123456789"),
    ]
    assert len(earmark("runs", "list", "--limit", "1", "--json").json["runs"]) == 1
    assert "classify-1" in earmark("runs", "list").out


def test_a_run_is_shown_from_its_record_and_the_ledger(earmark: Program, two_runs: Past) -> None:
    """Its sums are those of its scope, grouped by model and agent; its journal is counted."""
    document = earmark("runs", "show", "classify", "--json").json
    assert (document["run"], document["outcome"]) == ("classify-1", "ok")
    assert (document["posted_usd"], document["in_doubt_usd"]) == ("0.123456789", "0.25")
    assert document["journal"] == {"events": 3, "kinds": {"call": 2, "end": 1}, "torn": False}
    assert [row["key"] for row in document["by_agent"]] == ["reader"]
    out = earmark("runs", "show", "classify-1").out
    assert "2 ok" in out
    assert "claude-haiku-5-5" in out


def test_a_killed_run_is_shown_as_far_as_it_got(earmark: Program, two_runs: Past) -> None:
    """A torn last line of the journal is no obstacle, nor a record that was never written."""
    assert earmark("runs", "show", "other-2", "--json").json["journal"]["torn"] is True
    (two_runs.path.parent / "runs" / "other-2" / "run.json").write_text("{", encoding="utf-8")
    document = earmark("runs", "show", "other-2", "--json").json
    assert (document["outcome"], document["posted_usd"]) == ("not ended", "0.00")


def test_a_run_is_named_and_never_a_path(earmark: Program, two_runs: Past) -> None:
    """Only the folders beside the ledger are looked at."""
    for name in ("../runs/classify-1", "..", "", "zzz"):
        assert earmark("runs", "show", name).code == 2
