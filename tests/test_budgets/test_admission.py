"""The rules by themselves, on a transaction in memory: sweeping, leaving, tied money, what is written when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budgets.admission import Rules
from budgets.caps import Cap
from budgets.check import check_lines
from budgets.errors import BudgetExceeded, LedgerError
from budgets.judging import MustWait
from budgets.owners import Owner, this_process
from budgets.records import Ending, Hold, HoldRequest
from budgets.scopes import Place
from budgets.stores.memory import MemoryStore
from budgets.stores.protocol import Transaction

DEAD = Owner(id="dead", host=this_process().host, pid=2**22 + 5, started_ms=1)
NOW = 1_800_000_000_000_000


def cap(nanos: int, path: str = "app", per: str | None = None) -> Cap:
    """A cap in nano-dollars."""
    return Cap.from_nanos(nanos, per=per, scope=path, tz="UTC", owner="code")


def request(name: str, nanos: int, path: str = "app", **more: object) -> HoldRequest:
    """A hold request with an id that reads well."""
    return HoldRequest(id=name, nanos=nanos, place=Place(scopes=(path,)), **more)  # type: ignore[arg-type]


@pytest.fixture
def store() -> MemoryStore:
    """An empty one."""
    return MemoryStore()


def wait(rules: Rules, txn: Transaction, asked: HoldRequest) -> int:
    """Ask, be told to wait, queue up; the ticket."""
    answer = rules.hold(txn, asked, NOW)
    assert isinstance(answer, MustWait)
    return rules.queue_up(txn, asked, answer).ticket


def test_what_dead_owners_held_goes_in_doubt_and_their_places_are_free(store: MemoryStore) -> None:
    """A sweep dooms all holds of the dead, several of them too, drops their places, and touches nobody else."""
    rules, dead = Rules(this_process()), Rules(DEAD)
    with store.transaction() as txn:
        rules.declare(txn, [cap(100)], NOW)
        rules.hold(txn, request("mine", 40), NOW)
        dead.hold(txn, request("d1", 30), NOW)
        dead.hold(txn, request("d2", 20), NOW)
        for number in range(3):
            wait(dead, txn, request(f"w{number}", 50))
        ticket = wait(rules, txn, request("later", 60))
    with store.transaction() as txn:
        assert rules.sweep(txn, NOW) == 2
        assert rules.sweep(txn, NOW) == 0
        assert [w.ticket for w in txn.waiting()] == [ticket]
        assert [h.id for h in txn.holds_of("dead")] == []
    with store.reader() as reader:
        assert {h.id: h.state for h in reader.open_holds()} == {
            "mine": "held",
            "d1": "doubt",
            "d2": "doubt",
        }
        doubts = [line for line in reader.lines() if line.kind == "doubt"]
        assert {line.note["reason"] for line in doubts} == {f"owner died (pid {DEAD.pid})"}


def test_a_late_settlement_of_a_hold_that_was_thought_dead_resolves_it(store: MemoryStore) -> None:
    """An owner that was thought dead and is not settles its hold all the same, once."""
    rules, ghost = Rules(this_process()), Rules(DEAD)
    with store.transaction() as txn:
        ghost.hold(txn, request("h", 30), NOW)
        rules.sweep(txn, NOW)
        line = ghost.end(txn, Ending(hold="h", kind="settle", nanos=12), NOW)
        assert (line.kind, line.posted, line.held, line.in_doubt) == ("resolve", 12, 0, -30)


def test_who_leaves_takes_everything_along(store: MemoryStore) -> None:
    """A ledger that is closed leaves doubts, no places in the queue, and nothing of others."""
    rules, other = Rules(this_process()), Rules(replace(this_process(), id="other"))
    with store.transaction() as txn:
        rules.declare(txn, [cap(100)], NOW)
        rules.hold(txn, request("mine", 40), NOW)
        other.hold(txn, request("theirs", 40), NOW)
        wait(rules, txn, request("w1", 50))
        theirs = wait(other, txn, request("w2", 50))
        rules.leave(txn, NOW)
        assert [w.ticket for w in txn.waiting()] == [theirs]
        assert [h.id for h in txn.holds_of("other")] == ["theirs"]
        assert txn.ended_as("mine") == "doubt"


def test_a_call_is_blocked_by_all_accounts_that_are_short(store: MemoryStore) -> None:
    """Whoever waits says for which money, so that others can tell whether they would overtake."""
    rules = Rules(this_process())
    with store.transaction() as txn:
        rules.declare(txn, [cap(100, "app"), cap(60, "app/a"), cap(900, "")], NOW)
        rules.hold(txn, request("h", 50, "app/a"), NOW)
        answer = rules.hold(txn, request("w", 55, "app/a"), NOW)
        assert isinstance(answer, MustWait)
        assert [subject for _, subject, _ in answer.blocked] == ["app", "app/a"]
        rules.queue_up(txn, request("w", 55, "app/a"), answer)
        behind = rules.hold(txn, request("b", 1, "app/b"), NOW)
        assert isinstance(behind, MustWait)
        assert [subject for _, subject, _ in behind.blocked] == ["app"]
        assert isinstance(rules.hold(txn, request("free", 1, "elsewhere"), NOW), Hold)


def test_a_declined_attempt_makes_no_agent(store: MemoryStore) -> None:
    """A path becomes an agent's by a line that is written, not by an attempt; then nested calls draw on it."""
    rules = Rules(this_process())
    agent = (("app/a", "agent"),)

    def ask(name: str, nanos: int, path: str, *, named: bool) -> HoldRequest:
        place = Place(scopes=(path,), kinds=agent if named else ())  # type: ignore[arg-type]
        return HoldRequest(id=name, nanos=nanos, place=place, wait=False)

    with store.transaction() as txn:
        rules.declare(txn, [cap(10, "", per="agent")], NOW)
        with pytest.raises(BudgetExceeded):
            rules.hold(txn, ask("large", 11, "app/a", named=True), NOW)
        rules.hold(txn, ask("nested", 50, "app/a/b", named=False), NOW)
        rules.end(txn, Ending(hold="nested", kind="void"), NOW)
        rules.hold(txn, ask("own", 4, "app/a", named=True), NOW)
        with pytest.raises(BudgetExceeded, match="per agent on scope 'app/a'"):
            rules.hold(txn, ask("again", 7, "app/a/b", named=False), NOW)
        rules.hold(txn, ask("fits", 6, "app/a/b", named=False), NOW)
    with store.reader() as reader:
        assert check_lines(reader).ok


def test_tied_money_is_not_waited_for(store: MemoryStore) -> None:
    """What only the caller can free counts like posted money, up to what is held at all."""
    rules = Rules(this_process())
    with store.transaction() as txn:
        rules.declare(txn, [cap(100)], NOW)
        rules.hold(txn, request("stream", 60), NOW)
        rules.hold(txn, request("other", 20), NOW)
        with pytest.raises(BudgetExceeded, match="own open stream"):
            rules.hold(txn, request("nested", 41, tied=60), NOW)
        assert isinstance(rules.hold(txn, request("fits", 40, tied=60), NOW), MustWait)
        assert isinstance(rules.hold(txn, request("small", 20, tied=60), NOW), Hold)


def test_a_context_cap_is_declared_once_and_again_only_when_it_was_undone(
    store: MemoryStore,
) -> None:
    """The first call in a block sets the block's cap; a failed transaction forgets that, a later one does not."""
    rules = Rules(this_process())
    asked = HoldRequest(id="a", nanos=1, place=Place(scopes=("app",), caps=(cap(50),)))

    def hold(name: str) -> None:
        with store.transaction() as txn:
            rules.begin()
            rules.hold(txn, replace(asked, id=name), NOW)
            if name == "fails":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hold("fails")
    rules.forget()
    with store.reader() as reader:
        assert len(reader.caps()) == 0
    hold("a")
    with store.transaction() as txn:
        rules.begin()
        rules.declare(txn, [cap(80)], NOW)
    with pytest.raises(ZeroDivisionError):
        hold("fails")
    rules.forget()
    hold("b")
    with store.reader() as reader:
        assert [e.cap.nanos for e in reader.caps()] == [80], (
            "a raise by somebody else survives a fault"
        )
        assert reader.owners().keys() == {rules.owner.id}


@pytest.mark.parametrize("nanos", [-1, 2**63])
def test_what_is_no_amount_is_refused_before_anything_is_written(
    store: MemoryStore, nanos: int
) -> None:
    """Negative and unheard-of amounts change nothing."""
    rules = Rules(this_process())
    with store.transaction() as txn:
        with pytest.raises(LedgerError, match="not an amount"):
            rules.hold(txn, request("h", nanos), NOW)
        rules.hold(txn, request("ok", 5), NOW)
        with pytest.raises(LedgerError, match="not an amount"):
            rules.end(txn, Ending(hold="ok", kind="settle", nanos=nanos), NOW)
        assert txn.open_hold("ok") is not None
        assert txn.ended_as("h") is None


def test_a_default_gives_way_to_what_somebody_says_and_never_comes_before_it(
    store: MemoryStore,
) -> None:
    """Of one scope and period a default in another zone is lifted when a real cap is set, and not set after it."""
    rules = Rules(this_process())
    default = Cap("25", per="day", owner="default")
    with store.transaction() as txn:
        rules.declare(txn, [default], NOW)
        rules.declare(txn, [Cap("5", per="day", tz="Europe/Berlin")], NOW)
        rules.declare(txn, [default], NOW)
        rules.declare(txn, [default], NOW, fallback=True)
        assert [e.cap.tz for e in txn.caps() if not e.fallback] == ["Europe/Berlin"]
