"""The checker: silent about every honest life, loud about every kind of tampering."""

from __future__ import annotations

import json
import time
from pathlib import Path

import apsw
import pytest

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.records import HoldRequest
from budgets.scopes import Place
from budgets.stores.rows import LINE, OPEN_HOLD
from budgets.testing import ManualClock

from .conftest import MakeLedger

LINE_AFTER_HOLD = LINE.partition(", ")[2]
OPEN_AFTER_ID = OPEN_HOLD.partition(", ")[2]


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    """A ledger with a bit of everything: settled, void, in doubt, resolved, corrected, open, two scopes."""
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, [Cap("1", scope="app"), Cap("1", per="agent")], clock=ManualClock())
    place = Place(scopes=("app/a",), kinds=(("app", "run"), ("app/a", "agent")))
    both = Place(scopes=("app/a", "far"), kinds=place.kinds)
    for number, where in enumerate([place, both, place, both, place]):
        ledger.hold(HoldRequest(id=f"h{number}", nanos=100 + number, place=where, model="m"))
    ledger.settle("h0", 60, usage={"output_tokens": 3})
    ledger.adjust("h0", 70, reason="bill")
    ledger.void("h1")
    ledger.doubt("h2")
    ledger.doubt("h3")
    ledger.resolve("h3", 50)
    # What is held now stays so: closing would put it in doubt.
    assert ledger.check().ok
    ledger._counter.close(lambda txn, at_us: None)
    ledger._store.close()
    ledger._closed = True
    return path


def found_after(path: Path, *statements: str) -> list[str]:
    """Change the file behind the ledger's back; what the checker then says."""
    db = apsw.Connection(str(path))
    for trigger in ("lines_never_change", "lines_never_go"):
        db.execute(f"DROP TRIGGER {trigger}")
    db.execute("PRAGMA ignore_check_constraints = 1")
    for statement in statements:
        db.execute(statement)
        assert db.changes() > 0, f"changed nothing: {statement}"
    db.close()
    ledger = Ledger(path, clock=ManualClock())
    try:
        return ledger.check().findings
    finally:
        ledger._counter.close(lambda txn, at_us: None)
        ledger._store.close()
        ledger._closed = True


def test_an_honest_file_has_no_findings(ledger_file: Path) -> None:
    """Opened again, with the triggers gone but nothing changed, the file is proven."""
    assert found_after(ledger_file) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE lines SET posted = 61 WHERE id = 6", "amount and what it posts do not agree"),
        ("UPDATE lines SET posted = 61, nanos = 61 WHERE id = 6", "but the lines add up to"),
        ("UPDATE lines SET nanos = 90 WHERE id = 1", "a hold must set aside exactly its amount"),
        ("UPDATE lines SET nanos = 90, held = 90 WHERE id = 1", "does not give back what was held"),
        ("UPDATE lines SET held = -50 WHERE id = 6", "does not give back what was held"),
        ("UPDATE lines SET in_doubt = 1 WHERE kind = 'doubt' AND hold = 'h2'", "does not give back"),
        ("UPDATE lines SET posted = 200, nanos = 200 WHERE id = 6", "an overrun that is not marked"),
        ("UPDATE lines SET posted = -5, nanos = -5 WHERE id = 6", "do not agree"),
        ("UPDATE lines SET posted = 11 WHERE kind = 'adjust'", "not a correction of what was posted"),
        ("UPDATE lines SET scope = 'other' WHERE id = 6", "scope, model or time differ from line 1"),
        ("UPDATE lines SET model = 'cheap' WHERE id = 6", "scope, model or time differ"),
        ("UPDATE lines SET held_at = 5 WHERE id = 6", "scope, model or time differ"),
        ("UPDATE lines SET at = 5 WHERE id = 1", "must count from when it was written"),
        ("UPDATE lines SET kind = 'void' WHERE id = 6", "do not agree"),
        ("UPDATE lines SET kind = 'resolve' WHERE id = 6", "is held, it can't resolve"),
        ("UPDATE lines SET kind = 'refund' WHERE id = 6", "'refund' is not a kind of line"),
        ("UPDATE lines SET hold = 'h9' WHERE id = 6", "hold h9 never began"),
        ("UPDATE lines SET hold = 'h4' WHERE kind = 'adjust'", "corrected before anything was posted"),
        ("UPDATE lines SET note = '{broken' WHERE id = 3", "a row can't be read"),
        ("DELETE FROM lines WHERE id = 1", "line 1 should be here, it is missing"),
        ("DELETE FROM lines WHERE id = 6", "line 6 should be here, it is missing"),
        ("DELETE FROM lines WHERE id = (SELECT max(id) FROM lines)", "but not so in the list of open"),
        (
            f"INSERT INTO lines SELECT 99, 'h8', {LINE_AFTER_HOLD} FROM lines WHERE id = 1",
            "line 12 should be here",
        ),
        (
            f"INSERT INTO lines SELECT NULL, 'h8', {LINE_AFTER_HOLD} FROM lines WHERE id = 1",
            "hold h8: it is held by its lines, but not so in the list of open holds",
        ),
        ("UPDATE accounts SET posted = posted + 1 WHERE cap_scope = 'app'", "it says posted, held"),
        ("UPDATE accounts SET held = held - 1 WHERE cap_per = 'agent'", "it says posted, held"),
        ("UPDATE accounts SET in_doubt = 0 WHERE cap_scope = 'app'", "it says posted, held"),
        ("UPDATE open_holds SET nanos = 1 WHERE id = 'h4'", "but not so in the list of open holds"),
        ("UPDATE open_holds SET state = 'held' WHERE id = 'h2'", "but not so in the list of open"),
        ("UPDATE open_holds SET scopes = '[\"far\"]' WHERE id = 'h4'", "its scopes or time differ"),
        ("DELETE FROM open_holds WHERE id = 'h4'", "it is held by its lines"),
        (
            f"INSERT INTO open_holds SELECT 'h0', {OPEN_AFTER_ID} FROM open_holds WHERE id = 'h4'",
            "hold h0: it is listed as open, but by its lines it is not",
        ),
        ("DELETE FROM extra_scopes WHERE hold = 'h3'", "but the lines add up to"),
        ("UPDATE caps SET nanos = 150 WHERE scope = 'app'", "passes the cap of $0.00000015 on scope 'app'"),
    ],
)  # fmt: skip
def test_every_tampering_is_found(ledger_file: Path, statement: str, told: str) -> None:
    """Whatever row is changed, added or removed behind the ledger's back, the checker says where."""
    if "extra_scopes" in statement:
        ledger = Ledger(ledger_file, [Cap("1", scope="far")], clock=ManualClock())
        ledger.hold(HoldRequest(id="h5", nanos=0, place=Place(scopes=("far",))))
        ledger.close()
    findings = found_after(ledger_file, statement)
    assert any(told in finding for finding in findings), findings


def test_a_damaged_index_is_found(ledger_file: Path) -> None:
    """What the storage engine itself finds wrong is a finding."""
    db = apsw.Connection(str(ledger_file))
    db.execute("PRAGMA writable_schema = 1")
    db.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, '(held_at)', '(nanos)') WHERE name = 'lines_held_at'"
    )
    db.close()
    ledger = Ledger(ledger_file, clock=ManualClock())
    assert any(finding.startswith("storage: ") for finding in ledger.check().findings)


def test_a_flood_of_findings_is_cut_short(ledger_file: Path) -> None:
    """Beyond fifty the rest is only mentioned."""
    ledger = Ledger(ledger_file)
    for number in range(60):
        ledger.settle(
            ledger.hold(HoldRequest(id=f"x{number}", nanos=1, place=Place(scopes=("app",)))), 1
        )
    ledger.close()
    findings = found_after(ledger_file, "UPDATE lines SET posted = 2 WHERE kind = 'settle'")
    assert len(findings) == 51
    assert findings[-1] == "... and more"


def test_the_result_counts_what_there_is(make_ledger: MakeLedger) -> None:
    """The result carries sums and numbers: lines, holds, open, in doubt, overruns, the caller's word, unpriced."""
    ledger = make_ledger(Cap("1", scope="app"))
    first = ledger.hold(ledger.request(10, scope="app", note={"caller_word": ["web_search"]}))
    ledger.settle(first, 15)
    ledger.settle(ledger.hold(ledger.request(20)), 20, unpriced=True)
    ledger.doubt(ledger.hold(ledger.request(30, scope="simulated/x")))
    ledger.hold(ledger.request(40))
    result = ledger.check()
    assert result.ok
    assert (result.lines, result.holds, result.open_holds, result.doubts) == (7, 4, 1, 1)
    assert (result.posted_nanos, result.held_nanos, result.in_doubt_nanos) == (35, 40, 30)
    assert (result.overruns, result.caller_word, result.unpriced) == ([first.id], 1, 1)
    assert json.dumps([str(result.posted), str(result.held), str(result.in_doubt)])


@pytest.mark.parametrize("order", ["cap first", "hold first", "same batch"])
def test_caps_are_judged_as_they_stood(
    make_ledger: MakeLedger, clock: ManualClock, order: str
) -> None:
    """A cap set after a hold is not held against it, whatever the clock said in between."""
    ledger = make_ledger(Cap("1", scope="app"))
    if order == "cap first":
        ledger.set_cap(Cap("5", scope="app"))
        clock.move(hours=-5)  # the raise now lies in the future
        ledger.hold(ledger.request(4_000_000_000, scope="app"))
    else:
        ledger.hold(ledger.request(900_000_000, scope="app"))
        clock.move(hours=0 if order == "same batch" else -5)
        ledger.set_cap(Cap("0.10", scope="app"))
    assert ledger.check().findings == []


@pytest.mark.slow
def test_a_hundred_thousand_lines_are_read_at_a_sane_speed(tmp_path: Path) -> None:
    """Balances, reports and checks of 100,000 lines take seconds at most, new scopes no time at all."""
    path = tmp_path / "ledger.db"
    with Ledger(path, [Cap("1000", scope="app")]) as ledger:
        ledger.hold(HoldRequest(id="first", nanos=7, place=Place(scopes=("app/0",))))
    db = apsw.Connection(str(path))
    at = db.execute("SELECT held_at FROM lines WHERE id = 1").get
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "INSERT INTO lines SELECT i, 'h' || ((i + 1) / 2), iif(i % 2, 'hold', 'void'), ?, ?, "
        "'app/' || ((i + 1) / 2 % 1000), 5, 0, iif(i % 2, 5, -5), 0, 'm', 'o', NULL, '{}' FROM n",
        (at, at),
    )
    db.close()
    with Ledger(path) as ledger:
        began = time.perf_counter()
        for number in range(200):
            with_cap = Cap("1", scope=f"app/new-{number}")
            ledger.set_cap(with_cap)
            ledger.void(ledger.hold(ledger.request(1, scope=with_cap.scope)))
        new_scopes_s = time.perf_counter() - began
        began = time.perf_counter()
        assert ledger.balance("app").held_nanos == 0
        balance_s = time.perf_counter() - began
        began = time.perf_counter()
        assert ledger.check().lines >= 100_000
        check_s = time.perf_counter() - began
    assert new_scopes_s < 5, new_scopes_s
    assert balance_s < 2, balance_s
    assert check_s < 20, check_s
