"""The ledger against an independent model of the rules, step by step, in memory and in a file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import to_decimal
from budgets.scopes import Place

from .ledger_twin import Twin, evening_before_a_short_day

SCOPES = ["", "app", "app/r1", "app/r1/a", "app/r2", "simulated/app"]
PERS = [None, None, "call", "agent", "run", "day", "day", "week"]
KINDS = ["agent", "run", "part"]

caps = st.builds(
    lambda nanos, per, scope, tz: Cap(to_decimal(nanos), per=per, scope=scope, tz=tz),
    st.sampled_from([0, 5, 9, 10, 10, 11, 20, 30]),
    st.sampled_from(PERS),
    st.sampled_from(SCOPES),
    st.sampled_from(["UTC", "Europe/Berlin"]),
)


@st.composite
def places(draw: st.DrawFn) -> Place:
    scopes = tuple(draw(st.lists(st.sampled_from(SCOPES), min_size=1, max_size=2, unique=True)))
    paths = sorted(
        {"/".join(s.split("/")[: n + 1]) for s in scopes for n in range(s.count("/") + 1)}
    )
    kinds = tuple(
        (path, draw(st.sampled_from(KINDS))) for path in paths if path and draw(st.booleans())
    )
    return Place(scopes=scopes, kinds=kinds)


class LedgerMachine(RuleBasedStateMachine):
    """Every rule does the same to the ledger and to the model and compares what they say."""

    def open_ledger(self, fallback: list[Cap]) -> Ledger:
        return Ledger(fallback=fallback, clock=self.clock)

    @initialize(
        fallback=st.lists(caps, max_size=3, unique_by=lambda cap: cap.key),
        said=st.lists(caps, max_size=3),
    )
    def begin(self, fallback: list[Cap], said: list[Cap]) -> None:
        self.clock = evening_before_a_short_day()
        self.twin = Twin(self.open_ledger(fallback), fallback, self.clock)
        for cap in said:
            self.twin.set_cap(cap)

    def teardown(self) -> None:
        if hasattr(self, "twin"):
            self.twin.ledger.close()

    @rule(place=places(), nanos=st.sampled_from([0, 1, 3, 5, 10, 11, 20]))
    def hold(self, place: Place, nanos: int) -> None:
        self.twin.hold(place, nanos)

    @rule(place=places(), amounts=st.lists(st.sampled_from([1, 2, 4, 7]), min_size=2, max_size=6))
    def spend(self, place: Place, amounts: list[int]) -> None:
        """Calls in a row, each settled at its bound: this is what fills caps and latches them."""
        for nanos in amounts:
            hold_id = self.twin.hold(place, nanos)
            if hold_id:
                self.twin.end(hold_id, "settle", nanos)

    @rule(
        number=st.integers(0, 40),
        kind=st.sampled_from(["settle", "void", "doubt", "resolve"]),
        cost=st.integers(0, 30),
    )
    def end(self, number: int, kind: str, cost: int) -> None:
        pool = (self.twin.open_ids() if number < 34 else []) or self.twin.ids
        hold_id = pool[number % len(pool)] if pool and number != 39 else "nobody"
        known = self.twin.model.holds.get(hold_id)
        self.twin.end(hold_id, kind, min(cost, known.nanos) if known and cost != 29 else cost)

    @rule(place=places(), nanos=st.sampled_from([1, 3, 5, 8]))
    def reserve(self, place: Place, nanos: int) -> None:
        self.twin.reserve(place, nanos)

    @rule(
        number=st.integers(0, 10),
        place=places(),
        nanos=st.sampled_from([0, 2, 3, 5, 8, 10]),
        void=st.booleans(),
    )
    def draw(self, number: int, place: Place, nanos: int, void: bool) -> None:
        """A call draws on a reserve, as often as not of its own place, and is void as often as not."""
        if not self.twin.reserves:
            return
        name = self.twin.reserves[-1 - number % min(len(self.twin.reserves), 4)]
        first = self.twin.model.holds[name]
        if number % 2:
            place = Place(scopes=first.scopes, kinds=first.kinds)
        hold_id = self.twin.hold(place, nanos, draws_on=name)
        if hold_id and void:
            self.twin.end(hold_id, "void")

    @rule(number=st.integers(0, 10))
    def release(self, number: int) -> None:
        if self.twin.reserves:
            self.twin.release(self.twin.reserves[number % len(self.twin.reserves)])

    @rule(number=st.integers(0, 40), nanos=st.integers(0, 30))
    def adjust_or_hold_again(self, number: int, nanos: int) -> None:
        if self.twin.ids and number % 5:
            self.twin.adjust(self.twin.ids[number % len(self.twin.ids)], nanos)
        elif self.twin.ids:
            self.twin.hold_again(number)

    @rule(cap=caps)
    def set_cap(self, cap: Cap) -> None:
        self.twin.set_cap(cap)

    @rule(cap=caps)
    def drop_cap(self, cap: Cap) -> None:
        self.twin.drop_cap(cap)

    @rule(hours=st.sampled_from([1, 5, 25, 24 * 8, -3, -30]))
    def move_clock(self, hours: int) -> None:
        self.clock.move(hours=hours)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "twin"):
            self.twin.compare(SCOPES)


class FileLedgerMachine(LedgerMachine):
    """The same in a file, opened by two ledgers in turn, so that one's caches meet the other's writes."""

    def open_ledger(self, fallback: list[Cap]) -> Ledger:
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "ledger.db"
        self.pair = [Ledger(path, fallback=fallback, clock=self.clock) for _ in range(2)]
        return self.pair[0]

    @rule()
    def change_hands(self) -> None:
        self.pair.reverse()
        self.twin.ledger = self.pair[0]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for ledger in self.pair:
                ledger.close()
            shutil.rmtree(self.folder)


TestLedgerInMemory = LedgerMachine.TestCase
TestLedgerInMemory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerInAFile = FileLedgerMachine.TestCase
TestLedgerInAFile.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
