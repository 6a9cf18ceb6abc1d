"""Calls that wait while they hold money themselves: nested in open streams, they must never wait in a ring."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from budgets import BudgetExceeded, Cap, Ending, Ledger


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    path = tmp_path / "ledger.db" if request.param == "file" else None
    with Ledger(path, caps=[Cap("12", scope="app")]) as ledger:
        yield ledger


def dollars(ledger: Ledger, amount: int, *, tied: int = 0):
    return replace(ledger.request(amount * 10**9, scope="app"), tied=tied * 10**9)


async def test_a_call_larger_than_its_cap_never_waits(ledger: Ledger) -> None:
    """Nothing that could be freed would make room for it."""
    with pytest.raises(BudgetExceeded, match="more than the whole cap"):
        await asyncio.wait_for(ledger.hold_async(dollars(ledger, 13)), 10)


async def test_two_calls_nested_in_streams_do_not_wait_for_each_other(ledger: Ledger) -> None:
    """Each holds what the other needs: the second to wait is declined, and its stream's end frees the first."""
    first = await ledger.hold_async(dollars(ledger, 4))
    second = await ledger.hold_async(dollars(ledger, 4))
    waits = asyncio.ensure_future(ledger.hold_async(dollars(ledger, 5, tied=4)))
    while not ledger.waiting:
        await asyncio.sleep(0)

    with pytest.raises(BudgetExceeded, match="open stream"):
        await asyncio.wait_for(ledger.hold_async(dollars(ledger, 5, tied=4)), 10)
    ledger.end_soon(Ending(hold=second.id, kind="settle", nanos=10**9))

    assert (await asyncio.wait_for(waits, 10)).nanos == 5 * 10**9
    ledger.end_soon(Ending(hold=first.id, kind="settle", nanos=10**9))
    assert ledger.check().ok


async def test_a_nested_call_stands_in_no_line(ledger: Ledger) -> None:
    """The call in front may wait for the very stream that the nested call belongs to."""
    stream = await ledger.hold_async(dollars(ledger, 8))
    large = asyncio.ensure_future(ledger.hold_async(dollars(ledger, 10)))
    while not ledger.waiting:
        await asyncio.sleep(0)

    nested = await asyncio.wait_for(ledger.hold_async(dollars(ledger, 2, tied=8)), 10)
    ledger.end_soon(Ending(hold=nested.id, kind="settle", nanos=0))
    ledger.end_soon(Ending(hold=stream.id, kind="settle", nanos=10**9))

    assert (await asyncio.wait_for(large, 10)).nanos == 10 * 10**9


async def test_a_nested_call_waits_for_money_that_others_free(ledger: Ledger) -> None:
    """Its own stream is no reason to decline while somebody else's call will give enough back."""
    await ledger.hold_async(dollars(ledger, 4))
    other = await ledger.hold_async(dollars(ledger, 6))
    nested = asyncio.ensure_future(ledger.hold_async(dollars(ledger, 5, tied=4)))
    while not ledger.waiting:
        await asyncio.sleep(0)

    ledger.end_soon(Ending(hold=other.id, kind="settle", nanos=10**9))

    assert (await asyncio.wait_for(nested, 10)).nanos == 5 * 10**9
