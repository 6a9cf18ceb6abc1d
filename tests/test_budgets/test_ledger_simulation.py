"""Long random lives of a ledger, each replayable by its seed: against the model, and with cancels and faults.

A failure names its seed; ``pytest -k "seed-17"`` plays it again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from budgets.caps import Cap
from budgets.counter import Operation
from budgets.errors import BudgetExceeded, LedgerUnavailable
from budgets.ledger import Ledger
from budgets.money import to_decimal
from budgets.records import Ending
from budgets.reserves import drawing_on
from budgets.scopes import Place
from budgets.stores.memory import MemoryStore

from .faulty_store import FaultyStore, SteppedCounter, Trouble
from .ledger_twin import Twin, evening_before_a_short_day

PLACES = [
    Place(scopes=("app",), kinds=(("app", "run"),)),
    Place(scopes=("app/a",), kinds=(("app", "run"), ("app/a", "agent"))),
    Place(scopes=("app/a/b",), kinds=(("app", "run"), ("app/a", "agent"), ("app/a/b", "agent"))),
    Place(scopes=("app/a/b",), kinds=()),
    Place(scopes=("app/c", "far/x"), kinds=(("app", "run"), ("app/c", "agent"), ("far/x", "run"))),
    Place(scopes=("far",)),
    Place(scopes=("simulated/app",), kinds=(("simulated/app", "run"),)),
    Place(scopes=("simulated/app", "app/c")),
]
SCOPES = ["", "app", "app/a", "app/a/b", "app/c", "far", "simulated", "simulated/app"]
CAPS: list[tuple[str | None, str, str]] = [
    (None, "app", "UTC"),
    (None, "app/a", "UTC"),
    ("day", "", "UTC"),
    ("day", "app", "Europe/Berlin"),
    ("week", "app/a", "UTC"),
    ("agent", "", "UTC"),
    ("agent", "app", "UTC"),
    ("run", "", "UTC"),
    ("call", "", "UTC"),
    ("call", "app/a", "UTC"),
]


def _cap(chance: random.Random) -> Cap:
    per, path, tz = chance.choice(CAPS)
    nanos = chance.choice([0, 4, 10, 20, 30, 50] if per != "call" else [3, 8, 20])
    return Cap(to_decimal(nanos), per=per, scope=path, tz=tz)


def _walk(seed: int, folder: Path | None, steps: int) -> Counter[str]:
    """A random life; what the ledger was made to say, counted."""
    chance = random.Random(seed)
    clock = evening_before_a_short_day()
    fallback = list({c.key: c for c in (_cap(chance) for _ in range(chance.randrange(4)))}.values())
    path = None if folder is None else folder / f"ledger-{seed}.db"
    ledgers = [
        Ledger(path, fallback=fallback, clock=clock) for _ in range(1 if path is None else 2)
    ]
    twin = Twin(ledgers[0], fallback, clock)
    for step in range(steps):
        twin.ledger = chance.choice(ledgers)
        roll = chance.random()
        live = twin.open_ids()
        if roll < 0.04:
            twin.reserve(chance.choice(PLACES), chance.choice([1, 3, 5, 8]))
        elif roll < 0.09 and twin.reserves:
            name = chance.choice(twin.reserves[-3:])
            first = twin.model.holds[name]
            own = Place(scopes=first.scopes, kinds=first.kinds)  # type: ignore[arg-type]
            place = chance.choice([own, own, *PLACES])
            hold_id = twin.hold(place, chance.choice([1, 3, 5, 8]), draws_on=name)
            if hold_id and chance.random() < 0.5:
                twin.end(hold_id, "void")
        elif roll < 0.10 and twin.reserves:
            twin.release(chance.choice(twin.reserves))
        elif roll < 0.45:
            twin.hold(chance.choice(PLACES), chance.choice([0, 1, 2, 3, 5, 8, 13]))
        elif roll < 0.80 and live:
            hold_id = chance.choice(live)
            cost = chance.randint(0, twin.model.holds[hold_id].nanos)
            kinds = ["settle", "settle", "settle", "void", "doubt", "resolve"]
            twin.end(hold_id, chance.choice(kinds), cost + 5 * (chance.random() < 0.03))
        elif roll < 0.84 and twin.ids:
            twin.end(chance.choice(twin.ids), chance.choice(["settle", "void", "doubt", "resolve"]))
        elif roll < 0.88 and twin.ids:
            twin.adjust(chance.choice(twin.ids), chance.randint(0, 10))
        elif roll < 0.94:
            twin.set_cap(_cap(chance))
        elif roll < 0.96:
            twin.drop_cap(_cap(chance))
        elif roll < 0.99:
            clock.move(hours=chance.choice([1, 2, 24, 24 * 7, -2, -25]))
        elif twin.ids:
            twin.hold_again(chance.randrange(1000))
        if step % 10 == 0:
            twin.compare(SCOPES)
    twin.compare(SCOPES)
    for ledger in ledgers:
        ledger.close()
    return Counter(twin.said)


@pytest.mark.parametrize("seed", range(24), ids=lambda seed: f"seed-{seed}")
def test_a_life_in_memory_agrees_with_the_model(seed: int) -> None:
    """Every answer, sum and open hold of a random life is what the plain reading of the rules says."""
    said = _walk(seed, None, 250)
    assert {"held", "declined", "settle", "doubt"} <= set(said)


@pytest.mark.parametrize("seed", range(100, 106), ids=lambda seed: f"seed-{seed}")
def test_a_life_in_a_file_agrees_with_the_model(seed: int, tmp_path: Path) -> None:
    """The same in a file that two ledgers use in turn."""
    assert _walk(seed, tmp_path, 250)["held"] > 20


# ---- many tasks, cancels at any moment, faults at any statement -----------------------------------------


class _World:
    """What really happened to each call, to hold against the ledger."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.chance = random.Random(seed)
        self.trouble = Trouble()
        self.ledger = Ledger(
            caps=[Cap(to_decimal(100), scope="app"), Cap(to_decimal(40), scope="app/a")],
            store=FaultyStore(MemoryStore(), self.trouble),
        )
        counter = SteppedCounter(self.ledger._store, self.ledger._rules, self.ledger._now_us)
        self.counter = self.ledger._counter = counter
        self.faults = faults
        self.tasks: list[asyncio.Task[None]] = []
        self.sent: dict[str, int] = {}
        self.posted = 0
        self.declined = 0
        self.drawn = 0

    async def call(self, nanos: int, path: str, cost: int, breaths: int) -> None:
        """A call as the meter makes it: doubt what was cut off, settle the rest."""
        try:
            hold = await self.ledger.hold_async(self.ledger.request(nanos, scope=path))
        except (BudgetExceeded, LedgerUnavailable):
            self.declined += 1
            return
        self.sent[hold.id] = nanos
        try:
            for _ in range(breaths):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.ledger.end_soon(Ending(hold=hold.id, kind="doubt"))
            raise
        self.posted += cost  # from here on it is billed, whatever becomes of this task
        del self.sent[hold.id]
        await self.ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=cost))

    async def close_up(self, nanos: int, path: str, tries: int) -> None:
        """Set money aside, draw on it some times in vain, and give it back, at whatever moment it is cut off."""
        ledger = self.ledger
        try:
            reserve = await ledger.reserve_async(nanos, scope=path)
        except (BudgetExceeded, LedgerUnavailable):
            return
        try:
            for _ in range(tries):
                with drawing_on(reserve):
                    hold = await ledger.hold_async(ledger.request(nanos, scope=path))
                self.drawn += 1
                ledger.end_soon(Ending(hold=hold.id, kind="void"))
                await asyncio.sleep(0)
        except (BudgetExceeded, LedgerUnavailable):
            self.declined += 1
        finally:
            ledger._submit(ledger._release_operation(reserve, lambda _: None))

    async def live(self, steps: int) -> None:
        chance = self.chance
        for _ in range(steps):
            roll = chance.random()
            if roll < 0.35:
                nanos = chance.choice([0, 1, 5, 10, 30, 60])
                path = chance.choice(["app", "app/a", "app/b"])
                if chance.random() < 0.15:
                    coroutine = self.close_up(nanos, path, chance.randrange(4))
                else:
                    cost = chance.randint(0, nanos)
                    coroutine = self.call(nanos, path, cost, chance.randrange(4))
                self.tasks.append(asyncio.create_task(coroutine))
            elif roll < 0.45 and self.tasks:
                chance.choice(self.tasks).cancel()
            elif roll < 0.48:
                self.ledger._counter.submit(self._raise_caps())
            elif roll < 0.50 and self.faults:
                make = chance.choice([None, lambda: OSError("broken"), lambda: RuntimeError("odd")])
                self.trouble.arm(chance.randint(1, 60), make)
            elif roll < 0.80:
                self.counter.run_batch(chance.randint(1, 12))
                with self.ledger.reader() as reader:
                    for account in reader.accounts():
                        assert min(account.posted, account.held, account.in_doubt) >= 0
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        await self._come_to_rest()

    def _raise_caps(self) -> Operation:
        amount = to_decimal(self.chance.choice([20, 100, 400]))
        rules = self.ledger._rules
        cap = Cap(amount, scope=self.chance.choice(["app", "app/a"]))
        return Operation(lambda txn, at_us: rules.declare(txn, (cap,), at_us), lambda _: None)

    async def _come_to_rest(self) -> None:
        self.trouble.disarm()
        for turn in range(500):
            self.counter.run_batch(100)
            await asyncio.sleep(0)
            if turn > 20 and not self.counter.inbox:
                for task in self.tasks:  # what still waits for money in doubt would wait for ever
                    task.cancel()
                if all(task.done() for task in self.tasks):
                    break
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.parametrize("faults", [False, True], ids=["sound", "faulty"])
@pytest.mark.parametrize("block", range(8))
async def test_interleavings_leak_nothing_and_pass_no_cap(block: int, faults: bool) -> None:
    """In any order of batches, cancels and faults every hold that was made ends once, and caps are kept."""
    drawn = 0
    for seed in range(block * 100, block * 100 + 60):
        world = _World(seed, faults=faults)
        await world.live(120)
        drawn += world.drawn
        result = world.ledger.check()
        assert result.ok, (seed, result.findings)
        assert result.posted_nanos == world.posted, seed
        assert result.open_holds == 0, (seed, "a hold was leaked")
        assert result.reserves == 0, (seed, "a reserve was leaked")
        assert result.in_doubt_nanos == sum(world.sent.values()), seed
        with world.ledger.reader() as reader:
            assert not list(reader.waiting()), (seed, "a place in the queue was leaked")
        assert world.ledger.waiting == 0
    assert drawn > 20


def test_a_seed_plays_the_same_life_again() -> None:
    """The simulation is replayable: the same seed gives the same lines."""

    def lines() -> list[tuple[str, int, int]]:
        world = _World(4711, faults=True)
        asyncio.run(world.live(200))
        return [(line.kind, line.nanos, line.posted) for line in world.ledger.lines()]

    first = lines()
    assert len(first) > 20
    assert lines() == first


@pytest.mark.parametrize("seed", range(4), ids=lambda seed: f"seed-{seed}")
async def test_cancels_on_a_real_file_leak_nothing(tmp_path: Path, seed: int) -> None:
    """With real threads, two ledgers on one file and tasks cancelled at any moment, every hold ends."""
    chance = random.Random(seed)
    cap = Cap(to_decimal(100), scope="app")
    with Ledger(tmp_path / "ledger.db", [cap]) as one, Ledger(tmp_path / "ledger.db") as two:

        async def call(ledger: Ledger) -> None:
            nanos = chance.choice([1, 10, 40, 70])
            hold = await ledger.hold_async(ledger.request(nanos, scope="app"))
            try:
                await asyncio.sleep(chance.random() * 0.002)
            except asyncio.CancelledError:
                ledger.end_soon(Ending(hold=hold.id, kind="void"))
                raise
            ending = Ending(hold=hold.id, kind="void")
            if chance.random() < 0.5:
                await ledger.end_async(ending)
            else:
                ledger.end_soon(ending)

        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(call(chance.choice([one, two]))))
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() * 0.002)
        async with asyncio.timeout(30):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
        assert wrong == []
        for ledger in (one, two):
            ledger.flush()
            assert ledger.waiting == 0
        assert one.balance("app").held_nanos == 0
        assert one.open_holds() == []
        with one.reader() as reader:
            assert not list(reader.waiting())
        assert one.check().ok
