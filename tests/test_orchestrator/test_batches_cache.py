"""Prefixes that many items share: marked and primed where it pays, and the four bills beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from budgets.rates import Rates
from orchestrator.batches.priming import choose

from .batching import MODEL, item, quick, stage

RUBRIC = "Label the document by its first line. A bill is billing, a lock-out is login. " * 400
#: $1 in, $2 write, $0.05 read: the shape of the 5.5 family.
RATES = Rates(input=1_000, write_5m=1_250, write_1h=2_000, read=50, output=5_000)


async def test_a_shared_prefix_is_primed_and_marked(tmp_path: Path) -> None:
    """One item goes ahead in a batch of its own and warms the cache for the rest (P-02)."""
    async with stage(tmp_path) as made:
        await made.do(item(n, system=RUBRIC) for n in range(40))
        made.prove()
        bill = made.sim.bill

    assert [(row.items, row.primes, row.marked) for row in made.progress.batches] == [
        (1, True, True),
        (39, False, True),
    ]
    bills = made.progress.bills
    assert bills.hits == 39
    assert bills.batch_nanos == bill.nanos
    assert bills.batch_nanos < bills.batch_without_nanos / 3
    assert bills.direct_nanos == pytest.approx(2 * bills.batch_nanos, abs=40)
    assert bills.direct_without_nanos == pytest.approx(2 * bills.batch_without_nanos, abs=40)
    assert bills.read_tokens == bill.counts.read
    assert "40 requests share a prefix" in made.progress.choices[0]


async def test_what_the_bills_say_is_what_the_server_would_have_charged(tmp_path: Path) -> None:
    """The bill without a cache is the bill of the same job done without one, to the nano-dollar."""
    async with stage(tmp_path / "with") as cached:
        await cached.do(item(n, system=RUBRIC) for n in range(10))
    async with stage(tmp_path / "without") as plain:
        await plain.do((item(n, system=RUBRIC) for n in range(10)), quick(cache=False))

    assert cached.progress.bills.batch_without_nanos == plain.sim.bill.nanos
    assert plain.progress.bills.batch_without_nanos == plain.sim.bill.nanos
    assert plain.progress.bills.hits == 0


async def test_a_cache_that_often_misses_is_billed_as_it_was(tmp_path: Path) -> None:
    """Where many requests of a batch miss all the same, the bill says what that cost, and no cap is passed."""
    async with stage(tmp_path, sim={"batch_hits_permille": 400, "seed": 3}, cap="0.05") as made:
        await made.do(item(n, system=RUBRIC) for n in range(60))
        made.prove()

    bills = made.progress.bills
    assert made.outcomes == {"ok": 60}
    assert 10 < bills.hits < 40
    assert bills.batch_nanos > bills.batch_without_nanos


async def test_marks_are_dropped_where_they_turn_out_not_to_pay(tmp_path: Path) -> None:
    """If a wave shows that the cache is hit too rarely, later waves carry no marks."""
    async with stage(tmp_path, sim={"batch_hits_permille": 100}) as made:
        waves = quick(requests_max=60, open_max=1)
        await made.do((item(n, system=RUBRIC) for n in range(180)), waves)
        made.prove()

    marked = [row.marked for row in made.progress.batches]
    assert marked[:2] == [True, True]
    assert not any(marked[2:])


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (2, {"system": RUBRIC}),
        (40, {"system": "Short."}),
        (40, {}),
        (
            40,
            {"system": [{"type": "text", "text": RUBRIC, "cache_control": {"type": "ephemeral"}}]},
        ),
    ],
    ids=["too few", "too short", "nothing shared", "marked by its maker"],
)
async def test_where_it_does_not_pay_nothing_is_marked(
    count: int, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Below the break-even, below the model's minimum, or where the caller marks, all go as they are."""
    async with stage(tmp_path) as made:
        await made.do(item(n, **fields) for n in range(count))
        made.prove()

    assert [(row.items, row.marked) for row in made.progress.batches] == [(count, False)]


async def test_every_prefix_is_primed_once_in_one_batch(tmp_path: Path) -> None:
    """Several prefixes are primed together, one item each."""
    async with stage(tmp_path) as made:
        await made.do(item(n, system=f"Rubric {n % 3}. {RUBRIC}") for n in range(30))
        made.prove()

    assert [(row.items, row.primes) for row in made.progress.batches] == [(3, True), (27, False)]
    assert made.progress.bills.hits == 27


async def test_a_prime_that_fails_does_not_go_on_for_ever(tmp_path: Path) -> None:
    """If the item that goes ahead is not answered another one is tried, then nothing is marked."""
    async with stage(tmp_path) as made:
        await made.do(
            item(n, "[[sim:batch=invalid]]" if n < 5 else "", system=RUBRIC) for n in range(20)
        )
        made.prove()

    assert made.outcomes == {"ok": 15, "bad_request": 5}
    assert len(made.progress.batches) <= 4


async def test_a_cap_that_the_prime_does_not_fit_under(tmp_path: Path) -> None:
    """Marks double the worst case; where that does not fit the items go unmarked, and the cap holds."""
    async with stage(tmp_path, cap="0.0025") as made:
        await made.do(item(n, "[[sim:output=3]]", system=RUBRIC) for n in range(6))
        made.prove()
        assert made.run.balance.posted_nanos <= 2_500_000

    assert made.outcomes["ok"] >= 1


@pytest.mark.parametrize(
    ("items", "hits", "pays", "least"),
    [
        (2, 1000, False, 3),
        (3, 1000, True, 3),
        (3, 900, True, 3),
        (40, 500, False, 0),
        (40, 530, True, 31),
    ],
)
def test_break_even(items: int, hits: int, pays: bool, least: int) -> None:
    """The break-even is worked out from the rates: extra of the write against what each further one saves."""
    made = choose(tokens=10_000, items=items, minimum=1024, rates=RATES, hits_permille=hits)

    assert (made.pays, made.least_items) == (pays, least)


def test_savings_are_those_of_the_formula() -> None:
    """(n - 1) * (input - read) - (write - input), for the whole prefix, in nano-dollars."""
    made = choose(tokens=10_000, items=11, minimum=0, rates=RATES, hits_permille=1000)

    assert made.saved_nanos == (10 * (1_000 - 50) - (2_000 - 1_000)) * 10_000 // 1_000
    assert MODEL not in made.reason
