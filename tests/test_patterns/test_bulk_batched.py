"""The job over batches: items are unique, what becomes of them becomes rows, and nothing is paid twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.documents import Problem
from orchestrator.outcomes import Outcome
from patterns.bulk import BatchedJob, Classify, Results, Row, answer_all
from tests.test_orchestrator.running import stage

from .test_bulk_job import some, work
from .test_bulk_task import document
from .test_bulk_tasks import message

TASK = Classify(labels=("bug", "feature"))


@dataclass(kw_only=True)
class Done:
    """What an engine hands out; see ``orchestrator.batches``."""

    identity: str
    outcome: Outcome = Outcome.OK
    message: dict[str, Any] | None = None
    reason: str = ""
    posted_nanos: int = 100
    in_doubt_nanos: int = 0
    usage: dict[str, Any] = field(default_factory=lambda: {"input_tokens": 5, "output_tokens": 2})
    tries: int = 1


async def test_items_are_drawn_lazily_and_each_once(tmp_path: Path) -> None:
    """Documents that need no answer have rows at once; those of one content are one item."""
    mixed = [Problem(path="p", outcome="binary", reason="a PDF"), *some(2), document("Same", "a")]
    mixed += [document("Same", "b"), document("Same", "c")]
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            items = job.items(iter(mixed))
            identity, body = next(items)
            assert (identity, body) == (TASK.identity(mixed[1]), TASK.body(mixed[1]))  # type: ignore[arg-type]
            assert [row.path for row in results.rows()] == ["p"]
            rest = list(items)
            assert [one for one, _ in rest] == [TASK.identity(mixed[n]) for n in (2, 3)]  # type: ignore[arg-type]
            answer = message('{"label": "bug"}')
            first, *same = job.done(Done(identity=rest[1][0], message=answer))
            assert (first.label, first.posted_nanos, first.calls) == ("bug", 100, 1)
            assert first.tokens["input_tokens"] == 5
            assert [(row.path, row.label, row.same_as) for row in same] == [
                *(("b", "bug", "a"), ("c", "bug", "a")),
            ]
            assert [row.posted_nanos for row in same] == [0, 0]
            assert job.done(Done(identity=rest[1][0], message=answer)) == []
            assert job.done(Done(identity="nobody's", message=answer)) == []
            job.left(Outcome.CANCELLED, "stopped")
            outcomes = {row.path: row.outcome for row in results.rows()}
            assert outcomes["000.txt"] is Outcome.CANCELLED
            assert job.progress.done == len(outcomes) == 6


async def test_what_an_item_ended_in_is_what_its_row_says(tmp_path: Path) -> None:
    """An answer is read as a direct one would be; what has none keeps the engine's word."""
    endings = {
        "ok": Done(identity="", message=message('{"label": "bug"}')),
        "invalid": Done(identity="", message=message('{"label": "no"}')),
        "truncated": Done(identity="", message=message("", "max_tokens")),
        "refusal": Done(
            identity="", outcome=Outcome.REFUSAL, message=message("", "refusal"), reason="said no"
        ),
        "expired": Done(identity="", outcome=Outcome.EXPIRED, reason="24 hours", posted_nanos=0),
        "bad_request": Done(identity="", outcome=Outcome.BAD_REQUEST, reason="prompt", tries=2),
    }
    heard: list[str] = []
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results, on_row=lambda row, _: heard.append(row.path))
            documents = [document(name, name) for name in endings]
            for (identity, _), done in zip(job.items(documents), endings.values(), strict=True):
                done.identity = identity
            for done in reversed(endings.values()):  # in any order
                job.done(done)
            rows = {row.path: row for row in results.rows()}
    assert {path: row.outcome.value for path, row in rows.items()} == {n: n for n in endings}
    assert rows["expired"].reason == "24 hours"
    assert rows["bad_request"].calls == 2
    assert sorted(heard) == sorted(endings)


async def test_a_twin_of_one_that_failed_before_it_was_drawn(tmp_path: Path) -> None:
    """An identity is an item once in a job, also if it ended in vain before its twin's turn came."""
    twins = [document("Same", "a"), document("Other", "b"), document("Same", "c")]
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            items = job.items(iter(twins))
            identity, _ = next(items)
            next(items)
            job.done(Done(identity=identity, outcome=Outcome.EXPIRED, posted_nanos=0))
            assert list(items) == []
            rows = {row.path: row for row in results.rows()}
    assert (rows["c"].outcome, rows["c"].same_as) == (Outcome.EXPIRED, "a")


async def test_an_answer_that_does_not_fit_is_corrected_directly_and_once(tmp_path: Path) -> None:
    """J-05, J-06: one further call, whose cost is added; then it is ``invalid``."""
    odd = [document("One", "a"), document('[[sim:text={"label": "no"}]]', "b")]
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            rows: list[Row] = []
            for identity, _ in list(job.items(odd)):
                rows += job.done(Done(identity=identity, message=message('{"label": "x"}')))
            assert [job.needs_correction(row) for row in rows] == [True, True]
            fixed = [await job.correct(st.run, one) for one in odd]
            assert [row.outcome for row in fixed] == [Outcome.OK, Outcome.INVALID]
            assert [row.calls for row in fixed] == [2, 2]
            assert fixed[0].posted_nanos > 100
            assert [job.needs_correction(row) for row in fixed] == [False, False]
            assert st.sim.bill.requests == 2
            written = list(results.rows())
            assert [row.outcome for row in written] == [Outcome.OK, Outcome.INVALID]


async def test_direct_and_batched_go_on_with_each_others_answers(tmp_path: Path) -> None:
    """Identities are the same, so that stragglers may be finished either way."""
    async with stage(folder=tmp_path) as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            identities = [identity for identity, _ in job.items(some(4))]
            job.done(
                Done(identity=identities[0], message=message('{"label": "bug"}'), posted_nanos=0)
            )
            job.done(Done(identity=identities[1], outcome=Outcome.EXPIRED, posted_nanos=0))
        progress, rows = await work(st, tmp_path, some(4))
        assert (progress.reused, progress.sent) == (1, 3)
        assert rows["000.txt"].label == "bug"
        with Results(tmp_path / "out") as results:
            assert list(BatchedJob(st.run, TASK, results).items(some(5))) == [
                (TASK.identity(some(5)[4]), TASK.body(some(5)[4]))  # type: ignore[arg-type]
            ]


async def test_money_of_batches_and_of_direct_calls_adds_up(tmp_path: Path) -> None:
    """What an engine tells in all, again and again, is counted once; direct calls beside it are kept."""
    odd = [document("One", "a"), document("Two", "b")]
    async with stage(folder=tmp_path) as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            ids = [identity for identity, _ in job.items(odd)]
            job.done(Done(identity=ids[0], message=message('{"label": "x"}')))
            job.done(Done(identity=ids[1], outcome=Outcome.EXPIRED, posted_nanos=0, usage={}))
            fixed = await job.correct(st.run, odd[0])
            direct = st.run.balance.posted_nanos
            assert (fixed.posted_nanos, fixed.batch["posted_nanos"]) == (100 + direct, 100)
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            assert [identity for identity, _ in job.items(odd)] == [ids[1]]
            answer = message('{"label": "bug"}')
            (row,) = job.done(Done(identity=ids[1], message=answer, posted_nanos=70, tries=2))
            assert (row.posted_nanos, row.batch["posted_nanos"], row.calls) == (70, 70, 2)
            rows = {one.path: one for one in results.rows()}
            assert rows["a"] == fixed.as_reused()
            results.finish()
    async with stage(folder=tmp_path, id=st.run.id, cap="5") as next_stage:
        with Results(tmp_path / "out") as results:
            progress = await answer_all(next_stage.run, TASK, odd, results)
            assert (progress.reused, progress.sent) == (2, 0)
            assert [row.posted_nanos for row in results.rows()] == [100 + direct, 70]


async def test_what_an_engine_tells_again_is_counted_once(tmp_path: Path) -> None:
    """Calls, tokens and doubts of a row are those of the item, however often the job is taken up again."""
    doubted = Done(identity="", outcome=Outcome.IN_DOUBT, posted_nanos=0, in_doubt_nanos=50)
    failed = Done(identity="", outcome=Outcome.EXPIRED, posted_nanos=30, tries=2)
    async with stage(folder=tmp_path) as st:
        for _ in range(3):
            with Results(tmp_path / "out") as results:
                job = BatchedJob(st.run, TASK, results)
                for (identity, _), done in zip(job.items(some(2)), (doubted, failed), strict=True):
                    done.identity = identity
                for done in (doubted, failed):
                    job.done(done)
                rows = {row.path: row for row in results.rows()}
    assert (rows["000.txt"].in_doubt_nanos, rows["001.txt"].posted_nanos) == (50, 30)
    assert [row.calls for row in rows.values()] == [1, 2]
    assert {row.tokens["input_tokens"] for row in rows.values()} == {5}


async def test_an_answer_of_the_second_batch_is_corrected_as_well(tmp_path: Path) -> None:
    """Batches that an item was in before it was answered are no corrective tries."""
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            ((identity, _),) = list(job.items([document("One", "a")]))
            answer = message('{"label": "x"}')
            (row,) = job.done(Done(identity=identity, message=answer, tries=2))
            assert job.needs_correction(row)


@pytest.mark.parametrize("reason", ["brand_new", None])
async def test_an_end_for_an_unknown_reason_is_corrected(reason: Any, tmp_path: Path) -> None:
    """It is not taken for whole, as on the direct way."""
    async with stage() as st:
        with Results(tmp_path / "out") as results:
            job = BatchedJob(st.run, TASK, results)
            ((identity, _),) = list(job.items([document("One", "a")]))
            answer = {**message('{"label": "bug"}'), "stop_reason": reason}
            (row,) = job.done(Done(identity=identity, outcome=Outcome.INVALID, message=answer))
            assert (row.outcome, row.label) == (Outcome.INVALID, None)
            assert job.needs_correction(row)
