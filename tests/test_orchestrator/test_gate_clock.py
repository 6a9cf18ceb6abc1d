"""The machine's clock rings alarms on time and in order."""

import threading
import time

import pytest

from orchestrator.clock import SystemClock


def test_alarms_ring_in_order_and_not_early() -> None:
    """Whatever the order in which they were set, alarms ring by their time."""
    clock = SystemClock()
    rung: list[tuple[str, bool]] = []
    done = threading.Event()
    start = clock.monotonic()

    def alarm(name: str, when: float) -> None:
        clock.call_at(when, lambda: rung.append((name, clock.monotonic() >= when)))

    for name, after in (("late", 0.03), ("soon", 0.01), ("past", -1.0)):
        alarm(name, start + after)
    clock.call_at(start + 0.04, done.set)
    assert done.wait(10)
    assert sorted(rung) == [("late", True), ("past", True), ("soon", True)]
    assert [name for name, _ in rung if name != "past"] == ["soon", "late"]


def test_a_failing_alarm_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """An alarm that raises is logged, and the next one rings."""
    clock = SystemClock()
    done = threading.Event()
    clock.call_at(0.0, lambda: 1 / 0)  # type: ignore[arg-type]
    clock.call_at(0.1, done.set)
    assert done.wait(10)
    assert "clock goes on" in caplog.text


def test_both_readings_are_in_seconds() -> None:
    """The wall reading is a date of today, the monotonic one only grows."""
    clock = SystemClock()
    first = clock.monotonic()
    assert abs(clock.time() - time.time()) < 5
    assert clock.monotonic() >= first
