"""Real processes on one ledger file: taking turns, dying, forking, waiting for each other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgets.caps import Cap
from budgets.errors import AlreadyEnded, BudgetExceeded, LedgerUnavailable
from budgets.ledger import Ledger
from budgets.records import Line

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("ledger_child.py")
CAP = Cap("1", scope="app")

pytestmark = pytest.mark.slow


class Child:
    """A process that does one of the things of ``ledger_child``."""

    def __init__(self, verb: str, path: Path, argument: object, cap: str = "1") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), verb, str(path), cap, str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def line(self) -> str:
        """The next line that it says; its error if it dies instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()[1]
        return line.strip()

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> str:
        """SIGKILL; everything else that it had said."""
        self.process.kill()
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        self.end()
        return rest

    def end(self) -> tuple[str, str]:
        """Close its input and wait for its end."""
        return self.process.communicate(timeout=60)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Processes that are ended with the test."""
    started: list[Child] = []
    yield started
    for child in started:
        child.process.kill()
        with child.process:  # closes its pipes and waits for its end
            pass


def together(children: list[Child]) -> None:
    """Let all begin at the same moment."""
    for child in children:
        assert child.line() == "ready"
    for child in children:
        child.go()


def test_eight_processes_make_two_hundred_calls_each_without_a_single_error(
    tmp_path: Path, children: list[Child]
) -> None:
    """No lock error, no lost line, and nobody waits for seconds, on a file that all find missing (D-01, D-07)."""
    path = tmp_path / "ledger.db"
    children += [Child("calls", path, 200) for _ in range(8)]
    together(children)
    longest = [json.loads(child.line())["longest_s"] for child in children]
    for child in children:
        assert child.end()[1] == ""
    assert max(longest) < 5, longest
    with Ledger(path) as ledger:
        result = ledger.check()
        assert result.ok, result.findings
        assert (result.holds, result.lines) == (1600, 3200)
        assert ledger.balance("app").posted_nanos == 1600 * 7


def test_processes_that_race_admit_exactly_what_fits(tmp_path: Path, children: list[Child]) -> None:
    """Of as many calls as five processes can make at once, exactly cap / bound are admitted (O-01, O-15)."""
    path = tmp_path / "ledger.db"
    children += [Child("grab", path, 1_000_003) for _ in range(5)]
    together(children)
    admitted = [int(child.line()) for child in children]
    assert sum(admitted) == 1_000_000_000 // 1_000_003
    with Ledger(path) as ledger:
        assert ledger.balance("app").held_nanos == sum(admitted) * 1_000_003
        assert ledger.check().ok


def test_no_process_starves(tmp_path: Path, children: list[Child]) -> None:
    """At full load the least served process gets a fair part of what the best served gets."""
    children += [Child("flat_out", tmp_path / "ledger.db", 1.5) for _ in range(6)]
    together(children)
    counts = [int(child.line()) for child in children]
    assert min(counts) > max(counts) / 5, counts
    assert min(counts) > 10, counts


def told(text: str) -> dict[str, dict[str, int]]:
    """What a churning process has said, by hold: word to amount."""
    holds: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # the last line may be torn
            word, hold, nanos = line.split()
            holds.setdefault(hold, {})[word] = int(nanos)
    return holds


def test_processes_that_are_killed_lose_nothing_and_free_nothing(
    tmp_path: Path, children: list[Child]
) -> None:
    """SIGKILL at random points: what was told is in the ledger, what was open is in doubt, nothing is free."""
    path = tmp_path / "ledger.db"
    chance = random.Random(20261129)
    said: dict[str, dict[str, int]] = {}
    living = [Child("churn", path, seed, cap="1000") for seed in range(3)]
    children += living
    texts: dict[int, list[str]] = {id(child): [] for child in living}
    for turn in range(9):
        for child in living:
            texts[id(child)] += [child.line() for _ in range(chance.randint(3, 40))]
        victim = living.pop(0)
        said |= told("\n".join([*texts.pop(id(victim)), *victim.kill().splitlines()]))
        with Ledger(path) as ledger:
            found = ledger.check()
            assert found.ok, found.findings
        if turn < 6:
            living.append(Child("churn", path, 100 + turn, cap="1000"))
            children.append(living[-1])
            texts[id(living[-1])] = []
    assert not living
    with Ledger(path) as ledger:
        lines: dict[str, dict[str, Line]] = {}
        for line in ledger.lines():
            lines.setdefault(line.hold, {})[line.kind] = line
        for hold, words in said.items():
            assert lines[hold]["hold"].nanos == words["held"]
            if "settled" in words:
                assert lines[hold]["settle"].posted == words["settled"]
            if "voided" in words:
                assert "void" in lines[hold]
        open_ones = {h.id: h for h in ledger.open_holds()}
        assert {h.state for h in open_ones.values()} == {"doubt"}
        for hold, words in lines.items():
            assert ("settle" in words or "void" in words) != (hold in open_ones)
        assert ledger.balance("app").in_doubt_nanos == sum(h.nanos for h in open_ones.values()) > 0
        assert len(said) > 50


@pytest.mark.parametrize("how", ["killed", "voided"])
def test_money_of_another_process_is_waited_for(
    tmp_path: Path, children: list[Child], how: str
) -> None:
    """Freed elsewhere, a waiting call gets it; if its holder dies, it is in doubt and the call is declined."""
    path = tmp_path / "ledger.db"
    children.append(Child("keep", path, 700_000_000))
    assert children[0].line().startswith("held")
    children.append(Child("queue", path, 500_000_000))
    assert children[1].line() == "waiting"
    if how == "voided":
        children[0].go()
        assert children[0].line() == "voided"
        assert children[1].line().startswith("held")
    else:
        children[0].kill()
        _, error = children[1].end()
        assert "BudgetExceeded: declined" in error
        assert "what is in doubt counts until it is resolved" in error


def test_the_queue_is_one_for_all_processes_and_the_dead_leave_it(
    tmp_path: Path, children: list[Child]
) -> None:
    """First come first served across processes; who dies while waiting stands in nobody's way."""
    path = tmp_path / "ledger.db"
    children.append(Child("keep", path, 700_000_000))
    assert children[0].line().startswith("held")
    for nanos in (900_000_000, 800_000_000, 100_000_000):
        children.append(Child("queue", path, nanos))
        assert children[-1].line() == "waiting"
    large, second, small = children[1:]
    large.kill()
    with Ledger(path) as ledger:
        with ledger.reader() as reader:
            assert [w.nanos for w in reader.waiting()] == [800_000_000, 100_000_000]
        with pytest.raises(BudgetExceeded, match="only held money"):
            ledger.hold(ledger.request(1, scope="app", wait=False))
        children[0].go()
        assert second.line().startswith("held")
        assert small.line().startswith("held")
        begun = [line for line in ledger.lines() if line.kind == "hold"]
        assert [line.nanos for line in begun] == [700_000_000, 800_000_000, 100_000_000]


def test_a_killed_process_leaves_its_reserve_free_and_its_draw_in_doubt(
    tmp_path: Path, children: list[Child]
) -> None:
    """SIGKILL: whoever opens the ledger next gives back what nothing was sent on, and only that."""
    path = tmp_path / "ledger.db"
    children.append(Child("reserve", path, 600_000_000))
    drawn = children[0].line().split()[2]
    with Ledger(path) as ledger:
        assert [(h.nanos, h.state) for h in ledger.open_holds()] == [(300_000_000, "held")] * 2
        children[0].kill()
    with Ledger(path) as after:
        assert [(h.id, h.state) for h in after.open_holds()] == [(drawn, "doubt")]
        assert after.balance("app").held_nanos == 0
        assert after.hold(after.request(700_000_000, scope="app")).nanos == 700_000_000
        assert after.check().findings == []


def test_a_process_that_is_stopped_is_not_dead(tmp_path: Path, children: list[Child]) -> None:
    """A process that only sleeps (Ctrl-Z) keeps what it holds."""
    path = tmp_path / "ledger.db"
    children.append(Child("keep", path, 700_000_000))
    assert children[0].line().startswith("held")
    children[0].process.send_signal(signal.SIGSTOP)
    with Ledger(path) as ledger:
        assert [h.state for h in ledger.open_holds()] == ["held"]
        children[0].process.send_signal(signal.SIGCONT)
        children[0].go()
        assert children[0].line() == "voided"


# ---- forks ----------------------------------------------------------------------------------------------


def in_a_fork(work: object) -> int:
    """Run something in a forked child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 70
        with contextlib.suppress(BaseException):
            work()  # type: ignore[operator]
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


pytest_forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest_forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_the_file_with_connections_of_its_own(tmp_path: Path) -> None:
    """Both go on after a fork; what the child holds is its own, and in doubt when it is gone."""
    with Ledger(tmp_path / "ledger.db", [CAP]) as ledger:
        before = ledger.hold(ledger.request(10, scope="app"))
        owner = ledger._rules.owner.id
        assert owner in before.id

        def child() -> None:
            own = ledger.hold(ledger.request(20, scope="app"))
            assert owner not in own.id, "ids are the child's own"
            ledger.settle(before, 7)  # handed to the child
            assert ledger.balance("app").held_nanos == 20

        assert in_a_fork(child) == 0
        with pytest.raises(AlreadyEnded):
            ledger.settle(before, 7)
        ledger.hold(ledger.request(30, scope="app"))
    with Ledger(tmp_path / "ledger.db") as after:
        assert after.check().ok
        assert after.balance("app").posted_nanos == 7
        assert sorted(h.nanos for h in after.open_holds()) == [20, 30]


@pytest_forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_parent_that_closes_takes_nothing_from_its_child(tmp_path: Path) -> None:
    """The parent's goodbye does not delete the log that the child is writing to."""
    ledger = Ledger(tmp_path / "ledger.db", [CAP])
    ledger.hold(ledger.request(1, scope="app"))
    ours, theirs = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        with contextlib.suppress(BaseException):
            ledger.hold(ledger.request(2, scope="app"))
            os.write(ours[1], b"x")
            os.read(theirs[0], 1)
            for _ in range(50):
                ledger.hold(ledger.request(4, scope="app"))
            code = 0
        os._exit(code)
    os.read(ours[0], 1)
    ledger.close()
    os.write(theirs[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0
    for fd in (*ours, *theirs):
        os.close(fd)
    with Ledger(tmp_path / "ledger.db") as after:
        result = after.check()
        assert result.ok, result.findings
        assert after.balance("app").in_doubt_nanos == 1 + 2 + 200


@pytest_forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_in_the_middle_of_traffic(tmp_path: Path) -> None:
    """Children forked while threads of the parent write all get through, and every line is there."""

    path = tmp_path / "ledger.db"
    ledger = Ledger(path, [CAP])
    stop = threading.Event()
    made = [0, 0, 0]

    def work(number: int) -> None:
        while not stop.is_set():
            ledger.settle(ledger.hold(ledger.request(3, scope="app")), 1)
            made[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        for _ in range(5):
            ledger.settle(ledger.hold(ledger.request(3, scope="app")), 1)

    codes = [in_a_fork(child) for _ in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 12
    ledger.close()
    with Ledger(path) as after:
        assert after.check().ok
        assert after.balance("app").posted_nanos == sum(made) + 12 * 5


@pytest_forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle_of_reading_is_refused_in_the_child(tmp_path: Path) -> None:
    """A child whose locks can't be relied on is told so, instead of risking the file; the parent goes on."""
    with Ledger(tmp_path / "ledger.db", [CAP]) as ledger:
        for _ in range(3):
            ledger.hold(ledger.request(1, scope="app"))
        lines = ledger.lines()
        next(lines)

        def child() -> None:
            for use in (
                lambda: ledger.hold(ledger.request(1, scope="app")),
                lambda: Ledger(tmp_path / "ledger.db"),
            ):
                with pytest.raises(LedgerUnavailable, match="forked while the file was being read"):
                    use()

        assert in_a_fork(child) == 0
        assert len(list(lines)) == 2
        ledger.hold(ledger.request(1, scope="app"))
        assert ledger.check().ok


@pytest_forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copied_memory_ledger_is_refused_in_the_child() -> None:
    """Money in memory can't be spent twice by copying it."""
    ledger = Ledger(caps=[CAP])

    def child() -> None:
        with pytest.raises(LedgerUnavailable, match="copied by a fork"):
            ledger.hold(ledger.request(1, scope="app"))

    assert in_a_fork(child) == 0
    ledger.hold(ledger.request(1, scope="app"))


# ---- memory ---------------------------------------------------------------------------------------------

MANY = """
    import asyncio, sys
    import psutil
    from budgets import Cap, Ledger
    from budgets.records import Ending

    async def main():
        ledger = Ledger(sys.argv[1], [Cap("1000", scope="app")])
        async def work(n):
            for i in range(n):
                hold = await ledger.hold_async(ledger.request(10, scope=f"app/run-{i % 40}", note={"agent": "a"}))
                await ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=7))
        me = psutil.Process()
        await asyncio.gather(*(work(160) for _ in range(64)))
        before = me.memory_info().rss
        await asyncio.gather(*(work(1410) for _ in range(64)))
        after = me.memory_info().rss
        print(before, after)
        assert ledger.balance("app").posted_nanos == 64 * 1570 * 7
        ledger.close()

    asyncio.run(main())
"""


def test_memory_stays_flat_over_a_hundred_thousand_holds(tmp_path: Path) -> None:
    """A hold that has ended leaves nothing in the process."""

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MANY), str(tmp_path / "ledger.db")],
        check=True,
        timeout=110,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    before, after = (int(n) for n in done.stdout.split())
    assert after - before < 12_000_000, (before, after)
