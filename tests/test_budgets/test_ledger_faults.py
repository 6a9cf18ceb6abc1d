"""Trouble with the file: no hold, no call; one clear sentence; the file left as it was; and on again after it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from budgets import threaded_counter
from budgets.caps import Cap
from budgets.errors import (
    BudgetExceeded,
    Declined,
    LedgerCorrupt,
    LedgerError,
    LedgerTooNew,
    LedgerUnavailable,
)
from budgets.ledger import Ledger
from budgets.records import Ending, Hold
from budgets.stores.schema import APPLICATION_ID, VERSION
from budgets.stores.sqlite import SqliteStore
from budgets.testing import ManualClock

from .faulty_store import FaultyStore, Trouble

CAP = Cap("1", scope="app")


def ask(ledger: Ledger, nanos: int = 5) -> Hold:
    """A hold on the app."""
    return ledger.hold(ledger.request(nanos, scope="app"))


# ---- files that can't be used ---------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def a_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b" * 5000)


def another_program(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE recipes (name TEXT); INSERT INTO recipes VALUES ('soup')")
    db.close()


def a_marked_program(path: Path) -> None:
    another_program(path)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 77; PRAGMA user_version = 3")
    db.close()


def a_later_version(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute(f"CREATE TABLE x (y); PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()


def a_text(path: Path) -> None:
    path.write_text("ledger = 'not a database'\n" * 100, encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (garbage, LedgerCorrupt, "the file is damaged or not a ledger"),
        (a_zip, LedgerCorrupt, "the file is damaged or not a ledger"),
        (a_text, LedgerCorrupt, "the file is damaged or not a ledger"),
        (another_program, LedgerCorrupt, "a database of something else, not an Earmark ledger"),
        (a_marked_program, LedgerCorrupt, "a database of another program"),
        (a_later_version, LedgerTooNew, f"it has schema {VERSION + 1}, written by a later Earmark"),
        (Path.mkdir, LedgerUnavailable, "this is a folder; name a file"),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], error: type[Exception], told: str
) -> None:
    """What is not a ledger is refused in one sentence that names it, byte for byte as it was."""
    path = tmp_path / "ledger.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error, match=told) as caught:
        Ledger(path)
    assert str(caught.value).startswith(f"ledger {path}: ")
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not path.with_name("ledger.db-wal").exists()


def test_a_truncated_file_is_damaged_not_empty(tmp_path: Path) -> None:
    """A ledger that was cut in the middle is refused or found damaged; money in it is not forgotten."""
    path = tmp_path / "ledger.db"
    with Ledger(path, [CAP]) as ledger:
        for _ in range(300):
            ledger.settle(ask(ledger), 5, reason="x" * 200)
    size = path.stat().st_size
    assert size > 50_000
    os.truncate(path, size // 2)
    before = path.read_bytes()
    with pytest.raises(LedgerCorrupt, match="damaged"):  # noqa: PT012 - whichever step meets the hole first
        ledger = Ledger(path)
        try:
            if not ledger.check().ok:
                raise LedgerCorrupt("found damaged by the checker")
        finally:
            ledger._closed = True
            ledger._counter.close(lambda txn, at_us: None)
            ledger._store.close()
    assert path.read_bytes()[:4096] == before[:4096]


@pytest.mark.parametrize("missing", ["file", "folder"])
def test_a_missing_file_or_folder_is_made(tmp_path: Path, missing: str) -> None:
    """A new ledger needs nothing but a place."""
    path = tmp_path / "ledger.db" if missing == "file" else tmp_path / "a" / "b" / "ledger.db"
    with Ledger(path, [CAP]) as ledger:
        ask(ledger)
    assert path.exists()


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """A path through a file can't be made."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(LedgerUnavailable, match="name a file that can be written"):
        Ledger(tmp_path / "file" / "ledger.db")


def test_the_self_check_stops_a_ledger_whose_caps_do_not_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a $0 cap does not refuse a call, the ledger does not open (O-03); an exhausted other cap is no proof."""
    Ledger(tmp_path / "ledger.db").close()
    monkeypatch.setattr("budgets.admission.judge", lambda *_: [])
    with pytest.raises(LedgerError, match=r"self-check failed, a cap of \$0 did not refuse a call"):
        Ledger(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="self-check failed"):
        Ledger()


def test_the_self_check_leaves_nothing_behind(tmp_path: Path) -> None:
    """Opening a ledger writes no line and no cap of the check."""
    with Ledger(tmp_path / "ledger.db", fallback=()) as ledger:
        assert list(ledger.lines()) == []
        assert ledger.caps() == ()


# ---- trouble while it is in use -------------------------------------------------------------------------


def test_a_file_that_is_deleted_stops_calls_until_it_is_back(tmp_path: Path) -> None:
    """Nothing is written to a file that is gone; put back, everything is there and goes on."""
    path = tmp_path / "ledger.db"
    with Ledger(path, [CAP]) as ledger:
        hold = ask(ledger)
        path.rename(tmp_path / "aside.db")
        for use in (lambda: ask(ledger), lambda: ledger.balance("app")):
            with pytest.raises(
                LedgerUnavailable, match="deleted or moved while in use; put it back"
            ):
                use()
        assert not path.exists(), "no second ledger may begin under the old name"
        (tmp_path / "aside.db").rename(path)
        ledger.settle(hold, 3)
        ask(ledger)
        assert ledger.check().ok


def test_a_file_that_is_replaced_stops_calls(tmp_path: Path) -> None:
    """Another ledger under the same name is not written to by mistake."""
    path, other = tmp_path / "ledger.db", tmp_path / "other.db"
    Ledger(other).close()
    before = other.read_bytes()
    ledger = Ledger(path, [CAP])
    ask(ledger)
    other.replace(path)
    with pytest.raises(LedgerUnavailable, match="replaced by another while in use; restart"):
        ask(ledger)
    ledger.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("what", ["settle", "void", "doubt"])
def test_an_ending_survives_a_passing_fault(tmp_path: Path, what: str) -> None:
    """While the store fails calls are declined; what was spent is written as soon as it can be (D-05)."""
    trouble = Trouble()
    ledger = Ledger(caps=[CAP], store=FaultyStore(SqliteStore(tmp_path / "ledger.db"), trouble))
    hold = ask(ledger)
    trouble.arm(1, lambda: LedgerUnavailable("ledger test: the disk is full"), lasting=True)
    with pytest.raises(LedgerUnavailable, match="the disk is full") as caught:
        ask(ledger)
    assert isinstance(caught.value, Declined)
    done = threading.Event()
    ending = Ending(hold=hold.id, kind=what, nanos=3)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: (ledger.end(ending), done.set()))
    thread.start()
    seen = trouble.hits
    while trouble.hits < seen + 3:  # it is tried again and again
        time.sleep(0.001)
    assert not done.is_set()
    trouble.disarm()
    thread.join(10)
    assert done.is_set()
    ask(ledger)
    assert [line.kind for line in ledger.lines(hold=hold.id)] == ["hold", what]
    assert ledger.check().ok
    ledger.close()


def test_an_ending_that_can_never_be_written_leaves_its_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its patience a settlement is given up with an error, and its hold counts in full for ever after."""
    monkeypatch.setattr(threaded_counter, "_SETTLE_PATIENCE_S", 0.05)
    trouble = Trouble()
    ledger = Ledger(caps=[CAP], store=FaultyStore(SqliteStore(tmp_path / "ledger.db"), trouble))
    hold = ask(ledger, 700_000_000)
    trouble.arm(1, lasting=True)
    with pytest.raises(LedgerUnavailable):
        ledger.settle(hold, 3)
    trouble.disarm()
    with pytest.raises(BudgetExceeded):
        ledger.hold(ledger.request(400_000_000, scope="app", wait=False))
    ledger.settle(hold, 3)
    ask(ledger, 900_000_000)
    ledger.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: OSError(errno.EIO, "Input/output error"),
        lambda: MemoryError(),
        lambda: apsw.IOError("x"),
    ],
)
def test_whatever_the_store_raises_nobody_hangs(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    """Faults of every class end as a ledger's error for each caller, and the thread goes on."""
    trouble = Trouble()
    with Ledger(
        caps=[CAP], store=FaultyStore(SqliteStore(tmp_path / "ledger.db"), trouble)
    ) as ledger:
        trouble.arm(2, make, lasting=True)
        with pytest.raises(LedgerError):
            ask(ledger)
        trouble.disarm()
        ask(ledger)
        assert ledger.check().ok


def test_a_lock_that_is_kept_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    """Another program that keeps the file locked holds a call up for a bounded time only (D-02)."""
    path = tmp_path / "ledger.db"
    with Ledger(caps=[CAP], store=SqliteStore(path, busy_ms=80)) as ledger:
        ask(ledger)
        rude = apsw.Connection(str(path))
        rude.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="another process keeps it locked"):
            ask(ledger)
        assert ledger.balance("app").held_nanos == 5, "reading goes on"
        rude.execute("ROLLBACK")
        rude.close()
        ask(ledger)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own; skips where that can't be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ledger: Ledger) -> None:
    """Hold until something is in the way."""
    for _ in range(2000):
        ledger.hold(ledger.request(1, scope="app", note={"text": "x" * 4000}))


def test_a_full_disk_declines_and_then_goes_on(tmp_path: Path) -> None:
    """A real full disk: no hold, no call; other holds are intact; with space again it works on (O-04)."""
    with small_disk(tmp_path / "disk", "2m") as disk, Ledger(disk / "ledger.db", [CAP]) as ledger:
        kept = ask(ledger)
        with contextlib.suppress(OSError):
            (disk / "ballast").write_bytes(b"x" * 10_000_000)
        with pytest.raises(LedgerUnavailable, match="the disk is full; free some space"):
            fill(ledger)
        made = ledger.balance("app").held_nanos
        settling = threading.Thread(target=ledger.settle, args=(kept, 2))
        settling.start()
        (disk / "ballast").unlink()
        settling.join(20)
        ask(ledger)
        assert ledger.balance("app").held_nanos == made
        assert ledger.balance("app").posted_nanos == 2
        assert ledger.check().ok


def test_a_disk_that_is_full_from_the_start_is_named(tmp_path: Path) -> None:
    """A ledger that can't even be made says why."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        with contextlib.suppress(OSError):
            (disk / "ballast").write_bytes(b"x" * 1_000_000)
        with pytest.raises(LedgerUnavailable, match=r"the disk is full|No space left"):
            Ledger(disk / "ledger.db")


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    """A file system that became read-only declines; what is there stays."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        with Ledger(disk / "ledger.db", [CAP]) as ledger:
            ledger.settle(ask(ledger), 4)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(LedgerUnavailable, match=r"(?i)read-only"):
            Ledger(disk / "ledger.db")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        with Ledger(disk / "ledger.db") as ledger:
            assert ledger.balance("app").posted_nanos == 4


LIMITED = """
    import resource, signal, sys
    from pathlib import Path
    from budgets import Cap, Ledger, LedgerUnavailable
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger(Path(sys.argv[1]), [Cap("1", scope="app")])
    first = ledger.hold(ledger.request(1, scope="app"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    made = 1
    try:
        while made < 5000:
            ledger.hold(ledger.request(1, scope="app", note={"text": "x" * 2000}))
            made += 1
    except LedgerUnavailable as error:
        assert "nothing was written" in str(error) or "disk is full" in str(error), error
    else:
        raise AssertionError("the limit was never met")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert ledger.balance("app").held_nanos == made, ledger.balance("app")
    ledger.settle(first, 1)
    ledger.hold(ledger.request(1, scope="app"))
    assert ledger.check().ok, ledger.check().findings
    ledger.close()
"""


def test_a_file_that_may_not_grow_declines_and_goes_on(tmp_path: Path) -> None:
    """A write that the system refuses in the middle of a commit leaves whole transactions only."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / "ledger.db")],
        check=True,
        timeout=110,
        cwd=Path(__file__).parents[2],
    )


# ---- clocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-48, -13, 13, 24 * 400])
def test_a_clock_that_is_set_moves_no_money(tmp_path: Path, hours: int) -> None:
    """Set back or forward across midnight, charges stay in their windows and the ledger stays proven."""
    clock = ManualClock()
    day = Cap("1", per="day", scope="app")
    with Ledger(tmp_path / "ledger.db", [day], fallback=(), clock=clock) as ledger:
        first, second = ask(ledger, 300_000_000), ask(ledger, 300_000_000)
        clock.move(hours=hours)
        ledger.settle(first, 200_000_000)
        assert ledger.balance("app").remaining == 1
        third = ask(ledger, 900_000_000)
        clock.move(hours=-hours)
        assert ledger.balance("app").remaining_nanos == 500_000_000
        ledger.settle(third, 900_000_000)
        ledger.void(second)
        assert ledger.balance("app").remaining_nanos == 800_000_000
        assert ledger.check().ok


def test_a_clock_that_raises_declines_and_hangs_nobody(tmp_path: Path) -> None:
    """Even a broken clock is only an error."""
    clock = ManualClock()
    broken = threading.Event()

    def tell() -> object:
        if broken.is_set():
            raise ZeroDivisionError
        return clock()

    with Ledger(tmp_path / "ledger.db", [CAP], clock=tell) as ledger:  # type: ignore[arg-type]
        request = ledger.request(5, scope="app")
        broken.set()
        with pytest.raises(LedgerError, match="can't be written"):
            ledger.hold(request)
        broken.clear()
        ask(ledger)


def test_a_damaged_row_hurts_only_who_asks_for_it(tmp_path: Path) -> None:
    """A hold whose row can't be read any more is an error for its own ending, and a finding of the checker."""
    path = tmp_path / "ledger.db"
    with Ledger(path, [CAP]) as ledger:
        bad, good = ask(ledger), ask(ledger)
        db = apsw.Connection(str(path))
        db.execute("UPDATE open_holds SET note = '{broken' WHERE id = ?", (bad.id,))
        db.close()
        with pytest.raises(LedgerError, match="can't be written"):
            ledger.settle(bad, 1)
        ledger.settle(good, 1)
        assert any("can't be read" in finding for finding in ledger.check().findings)
        db = apsw.Connection(str(path))
        db.execute("UPDATE open_holds SET note = '{}' WHERE id = ?", (bad.id,))
        db.close()
        ledger.settle(bad, 1)
        assert ledger.check().ok
