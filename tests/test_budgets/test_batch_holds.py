"""Holds of batches: they outlive their maker, and caps on single calls look at the dearest item."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.records import BatchOf, HoldRequest

HOLDS = """
import os, signal, sys
from dataclasses import replace
from budgets.ledger import Ledger
from budgets.records import BatchOf
ledger = Ledger(sys.argv[1])
plain = ledger.hold(ledger.request(7, scope="app"))
batch = replace(ledger.request(100, scope="app"), batch=BatchOf(items=10, largest_nanos=15))
ledger.hold(batch)
os.kill(os.getpid(), signal.SIGKILL)
"""


def of_batch(ledger: Ledger, nanos: int, largest: int, **fields: bool) -> HoldRequest:
    request = ledger.request(nanos, scope="app", latch=False, **fields)
    return replace(request, batch=BatchOf(items=10, largest_nanos=largest))


def test_a_killed_maker_leaves_its_batch_held(tmp_path: Path) -> None:
    """When its process is killed a call's hold goes in doubt; a batch's stays held and can be settled (O-14)."""
    path = tmp_path / "ledger.db"
    subprocess.run([sys.executable, "-c", HOLDS, str(path)], check=False)
    with Ledger(path) as ledger:
        states = {hold.nanos: hold.state for hold in ledger.open_holds()}
        assert states == {7: "doubt", 100: "held"}
        (batch,) = [hold for hold in ledger.open_holds() if hold.nanos == 100]
        ledger.settle(batch, 40, usage={"input_tokens": 4})
        assert ledger.balance("app").posted_nanos == 40
        assert ledger.balance("app").held_nanos == 0
        assert ledger.check().findings == []


def test_closing_the_ledger_leaves_it_held(tmp_path: Path) -> None:
    """A ledger that is closed puts its calls in doubt, and leaves its batches as they are."""
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.hold(of_batch(ledger, 100, 15))
    with Ledger(path) as ledger:
        assert [hold.state for hold in ledger.open_holds()] == ["held"]
        assert ledger.check().findings == []


def test_a_cap_per_call_looks_at_the_dearest_item() -> None:
    """A batch may be dearer than a cap on single calls, none of its items may; the checker agrees."""
    with Ledger(caps=[Cap("0.00000002", per="call", scope="app")]) as ledger:
        hold = ledger.hold(of_batch(ledger, 100, 20))
        with pytest.raises(BudgetExceeded):
            ledger.hold(of_batch(ledger, 100, 21))
        ledger.void(hold)
        assert ledger.check().findings == []


def test_all_items_count_against_every_other_cap() -> None:
    """Posted and held stay below the cap, whatever the split (O-13)."""
    with Ledger(caps=[Cap("0.00000015", scope="app")]) as ledger:
        ledger.hold(of_batch(ledger, 100, 10))
        with pytest.raises(BudgetExceeded):
            ledger.hold(of_batch(ledger, 51, 10, wait=False))
        assert ledger.hold(of_batch(ledger, 50, 10)).nanos == 50
        assert ledger.check().findings == []
