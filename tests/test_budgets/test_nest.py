"""Contradictions in a nest of caps, as tables: which caps, which counts, what is found."""

from __future__ import annotations

import pytest

from budgets.caps import Cap
from budgets.defaults import default_caps
from budgets.nest import Counts, contradictions

BERLIN = "Europe/Berlin"


def caps(*rows: tuple[object, ...]) -> list[Cap]:
    """Caps from rows of amount, period, scope and zone."""
    found = []
    for row in rows:
        amount, per, scope, tz = (*row, *("", "", "UTC")[len(row) - 1 :])
        found.append(Cap(amount, per=str(per) or None, scope=str(scope), tz=str(tz)))
    return found


FOUND = [
    # what, caps, counts, kinds of contradictions
    ("session above day", [("50", "run"), ("45", "day")], {}, ["above"]),
    ("day above week", [("45", "day"), ("30", "week")], {}, ["above"]),
    ("call above session", [("6", "call"), ("5", "run")], {}, ["above"]),
    ("call above agent", [("2", "call"), ("1", "agent")], {}, ["above"]),
    ("day above all time", [("45", "day", "app"), ("30", "", "app")], {}, ["above"]),
    ("inner above ancestor", [("10", "day", "app/a"), ("9", "day", "app")], {}, ["above"]),
    ("inner above everything", [("10", "day", "app/a"), ("9", "day")], {}, ["above"]),
    ("inner day above outer month", [("10", "day", "a"), ("9", "month")], {}, ["above"]),
    ("twenty sessions", [("5", "run"), ("45", "day")], {"sessions_per_day": 20}, ["count"]),
    ("ten sessions", [("5", "run"), ("45", "day")], {"sessions_per_day": 10}, ["count"]),
    ("7 days above week", [("10", "day"), ("69.99", "week")], {}, ["count"]),
    ("31 days above month", [("10", "day"), ("309.99", "month")], {}, ["count"]),
    ("12 months above year", [("10", "month"), ("119", "year")], {}, ["count"]),
    ("4 weeks above month", [("10", "week"), ("39", "month")], {}, ["count"]),
    ("366 days above year", [("1", "day"), ("365.99", "year")], {}, ["count"]),
    ("calls above session", [("1", "call"), ("5", "run")], {"calls_per_session": 6}, ["count"]),
    ("agents above session", [("1", "agent"), ("5", "run")], {"agents_per_session": 6}, ["count"]),
    ("zero day", [("0", "day")], {}, ["zero"]),
    ("two zones on one day", [("5", "day"), ("5", "day", "", BERLIN)], {}, ["zones"]),
    ("two zones in a chain", [("5", "day", "app", BERLIN), ("35", "week")], {}, ["zones"]),
]

FITS = [
    ("nothing", [], {}),
    ("nine sessions", [("5", "run"), ("45", "day")], {"sessions_per_day": 9}),
    ("sessions not counted", [("5", "run"), ("45", "day")], {}),
    ("exactly 7 days", [("10", "day"), ("70", "week")], {}),
    ("5 working days", [("10", "day"), ("50", "week")], {"days_per_week": 5}),
    ("22 working days", [("10", "day"), ("220", "month")], {"days_per_month": 22}),
    ("siblings", [("9", "day", "a"), ("5", "day", "b")], {}),
    ("inner year above outer day", [("10", "year", "app"), ("9", "day")], {}),
    ("zones of strangers", [("9", "day", "a", BERLIN), ("5", "day", "b")], {}),
    ("play money above real", [("9", "day", "simulated"), ("5", "day")], {}),
    ("a run's own amount above a day", [("9", "", "app/run-1"), ("5", "day")], {}),
]


@pytest.mark.parametrize(
    ("rows", "counts", "kinds"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND]
)
def test_a_nest_that_contradicts_itself_is_found(
    rows: list[tuple[object, ...]], counts: dict[str, int], kinds: list[str]
) -> None:
    """Exactly the contradictions of the table are found, each naming the amounts it is about."""
    found = contradictions(caps(*rows), Counts(**counts))
    assert [finding.kind for finding in found if finding.contradicts] == kinds
    for finding in found:
        assert all(str(cap) in finding.message for cap in finding.caps)


@pytest.mark.parametrize(
    ("rows", "counts"), [row[1:] for row in FITS], ids=[row[0] for row in FITS]
)
def test_a_nest_that_fits_is_left_alone(
    rows: list[tuple[object, ...]], counts: dict[str, int]
) -> None:
    """Nothing is said about caps that can all be meant."""
    assert contradictions(caps(*rows), Counts(**counts)) == []


def test_a_count_says_how_many_fit_and_what_would_do() -> None:
    """Twenty $5 sessions against a $45 day: nine fit, $2.25 each would do, or a day of $100."""
    [found] = contradictions(caps(("5", "run"), ("45", "day")), Counts(sessions_per_day=20))
    for part in ("20 sessions", "$100.00", "pays for 9", "$2.25"):
        assert part in found.message


def test_amounts_to_lower_to_are_whole_cents() -> None:
    """A cap that is proposed can be typed: a third of $10 is $3.33."""
    [found] = contradictions(caps(("5", "run"), ("10", "day")), Counts(sessions_per_day=3))
    assert "$3.33 " in found.message


def test_the_defaults_do_not_contradict_themselves() -> None:
    """Nobody is told about caps that nobody set."""
    assert contradictions(default_caps()) == []


def test_a_default_that_is_too_small_is_only_a_note() -> None:
    """A day of $45 beside the default week of $100 is worth knowing and no contradiction."""
    week = Cap("100", per="week", owner="default")
    [found] = contradictions([*caps(("45", "day")), week])
    assert (found.kind, found.contradicts) == ("count", False)


def test_overbooked_siblings_are_a_note() -> None:
    """Two teams of $30 may share a day of $45 on purpose."""
    nest = caps(("30", "day", "app/a"), ("30", "day", "app/b"), ("45", "day", "app"))
    [found] = contradictions(nest)
    assert (found.kind, found.contradicts, len(found.caps)) == ("together", False, 3)
    assert "$60.00" in found.message


def test_contradictions_come_before_notes() -> None:
    """What must be mended is read first."""
    nest = caps(("30", "day", "app/a"), ("30", "day", "app/b"), ("45", "day", "app"), ("0", "call"))
    kinds = [finding.contradicts for finding in contradictions(nest)]
    assert kinds == sorted(kinds, reverse=True)
    assert True in kinds
    assert False in kinds


def test_a_step_between_speaks_for_a_longer_one() -> None:
    """Day, month and year: what the month says of its days is not said of the year again."""
    nest = caps(("10", "day"), ("100", "month"), ("1200", "year"))
    [found] = contradictions(nest)
    assert [cap.per for cap in found.caps] == ["day", "month"]
