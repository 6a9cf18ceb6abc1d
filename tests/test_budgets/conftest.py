"""Ledgers for tests: in memory and in a file, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.testing import ManualClock

MakeLedger = Callable[..., Ledger]


@pytest.fixture
def clock() -> ManualClock:
    """Noon of a Sunday."""
    return ManualClock("2026-11-29T12:00:00+00:00")


@pytest.fixture(params=["memory", "file"])
def make_ledger(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[MakeLedger]:
    """Opens ledgers without fallback caps; in a file, all of one test share it."""
    opened: list[Ledger] = []

    def make(*caps: Cap, fallback: Iterable[Cap] = ()) -> Ledger:
        path = None if request.param == "memory" else tmp_path / "ledger.db"
        opened.append(Ledger(path, caps, fallback=fallback, clock=clock))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


@pytest.fixture
def file_ledger(tmp_path: Path, clock: ManualClock) -> Iterator[MakeLedger]:
    """As ``make_ledger``, always in one file, as other processes would open it."""
    opened: list[Ledger] = []

    def make(*caps: Cap, fallback: Iterable[Cap] = ()) -> Ledger:
        opened.append(Ledger(tmp_path / "ledger.db", caps, fallback=fallback, clock=clock))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()
