"""A ledger and the plain model of it, driven together: whatever one says is compared with the other."""

from __future__ import annotations

from datetime import UTC, datetime

from budgets.caps import Cap
from budgets.errors import AlreadyEnded, BudgetExceeded, LedgerError, UnknownHold
from budgets.ledger import Ledger
from budgets.records import Ending, HoldRequest
from budgets.scopes import Place
from budgets.testing import ManualClock

from .ledger_model import Model, ModelHold


class Twin:
    """Steps that are done to both; ``ledger`` may be exchanged for another one on the same file."""

    def __init__(self, ledger: Ledger, fallback: list[Cap], clock: ManualClock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.model = Model()
        self.ids: list[str] = []
        self.said: list[str] = []
        self.reserves: list[str] = []
        self._fallback = fallback
        for cap in fallback:
            self.model.set_cap(cap, fallback=True)

    def hold(
        self, place: Place, nanos: int, *, reserve: bool = False, draws_on: str | None = None
    ) -> str:
        """Ask for a hold; its id if it was made, else nothing."""
        hold_id = f"h{len(self.ids)}"
        new = ModelHold(
            place.scopes,
            place.kinds,
            nanos,
            self.clock.now,
            owner=self.ledger.number,
            reserve=hold_id if reserve else "",
        )
        expected = self.model.hold(hold_id, new, draws_on or "")
        self.said.append(expected)
        request = HoldRequest(
            id=hold_id,
            nanos=nanos,
            place=place,
            wait=False,
            latch=not reserve,
            reserve=reserve,
            replaces=draws_on,
        )
        try:
            self.ledger.hold(request)
        except BudgetExceeded as error:
            told = str(error)
        else:
            assert expected == "held"
            self.ids.append(hold_id)
            return hold_id
        assert expected == ("short" if "only held money" in told else "declined"), told
        return ""

    def hold_again(self, number: int) -> None:
        """Ask for a hold with an id that was used before."""
        request = HoldRequest(
            id=self.ids[number % len(self.ids)], nanos=1, place=Place(scopes=("app",))
        )
        try:
            self.ledger.hold(request)
        except AlreadyEnded:
            return
        msg = "an id was used twice"
        raise AssertionError(msg)

    def open_ids(self) -> list[str]:
        """Holds that have not ended."""
        return [i for i, hold in self.model.holds.items() if hold.state != "ended"]

    def reserve(self, place: Place, nanos: int) -> None:
        """Ask for a reserve."""
        hold_id = self.hold(place, nanos, reserve=True)
        if hold_id:
            self.reserves.append(hold_id)

    def release(self, name: str) -> None:
        """Give a reserve back."""
        assert self.ledger.release(name) == self.model.release(self.ledger.number, name)

    def end(self, hold_id: str, kind: str, cost: int = 0) -> None:
        """End a hold in any way, allowed or not."""
        known = self.model.holds.get(hold_id)
        expected = self.model.end(hold_id, kind, cost, self.clock.now, self.ledger.number)
        self.said.append(expected)
        try:
            line = self.ledger.end(Ending(hold=hold_id, kind=kind, nanos=cost))  # type: ignore[arg-type]
        except AlreadyEnded:
            assert expected == "ended"
        except UnknownHold:
            assert expected == "unknown"
        except LedgerError:
            assert expected == "refused"
        else:
            assert known is not None
            assert line.kind == expected
            assert ("overrun_nanos" in line.note) == (line.posted > known.nanos)

    def adjust(self, hold_id: str, nanos: int) -> None:
        """Correct what was posted, if anything was."""
        lines = self.ledger.lines(hold=hold_id)
        was_posted = any(line.kind in {"settle", "resolve"} for line in lines)
        try:
            self.ledger.adjust(hold_id, nanos, reason="bill")
        except UnknownHold:
            assert not was_posted
        else:
            assert was_posted
            self.model.adjust(hold_id, nanos)

    def set_cap(self, cap: Cap) -> None:
        """Set a cap."""
        self.ledger.set_cap(cap)
        self.model.set_cap(cap)

    def drop_cap(self, cap: Cap) -> None:
        """Lift a cap; a fallback that it had replaced comes back."""
        entry = self.model.caps.get(cap.key)
        self.ledger.drop_cap(cap)
        self.model.drop_cap(cap.key)
        if entry is not None and not entry[1]:
            for fallback in self._fallback:
                if fallback.key not in self.model.caps:
                    self.model.set_cap(fallback, fallback=True)

    def compare(self, scopes: list[str]) -> None:
        """Balances, open holds and the checker's word."""
        for scope in scopes:
            balance = self.ledger.balance(scope)
            found = (balance.posted_nanos, balance.held_nanos, balance.in_doubt_nanos)
            assert found == self.model.sums(scope), scope
        states = {h.id: h.state for h in self.ledger.open_holds()}
        assert states == {i: self.model.holds[i].state for i in self.open_ids()}
        result = self.ledger.check()
        assert result.ok, result.findings


def evening_before_a_short_day() -> ManualClock:
    """22:30 UTC before a day of 23 hours in Berlin."""
    return ManualClock(datetime(2026, 3, 28, 22, 30, tzinfo=UTC))
