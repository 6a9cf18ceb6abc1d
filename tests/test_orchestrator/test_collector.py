"""The garbage collector of a process that meters: calmer than Python's default, and never against the user's word."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from budgets import Cap, Ledger
from orchestrator.meter import Meter


@pytest.fixture
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_thresholds")
@pytest.mark.parametrize(
    ("before", "after"), [((700, 10, 10), (20_000, 10, 10)), ((9_000, 5, 5), (9_000, 5, 5))]
)
def test_only_pythons_own_choice_is_raised(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    """A meter raises the default of the first threshold; what somebody chose stays."""
    gc.set_threshold(*before)
    Meter(Ledger(caps=[Cap("1")]))
    assert gc.get_threshold() == after


@pytest.mark.usefixtures("_thresholds")
def test_a_collector_that_is_off_stays_off() -> None:
    """A threshold of 0 means that the collector never runs."""
    gc.set_threshold(0)
    Meter(Ledger(caps=[Cap("1")]))
    assert gc.get_threshold()[0] == 0
