"""The ledger against an independent model of the rules, step by step, in memory and in a file."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from budgets.caps import Cap
from budgets.errors import AlreadyEnded, BudgetExceeded, LedgerError, UnknownHold
from budgets.ledger import Ledger
from budgets.money import to_decimal
from budgets.records import Ending, HoldRequest
from budgets.scopes import Place
from budgets.testing import ManualClock

from .ledger_model import Model, ModelHold

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

    def make_ledger(self, fallback: list[Cap], clock: ManualClock) -> Ledger:
        return Ledger(fallback=fallback, clock=clock)

    @initialize(
        fallback=st.lists(caps, max_size=3, unique_by=lambda cap: cap.key),
        said=st.lists(caps, max_size=3),
    )
    def begin(self, fallback: list[Cap], said: list[Cap]) -> None:
        self.clock = ManualClock(
            datetime(2026, 3, 28, 22, 30, tzinfo=UTC)
        )  # a day of 23 hours ahead
        self.model = Model()
        self.ids: list[str] = []
        self.low: set[str] = set()
        self.ledger = self.make_ledger(fallback, self.clock)
        for cap in fallback:
            self.model.set_cap(cap, fallback=True)
        self.fallback = {cap.key: cap for cap in fallback}
        for cap in said:
            self.set_cap(cap)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()

    # ---- steps ------------------------------------------------------------------------------------

    @rule(place=places(), nanos=st.sampled_from([0, 1, 3, 5, 10, 11, 20]), again=st.integers(0, 30))
    def hold(self, place: Place, nanos: int, again: int) -> None:
        if again == 0 and self.ids:
            request = HoldRequest(id=self.ids[-1], nanos=nanos, place=place, wait=False)
            try:
                self.ledger.hold(request)
            except AlreadyEnded:
                return
            raise AssertionError("an id was used twice")
        hold_id = f"h{len(self.ids)}"
        request = HoldRequest(id=hold_id, nanos=nanos, place=place, wait=False)
        expected = self.model.hold(
            hold_id, ModelHold(place.scopes, place.kinds, nanos, self.clock.now)
        )
        try:
            self.ledger.hold(request)
        except BudgetExceeded as error:
            assert expected in {"declined", "short"}, (expected, str(error))
            assert ("only held money" in str(error)) == (expected == "short"), (
                expected,
                str(error),
            )
        else:
            assert expected == "held", expected
            self.ids.append(hold_id)

    @rule(
        number=st.integers(0, 40),
        kind=st.sampled_from(["settle", "void", "doubt", "resolve"]),
        cost=st.integers(0, 30),
    )
    def end(self, number: int, kind: str, cost: int) -> None:
        live = [i for i in self.ids if self.model.holds[i].state != "ended"]
        pool = live if number < 34 and live else self.ids
        hold_id = pool[number % len(pool)] if pool and number != 39 else "nobody"
        known = self.model.holds.get(hold_id)
        cost = min(cost, known.nanos) if known and cost != 29 else cost
        expected = self.model.end(hold_id, kind, cost)
        try:
            line = self.ledger.end(Ending(hold=hold_id, kind=kind, nanos=cost))  # type: ignore[arg-type]
        except AlreadyEnded:
            assert expected == "ended"
        except UnknownHold:
            assert expected == "unknown"
        except LedgerError:
            assert expected == "refused"
        else:
            assert line.kind == expected
            assert ("overrun_nanos" in line.note) == (line.posted > known.nanos)  # type: ignore[union-attr]

    @rule(number=st.integers(0, 40), nanos=st.integers(0, 30))
    def adjust(self, number: int, nanos: int) -> None:
        if not self.ids:
            return
        hold = self.model.holds[self.ids[number % len(self.ids)]]
        was_posted = any(
            line.kind in {"settle", "resolve"}
            for line in self.ledger.lines(hold=self.ids[number % len(self.ids)])
        )
        try:
            self.ledger.adjust(self.ids[number % len(self.ids)], nanos, reason="bill")
        except UnknownHold:
            assert not was_posted
        else:
            assert was_posted
            self.model.meet(hold)
            hold.posted = nanos

    @rule(cap=caps)
    def set_cap(self, cap: Cap) -> None:
        self.ledger.set_cap(cap)
        self.model.set_cap(cap)

    @rule(cap=caps)
    def drop_cap(self, cap: Cap) -> None:
        entry = self.model.caps.get(cap.key)
        self.ledger.drop_cap(cap)
        self.model.drop_cap(cap.key)
        if entry is not None and not entry[1]:
            for fallback in self.fallback.values():
                if fallback.key not in self.model.caps:
                    self.model.set_cap(fallback, fallback=True)

    @rule(hours=st.sampled_from([1, 5, 25, 24 * 8, -3, -30]))
    def move_clock(self, hours: int) -> None:
        self.clock.move(hours=hours)

    @rule(place=places(), amounts=st.lists(st.sampled_from([1, 2, 4, 7]), min_size=2, max_size=6))
    def spend(self, place: Place, amounts: list[int]) -> None:
        """Calls in a row, each settled at its bound: this is what fills caps and latches them."""
        for nanos in amounts:
            before = len(self.ids)
            self.hold(place, nanos, again=1)
            if len(self.ids) > before:
                self.end(before, "settle", nanos)

    # ---- what holds at every moment -----------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for scope in SCOPES:
            balance = self.ledger.balance(scope)
            assert (balance.posted_nanos, balance.held_nanos, balance.in_doubt_nanos) == (
                self.model.sums(scope)
            ), scope
        found = self.ledger.check()
        assert found.ok, found.findings
        states = {h.id: h.state for h in self.ledger.open_holds()}
        assert states == {i: h.state for i, h in self.model.holds.items() if h.state != "ended"}


class FileLedgerMachine(LedgerMachine):
    """The same in a file, opened by two ledgers in turn, so that one's caches meet the other's writes."""

    def make_ledger(self, fallback: list[Cap], clock: ManualClock) -> Ledger:
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "ledger.db"
        self.pair = [Ledger(path, fallback=fallback, clock=clock) for _ in range(2)]
        return self.pair[0]

    @rule()
    def change_hands(self) -> None:
        self.pair.reverse()
        self.ledger = self.pair[0]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for ledger in self.pair:
                ledger.close()
            shutil.rmtree(self.folder)


TestLedgerInMemory = LedgerMachine.TestCase
TestLedgerInMemory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerInAFile = FileLedgerMachine.TestCase
TestLedgerInAFile.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
