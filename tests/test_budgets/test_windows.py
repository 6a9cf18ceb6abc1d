"""Calendar windows in the zone of a cap."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budgets.errors import InvalidCap, InvalidInput
from budgets.windows import PERS, Window, window_of, zone_of

#: Zones with midnight gaps, whole skipped days, half-hour steps and clock changes over midnight.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Havana",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Africa/Cairo",
]
zones = st.sampled_from(ZONES)
calendar_pers = st.sampled_from([per for per in PERS if per != "ever"])
instants = st.datetimes(
    min_value=datetime(1975, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2060, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)


def at(text: str) -> datetime:
    """An instant from text with an offset."""
    return datetime.fromisoformat(text)


def hours(window: Window) -> float:
    """Length of a window."""
    assert window.starts is not None
    assert window.ends is not None
    return (window.ends - window.starts) / timedelta(hours=1)


@pytest.mark.parametrize(
    ("per", "instant", "key"),
    [
        ("day", "2026-11-29T12:00:00+00:00", "2026-11-29"),
        ("day", "2026-11-29T23:30:00+00:00", "2026-11-30"),
        ("week", "2026-11-29T12:00:00+00:00", "2026-W48"),
        ("week", "2026-11-29T23:00:00+00:00", "2026-W49"),
        ("week", "2027-01-01T12:00:00+00:00", "2026-W53"),
        ("month", "2026-11-30T22:59:59+00:00", "2026-11"),
        ("month", "2026-11-30T23:00:00+00:00", "2026-12"),
        ("year", "2026-12-31T22:59:59+00:00", "2026"),
        ("year", "2026-12-31T23:00:00+00:00", "2027"),
        ("ever", "2026-11-29T12:00:00+00:00", "ever"),
    ],
)
def test_an_instant_lies_in_the_window_of_the_local_calendar(
    per: str, instant: str, key: str
) -> None:
    """Berlin's midnight, Monday and new year decide, not those of UTC (W-01)."""
    assert key == window_of(per, "Europe/Berlin", at(instant)).key


@pytest.mark.parametrize(
    ("zone", "noon", "length"),
    [
        pytest.param("Europe/Berlin", "2026-03-29T10:00:00+00:00", 23, id="clock forward"),
        pytest.param("Europe/Berlin", "2026-10-25T10:00:00+00:00", 25, id="clock back"),
        pytest.param("Europe/Berlin", "2026-11-29T10:00:00+00:00", 24, id="plain day"),
        pytest.param("Australia/Lord_Howe", "2026-10-04T01:00:00+00:00", 23.5, id="half hour"),
        pytest.param("America/Sao_Paulo", "2018-11-04T15:00:00+00:00", 23, id="no midnight"),
        pytest.param("America/Sao_Paulo", "2018-02-17T15:00:00+00:00", 25, id="back at midnight"),
        pytest.param("Asia/Beirut", "2022-03-27T10:00:00+00:00", 23, id="no midnight, Beirut"),
        pytest.param("America/Havana", "2026-11-01T17:00:00+00:00", 25, id="midnight twice"),
    ],
)
def test_days_have_their_true_length(zone: str, noon: str, length: float) -> None:
    """A day is 23, 23.5, 24 or 25 hours long, as the clocks of its zone make it."""
    assert length == hours(window_of("day", zone, at(noon)))


def test_a_day_without_midnight_starts_where_the_clock_lands() -> None:
    """In Sao Paulo 4 November 2018 began at one o'clock, the instant that the 3rd ended."""
    day = window_of("day", "America/Sao_Paulo", at("2018-11-04T12:00:00-02:00"))

    assert day.starts == at("2018-11-04T01:00:00-02:00")
    assert window_of("day", day.tz, at("2018-11-03T23:59:59-03:00")).key == "2018-11-03"


def test_a_day_starts_at_the_jump_even_where_the_jump_is_before_midnight() -> None:
    """In Toronto 1919 the clock went from 23:30 to 00:30: the 31st of March began with the jump."""
    jump = at("1919-03-31T04:30:00+00:00")

    assert window_of("day", "America/Toronto", jump).starts == jump
    assert window_of("day", "America/Toronto", jump - timedelta(seconds=1)).key == "1919-03-30"


def test_a_skipped_day_holds_no_instant() -> None:
    """Samoa had no 30 December 2011: its 29th ends where its 31st starts."""
    before = window_of("day", "Pacific/Apia", at("2011-12-30T09:59:59+00:00"))
    after = window_of("day", "Pacific/Apia", at("2011-12-30T10:00:00+00:00"))

    assert (before.key, after.key) == ("2011-12-29", "2011-12-31")
    assert before.ends == after.starts


@given(calendar_pers, zones, instants)
@example("day", "America/Toronto", datetime(1919, 3, 31, 4, 45, tzinfo=UTC))
@example("day", "America/St_Johns", datetime(2006, 10, 29, 2, 45, tzinfo=UTC))
@example("day", "Pacific/Apia", datetime(2011, 12, 30, 10, 0, tzinfo=UTC))
@settings(deadline=None, max_examples=300)
def test_every_instant_lies_in_exactly_one_window(per: str, zone: str, instant: datetime) -> None:
    """The window of an instant contains it, and so do all other instants in it have that window."""
    window = window_of(per, zone, instant)

    assert window.covers(instant)
    assert window.starts is not None
    assert window.ends is not None
    assert window == window_of(per, zone, window.starts)
    assert window == window_of(per, zone, window.ends - timedelta(microseconds=1))
    assert not window.covers(window.ends)


@given(calendar_pers, zones, instants)
@settings(deadline=None, max_examples=300)
def test_windows_tile(per: str, zone: str, instant: datetime) -> None:
    """The end of a window is the start of the next, and keys never repeat."""
    chain = [window_of(per, zone, instant)]
    for _ in range(3):
        ends = chain[-1].ends
        assert ends is not None
        chain.append(window_of(per, zone, ends))

    assert all(before.ends == after.starts for before, after in pairwise(chain))
    assert len(chain) == len({window.key for window in chain})


@given(zones, instants)
@settings(deadline=None)
def test_short_windows_nest_in_long_ones(zone: str, instant: datetime) -> None:
    """A day lies wholly inside its week, its month and its year; a month inside its year."""
    day, week, month, year = (
        window_of(per, zone, instant) for per in ("day", "week", "month", "year")
    )
    for outer in (week, month, year):
        assert outer.starts is not None
        assert outer.ends is not None
        assert day.starts is not None
        assert day.ends is not None
        assert outer.starts <= day.starts < day.ends <= outer.ends


@given(zones, instants, st.sampled_from(ZONES))
@settings(deadline=None)
def test_the_zone_of_the_clock_does_not_matter(zone: str, instant: datetime, clock: str) -> None:
    """The same instant has the same window whatever zone the clock that read it was in."""
    assert window_of("day", zone, instant) == window_of(
        "day", zone, instant.astimezone(ZoneInfo(clock))
    )


def test_a_window_names_itself_for_messages() -> None:
    """Text comes from the code that decides (W-04): period, key and zone."""
    instant = at("2026-11-29T12:00:00+00:00")

    assert str(window_of("day", "Europe/Berlin", instant)) == "day 2026-11-29 (Europe/Berlin)"
    assert str(window_of("week", "UTC", instant)) == "week 2026-W48 (UTC)"
    assert str(window_of("ever", "UTC", instant)) == "ever"


def test_ever_has_no_ends() -> None:
    """What counts for ever never turns."""
    window = window_of("ever", "UTC", at("2026-11-29T12:00:00+00:00"))

    assert (window.starts, window.ends) == (None, None)
    assert window.covers(datetime.min.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("zone", "near"),
    [
        ("Europe/Berlinn", "Europe/Berlin"),
        ("america/new_york", "America/New_York"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_names(zone: str, near: str) -> None:
    """A mistyped zone is the caller's mistake, and the message has the right spelling."""
    with pytest.raises(InvalidCap, match=near):
        window_of("day", zone, at("2026-11-29T12:00:00+00:00"))


@pytest.mark.parametrize("zone", ["", "../etc/passwd", "/etc/localtime", "Europe", "\0"])
def test_paths_are_not_zones(zone: str) -> None:
    """Nothing but a known name is looked up, so that a cap can't point at a file."""
    with pytest.raises(InvalidCap, match="is not known"):
        zone_of(zone)


def test_an_unknown_period_is_refused() -> None:
    """The message lists the periods that there are."""
    with pytest.raises(InvalidCap, match="day, week, month, year, ever"):
        window_of("fortnight", "UTC", at("2026-11-29T12:00:00+00:00"))


def test_a_datetime_without_zone_is_refused() -> None:
    """A naive datetime is no instant: guessing its zone would move money between windows."""
    with pytest.raises(InvalidInput, match="has no time zone"):
        window_of("day", "UTC", datetime(2026, 11, 29))  # noqa: DTZ001 - the point of the test
