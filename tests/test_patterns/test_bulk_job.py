"""The job: every document drawn has one row, answers are paid once, and rows carry all of the money."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from budgets.ledger import Ledger
from orchestrator.documents import Document, Problem
from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns.bulk import Classify, Progress, Results, Row, answer_all
from patterns.bulk.paid import kept
from tests.test_orchestrator.running import Stage, stage

from .test_bulk_task import document

TASK = Classify(labels=("bug", "feature"))


def some(count: int, extra: str = "") -> list[Document | Problem]:
    return [document(f"Ticket {n} {extra}", f"{n:03d}.txt") for n in range(count)]


async def work(
    st: Stage, folder: Path, documents: Any, task: Classify = TASK, **fields: Any
) -> tuple[Progress, dict[str, Row]]:
    with Results(folder / "out") as results:
        progress = await answer_all(st.run, task, documents, results, **fields)
        rows = {row.path: row for row in results.rows()}
        results.finish()
    prove_rows(st, rows)
    return progress, rows


def prove_rows(st: Stage, rows: dict[str, Row]) -> None:
    """The money of the rows is the money of the ledger."""
    st.prove()
    assert sum(row.posted_nanos for row in rows.values()) == st.run.balance.posted_nanos
    assert sum(row.in_doubt_nanos for row in rows.values()) == st.run.balance.in_doubt_nanos


async def test_every_document_has_a_row(tmp_path: Path) -> None:
    """Also those that can't be sent; ``on_row`` hears of each."""
    heard: list[str] = []
    async with stage() as st:
        problem = Problem(path="x.png", outcome="binary", reason="PNG image, not text")
        progress, rows = await work(
            st,
            tmp_path,
            [*some(20), problem],
            on_row=lambda row, _: heard.append(row.path),
        )
        assert len(rows) == progress.done == len(heard) == 21
        assert rows["x.png"].outcome is Outcome.BINARY
        assert rows["000.txt"].label in TASK.labels
        assert rows["000.txt"].tokens["output_tokens"] > 0
        st.prove_exact()


async def test_documents_are_drawn_as_they_are_needed(tmp_path: Path) -> None:
    """A folder of any size is never in memory as a whole."""
    drawn = done = most = 0

    def source() -> Iterator[Document | Problem]:
        nonlocal drawn
        for one in some(200):
            drawn += 1
            yield one

    def count(_: Row, progress: Progress) -> None:
        nonlocal done, most
        done = progress.done
        most = max(most, drawn - done)

    async with stage() as st:
        await work(st, tmp_path, source(), width=4, on_row=count)
    assert drawn == 200
    assert most <= 12


async def test_the_first_document_warms_the_cache_alone(tmp_path: Path) -> None:
    """P-01: the others start when its answer is there, and all read the prefix."""
    task = Classify(labels=("bug", "feature"), rubric="rubric words " * 4_000, cached=True)
    faults = Faults([Fault(kind="hang")])
    async with stage(sim={"faults": faults}) as st:
        working = asyncio.create_task(work(st, tmp_path, some(20), task))
        await st.sim.arrived(1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert st.sim.stats.arrived == 1
        st.sim.release()
        _, rows = await working
        written = [row.path for row in rows.values() if row.tokens["cache_write_tokens"]]
        read = [row.path for row in rows.values() if row.tokens["cache_read_tokens"]]
        assert (written, len(read)) == (["000.txt"], 19)


async def test_a_first_document_that_fails_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    """Whatever becomes of the one that warms the cache."""
    task = Classify(labels=("bug", "feature"), rubric="rubric words " * 4_000, cached=True)
    async with stage() as st:
        first = document("[[sim:fault=unauthorized]]", "000.txt")
        _, rows = await work(st, tmp_path, [first, *some(10)[1:]], task)
        assert [row.outcome for row in rows.values()].count(Outcome.OK) == 9


async def test_results_that_can_not_be_written_stop_the_spending(tmp_path: Path) -> None:
    """A full disk ends the job at once; no worker goes on behind its back."""

    class Full(Results):
        def add(self, row: Row) -> None:
            raise ConfigError(f"results: {row.path} can't be written (No space left on device)")

    async with stage(gate=Gate(width=2)) as st:
        with pytest.raises(ConfigError, match="No space"), Full(tmp_path / "out") as results:
            await answer_all(st.run, TASK, some(200), results, width=2)
        assert st.sim.stats.arrived <= 8
        st.prove()


# ---- going on -----------------------------------------------------------------------------------------


async def again(folder: Path, st: Stage, documents: Any, sim: Any = None, **fields: Any) -> Any:
    """The same run once more, in front of a new server."""
    options = {"cap": "5", **fields}
    async with stage(folder=folder, id=st.run.id, sim=sim, **options) as next_stage:
        progress, rows = await work(next_stage, folder, documents)
        return next_stage.sim.bill.requests, progress, rows


async def test_answers_that_are_there_are_not_paid_again(tmp_path: Path) -> None:
    """By content, not by position: what is added, changed or moved in between is told apart."""
    async with stage(folder=tmp_path) as st:
        _, before = await work(st, tmp_path, some(10))
    changed = [document("New first", "000-new.txt"), *some(10)]
    changed[3] = document("Changed", "002.txt")
    requests, progress, rows = await again(tmp_path, st, changed)
    assert (requests, progress.reused, len(rows)) == (2, 9, 11)
    assert rows["002.txt"].posted_nanos > before["002.txt"].posted_nanos
    assert rows["005.txt"].reused
    assert rows["005.txt"].posted_nanos == before["005.txt"].posted_nanos


async def test_what_a_changed_document_cost_before_stays_in_its_row(tmp_path: Path) -> None:
    """Its old content was paid, too; taken up again and again, the rows are the ledger's money each time."""
    async with stage(folder=tmp_path) as st:
        await work(st, tmp_path, some(2))
    changed = [document("Changed", "000.txt"), *some(2)[1:]]
    _, _, once = await again(tmp_path, st, changed)
    requests, _, twice = await again(tmp_path, st, changed)
    assert requests == 0
    assert [row.posted_nanos for row in twice.values()] == [
        row.posted_nanos for row in once.values()
    ]


async def test_an_end_for_an_unknown_reason_is_the_same_on_recovery(tmp_path: Path) -> None:
    """An answer that was paid, and corrected in vain, is not paid again for want of its row."""
    odd = [document("[[sim:stop=brand_new]]", "odd.txt")]
    async with stage(folder=tmp_path) as st:
        _, rows = await work(st, tmp_path, odd)
        assert (rows["odd.txt"].outcome, rows["odd.txt"].calls) == (Outcome.INVALID, 2)
    (tmp_path / "out" / "results.jsonl").unlink()
    requests, _, rows = await again(tmp_path, st, odd)
    assert (requests, rows["odd.txt"].outcome) == (0, Outcome.INVALID)


async def test_lost_rows_are_recovered_from_the_ledger(tmp_path: Path) -> None:
    """An answer that was paid before its row was written is kept by the line that pays for it."""
    async with stage(folder=tmp_path) as st:
        _, before = await work(st, tmp_path, some(10))
    (tmp_path / "out" / "results.jsonl").unlink()
    requests, progress, rows = await again(tmp_path, st, some(10))
    assert (requests, progress.reused) == (0, 10)
    for path, row in rows.items():
        assert (row.label, row.posted_nanos, row.calls) == (
            before[path].label,
            before[path].posted_nanos,
            1,
        )
        assert row.tokens == before[path].tokens


async def test_twins_are_paid_once_on_recovery_and_counted_once(tmp_path: Path) -> None:
    """Two files of one content share an identity; the sum of the rows stays the ledger's."""
    twins = [document("Same", "a.txt"), document("Same", "b.txt")]
    async with stage(folder=tmp_path) as st:
        await work(st, tmp_path, twins)
    (tmp_path / "out" / "results.jsonl").unlink()
    requests, _, rows = await again(tmp_path, st, [*twins, document("Same", "c.txt")])
    assert requests == 0
    assert {row.label for row in rows.values()} == {rows["a.txt"].label}


async def test_a_try_that_failed_is_part_of_what_a_document_cost(tmp_path: Path) -> None:
    """What is in doubt from before stays in the row when the document is asked about again."""
    faults = Faults([Fault(kind="hang", times=0)])
    async with stage(folder=tmp_path, sim={"faults": faults}) as st:
        working = asyncio.create_task(work(st, tmp_path, some(3), width=3))
        await st.sim.arrived(1)
        st.run.cancel()
        _, before = await working
        doubted = before["000.txt"].in_doubt_nanos
        assert doubted > 0
    requests, _, rows = await again(tmp_path, st, some(3))
    assert requests == 3
    assert (rows["000.txt"].outcome, rows["000.txt"].in_doubt_nanos) == (Outcome.OK, doubted)


async def test_a_budget_that_was_raised_is_gone_on_with(tmp_path: Path) -> None:
    """Z-04: what is done is kept, the rest is done later."""
    async with stage(folder=tmp_path, cap="0.0005") as st:
        _, rows = await work(st, tmp_path, some(40))
        done = sum(row.outcome is Outcome.OK for row in rows.values())
        assert 0 < done < 40
    requests, progress, rows = await again(tmp_path, st, some(40), cap="5")
    assert (requests, progress.reused) == (40 - done, done)
    assert {row.outcome for row in rows.values()} == {Outcome.OK}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"stop_reason": "end_turn", "content": [{"type": "text", "text": '{"a":1}'}]}, '{"a":1}'),
        (
            {"stop_reason": "end_turn", "content": [{"type": "text", "text": "no"}]},
            '{"stopped": "unusable"}',
        ),
        ({"stop_reason": "end_turn", "content": []}, '{"stopped": "unusable"}'),
        (
            {"stop_reason": "end_turn", "content": [{"type": "text", "text": f'"{"x" * 600}"'}]},
            '{"stopped": "unusable"}',
        ),
        ({"stop_reason": "refusal", "content": []}, '{"stopped": "refusal"}'),
        ({"stop_reason": "tool_use", "content": []}, None),
        ({}, None),
    ],
    ids=lambda value: str(value)[:90],
)
def test_what_is_kept_of_an_answer_is_short(message: dict[str, Any], expected: str | None) -> None:
    """Its JSON, or why it has none: never a text of any length."""
    assert kept(message) == expected


async def test_one_run_in_memory_needs_no_ledger_file(tmp_path: Path) -> None:
    """The job works with a ledger in memory; it can't be recovered then."""
    async with stage() as st:
        assert isinstance(st.run.ledger, Ledger)
        assert st.run.ledger.path is None
        progress, _ = await work(st, tmp_path, some(3))
        assert progress.sent == 3
