"""earmark ledger: the lines as they are, what is open, the proof, and corrections by further lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from budgets.ledger import Ledger
from budgets.money import parse_usd

from .conftest import Past, Program


def test_lines_are_complete_and_exact(earmark: Program, past: Past) -> None:
    """Every line with its amounts as text and as nano-dollars, and sums that are the ledger's."""
    document = earmark("ledger", "lines", "--json").json
    assert [line["kind"] for line in document["lines"]] == [
        "hold",
        "hold",
        "hold",
        "settle",
        "doubt",
        "settle",
    ]
    assert document["count"] == document["last_id"] == 6
    assert (document["posted_usd"], document["in_doubt_usd"]) == ("0.873456789", "0.25")
    assert document["held_nanos"] == 0
    settle = document["lines"][3]
    assert settle["hold"] == past.settled
    assert settle["posted_nanos"] == 123_456_789
    assert (settle["posted_usd"], settle["held_usd"]) == ("0.123456789", "-0.50")
    assert (settle["scope"], settle["model"], settle["agent"]) == (
        "app/run-1",
        "claude-haiku-5-5",
        "reader",
    )
    assert settle["usage"] == {"input_tokens": 100, "output_tokens": 7}


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (("--scope", "app"), [1, 2, 4, 5]),
        (("--scope", "simulated"), [3, 6]),
        (("--kind", "settle", "--kind", "doubt"), [4, 5, 6]),
        (("--after", "4"), [5, 6]),
        (("--limit", "2"), [1, 2]),
        (("--after", "2", "--limit", "2"), [3, 4]),
        (("--since", "2000-01-01"), [1, 2, 3, 4, 5, 6]),
        (("--since", "2999-01-01T10:00"), []),
        (("--until", "2000-01-01T00:00Z", "--tz", "Asia/Tokyo"), []),
        (("--until", "2999-01-01"), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_lines_are_chosen(
    earmark: Program, past: Past, arguments: tuple[str, ...], ids: list[int]
) -> None:
    """Each filter keeps what it says, in JSON, in JSON Lines and for people alike."""
    lines = earmark("ledger", "lines", *arguments, "--json").json["lines"]
    assert [line["id"] for line in lines] == ids
    streamed = earmark("ledger", "lines", *arguments, "--jsonl").out.splitlines()
    assert [json.loads(line) for line in streamed] == lines
    assert len(earmark("ledger", "lines", *arguments).out.splitlines()) == len(ids) + 1


def test_the_lines_of_one_hold(earmark: Program, past: Past) -> None:
    """--hold tells the story of one call."""
    lines = earmark("ledger", "lines", "--hold", past.doubted, "--json").json["lines"]
    assert [line["kind"] for line in lines] == ["hold", "doubt"]


def test_open_holds_say_who_and_why(earmark: Program, past: Past) -> None:
    """A call in doubt is listed with its age, its owner and the reason."""
    document = earmark("ledger", "holds", "--json").json
    [hold] = document["holds"]
    assert (hold["id"], hold["state"], hold["amount_usd"]) == (past.doubted, "doubt", "0.25")
    assert hold["reason"] == "timeout after sending"
    assert hold["owner"]["alive"] is True
    assert hold["age_s"] >= 0
    assert (document["held_usd"], document["in_doubt_usd"]) == ("0.00", "0.25")
    assert earmark("ledger", "holds", "--scope", "simulated", "--json").json["holds"] == []
    out = earmark("ledger", "holds").out
    assert past.doubted in out
    assert "earmark ledger resolve" in out


def test_the_holds_of_a_killed_process_are_in_doubt(earmark: Program, folder: Path) -> None:
    """After kill -9 they count in full, say that their process is gone, and can be resolved."""
    script = (
        "import os; from budgets import Ledger; ledger = Ledger('.earmark/ledger.db');"
        "ledger.hold(ledger.request(30_000_000, scope='app')); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    [hold] = earmark("ledger", "holds", "--json").json["holds"]
    assert (hold["state"], hold["owner"]["alive"]) == ("doubt", False)
    assert "died" in hold["reason"]
    assert earmark("ledger", "resolve", hold["id"], "--not-billed").code == 0
    checked = earmark("ledger", "check", "--json").json
    assert (checked["ok"], checked["in_doubt_usd"], checked["held_usd"]) == (True, "0.00", "0.00")


def test_a_sound_ledger_is_proven(earmark: Program, past: Past) -> None:
    """Exit code 0, the sums of all lines, real and simulated apart."""
    ran = earmark("ledger", "check", "--json")
    document = ran.json
    assert (ran.code, document["ok"], document["findings"]) == (0, True, [])
    assert (document["lines"], document["holds"], document["doubts"]) == (6, 3, 1)
    assert document["posted_usd"] == "0.873456789"
    assert document["real"]["posted_usd"] == "0.123456789"
    assert document["simulated"]["posted_usd"] == "0.75"
    assert "proven" in earmark("ledger", "check").out


def test_a_ledger_that_was_tampered_with_is_found(earmark: Program, past: Past) -> None:
    """Exit code 1 and a sentence that names the account."""
    import apsw

    db = apsw.Connection(str(past.path))
    db.execute("UPDATE accounts SET posted = posted - 1 WHERE window <> 'ever'")
    db.close()
    ran = earmark("ledger", "check", "--json")
    assert (ran.code, ran.json["ok"]) == (1, False)
    assert any("account" in finding for finding in ran.json["findings"])
    assert "wrong: " in earmark("ledger", "check").out


# ---- resolve ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "posted"),
    [(("--cost", "0.10"), "0.10"), (("--not-billed",), "0.00"), (("--as-held",), "0.25")],
)
def test_a_call_in_doubt_is_resolved(
    earmark: Program, past: Past, arguments: tuple[str, ...], posted: str
) -> None:
    """It is posted as said, the rest is free, the reason stays, and the ledger is still proven."""
    ran = earmark(
        "ledger", "resolve", past.doubted, *arguments, "--reason", "usage report", "--json"
    )
    assert (ran.code, ran.json["posted_usd"], ran.json["count"]) == (0, posted, 1)
    checked = earmark("ledger", "check", "--json").json
    assert (checked["ok"], checked["in_doubt_usd"]) == (True, "0.00")
    last = earmark("ledger", "lines", "--json").json["lines"][-1]
    assert (last["kind"], last["note"]["reason"]) == ("resolve", "usage report")


def test_the_beginning_of_an_id_will_do(earmark: Program, past: Past) -> None:
    """Six characters, if only one open hold begins so."""
    assert earmark("ledger", "resolve", past.doubted[:6], "--as-held").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--not-billed",), "--all"),
        (("HOLD",), "exactly one of"),
        (("HOLD", "--cost", "1", "--not-billed"), "exactly one of"),
        (("HOLD", "--cost", "1.0.0"), "--cost"),
        (("HOLD", "--all", "--as-held"), "--all"),
        (("--all", "--cost", "1"), "--as-held"),
        (("HOLD", "--scope", "app", "--as-held"), "--scope"),
        (("0" * 32, "--as-held"), "no open hold"),
        (("a", "--as-held"), "no open hold"),
    ],
)
def test_a_resolution_that_is_not_clear_changes_nothing(
    earmark: Program, past: Past, arguments: tuple[str, ...], words: str
) -> None:
    """Exit code 2, a sentence that says what to write, and no new line."""
    given = [past.doubted if argument == "HOLD" else argument for argument in arguments]
    ran = earmark("ledger", "resolve", *given)
    assert ran.code == 2
    assert words in ran.err
    assert earmark("ledger", "lines", "--json").json["count"] == 6


def test_everything_in_doubt_below_a_scope_is_resolved_at_once(
    earmark: Program, past: Past
) -> None:
    """--all --scope S --as-held takes what was held as the cost, and leaves other scopes alone."""
    with Ledger(past.path) as ledger:
        for scope in ("app/run-2", "other"):
            ledger.doubt(ledger.hold(ledger.request(parse_usd("0.10"), scope=scope)))
    document = earmark("ledger", "resolve", "--all", "--scope", "app", "--as-held", "--json").json
    assert (document["count"], document["posted_usd"]) == (2, "0.35")
    [left] = earmark("ledger", "holds", "--json").json["holds"]
    assert left["scope"] == "other"
    assert earmark("ledger", "resolve", "--all", "--not-billed").code == 0
    assert "nothing is in doubt" in earmark("ledger", "resolve", "--all", "--not-billed").out


def test_a_call_under_way_here_is_not_resolved(earmark: Program, past: Past) -> None:
    """Not even with --owner-gone, since its process can be seen alive."""
    with Ledger(past.path) as ledger:
        hold = ledger.hold(ledger.request(parse_usd("0.10"), scope="app"))
        ran = earmark("ledger", "resolve", hold.id, "--not-billed", "--owner-gone")
        assert ran.code == 2
        assert "still under way" in ran.err
        ledger.settle(hold, 1)


def test_the_call_of_another_machine_needs_somebodys_word(earmark: Program, past: Past) -> None:
    """Without --owner-gone it is refused; with it the call is doubted and resolved."""
    import apsw

    with Ledger(past.path) as ledger:
        hold = ledger.hold(ledger.request(parse_usd("0.10"), scope="app")).id
        db = apsw.Connection(str(past.path))
        db.execute(
            "UPDATE owners SET host = 'elsewhere#1234-5' WHERE id = ?", (hold_owner(ledger),)
        )
        db.close()
        [listed] = [
            h for h in earmark("ledger", "holds", "--json").json["holds"] if h["id"] == hold
        ]
        assert (listed["state"], listed["owner"]["alive"]) == ("held", None)
        ran = earmark("ledger", "resolve", hold, "--not-billed")
        assert (ran.code, "--owner-gone" in ran.err) == (2, True)
        assert earmark("ledger", "resolve", hold, "--not-billed", "--owner-gone").code == 0
    kinds = [
        line["kind"] for line in earmark("ledger", "lines", "--hold", hold, "--json").json["lines"]
    ]
    assert kinds == ["hold", "doubt", "resolve"]


def test_a_reserve_is_listed_as_such_and_costs_nothing(earmark: Program, past: Past) -> None:
    """It is held, no call under way; said to be another machine's and gone, it is given back, whatever the cost."""
    import apsw

    with Ledger(past.path) as ledger:
        reserve = ledger.reserve(parse_usd("0.10"), scope="app").id
        document = earmark("ledger", "holds", "--json").json
        [listed] = [h for h in document["holds"] if h["id"] == reserve]
        assert (listed["state"], listed["amount_usd"]) == ("reserve", "0.10")
        assert document["held_usd"] == "0.10"
        assert "reserve " in earmark("ledger", "holds").out
        checked = earmark("ledger", "check", "--json").json
        assert (checked["ok"], checked["reserves"], checked["open_holds"]) == (True, 1, 0)
        assert "1 reserved" in earmark("ledger", "check").out
        ran = earmark("ledger", "resolve", reserve, "--not-billed")
        assert (ran.code, "a reserve of a process that lives" in ran.err) == (2, True)
        db = apsw.Connection(str(past.path))
        db.execute("UPDATE owners SET host = 'elsewhere#1-5' WHERE id = ?", (hold_owner(ledger),))
        db.close()
        ran = earmark("ledger", "resolve", reserve, "--as-held", "--owner-gone", "--json")
        assert (ran.code, ran.json["posted_usd"]) == (0, "0.00")
        assert earmark("ledger", "check").code == 0


def hold_owner(ledger: Ledger) -> str:
    """The owner of the latest open hold."""
    return ledger.open_holds()[-1].owner


# ---- adjust and report --------------------------------------------------------------------------------


def test_a_posted_amount_is_corrected_by_a_further_line(earmark: Program, past: Past) -> None:
    """One mistyped price is mended without touching a line: the old one stays, the new one counts."""
    before = earmark("ledger", "lines", "--json").json["lines"]
    ran = earmark(
        "ledger", "adjust", past.settled, "--cost", "0.02", "--reason", "invoice", "--json"
    )
    assert (ran.code, ran.json["posted_usd"]) == (0, "-0.103456789")
    after = earmark("ledger", "lines", "--json").json["lines"]
    assert after[:-1] == before
    assert (after[-1]["kind"], after[-1]["note"]["reason"]) == ("adjust", "invoice")
    assert earmark("budget", "show", "--json").json["posted_usd"] == "0.02"
    assert earmark("ledger", "check").code == 0


def test_a_correction_needs_a_hold_that_was_posted_and_a_reason(
    earmark: Program, past: Past
) -> None:
    """What is in doubt is resolved, not corrected."""
    for hold, reason in ((past.doubted, "x"), ("0" * 32, "x"), (past.settled, " ")):
        ran = earmark("ledger", "adjust", hold, "--cost", "1", "--reason", reason)
        assert ran.code == 2
    assert earmark("ledger", "lines", "--json").json["count"] == 6


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("model", {"claude-haiku-5-5"}),
        ("agent", {"reader"}),
        ("scope", {"app/run-1", "simulated/run-2"}),
    ],
)
def test_a_report_adds_up(earmark: Program, past: Past, by: str, keys: set[str]) -> None:
    """However it is grouped, the rows make the whole."""
    document = earmark("ledger", "report", "--by", by, "--json").json
    assert {row["key"] for row in document["rows"]} == keys
    assert sum(row["posted_nanos"] for row in document["rows"]) == 873_456_789
    assert document["posted_nanos"] == 873_456_789
    assert sum(row["output_tokens"] for row in document["rows"]) == 7
    out = earmark("ledger", "report", "--by", by).out
    assert all(key in out for key in keys)


def test_a_report_by_day_follows_a_zone(earmark: Program, past: Past) -> None:
    """The day is that of the hold in the zone asked for."""
    [row] = earmark("ledger", "report", "--scope", "app", "--tz", "Asia/Tokyo", "--json").json[
        "rows"
    ]
    with Ledger(past.path) as ledger:
        from zoneinfo import ZoneInfo

        first = next(ledger.lines("app")).held_at.astimezone(ZoneInfo("Asia/Tokyo"))
    assert row["key"] == first.date().isoformat()
    assert (row["calls"], row["settled"], row["doubted"]) == (2, 1, 1)
