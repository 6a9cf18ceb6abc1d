"""Shared prefixes are cached without being asked: many calls at once, by the simulator's own bill."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import APIStatusError

from budgets.prices import PriceBook
from orchestrator.agent import Agent
from orchestrator.context import calling_as
from orchestrator.errors import RunStopped
from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.prefixes import sharing, split_shared
from orchestrator.retry import Retry
from orchestrator.simulator import Faults, SimulatorThread

from .running import QUICK, Stage, helper, say, stage

MODEL = "claude-sonnet-5-5"  # caches from 1,024 tokens on
SYSTEM = "Rules of the house. " * 4_000  # 20,000 tokens of the simulator
SHORT = "Rules of the house. " * 400  # 2,000
MARKER = {"type": "ephemeral"}


def worker(system: str = SYSTEM, **fields: Any) -> Agent:
    return helper(model=MODEL, system=system, **fields)


async def ask(run: Any, text: str, *, system: Any = SHORT, **fields: Any) -> Any:
    return await say(run, f"{text} [[sim:output=5]]", model=MODEL, system=system, **fields)


def bodies(scene: Stage) -> list[dict[str, Any]]:
    """The requests for messages as they arrived."""
    return [json.loads(call.body) for call in scene.sim.calls if call.path == "/v1/messages"]


def written_and_read(scene: Stage) -> tuple[int, int]:
    """How many calls wrote to the cache, and how many read from it, by the server's bill."""
    rows = scene.sim.bill.rows
    writes = sum(row.counts.write_5m + row.counts.write_1h > 0 for row in rows)
    return writes, sum(row.counts.read > 0 for row in rows)


def best_nanos(scene: Stage, prefix: int) -> int:
    """The least that the calls on the bill could have cost: one write of the prefix, and reads of it."""
    counts, calls = scene.sim.bill.counts, scene.sim.bill.requests
    rates = scene.run.prices.rates(MODEL, scene.run.started_at)
    plain = counts.input + counts.write_5m + counts.read - calls * prefix
    picos = prefix * (rates.write_5m + (calls - 1) * rates.read)
    return (picos + plain * rates.input + counts.output * rates.output) // 1_000


@pytest.mark.parametrize("count", [50, 500])
async def test_of_many_calls_at_once_one_writes_and_all_others_read(count: int) -> None:
    """P-01, P-05: a fan-out over 20,000 shared tokens reads them in all calls but one, near the best price."""
    async with stage(cap="50", cache_settle_s=0) as scene:
        with sharing(uses=count):
            work = [worker().run(scene.run, f"Item {n} [[sim:output=20]]") for n in range(count)]
            results = await asyncio.gather(*work)

        assert {result.outcome for result in results} == {Outcome.OK}
        assert written_and_read(scene) == (1, count - 1)
        assert scene.sim.bill.nanos <= best_nanos(scene, 20_000) * 105 // 100
        assert scene.run.caching.reads == count - 1
        assert sum(result.tally.saved_nanos for result in results) == scene.run.caching.saved_nanos
        scene.prove_exact()


async def test_a_server_that_takes_its_time_is_waited_for() -> None:
    """P-01: an entry that can be read only some time after the answer began is read by all the same."""
    async with stage(sim={"cache_delay_s": 0.05}, cache_settle_s=0.15) as scene:
        with sharing(uses=20):
            await asyncio.gather(*(ask(scene.run, f"Item {n}") for n in range(20)))

        assert written_and_read(scene) == (1, 19)


async def test_a_long_first_answer_does_not_hold_up_the_others() -> None:
    """The first call of an agent is streamed, so that the others go when its answer begins, not when it ends."""
    async with stage(sim={"keep_calls": 9}, cache_settle_s=0) as scene:
        agent = worker(SHORT, max_tokens=1_000)
        ends: list[int] = []

        async def work(number: int, text: str) -> None:
            await agent.run(scene.run, text)
            ends.append(number)

        with sharing(uses=4):
            tasks = [asyncio.create_task(work(0, "Long [[sim:output=200]][[sim:pace=400]]"))]
            await scene.sim.arrived(1)
            tasks += [asyncio.create_task(work(n, "Short [[sim:output=5]]")) for n in (1, 2, 3)]
            await asyncio.gather(*tasks)

        assert ends[-1] == 0
        assert [body.get("stream", False) for body in bodies(scene)] == [True, False, False, False]
        assert written_and_read(scene) == (1, 3)
        scene.prove_exact()


# ---- warmers that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["overloaded", "server_error", "unauthorized", "reset"])
async def test_a_warmer_that_fails_is_followed_by_the_next(fault: str) -> None:
    """Only the failed call is lost: the next in line warms the prefix, and the rest read it."""
    async with stage(
        sim={"faults": Faults([fault])}, cache_settle_s=0, retry=Retry(attempts=1)
    ) as scene:
        with sharing(uses=10):
            work = [worker(SHORT).run(scene.run, f"Item {n} [[sim:output=5]]") for n in range(10)]
            results = await asyncio.gather(*work)

        assert sum(result.outcome is Outcome.OK for result in results) == 9
        assert written_and_read(scene) == (1, 8)
        scene.prove()


async def test_a_warmer_that_is_tried_again_still_goes_first() -> None:
    """While a warmer is tried again after an overload, the others wait for it: one write."""
    async with stage(
        sim={"faults": Faults(["overloaded", "overloaded"])}, cache_settle_s=0
    ) as scene:
        with sharing(uses=10):
            await asyncio.gather(*(ask(scene.run, f"Item {n}") for n in range(10)))

        assert written_and_read(scene) == (1, 9)
        scene.prove_exact()


async def test_a_warmer_that_is_cancelled_is_followed_by_the_next() -> None:
    """A call that is cancelled before its answer began gives the turn to the next, which warms."""
    async with stage(sim={"faults": Faults(["hang"])}, cache_settle_s=0) as scene:
        with sharing(uses=5):
            first = asyncio.create_task(ask(scene.run, "First"))
            await scene.sim.arrived(1)
            rest = [asyncio.create_task(ask(scene.run, f"Item {n}")) for n in range(4)]
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(*rest)

        assert first.cancelled()
        assert written_and_read(scene)[1] >= 3
        scene.sim.release()
        scene.prove()


async def test_waiting_takes_no_slot_and_no_money() -> None:
    """With a gate of width 1 and a cap for one call at a time, waiting calls keep neither."""
    async with stage(
        gate=Gate(1), cap="0.05", cache_settle_s=0, sim={"faults": Faults(["hang"])}
    ) as scene:
        with sharing(uses=6):
            tasks = [asyncio.create_task(ask(scene.run, f"Item {n}")) for n in range(6)]
            await scene.sim.arrived(1)
            statistics = scene.run.gate.statistics()
            assert (statistics.in_use, statistics.waiting) == (1, 0)
            scene.sim.release()
            await asyncio.gather(*tasks)

        assert written_and_read(scene) == (1, 5)
        scene.prove_exact()


async def test_a_run_that_is_stopped_lets_nobody_wait() -> None:
    """After a stop the call in flight settles, and those who waited for it end as stopped."""
    async with stage(cache_settle_s=0, sim={"faults": Faults(["hang"])}) as scene:
        with sharing(uses=5):
            tasks = [asyncio.create_task(ask(scene.run, f"Item {n}")) for n in range(5)]
            await scene.sim.arrived(1)
            scene.run.stop()
            scene.sim.release()
            ends = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(end) for end in ends[1:]] == [RunStopped] * 4
        assert scene.sim.bill.requests == 1
        scene.prove_exact()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_fails_every_call_ends_and_the_money_is_right(seed: int) -> None:
    """With a third of the attempts failing and some calls cancelled at any moment, nobody waits for ever."""
    chance = random.Random(seed)
    rates = {"overloaded": 0.12, "server_error": 0.1, "reset": 0.06, "cut": 0.05}
    faults = Faults(rates=rates, seed=seed)
    async with stage(sim={"faults": faults}, cache_settle_s=0.01, retry=Retry(**QUICK)) as scene:
        with sharing(uses=60):
            tasks = [
                asyncio.create_task(worker(SHORT).run(scene.run, f"Item {n} [[sim:output=5]]"))
                for n in range(60)
            ]
            for task in tasks:
                await asyncio.sleep(0)
                if chance.random() < 0.15:
                    asyncio.get_running_loop().call_later(chance.random() / 20, task.cancel)
            async with asyncio.timeout(60):
                ends = await asyncio.gather(*tasks, return_exceptions=True)

        assert sum(getattr(end, "outcome", None) is Outcome.OK for end in ends) >= 30
        assert scene.run.caching.reads >= 25
        scene.prove()


# ---- who waits for whom --------------------------------------------------------------------------


async def test_a_child_of_the_warmer_is_not_stuck() -> None:
    """An agent whose tool runs an agent with the same prefix does not wait for itself, at width 1."""
    async with stage(gate=Gate(1), cache_settle_s=0) as scene:

        async def delegate() -> str:
            """Let somebody else do it."""
            return (await worker().run(scene.run, "Child [[sim:output=5]]")).text

        parent = worker(tools=[delegate])
        with sharing(uses=4):
            prompt = "Parent [[sim:tool=delegate]][[sim:turns=1]]"
            results = await asyncio.gather(*(parent.run(scene.run, prompt) for _ in range(2)))

        assert {result.outcome for result in results} == {Outcome.OK}
        scene.prove_exact()


async def test_a_call_inside_an_open_stream_waits_for_nobody() -> None:
    """Who holds a stream open goes at once: the one that it would wait for may wait for that stream's money."""
    async with stage(cache_settle_s=0, sim={"faults": Faults([None, "hang"])}) as scene:
        client = scene.run.client
        async with client.messages.stream(
            model=MODEL,
            max_tokens=100,
            messages=[{"role": "user", "content": "Outer [[sim:output=50]]"}],
        ) as stream:
            with sharing(uses=3):
                first = asyncio.create_task(ask(scene.run, "Warmer"))
                await scene.sim.arrived(2)
                await ask(scene.run, "Nested")
            await stream.get_final_message()
        scene.sim.release()
        await first
        scene.prove_exact()


# ---- what is shared ------------------------------------------------------------------------------


async def test_a_shared_document_at_the_begin_of_the_prompts_is_cached() -> None:
    """Items that begin with the same document are sent in two blocks: it is written once and read by the rest."""
    items = [f"{SHORT}\n\nQuestion {n}? [[sim:output=5]]" for n in range(12)]
    length = split_shared(items)
    async with stage(cache_settle_s=0) as scene:
        agent = helper(model=MODEL)
        with sharing(uses=len(items), shared=items[0][:length]):
            prompts = [
                [{"type": "text", "text": part} for part in (item[:length], item[length:])]
                for item in items
            ]
            await asyncio.gather(*(agent.run(scene.run, prompt) for prompt in prompts))

        assert length >= len(SHORT)
        assert written_and_read(scene) == (1, 11)
        assert scene.sim.bill.counts.read >= 11 * 2_000
        scene.prove_exact()


async def test_a_prefix_below_the_minimum_is_not_marked() -> None:
    """P-04: what the model does not cache is sent as it is, and nobody waits."""
    async with stage(sim={"keep_calls": 9}, cache_settle_s=60) as scene:
        with sharing(uses=4):
            await asyncio.gather(*(ask(scene.run, f"Item {n}", system="Short") for n in range(4)))

        assert {body["system"] for body in bodies(scene)} == {"Short"}
        assert str(scene.run.caching) == "caching: nothing was cached"


async def test_a_marker_that_does_nothing_is_seen(tmp_path: Path) -> None:
    """P-04: where the list has the model's minimum too low, one call shows it; the rest are not marked."""
    (tmp_path / "prices.toml").write_text(
        '[[price]]\nmodel = "claude-haiku-4-5"\ninput = 1\noutput = 5\nread = "0.1"\ncache_minimum = 512\n'
    )
    book = PriceBook(tmp_path / "prices.toml")
    async with stage(sim={"keep_calls": 9}, cache_settle_s=0, prices=book) as scene:
        with sharing(uses=6):
            calls = (
                say(scene.run, f"Item {n}", model="claude-haiku-4-5", system=SHORT)
                for n in range(6)
            )
            await asyncio.gather(*calls)

        assert sum(isinstance(body["system"], list) for body in bodies(scene)) == 1


async def test_outside_of_sharing_nothing_is_touched() -> None:
    """A call that nobody said anything about leaves as it was written."""
    async with stage(sim={"keep_calls": 9}) as scene:
        await ask(scene.run, "Item")

        assert bodies(scene)[0]["system"] == SHORT


async def test_markers_of_the_caller_stay_as_they_are() -> None:
    """A request that bears a marker of its own leaves as it was written, and waits for nobody."""
    system = [{"type": "text", "text": SHORT, "cache_control": {**MARKER, "ttl": "1h"}}]
    async with stage(sim={"keep_calls": 9}, cache_settle_s=60) as scene:
        with sharing(uses=3):
            await asyncio.gather(*(ask(scene.run, f"Item {n}", system=system) for n in range(3)))

        assert [body["system"] for body in bodies(scene)] == [system] * 3
        caching = scene.run.caching
        assert caching.writes + caching.reads == 3  # accounts are kept of them, too


async def test_calls_with_nothing_in_common_are_soon_left_alone() -> None:
    """Where every call brings a prefix of its own, eight surcharges are paid and no more."""
    async with stage(sim={"keep_calls": 99}, cache_settle_s=0) as scene:
        with sharing(uses=30):
            await asyncio.gather(*(ask(scene.run, "Go", system=f"{n} {SHORT}") for n in range(30)))

        assert sum(isinstance(body["system"], list) for body in bodies(scene)) == 8


async def test_an_answer_that_is_kept_is_not_streamed() -> None:
    """Whoever wants the JSON of the answers in the ledger gets it from the warming call as well."""
    async with stage(sim={"keep_calls": 9}, cache_settle_s=0) as scene:
        with sharing(uses=3), calling_as(unit="doc", keep=lambda message: message["stop_reason"]):
            await worker(SHORT).run(scene.run, "Go", keep=lambda message: message["stop_reason"])

        assert "stream" not in bodies(scene)[0]
        notes = [line.note for line in scene.run.ledger.lines() if line.kind == "settle"]
        assert [note["kept"] for note in notes] == ["end_turn"]


async def test_a_warming_stream_that_is_cut_is_no_answer() -> None:
    """Half an answer of the warming call is in doubt, never success; the next one goes on."""
    async with stage(sim={"faults": Faults(["no_stop"])}, cache_settle_s=0) as scene:
        with sharing(uses=3):
            work = [worker(SHORT).run(scene.run, f"Item {n} [[sim:output=5]]") for n in range(3)]
            results = await asyncio.gather(*work)

        assert sorted(result.outcome for result in results) == ["in_doubt", "ok", "ok"]
        scene.prove()


# ---- the sync client -----------------------------------------------------------------------------


@contextmanager
def sync_stage(**sim: Any) -> Iterator[tuple[Any, SimulatorThread]]:
    """A run's sync client in front of a simulator in a thread."""
    from budgets.ledger import Ledger
    from orchestrator.run import Run

    with SimulatorThread(**sim) as thread, Ledger() as ledger:
        run = Run(
            "work",
            cap="5",
            ledger=ledger,
            cache_settle_s=0,
            kill_switch=False,
            retry=Retry(attempts=1),
            client={"base_url": thread.url, "api_key": "key"},
        )
        yield run, thread
        run.close()


@pytest.mark.parametrize("faults", [[], ["overloaded"]], ids=["all is well", "the first one fails"])
def test_threads_share_a_prefix_as_tasks_do(faults: list[str]) -> None:
    """Of ten threads one writes and the others read, also where the first call fails."""
    with sync_stage(faults=Faults(faults)) as (run, thread):
        failures: list[APIStatusError] = []
        client = run.sync_client

        def work() -> None:
            with sharing(uses=10):
                try:
                    client.messages.create(
                        model=MODEL,
                        max_tokens=50,
                        system=SHORT,
                        messages=[{"role": "user", "content": "Go [[sim:output=5]]"}],
                    )
                except APIStatusError as error:
                    failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(10)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(20)
        rows = thread.simulator.bill.rows

    assert len(failures) == len(faults)
    assert sum(row.counts.write_5m > 0 for row in rows) == 1
    assert sum(row.counts.read > 0 for row in rows) == 9 - len(faults)


async def test_a_sync_call_on_the_loop_itself_waits_for_no_task() -> None:
    """A blocking call made on the event loop goes at once: the warmer could not go on meanwhile."""
    async with stage(cache_settle_s=0) as scene:
        with sharing(uses=3), SimulatorThread() as thread:
            warming = asyncio.create_task(ask(scene.run, "Warmer"))
            await asyncio.sleep(0)
            scene.run._client_options["base_url"] = thread.url
            message = scene.run.sync_client.messages.create(
                model=MODEL,
                max_tokens=50,
                system=SHORT,
                messages=[{"role": "user", "content": "Go [[sim:output=5]]"}],
            )
            await warming

        assert message.stop_reason == "end_turn"
