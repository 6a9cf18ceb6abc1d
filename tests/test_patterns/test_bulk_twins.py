"""Documents of one content are paid once, long answers survive a crash, and a cut answer may be asked for again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns.bulk import Classify, Extract, Map, Results, Row, Task, answer_all
from patterns.bulk.results import ANSWERS
from tests.test_orchestrator.running import Stage, stage

from .test_bulk_job import again, some, work
from .test_bulk_task import document

TASK = Classify(labels=("bug", "feature"))
MAP = Map(instructions="Say something long.")
LONG = "[[sim:text=" + "long answer " * 100 + "]]"
JSON = '[[sim:text={"stopped": "by its own words"}]]'


@pytest.mark.parametrize("width", [1, 4])
async def test_documents_of_one_content_are_paid_once(tmp_path: Path, width: int) -> None:
    """The others take over the answer of the first, and say so; wherever they come."""
    twins = [document("Same", f"{n}.txt") for n in range(6)] + some(3)
    async with stage() as st:
        progress, rows = await work(st, tmp_path, twins, width=width)
        assert st.sim.bill.requests == progress.sent == 4
    first = next(row for path, row in rows.items() if len(path) == 5 and not row.same_as)
    others = [row for row in rows.values() if row.same_as]
    assert {row.same_as for row in others} == {first.path}
    assert len(others) == progress.same == 5
    assert {(row.label, row.posted_nanos, row.calls) for row in others} == {(first.label, 0, 0)}


async def test_a_twin_of_one_that_failed_tries_for_itself(tmp_path: Path) -> None:
    """A failure that may pass is not taken over; there is no waiting in a ring."""
    twins = [document("Same", f"{n}.txt") for n in range(3)]
    faults = Faults([Fault(kind="unauthorized")])
    async with stage(sim={"faults": faults}) as st:
        _, rows = await work(st, tmp_path, twins, width=3)
        assert st.sim.stats.arrived == 2
    outcomes = [row.outcome for row in rows.values()]
    assert sorted(outcomes) == [Outcome.AUTH, Outcome.OK, Outcome.OK]


async def test_a_twin_is_known_when_the_run_goes_on(tmp_path: Path) -> None:
    """Also one that was added since, and one whose first is gone."""
    async with stage(folder=tmp_path) as st:
        await work(st, tmp_path, [document("Same", "a"), document("Same", "b")])
    documents = [document("Same", "b"), document("Same", "c")]
    requests, progress, rows = await again(tmp_path, st, documents)
    assert (requests, progress.sent) == (0, 0)
    assert (rows["b"].same_as, rows["b"].reused) == ("a", True)
    assert rows["c"].same_as == "a"
    assert rows["c"].label == rows["b"].label is not None


async def test_cancelled_twins_are_rows_too(tmp_path: Path) -> None:
    """Whoever waits for another's answer ends with it."""
    twins = [document("Same", f"{n}.txt") for n in range(4)]
    faults = Faults([Fault(kind="hang", times=0)])
    async with stage(sim={"faults": faults}) as st:
        working = asyncio.create_task(work(st, tmp_path, twins, width=4))
        await st.sim.arrived(1)
        st.run.cancel()
        _, rows = await working
        assert {row.outcome for row in rows.values()} == {Outcome.CANCELLED}
        assert st.sim.stats.arrived == 1


# ---- long answers -------------------------------------------------------------------------------------


async def interrupted(st: Stage, folder: Path, task: Task, documents: list[Any]) -> None:
    """A job whose process ends between paying and writing the first row."""

    class Dead(BaseException):
        pass

    class Last(Results):
        def add(self, row: Row) -> None:
            raise Dead

    with Last(folder / "out") as results, pytest.raises(Dead):
        await answer_all(st.run, task, documents, results, width=1)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        pytest.param(MAP, LONG, id="free text"),
        pytest.param(MAP, JSON, id="text that looks like our words"),
        pytest.param(
            Extract(fields={"properties": {"stopped": {"type": "string"}}}),
            JSON,
            id="a field that is called like our word",
        ),
        pytest.param(
            Extract(fields={"properties": {"a": {"type": "string"}}}),
            f'[[sim:text={{"a": "{"x" * 900}"}}]]',
            id="long JSON",
        ),
    ],
)
async def test_a_long_answer_that_was_paid_is_not_paid_again(
    tmp_path: Path, task: Task, text: str
) -> None:
    """It is filed before it is paid for; the ledger holds only that it was."""
    async with stage(folder=tmp_path) as st:
        await interrupted(st, tmp_path, task, [document(text)])
        assert st.sim.bill.requests == 1
        assert (tmp_path / "out" / ANSWERS).exists()
        for line in st.run.ledger.lines(st.run.scope):
            assert len(json.dumps(line.note)) < 1_000
    async with stage(folder=tmp_path, id=st.run.id, cap="5") as next_stage:
        _, rows = await work(next_stage, tmp_path, [document(text)], task)
        assert next_stage.sim.bill.requests == 0
    row = rows["a.txt"]
    assert (row.outcome, row.reused) == (Outcome.OK, True)
    assert row.value
    assert row.posted_nanos > 0
    assert not (tmp_path / "out" / ANSWERS).exists()


async def test_an_answer_whose_file_is_torn_is_asked_for_again(tmp_path: Path) -> None:
    """Half of an answer is none."""
    async with stage(folder=tmp_path) as st:
        await interrupted(st, tmp_path, MAP, [document(LONG)])
    file = tmp_path / "out" / ANSWERS
    file.write_bytes(file.read_bytes()[:-20])
    async with stage(folder=tmp_path, id=st.run.id, cap="5") as next_stage:
        _, rows = await work(next_stage, tmp_path, [document(LONG)], MAP)
        assert next_stage.sim.bill.requests == 1
    assert rows["a.txt"].value == ("long answer " * 100)
    assert rows["a.txt"].calls == 2


async def test_a_cut_answer_is_asked_for_again_with_more_room(tmp_path: Path) -> None:
    """Not with the same room: it would be cut again, and paid again."""
    cut = [document("[[sim:output=80]]")]
    async with stage(folder=tmp_path) as st:
        _, rows = await work(st, tmp_path, cut, Map(instructions="x", output_tokens=40))
        assert rows["a.txt"].outcome is Outcome.TRUNCATED
    for room, requests, outcome in ((40, 0, Outcome.TRUNCATED), (100, 1, Outcome.OK)):
        async with stage(folder=tmp_path, id=st.run.id, cap="5") as next_stage:
            task = Map(instructions="x", output_tokens=room)
            _, rows = await work(next_stage, tmp_path, cut, task)
            assert next_stage.sim.bill.requests == requests
            assert rows["a.txt"].outcome is outcome
