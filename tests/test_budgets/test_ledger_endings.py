"""The ledger's further promises: a hold ends exactly once, corrections, words that help, and its own end."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from budgets.caps import Cap
from budgets.errors import (
    AlreadyEnded,
    BudgetExceeded,
    Declined,
    LedgerError,
    LedgerUnavailable,
    UnknownHold,
)
from budgets.ledger import Ledger
from budgets.money import MAX_NANOS
from budgets.records import Ending, HoldRequest
from budgets.scopes import Place, scope
from budgets.testing import ManualClock

from .conftest import MakeLedger

DOLLAR = 1_000_000_000


def dollars(amount: str) -> int:
    """Nano-dollars."""
    return int(Decimal(amount) * DOLLAR)


# ---- a hold ends exactly once ---------------------------------------------------------------------------

ENDS = ["settle", "void", "doubt", "resolve"]


def ended(ledger: Ledger, first: str) -> str:
    """A hold that has been brought into a state; its id."""
    hold = ledger.hold(ledger.request(100, scope="app"))
    for step in {"open": [], "resolved": ["doubt", "resolve"]}.get(first, [first]):
        ledger.end(Ending(hold=hold.id, kind=step, nanos=60))  # type: ignore[arg-type]
    return hold.id


@pytest.mark.parametrize(
    ("state", "kind", "outcome"),
    [
        ("open", "settle", "settle"),
        ("open", "void", "void"),
        ("open", "doubt", "doubt"),
        ("open", "resolve", LedgerError),
        ("settle", "settle", AlreadyEnded),
        ("settle", "void", AlreadyEnded),
        ("settle", "doubt", AlreadyEnded),
        ("settle", "resolve", AlreadyEnded),
        ("void", "settle", AlreadyEnded),
        ("void", "doubt", AlreadyEnded),
        ("doubt", "settle", "resolve"),
        ("doubt", "void", "resolve"),
        ("doubt", "doubt", AlreadyEnded),
        ("doubt", "resolve", "resolve"),
        ("resolved", "settle", AlreadyEnded),
        ("resolved", "resolve", AlreadyEnded),
    ],
)
def test_every_way_to_end_a_hold_from_every_state(
    make_ledger: MakeLedger, state: str, kind: str, outcome: object
) -> None:
    """A hold ends once; one in doubt may still be settled or voided by its holder, as a resolve."""
    ledger = make_ledger()
    hold_id = ended(ledger, state)
    lines = len(list(ledger.lines()))
    ending = Ending(hold=hold_id, kind=kind, nanos=70)  # type: ignore[arg-type]
    if isinstance(outcome, str):
        line = ledger.end(ending)
        assert (line.kind, line.posted) == (outcome, 0 if kind in {"void", "doubt"} else 70)
        assert len(list(ledger.lines())) == lines + 1
    else:
        with pytest.raises(outcome) as caught:  # type: ignore[call-overload]
            ledger.end(ending)
        assert hold_id in str(caught.value)
        assert type(caught.value) is outcome
        assert len(list(ledger.lines())) == lines
    assert ledger.check().ok


@pytest.mark.parametrize("kind", ENDS)
def test_an_unknown_hold_is_named(make_ledger: MakeLedger, kind: str) -> None:
    """Ending what never was is an error of its own."""
    with pytest.raises(UnknownHold, match="hold nobody: no such hold"):
        make_ledger().end(Ending(hold="nobody", kind=kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("state", ["open", "settle"])
def test_an_id_is_used_once(make_ledger: MakeLedger, state: str, fresh: bool) -> None:
    """The same request again is refused and changes nothing, even if it says that its id is fresh."""
    ledger = make_ledger(Cap("1", scope="app"))
    hold_id = ended(ledger, state)
    before = ledger.balance("app")
    request = HoldRequest(id=hold_id, nanos=5, place=Place(scopes=("app",)), fresh_id=fresh)
    with pytest.raises(LedgerError):
        ledger.hold(request)
    assert ledger.balance("app") == before
    assert ledger.check().ok


def test_only_one_of_many_endings_wins(make_ledger: MakeLedger) -> None:
    """Many threads that end one hold at once post one line."""
    ledger = make_ledger()
    hold = ledger.hold(ledger.request(100, scope="app"))

    def settle(nanos: int) -> bool:
        try:
            ledger.settle(hold, nanos)
        except AlreadyEnded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(settle, range(1, 40))) == 1
    assert len(list(ledger.lines())) == 2


def test_a_charge_belongs_to_the_window_of_its_hold(
    make_ledger: MakeLedger, clock: ManualClock
) -> None:
    """Settled, resolved or corrected days later, a charge counts in the day its hold was made (W-02)."""
    ledger = make_ledger(Cap("1", per="day", scope="app"))
    clock.set("2026-11-29T23:59:59.999999+00:00")
    settled, doubted = (ledger.hold(ledger.request(dollars("0.30"), scope="app")) for _ in range(2))
    clock.set("2026-11-30T00:00:00+00:00")
    ledger.settle(settled, dollars("0.20"))
    ledger.doubt(doubted)
    assert ledger.balance("app").remaining == 1
    ledger.hold(ledger.request(dollars("1"), scope="app"))
    clock.move(days=3)
    ledger.resolve(doubted, dollars("0.10"))
    ledger.adjust(settled, dollars("0.25"), reason="the bill says so")
    clock.set("2026-11-29T12:00:00+00:00")
    assert ledger.balance("app").remaining == Decimal("0.65")
    assert ledger.check().ok


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)]
)
def test_days_of_every_length(
    make_ledger: MakeLedger, clock: ManualClock, day: str, hours: int
) -> None:
    """A day's cap opens at local midnight, after 23, 24 or 25 hours (W-01)."""
    ledger = make_ledger(Cap("1", per="day", scope="app", tz="Europe/Berlin"))
    midnight = datetime.fromisoformat(
        f"{day}T00:00:00+02:00" if day != "2026-03-29" else f"{day}T00:00:00+01:00"
    )
    clock.set(midnight)
    ledger.settle(ledger.hold(ledger.request(dollars("1"), scope="app")), dollars("1"))
    clock.move(hours=hours, seconds=-1)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(1, scope="app"))
    assert caught.value.reopens_at is not None
    assert (caught.value.reopens_at - midnight).total_seconds() == hours * 3600
    clock.move(seconds=1)
    ledger.hold(ledger.request(dollars("1"), scope="app"))


# ---- corrections, overruns, large amounts ---------------------------------------------------------------


def test_a_correction_is_a_line_and_the_latest_counts(make_ledger: MakeLedger) -> None:
    """Corrections leave the old lines, add up to the last amount said, and free or take money (H-07)."""
    ledger = make_ledger(Cap("1", scope="app"))
    hold = ledger.hold(ledger.request(dollars("0.90"), scope="app"))
    with pytest.raises(UnknownHold, match="nothing was posted"):
        ledger.adjust(hold, 5, reason="too early")
    ledger.settle(hold, dollars("0.90"))
    for amount in ("0.10", "0.70", "0", "0.20"):
        ledger.adjust(hold, dollars(amount), reason="mistyped price")
        assert ledger.balance("app").posted == Decimal(amount)
    assert [line.kind for line in ledger.lines(hold=hold.id)] == ["hold", "settle"] + ["adjust"] * 4
    ledger.hold(ledger.request(dollars("0.80"), scope="app"))
    for wrong in (-1, MAX_NANOS + 1):
        with pytest.raises(LedgerError, match="not an amount"):
            ledger.adjust(hold, wrong, reason="nonsense")
    with pytest.raises(UnknownHold):
        ledger.adjust("nobody", 1, reason="x")
    assert ledger.check().ok


def test_corrections_at_the_same_moment_do_not_add_up(make_ledger: MakeLedger) -> None:
    """Two corrections of one charge in one batch end at one of the two amounts, not at their sum."""
    ledger = make_ledger()
    hold = ledger.hold(ledger.request(100))
    ledger.settle(hold, 50)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda nanos: ledger.adjust(hold, nanos, reason="x"), [10, 20] * 20))
    assert ledger.balance().posted_nanos in {10, 20}
    assert ledger.check().ok


@pytest.mark.parametrize("way", ["end", "end_async", "end_soon"])
async def test_an_overrun_is_posted_in_full_and_raises_the_alarm(
    make_ledger: MakeLedger, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """A cost above its hold is posted all the same, marked, and logged as an error, however it was ended."""
    ledger = make_ledger(Cap("1", scope="app"))
    hold = ledger.hold(ledger.request(100, scope="app", model="m"))
    ending = Ending(hold=hold.id, kind="settle", nanos=130)
    with caplog.at_level(logging.ERROR, "earmark"):
        if way == "end_async":
            await ledger.end_async(ending)
        else:
            getattr(ledger, way)(ending)
        assert ledger.balance("app").posted_nanos == 130
    assert [line.note.get("overrun_nanos") for line in ledger.lines()] == [None, 30]
    assert "30 nano-dollars more than its bound" in caplog.text
    assert hold.id in caplog.text
    result = ledger.check()
    assert (result.ok, result.overruns) == (True, [hold.id])


@pytest.mark.parametrize("asked", ["balance", "set_cap", "hold"])
def test_whoever_hears_of_an_overrun_may_ask_the_ledger(
    file_ledger: MakeLedger, asked: str
) -> None:
    """A log handler runs on the ledger's own thread: what it asks is answered there, and nobody hangs."""
    ledger = file_ledger(Cap("1", scope="app"))
    heard: list[object] = []

    class Alert(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            if asked == "balance":
                heard.append(ledger.balance("app").posted_nanos)
            elif asked == "set_cap":
                heard.append(ledger.set_cap(Cap("2", scope="app")))
            else:
                heard.append(ledger.hold(ledger.request(5, scope="app"), timeout_s=20).nanos)

    log, alert = logging.getLogger("earmark"), Alert()
    log.addHandler(alert)
    try:
        hold = ledger.hold(ledger.request(100, scope="app", model="m"))
        ledger.end(Ending(hold=hold.id, kind="settle", nanos=130))
        ledger.flush()
    finally:
        log.removeHandler(alert)
    assert heard == [{"balance": 130, "set_cap": None, "hold": 5}[asked]]
    assert ledger.balance("app").posted_nanos == 130


def test_amounts_up_to_the_limit_and_no_further(make_ledger: MakeLedger) -> None:
    """Amounts near 2^63 are exact; what would pass it is refused by itself, and nobody else suffers."""
    ledger = make_ledger()
    for nanos in (-1, MAX_NANOS + 1):
        with pytest.raises(LedgerError, match="not an amount"):
            ledger.hold(ledger.request(nanos, scope="big"))
    ledger.set_cap(Cap.from_nanos(MAX_NANOS, per=None, scope="big", tz="UTC", owner="code"))
    first = ledger.hold(ledger.request(MAX_NANOS - 5, scope="big"))
    ledger.hold(ledger.request(5, scope="big"))
    with pytest.raises(BudgetExceeded):
        ledger.hold(ledger.request(1, scope="big", wait=False))
    with pytest.raises(LedgerError, match="not an amount"):
        ledger.settle(first, MAX_NANOS + 1)
    ledger.settle(first, MAX_NANOS - 5)
    small = ledger.hold(ledger.request(0, scope="big"))
    with pytest.raises(LedgerError, match="pass what a ledger can hold"):
        ledger.settle(small, MAX_NANOS)
    ledger.hold(ledger.request(MAX_NANOS, scope="other"))
    assert ledger.balance("").held_nanos == MAX_NANOS + 5
    assert ledger.check().ok


def test_odd_notes_spoil_nobodys_money(make_ledger: MakeLedger) -> None:
    """Notes and names that no database likes are written somehow, or refused alone."""
    ledger = make_ledger()
    hold = ledger.hold(ledger.request(9, note={"x": object()}))
    ledger.settle(hold, 5, reason={"a", "b"}, text="\ud800\x00")
    bad = ledger.request(9, note={("not", "text"): 1})
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ledger.hold, ledger.request(1)) for _ in range(20)]
        wrong = pool.submit(ledger.hold, bad)
        assert all(g.result() for g in good)
        if wrong.exception() is not None:
            assert isinstance(wrong.exception(), LedgerError)
            assert "can't be written" in str(wrong.exception())
    assert ledger.balance().posted_nanos == 5
    assert ledger.balance().held_nanos in {20, 29}


# ---- words ----------------------------------------------------------------------------------------------


def test_a_decline_says_everything(make_ledger: MakeLedger, clock: ManualClock) -> None:
    """Cap, owner, window, posted, held, in doubt, asked and when it opens again: in words and as values (H-03)."""
    ledger = make_ledger(Cap("1", per="day", scope="app", tz="Europe/Berlin", owner="earmark.toml"))
    ledger.settle(ledger.hold(ledger.request(dollars("0.40"), scope="app")), dollars("0.25"))
    ledger.doubt(ledger.hold(ledger.request(dollars("0.125"), scope="app")))
    ledger.hold(ledger.request(dollars("0.10"), scope="app"))
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(dollars("0.80"), scope="app/x"))
    error = caught.value
    assert str(error) == (
        "declined: the cap of $1.00 per day (Europe/Berlin) on scope 'app', set by earmark.toml is in the way "
        "in day 2026-11-29 (Europe/Berlin): posted $0.25, held $0.225 ($0.125 of it in doubt), asked $0.80; "
        f"opens again at 2026-11-29T23:00:00+00:00 [{error.id}]"
    )
    assert (error.posted, error.held, error.in_doubt) == (
        Decimal("0.25"),
        Decimal("0.225"),
        Decimal("0.125"),
    )
    assert (error.asked, error.asked_by, error.scope) == (Decimal("0.80"), "app/x", "app")
    assert error.reopens_at == datetime(2026, 11, 29, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("amount", "wait", "told"),
    [
        ("0.70", True, "what is in doubt counts until it is resolved"),
        ("0.40", False, "only held money is in the way, and this call does not wait"),
        ("1.20", True, "one call's bound is more than the whole cap"),
    ],
)
def test_a_decline_says_what_would_help(
    make_ledger: MakeLedger, amount: str, wait: bool, told: str
) -> None:
    """The reason says what to do about it."""
    ledger = make_ledger(Cap("1", scope="app"))
    ledger.doubt(ledger.hold(ledger.request(dollars("0.35"), scope="app")))
    ledger.hold(ledger.request(dollars("0.30"), scope="app"))
    with pytest.raises(BudgetExceeded, match=told):
        ledger.hold(ledger.request(dollars(amount), scope="app", wait=wait))


def test_tied_money_is_declined_with_its_reason(make_ledger: MakeLedger) -> None:
    """Money that only the caller itself could free is no reason to wait."""
    ledger = make_ledger(Cap("1", scope="app"))
    ledger.hold(ledger.request(dollars("0.80"), scope="app"))
    with pytest.raises(BudgetExceeded, match="the caller's own open stream"):
        ledger.hold(ledger.request(dollars("0.40"), scope="app", tied=dollars("0.80")))


def test_declines_survive_pickling_with_their_facts(make_ledger: MakeLedger) -> None:
    """An error that crosses to another process says the same there."""
    ledger = make_ledger(Cap("1", per="week", scope="app", tz="Asia/Tokyo"))
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(dollars("2"), scope="app"))
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is BudgetExceeded
    assert str(error) == str(caught.value)
    for name in (
        "cap",
        "window",
        "posted",
        "held",
        "asked",
        "asked_by",
        "latched",
        "id",
        "reopens_at",
    ):
        assert getattr(error, name) == getattr(caught.value, name), name
    again = pickle.loads(pickle.dumps(AlreadyEnded("words", hold="h", ended_as="void")))
    assert (str(again), again.hold, again.ended_as) == ("words", "h", "void")


# ---- many scopes ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_thousands_of_scopes_with_caps_of_their_own_cost_no_more_each(
    make_ledger: MakeLedger,
) -> None:
    """The two-thousandth scope with its own cap is as cheap as the two-hundredth, and each cap holds."""
    ledger = make_ledger(Cap("1000", scope="app"))

    async def work(number: int) -> None:
        async with scope(f"run-{number}", cap="0.10", kind="run"):
            request = ledger.request(dollars("0.08"), scope="app")
            await ledger.end_async(
                Ending(
                    hold=(await ledger.hold_async(request)).id, kind="settle", nanos=dollars("0.05")
                )
            )
            with pytest.raises(BudgetExceeded, match=f"run-{number}'"):
                await ledger.hold_async(ledger.request(dollars("0.08"), scope="app"))

    times = []
    for block in range(10):
        began = time.process_time()
        await asyncio.gather(*(work(block * 200 + n) for n in range(200)))
        times.append(time.process_time() - began)
    assert min(times[7:]) < 4 * min(times[:3]), times
    assert ledger.balance("app").posted == 100
    assert ledger.check().ok


# ---- life -----------------------------------------------------------------------------------------------


def test_closing_puts_open_holds_in_doubt(file_ledger: MakeLedger) -> None:
    """A ledger that is closed while calls are under way leaves their holds in doubt, charged in full."""
    ledger = file_ledger(Cap("1", scope="app"))
    hold = ledger.hold(ledger.request(dollars("0.60"), scope="app"))
    ledger.close()
    after = file_ledger()
    assert [(h.id, h.state) for h in after.open_holds()] == [(hold.id, "doubt")]
    with pytest.raises(BudgetExceeded, match="in doubt"):
        after.hold(after.request(dollars("0.50"), scope="app"))
    after.resolve(hold, 0)
    after.hold(after.request(dollars("0.50"), scope="app"))


async def test_a_closed_ledger_says_so(make_ledger: MakeLedger) -> None:
    """After closing nothing is held or ended, and nobody hangs; the figures of a ledger in memory stay."""
    ledger = make_ledger(Cap("1", scope="app"))
    hold = ledger.hold(ledger.request(5, scope="app"))
    ledger.close()
    ledger.close()
    for ask in (
        lambda: ledger.hold(ledger.request(1)),
        lambda: ledger.settle(hold, 1),
        lambda: ledger.set_cap(Cap("2")),
    ):
        with pytest.raises(LedgerUnavailable, match="it was closed"):
            ask()
    with pytest.raises(LedgerUnavailable, match="it was closed"):
        await ledger.hold_async(ledger.request(1))
    ledger.end_soon(Ending(hold=hold.id, kind="void"))


def test_closing_while_many_work_hangs_nobody(file_ledger: MakeLedger) -> None:
    """Threads that are in the middle of a call when the ledger is closed all get an answer."""
    ledger = file_ledger(Cap("1", scope="app"))
    begun = threading.Barrier(9)

    def work() -> int:
        begun.wait()
        for number in range(10_000):
            try:
                ledger.settle(ledger.hold(ledger.request(1, scope="app")), 1)
            except LedgerError:
                return number
        return -1

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work) for _ in range(8)]
        begun.wait()
        ledger.close()
        assert all(future.result(timeout=20) >= 0 for future in futures)
    again = file_ledger()
    result = again.check()
    assert result.ok
    assert result.open_holds == 0


def test_declines_are_declines(make_ledger: MakeLedger) -> None:
    """Both noes of the ledger are ``Declined``: nothing was sent; what went wrong inside is a ``LedgerError``."""
    ledger = make_ledger(Cap("0"))
    with pytest.raises(Declined):
        ledger.hold(ledger.request(1))
    ledger.close()
    with pytest.raises(Declined):
        ledger.hold(ledger.request(1))
    with pytest.raises(LedgerError):
        Ledger(caps=["5"])  # type: ignore[list-item]
