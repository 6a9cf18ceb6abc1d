"""What a pair of hold and settle leaves to the garbage collector: nothing."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from budgets import Cap, Ledger
from budgets.records import Ending


@pytest.mark.parametrize("durable", [False, True])
async def test_pairs_leave_no_rings(durable: bool, tmp_path: Path) -> None:
    """Everything that a pair made is freed when it is done; rings would make the collector run for each few calls."""
    with Ledger(tmp_path / "ledger.db" if durable else None, [Cap("10")]) as ledger:

        async def pairs(count: int) -> None:
            for _ in range(count):
                hold = await ledger.hold_async(ledger.request(10))
                await ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=7))

        await pairs(5)
        gc.collect()
        gc.disable()
        try:
            await pairs(100)
            left = gc.collect()
        finally:
            gc.enable()
        assert left < 100
