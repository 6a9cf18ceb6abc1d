"""A job taken up with other items: nothing is sent that nobody asks for, and no document stays on disk for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.batches import BatchJob, Item, read_job
from orchestrator.batches.job_file import FILE
from orchestrator.batches.spool import FILE as BODIES
from orchestrator.batches.spool import Spool
from orchestrator.errors import ConfigError
from orchestrator.simulator import Simulator
from orchestrator.wire.batches import read_result

from .batching import item, quick, stage

SECRET = "the text of a document"


async def leave(folder: Path, sim: Simulator, given: Iterable[Item]) -> int:
    """Begin a job, and leave it when its first batch has been made; how many items that has."""
    async with stage(folder, sim=sim) as made:
        settings = quick(requests_max=4, open_max=1)
        async with BatchJob(made.run, settings, on_progress=lambda _: None) as job:

            def look(progress: object) -> None:
                if any(row.id for row in job.progress().batches):
                    job.detach()

            job._on_progress = look
            async for _ in job.results(given):
                pass
            progress = job.progress()
            assert progress.waiting
            return progress.sent


async def test_what_is_not_asked_for_any_more_is_not_sent(tmp_path: Path) -> None:
    """A job is taken up with other items: those that wait are not paid for; asked for again, they are sent."""
    async with Simulator(batch_seconds=None) as sim:
        sent = await leave(tmp_path, sim, [item(n) for n in range(12)])
        assert sent == 4
        await sim.finish_batches()
        sim.world.settings = type(sim.world.settings)(batch_seconds=0)
        async with stage(tmp_path, sim=sim) as other:
            await other.do([item(2), item(100)])
            other.prove()
            assert other.progress.is_complete
        assert set(other.ends) == {"doc-0", "doc-1", "doc-2", "doc-3", "doc-100"}
        assert sim.bill.requests == sent + 1
        async with stage(tmp_path, sim=sim) as back:
            await back.do(item(n) for n in range(12))
            assert back.run.balance.posted_nanos == sim.bill.nanos
        assert back.outcomes == {"ok": 12}
        assert sim.bill.requests == 12 + 1


async def test_attaching_goes_on_with_all_that_was_taken_in(tmp_path: Path) -> None:
    """Without items, everything on record is meant."""
    async with Simulator(batch_seconds=None) as sim:
        await leave(tmp_path, sim, [item(n) for n in range(12)])
        await sim.finish_batches()
        sim.world.settings = type(sim.world.settings)(batch_seconds=0)
        async with stage(tmp_path, sim=sim) as back:
            await back.do(None)
            back.prove()
        assert sim.bill.requests == 12


async def test_a_job_whose_items_were_not_all_taken_in_is_not_complete(tmp_path: Path) -> None:
    """Left while items were still to come, and attached: what is there is done, and it says that more is to come."""
    async with Simulator(batch_seconds=None) as sim:
        await leave(tmp_path, sim, (item(n) for n in range(1500)))
        folder = next(tmp_path.rglob(FILE)).parent
        sim.world.settings = type(sim.world.settings)(batch_seconds=0)
        await sim.finish_batches()
        async with stage(tmp_path, sim=sim) as attached:
            await attached.do(None)
            found = read_job(folder)
        assert found is not None
        assert (attached.progress.is_complete, attached.progress.all_taken_in) == (True, False)
        assert not found.is_complete
        async with stage(tmp_path, sim=sim) as ended, BatchJob(ended.run, quick()) as job:
            job.cancel()
            async for _ in job.results():
                pass
            assert job.progress().all_taken_in
        async with stage(tmp_path, sim=sim) as back:
            await back.do(item(n) for n in range(1500))
        assert back.progress.all_taken_in
        assert back.outcomes == {"ok": 1500}
        assert sim.bill.requests == 1500


async def test_documents_do_not_stay_on_disk(tmp_path: Path) -> None:
    """While a job is under way its requests are in its folder; complete, they are nowhere there."""
    async with Simulator(batch_seconds=None) as sim:
        await leave(tmp_path, sim, [item(n, f"[[sim:text=fine]] {SECRET}") for n in range(12)])
        folder = next(tmp_path.rglob(BODIES)).parent
        assert (folder / BODIES).read_bytes().count(SECRET.encode()) == 12
        await sim.finish_batches()
        sim.world.settings = type(sim.world.settings)(batch_seconds=0)
        async with stage(tmp_path, sim=sim) as back:
            await back.do(None)
        assert not (folder / BODIES).exists()
        assert (folder / FILE).exists()
        for file in folder.iterdir():
            assert SECRET.encode() not in file.read_bytes(), file.name


async def test_what_failed_is_sent_again_though_its_body_was_dropped(tmp_path: Path) -> None:
    """A job that is complete but for failures is taken up: the failed items bring their bodies again."""
    thrice = "[[sim:batch=expired,3]]"
    async with Simulator() as sim:
        async with stage(tmp_path, sim=sim) as made:
            await made.do(item(n, thrice if n % 2 else "") for n in range(6))
            made.prove()
        assert made.outcomes == {"ok": 3, "expired": 3}
        async with stage(tmp_path, sim=sim) as back:
            await back.do(item(n, thrice if n % 2 else "") for n in range(6))
            back.prove()
        assert back.outcomes == {"ok": 6}
        assert sim.bill.requests == 6


async def test_a_cut_answer_is_asked_for_again_only_if_there_may_be_more_of_it(
    tmp_path: Path,
) -> None:
    """With a higher limit it is sent again, and both tries are in its cost; with the same one it is not."""
    long = "[[sim:output=100]]"
    async with Simulator() as sim:
        for limit, requests, word in (
            *((60, 1, "truncated"), (60, 1, "truncated")),
            *((90, 2, "truncated"), (200, 3, "ok"), (300, 3, "ok")),
        ):
            async with stage(tmp_path, sim=sim) as made:
                await made.do([item(0, long, max_tokens=limit)])
                made.prove()
            assert made.outcomes == {word: 1}
            assert sim.bill.requests == requests


async def test_a_full_disk_is_one_sentence_and_the_job_goes_on_later(tmp_path: Path) -> None:
    """The job's file can't grow: no traceback of SQLite's, no request sent; with room it is gone on with."""
    async with stage(tmp_path) as made:
        async with BatchJob(made.run, quick()) as job:
            job._store._db.pragma("max_page_count", 1)
            with pytest.raises(
                ConfigError, match=r"batches\.db: the job can't be written .*is full"
            ):
                async for _ in job.results(item(n) for n in range(50)):
                    pass
        assert made.sim.bill.requests == 0
        await made.do(item(n) for n in range(50))
        made.prove()
    assert made.outcomes == {"ok": 50}


def test_bodies_that_do_not_fit_on_the_disk_are_one_sentence(tmp_path: Path) -> None:
    """Nothing of them is put on record."""
    (tmp_path / BODIES).symlink_to("/dev/full")
    spool = Spool(tmp_path / BODIES, 0)
    spool.put(b"a body")
    with pytest.raises(ConfigError, match=r"bodies\.jsonl: can't be written \(No space left"):
        spool.flush()
    spool.close()


@pytest.mark.parametrize("kind", ["[]", "{}", "null", '"new"', "7"])
def test_a_kind_of_result_that_is_not_known(kind: str) -> None:
    """A line of results is one, or it is refused as none; it never ends the job."""
    with pytest.raises(ValueError, match="kind of result"):
        read_result(b'{"custom_id": "x", "result": {"type": %s}}' % kind.encode())


@pytest.mark.parametrize("direct", [False, True], ids=["batch", "direct"])
async def test_how_an_answer_stopped_is_read_as_on_the_direct_way(
    direct: bool, tmp_path: Path
) -> None:
    """A reason that is not known is no success; what was paid for is not sent again, whatever it ended in."""
    ways = ["stop=brand_new", "stop=pause_turn", "output=500", "tool=look"]
    failing = " [[sim:batch=overloaded]]" if direct else ""
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    given = [item(n, f"[[sim:{way}]]{failing}", tools=[tool]) for n, way in enumerate(ways)]
    async with Simulator() as sim:
        for _ in range(2):
            async with stage(tmp_path, sim=sim) as made:
                await made.do(given, quick(failed_direct=direct))
                made.prove()
                ends = {done.outcome.value for done in made.ends.values()}
                assert ends == {"invalid", "stalled", "truncated", "ok"}
                assert all(done.message for done in made.ends.values())
                assert "not known here" in made.ends["doc-0"].reason
        assert len([row for row in sim.bill.rows if row.nanos]) == len(ways)
