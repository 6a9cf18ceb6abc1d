"""earmark budget: what is shown is what the ledger enforces; what contradicts itself is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.money import parse_usd

from .conftest import Past, Program


def toml(folder: Path, text: str) -> None:
    """An earmark.toml in the working folder."""
    (folder / "earmark.toml").write_text(text, encoding="utf-8")


def test_every_cap_is_shown_with_its_sums(earmark: Program, past: Past) -> None:
    """Cap, posted, held, in doubt and remaining add up, exactly, for each cap of the ledger."""
    document = earmark("budget", "show", "--json").json
    rows = {(row["scope"], row["per"]): row for row in document["caps"] if not row["fallback"]}
    assert set(rows) == {("", "day"), ("app/run-1", "ever"), ("simulated", "day")}
    day = rows["", "day"]
    assert day["posted_usd"] == "0.123456789"
    assert day["in_doubt_usd"] == "0.25"
    assert day["held_usd"] == "0.00"
    assert day["cap_usd"] == "10.00"
    assert day["remaining_usd"] == "9.626543211"
    assert day["owner"] == "earmark.toml"
    assert day["tz"] == "Europe/Berlin"
    assert day["window"] == day["opens_at"][:8] + day["window"][8:]
    for row in document["caps"]:
        counted = row["posted_nanos"] + row["held_nanos"] + row["in_doubt_nanos"]
        assert row["remaining_nanos"] == row["cap_nanos"] - counted


def test_real_and_simulated_money_are_apart(earmark: Program, past: Past) -> None:
    """Play money is in no real cap's row, and the other way round."""
    document = earmark("budget", "show", "--json").json
    assert document["posted_usd"] == "0.123456789"
    assert document["simulated"]["posted_usd"] == "0.75"
    play = [row for row in document["caps"] if row["simulated"]]
    assert {row["scope"] for row in play} == {"simulated"}
    assert {row["posted_usd"] for row in play if row["per"] == "day"} == {"0.75"}


def test_a_scope_shows_what_it_falls_under_and_what_is_below(earmark: Program, past: Past) -> None:
    """--scope keeps its ancestors' caps and those within it."""
    document = earmark("budget", "show", "--scope", "app", "--json").json
    scopes = {row["scope"] for row in document["caps"]}
    assert scopes == {"", "app/run-1"}


def test_a_cap_per_run_shows_the_fullest_run(earmark: Program, folder: Path) -> None:
    """Not the sum of all runs, which no cap per run is about."""
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        for scope, cost in (("a", "1"), ("b", "2"), ("c", "1.5")):
            ledger.settle(ledger.hold(ledger.request(parse_usd("2"), scope=scope)), parse_usd(cost))
    rows = earmark("budget", "show", "--json").json["caps"]
    [row] = [row for row in rows if row["per"] == "run" and row["scope"] == ""]
    assert (row["subject"], row["subjects"], row["posted_usd"]) == ("b", 3, "2.00")


def test_people_read_who_set_a_cap_and_when_it_opens(earmark: Program, past: Past) -> None:
    """The text comes from the enforcing code: zone, owner and amounts are those of a decline."""
    out = earmark("budget", "show").out
    line = next(line for line in out.splitlines() if "earmark.toml" in line)
    for part in ("$10.00", "$0.1235", "$0.25", "00:00 Europe/Berlin", "[", "3%"):
        assert part in line


def test_a_shut_cap_says_so(earmark: Program, folder: Path) -> None:
    """After a decline for posted money the cap is shown shut, and open again once it is raised."""
    earmark("budget", "set", "1", "--scope", "app")
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        ledger.settle(ledger.hold(ledger.request(parse_usd("1"), scope="app")), parse_usd("0.9"))
        with pytest.raises(BudgetExceeded):
            ledger.hold(ledger.request(parse_usd("0.5"), scope="app"))

    def latched() -> bool:
        rows = earmark("budget", "show", "--scope", "app", "--json").json["caps"]
        [found] = [row["latched"] for row in rows if row["scope"] == "app"]
        return bool(found)

    assert latched()
    assert " shut" in earmark("budget", "show").out
    earmark("budget", "set", "2", "--scope", "app")
    assert not latched()


def test_a_default_that_made_room_is_shown(earmark: Program, folder: Path) -> None:
    """A lowered or lifted default is never silent."""
    toml(folder, '[caps]\nday = "3"\n')
    assert "default $5.00, lowered" in earmark("budget", "show").out
    levels = {level["per"]: level for level in earmark("budget", "show", "--json").json["levels"]}
    assert levels["run"]["moved"] == "lowered"
    assert levels["run"]["default_usd"] == "5.00"
    assert (levels["day"]["moved"], levels["day"]["owner"]) == (None, "earmark.toml")


# ---- check --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        ("", (), 0),
        ('[caps]\nsession = "5"\nday = "45"', (), 0),
        ('[caps]\nsession = "5"\nday = "45"', ("--sessions-per-day", "9"), 0),
        ('[caps]\nsession = "5"\nday = "45"', ("--sessions-per-day", "20"), 1),
        ('[caps]\nsession = "5"\nday = "45"\n[plan]\nsessions_per_day = 20', (), 1),
        ('[caps]\nday = "30"\nweek = "150"', (), 1),
        ('[caps]\nday = "30"\nweek = "150"', ("--days-per-week", "5"), 0),
        ('[caps]\ncall = "6"\nsession = "5"', (), 1),
        ('[caps]\nday = "0"', (), 1),
        ('[caps]\nday = "5"\n[[cap]]\nscope = "a"\namount = "6"\nper = "day"', (), 1),
        ('[caps]\nday = "5"\n[[cap]]\nscope="a"\namount="1"\nper="day"\ntz="Asia/Tokyo"', (), 1),
    ],
)
def test_a_nest_is_checked(
    earmark: Program, folder: Path, text: str, arguments: tuple[str, ...], code: int
) -> None:
    """Exit code 1 where the file contradicts itself, 0 where not; the document agrees."""
    toml(folder, text)
    ran = earmark("budget", "check", "--file", "earmark.toml", *arguments)
    assert ran.code == code
    assert ("contradiction:" in ran.out) is (code == 1)
    document = earmark("budget", "check", *arguments, "--json").json
    assert document["ok"] is (code == 0)
    assert any(finding["contradicts"] for finding in document["findings"]) is (code == 1)


def test_caps_of_the_ledger_are_checked_beside_the_file(earmark: Program, folder: Path) -> None:
    """A cap that was set by command counts, unless --file asks for the file alone."""
    toml(folder, '[caps]\nday = "5"\n')
    assert earmark("budget", "set", "6", "--per", "day", "--scope", "app").code == 0
    assert earmark("budget", "check").code == 1
    assert earmark("budget", "check", "--file", "earmark.toml").code == 0


# ---- set and drop -------------------------------------------------------------------------------------


def test_a_cap_that_is_set_binds_at_once(earmark: Program, folder: Path) -> None:
    """The next call of any process is declined by it, and the decline names who set it."""
    assert earmark("budget", "set", "0.10", "--per", "day", "--scope", "app").code == 0
    with (
        Ledger(folder / ".earmark" / "ledger.db") as ledger,
        pytest.raises(BudgetExceeded, match="set by earmark budget set"),
    ):
        ledger.hold(ledger.request(parse_usd("0.11"), scope="app", wait=False))


def test_setting_again_says_what_was_before(earmark: Program) -> None:
    """Of one scope, period and zone the latest word counts; the history keeps the earlier ones."""
    earmark("budget", "set", "1", "--per", "week", "--scope", "app")
    document = earmark("budget", "set", "2", "--per", "week", "--scope", "app", "--json").json
    assert (document["before_usd"], document["cap"]["cap_usd"]) == ("1.00", "2.00")
    rows = earmark("budget", "show", "--json").json["caps"]
    assert [row["cap_usd"] for row in rows if row["scope"] == "app"] == ["2.00"]


def test_a_cap_in_another_zone_beside_it_is_mentioned(earmark: Program, folder: Path) -> None:
    """Two zones are two caps, and both bind."""
    toml(folder, '[caps]\ntz = "Europe/Berlin"\n')
    first = earmark("budget", "set", "1", "--per", "day", "--json").json
    assert first["cap"]["tz"] == "Europe/Berlin"
    ran = earmark("budget", "set", "1", "--per", "day", "--tz", "UTC")
    assert "Europe/Berlin" in ran.err
    assert earmark("budget", "drop", "--per", "day", "--tz", "UTC").code == 0
    rows = earmark("budget", "show", "--json").json["caps"]
    assert [r["tz"] for r in rows if r["per"] == "day" and not r["fallback"]] == ["Europe/Berlin"]


def test_a_dropped_cap_is_gone_and_stays_in_the_history(earmark: Program, folder: Path) -> None:
    """Both the setting and the lifting are on record."""
    earmark("budget", "set", "1", "--per", "session", "--scope", "app")
    assert earmark("budget", "drop", "--per", "session", "--scope", "app").code == 0
    assert earmark("budget", "drop", "--per", "session", "--scope", "app").code == 2
    with Ledger(folder / ".earmark" / "ledger.db") as ledger, ledger.reader() as reader:
        history = [c.dropped for c in reader.cap_history() if c.entry.cap.scope == "app"]
    assert history == [False, True]
