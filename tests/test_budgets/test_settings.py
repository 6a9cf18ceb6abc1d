"""earmark.toml: found where it should be, read strictly, and turned into caps that respect what was said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from budgets.defaults import DEFAULT_AMOUNTS
from budgets.errors import BudgetExceeded, InvalidAmount, InvalidSettings
from budgets.ledger import Ledger
from budgets.money import parse_usd
from budgets.nest import Counts
from budgets.settings import (
    GateSettings,
    Settings,
    caps_for,
    find_settings,
    ledger_path,
    levels_for,
    load_settings,
    read_settings,
)

WHOLE = """
[caps]
call = "1"
agent = "3"
session = "4"
day = "20"
week = "90"
month = "250"
year = 1000
tz = "Europe/Berlin"

[[cap]]
scope = "app/search"
amount = "10"
per = "day"

[[cap]]
scope = "simulated/x"
amount = "$1.50"

[plan]
sessions_per_day = 20

[prices]
file = "prices.toml"

[model]
default = "claude-haiku-5-5"

[gate]
width = 8
"""


def write(folder: Path, text: str) -> Path:
    """An earmark.toml in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "earmark.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_can_be_written_is_read(tmp_path: Path) -> None:
    """Each table of the file arrives where it belongs."""
    settings = read_settings(write(tmp_path, WHOLE))
    amounts = {cap.per: str(cap.amount) for cap in settings.levels}
    assert amounts == {
        "call": "1.00",
        "agent": "3.00",
        "run": "4.00",
        "day": "20.00",
        "week": "90.00",
        "month": "250.00",
        "year": "1000.00",
    }
    assert {cap.tz for cap in settings.levels if cap.per in {"day", "year"}} == {"Europe/Berlin"}
    assert [str(cap) for cap in settings.caps] == [
        "$10.00 per day (Europe/Berlin) on scope 'app/search'",
        "$1.50 on scope 'simulated/x'",
    ]
    assert {cap.owner for cap in (*settings.levels, *settings.caps)} == {"earmark.toml"}
    assert settings.counts == Counts(sessions_per_day=20)
    assert settings.price_file == tmp_path / "prices.toml"
    assert settings.model == "claude-haiku-5-5"
    assert settings.gate == GateSettings(width=8)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[capz]", ["capz", "did you mean 'cap'"]),
        ("[caps]\ndya = '1'", ["caps", "dya", "'day'"]),
        ("[caps]\nday = 2.5", ["caps", "day", "float", "'2.5'"]),
        ("[caps]\nday = '-1'", ["caps", "day", "-1"]),
        ("[caps]\nday = 'lots'", ["caps", "day", "lots"]),
        ("[caps]\ntz = 'Europe/Belrin'", ["caps", "tz", "Europe/Berlin"]),
        ("[caps]\nsession = '1'\nrun = '1'", ["caps", "run", "session"]),
        ("caps = 3", ["caps", "table"]),
        ("[[cap]]\nscope = 'a'", ["number 1", "amount", "missing"]),
        ("[[cap]]\namount = '1'\nper = 'hour'", ["number 1", "per", "hour", "day"]),
        ("[[cap]]\namount = '1'\nscope = 'a//b'", ["number 1", "scope", "a//b"]),
        ("[[cap]]\namount = '1'\nscope = 3", ["number 1", "scope", "3"]),
        ("[[cap]]\namount = 1.5", ["number 1", "amount", "float"]),
        ("[[cap]]\namount = '1'\nscpe = 'a'", ["number 1", "scpe", "'scope'"]),
        (
            "[caps]\nday = '1'\n[[cap]]\namount = '2'\nper = 'day'",
            ["number 1", "[caps]", "already"],
        ),
        (
            "[[cap]]\namount = '1'\nscope='a'\n[[cap]]\namount = '2'\nscope='a'",
            ["number 2", "number 1", "already"],
        ),
        ("[plan]\nsessions_per_day = 0", ["plan", "sessions_per_day"]),
        ("[plan]\nsessions = 3", ["plan", "sessions", "sessions_per_day"]),
        ("[gate]\nwidth = '8'", ["gate", "width", "8"]),
        ("[model]\ndefault = ''", ["model", "default"]),
        ("[caps", ["not valid TOML"]),
    ],
)
def test_a_mistake_is_named_with_file_key_and_cure(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    """Nothing is guessed or passed over: the file, the key and what to write are in one sentence."""
    path = write(tmp_path, text)
    with pytest.raises(InvalidSettings) as caught:
        read_settings(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in [str(path), *parts]:
        assert part in message


def test_a_file_that_is_not_there_is_a_mistake_only_if_it_was_named(tmp_path: Path) -> None:
    """No earmark.toml is no mistake; one that was asked for and is missing is."""
    assert load_settings(folder=tmp_path, variables={}) == Settings()
    for given, variables in (
        (tmp_path / "x.toml", {}),
        (None, {"EARMARK_CONFIG": str(tmp_path / "x.toml")}),
    ):
        with pytest.raises(InvalidSettings, match=r"x\.toml"):
            load_settings(given, folder=tmp_path, variables=variables)


def test_the_flag_beats_the_environment_beats_the_folder(tmp_path: Path) -> None:
    """--config, then EARMARK_CONFIG, then the nearest earmark.toml."""
    here = write(tmp_path / "here", "")
    named = write(tmp_path / "named", "")
    flag = write(tmp_path / "flag", "")
    variables = {"EARMARK_CONFIG": str(named)}
    assert load_settings(flag, folder=here.parent, variables=variables).file == flag
    assert load_settings(folder=here.parent, variables=variables).file == named
    assert load_settings(folder=here.parent, variables={"EARMARK_CONFIG": ""}).file == here


def test_it_is_looked_for_up_to_the_git_root_and_not_above(tmp_path: Path) -> None:
    """A file above the project is somebody else's."""
    deep = tmp_path / "project" / "a" / "b"
    deep.mkdir(parents=True)
    write(tmp_path, "")
    (tmp_path / "project" / ".git").mkdir()
    assert find_settings(deep) is None
    inside = write(tmp_path / "project", "")
    assert find_settings(deep) == inside.resolve()


def test_it_is_looked_for_up_to_the_home_folder(tmp_path: Path) -> None:
    """Outside a git project the home folder is the highest; outside both only the folder itself."""
    deep = tmp_path / "home" / "a"
    deep.mkdir(parents=True)
    above = write(tmp_path, "")
    assert find_settings(deep, home=tmp_path / "home") is None
    assert find_settings(deep, home=tmp_path) == above.resolve()
    assert find_settings(deep, home=tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        ("x.db", {"EARMARK_HOME": "home"}, "x.db"),
        (None, {"EARMARK_HOME": "home"}, "home/ledger.db"),
        (None, {"EARMARK_HOME": ""}, "folder/.earmark/ledger.db"),
        (None, {}, "folder/.earmark/ledger.db"),
    ],
)
def test_the_ledger_is_where_the_documents_say(
    given: str | None, variables: dict[str, str], expected: str
) -> None:
    """--ledger, then EARMARK_HOME, then .earmark in the working folder."""
    path = ledger_path(given and Path(given), folder=Path("folder"), variables=variables)
    assert path == Path(expected)


# ---- which caps apply ---------------------------------------------------------------------------------


def amounts(settings: Settings, **given: object) -> dict[str, str]:
    """Levels by period, in dollars."""
    return {
        str(level.cap.per): f"{level.cap.amount:f}"
        for level in levels_for(settings, **given)  # type: ignore[arg-type]
    }


def settings_with(tmp_path: Path, **levels: str) -> Settings:
    """Settings with some of [caps]."""
    lines = "".join(f'{name} = "{amount}"\n' for name, amount in levels.items())
    return read_settings(write(tmp_path, f"[caps]\n{lines}"))


def test_where_the_file_is_silent_the_defaults_apply() -> None:
    """All six levels are always there."""
    caps = caps_for(Settings())
    assert {str(cap.per): cap.nanos for cap in caps} == {
        per: parse_usd(amount) for per, amount in DEFAULT_AMOUNTS.items()
    }
    assert {cap.owner for cap in caps} == {"default"}


@pytest.mark.parametrize(
    ("levels", "session", "expected", "moved"),
    [
        ({}, "50", {"run": "50.00", "day": "50.00", "week": "100.00"}, {"day": "lifted"}),
        (
            {},
            "3000",
            {"day": "3000.00", "year": "3000.00"},
            dict.fromkeys(("day", "week", "month", "year"), "lifted"),
        ),
        ({"day": "25"}, "50", {"run": "50.00", "day": "25.00"}, {}),
        ({"call": "10"}, None, {"call": "10.00", "run": "10.00"}, {"run": "lifted"}),
        ({"day": "3"}, None, {"run": "3.00", "call": "2.00"}, {"run": "lowered"}),
        (
            {"week": "1"},
            None,
            {"call": "1.00", "day": "1.00", "week": "1.00"},
            dict.fromkeys(("call", "run", "day"), "lowered"),
        ),
        ({"session": "7"}, "4", {"run": "4.00", "day": "25.00"}, {}),
    ],
)
def test_a_default_never_contradicts_what_was_said(
    tmp_path: Path,
    levels: dict[str, str],
    session: str | None,
    expected: dict[str, str],
    moved: dict[str, str],
) -> None:
    """Defaults make room for what was said, in both directions; what was said stays as it is."""
    settings = settings_with(tmp_path, **levels)
    found = amounts(settings, session_cap=session)
    assert found | expected == found
    levels_now = levels_for(settings, session_cap=session)
    assert {str(level.cap.per): level.moved for level in levels_now if level.moved} == moved
    assert all(level.cap.owner == "default" for level in levels_now if level.moved)


def test_each_cap_says_who_set_it(tmp_path: Path) -> None:
    """The file, the flag, or the defaults: a decline names them."""
    caps = caps_for(settings_with(tmp_path, day="30"), session_cap="6")
    owners = {str(cap.per): cap.owner for cap in caps}
    assert owners["day"] == "earmark.toml"
    assert owners["run"] == "--cap"
    assert owners["call"] == "default"


@pytest.mark.parametrize(
    ("session_cap", "asked", "per", "words"),
    [
        ("0.01", "0.02", "call", "the default lowered to fit in a cap that was set"),
        ("50", "51", "call", "set by default"),
        ("50", "2", "day", "the default lifted to make room for a cap that was set"),
        (None, "6", "call", "set by default"),
    ],
)
def test_a_decline_says_what_a_default_has_become(
    session_cap: str | None, asked: str, per: str, words: str
) -> None:
    """A default that made room for --cap is not called the default that is documented."""
    caps = caps_for(Settings(), session_cap=session_cap)
    only = [cap for cap in caps if cap.per == per]
    with Ledger(caps=only) as ledger:
        if per == "day":
            ledger.settle(ledger.hold(ledger.request(parse_usd("49"))), parse_usd("49"))
        with pytest.raises(BudgetExceeded, match=re.escape(words)):
            ledger.hold(ledger.request(parse_usd(asked)))


def test_a_session_cap_can_be_put_on_the_run_alone() -> None:
    """With a scope of its own it neither touches other runs nor outlives this one."""
    caps = caps_for(Settings(), session_cap="50", session_scope="classify/run-1")
    [own] = [cap for cap in caps if cap.scope]
    assert (own.scope, own.per, str(own.amount)) == ("classify/run-1", None, "50.00")
    assert "run" not in {cap.per for cap in caps}


def test_simulated_runs_have_the_same_levels_on_their_own_scope(tmp_path: Path) -> None:
    """Play money never counts against real caps, nor the other way round."""
    settings = read_settings(write(tmp_path, WHOLE))
    real, play = caps_for(settings), caps_for(settings, scope="simulated")
    assert {cap.scope for cap in real} == {"", "app/search"}
    assert {cap.scope for cap in play} == {"simulated", "simulated/x"}
    with Ledger(caps=[*real, *play]) as ledger:
        hold = ledger.hold(ledger.request(parse_usd("1"), scope="simulated/run-1"))
        ledger.settle(hold, parse_usd("1"))
        assert ledger.balance("").remaining == real[3].amount == 20
        assert ledger.balance("simulated").posted == 1


def test_an_amount_that_is_none_is_the_callers_mistake() -> None:
    """A float as --cap is refused, as everywhere."""
    with pytest.raises(InvalidAmount):
        caps_for(Settings(), session_cap=2.5)
