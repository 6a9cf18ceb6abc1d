"""Jobs of batches against the simulator: every item ends once, and the ledger is the server's bill."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from budgets.prices import PriceBook
from orchestrator.batches import BatchJob, BatchLife, Item
from orchestrator.errors import ConfigError, Unmetered
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.simulator import Fault, Simulator
from orchestrator.wire import Allowances

from .batching import ENDS, MODEL, item, items, quick, stage


async def test_a_job_of_all_kinds(tmp_path: Path) -> None:
    """Succeeded, refused, truncated, errored and expired items end each in its own outcome, exactly billed."""
    async with stage(tmp_path, sim={"batch_seconds": 0.05}) as made:
        await made.do(items(40))
        made.prove()

    assert made.outcomes == {word: 2 * number for word, number in ENDS.items()}
    assert made.ends["doc-5"].tries == 2
    assert made.ends["doc-0"].tries == 1
    assert made.ends["doc-3"].reason.endswith("this request is told to be invalid")
    assert made.ends["doc-0"].message is not None
    assert made.ends["doc-9"].outcome is Outcome.TRUNCATED
    # Only what failed is sent again: 2 of 20 under a hold of their own (B-05).
    assert [row.items for row in made.progress.batches] == [40, 4]


async def test_the_hold_covers_all_items_and_comes_first(tmp_path: Path) -> None:
    """A batch holds the worst case of all of its items before it is sent, and keeps it until it ends (O-13, O-14)."""
    async with stage(tmp_path, sim={"batch_seconds": None}) as made:
        async with BatchJob(made.run, quick()) as job:
            ends = job.results(item(n) for n in range(3))
            getting = asyncio.ensure_future(anext(ends))
            while not any(row.id for row in job.progress().batches):
                await asyncio.sleep(0.01)
            (row,) = job.progress().batches
            held = made.run.balance.held_nanos
            assert held == row.bound_nanos > 0
            lines = [line for line in made.run.ledger.lines() if line.hold == row.hold]
            assert lines[0].note["batch_of"] == {"items": 3, "largest_nanos": row.largest_nanos}
            await made.sim.finish_batches()
            done = await getting
            made.ends[done.identity] = done
            async for done in ends:
                made.ends[done.identity] = done
        made.prove()


async def test_results_are_matched_by_id(tmp_path: Path) -> None:
    """Results come shuffled; each answer is its own item's (B-12)."""
    async with stage(tmp_path, sim={"seed": 7}) as made:
        await made.do(item(n, f"[[sim:text=answer {n}]]") for n in range(50))
        made.prove()

    for n in range(50):
        message = made.ends[f"doc-{n}"].message
        assert message is not None
        assert message["content"][0]["text"] == f"answer {n}"


async def test_a_small_cap_finishes_in_waves(tmp_path: Path) -> None:
    """A job is finished under a cap that is a fraction of its worst case, wave after wave."""
    async with stage(tmp_path, cap="0.001") as made:
        await made.do(item(n, "[[sim:output=3]]") for n in range(60))
        made.prove()

    batches = made.progress.batches
    assert made.outcomes == {"ok": 60}
    assert len(batches) > 2
    assert sum(row.bound_nanos for row in batches) > 2 * 1_000_000
    assert max(row.bound_nanos for row in batches) <= 1_000_000


async def test_five_dollars_finish_a_job_whose_worst_case_is_twelve(tmp_path: Path) -> None:
    """A $5 cap finishes a job that costs $3 though its worst case is $12."""
    async with stage(tmp_path, cap="5") as made:
        dear = {"model": "claude-opus-5-5", "max_tokens": 20_000, "inference_geo": "global"}
        await made.do(item(n, "[[sim:output=5000]]", **dear) for n in range(60))
        made.prove()
        posted = made.run.balance.posted

    assert made.outcomes == {"ok": 60}
    assert 3 < posted < Decimal("3.01")
    assert made.sim.bill.requests == 60


async def test_an_expired_batch_keeps_what_succeeded(tmp_path: Path) -> None:
    """Of a batch that expired halfway the answers are kept and billed, the rest is sent again (B-05, B-07)."""
    async with stage(tmp_path, sim={"batch_seconds": None}) as made:
        async with BatchJob(made.run, quick()) as job:

            async def expire() -> None:
                while not any(row.id for row in job.progress().batches):
                    await asyncio.sleep(0.01)
                made.sim.process_batches(6)
                await made.sim.finish_batches(expire=True)
                while len(job.progress().batches) < 2 or job.progress().batches[1].id is None:
                    await asyncio.sleep(0.01)
                await made.sim.finish_batches()

            task = asyncio.create_task(expire())
            async for done in job.results(item(n) for n in range(10)):
                made.ends[done.identity] = done
            await task
            rows = job.progress().batches
        made.prove()

    assert made.outcomes == {"ok": 10}
    assert [(row.items, row.billed) for row in rows] == [(10, 6), (4, 4)]


async def test_posted_money_ends_a_job(tmp_path: Path) -> None:
    """Where posted money is in the way the rest ends as ``budget``, and no cap is passed."""
    async with stage(tmp_path, cap="0.0004") as made:
        await made.do(item(n, "[[sim:output=60]]") for n in range(60))
        made.prove()

    assert set(made.outcomes) == {"ok", "budget"}
    assert made.outcomes["ok"] >= 10
    assert "declined" in made.ends["doc-59"].reason


async def test_budget_is_taken_up_again_with_more_money(tmp_path: Path) -> None:
    """What ended for want of money is done when the same run comes back with a higher cap; nothing else is."""
    async with Simulator() as sim:
        async with stage(tmp_path, sim=sim, cap="0.0004") as first:
            await first.do(item(n, "[[sim:output=60]]") for n in range(40))
            paid = first.outcomes["ok"]
        assert paid < 40
        async with stage(tmp_path, sim=sim, cap="1") as second:
            await second.do(item(n, "[[sim:output=60]]") for n in range(40))
            second.prove()

    assert second.outcomes == {"ok": 40}
    assert sum(done.reused for done in second.ends.values()) == paid


async def test_items_that_waited_are_priced_anew_when_prices_change(tmp_path: Path) -> None:
    """A batch is held at the prices of its own day, though its items were priced on an earlier one (rule 3)."""
    file = tmp_path / "prices.toml"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    dearer = (
        'input = "1"\noutput = "5"\nlong_prompt = { over = 100000, input = "5", output = "25" }'
    )
    entry = f'[[price]]\nmodel = "{MODEL}"\nfrom = "{tomorrow.date()}"\n{dearer}\n'
    file.write_text(entry, encoding="utf-8")
    bounds = []
    async with Simulator() as sim:
        for cap, day in (("0.0000001", 0), ("5", 1)):
            book = PriceBook(file)
            settings = quick(now=lambda day=day: datetime.now(UTC) + timedelta(days=day))
            async with stage(tmp_path, sim=sim, cap=cap, prices=book) as made:
                await made.do((item(n) for n in range(4)), settings)
                rows = made.run.ledger.lines()
                bounds.append([line.nanos for line in rows if line.kind == "hold"])
    async with stage(tmp_path, sim={}, id="plain") as made:
        await made.do(item(n) for n in range(4))
        (row,) = made.progress.batches

    assert bounds[0] == []
    assert bounds[1] == [10 * row.bound_nanos]


async def test_a_cap_on_single_calls_looks_at_each_item(tmp_path: Path) -> None:
    """A cap per call is not in the way of a batch whose items are each below it, and stops the one that is not."""
    from budgets.caps import Cap

    caps = [Cap("0.0001", per="call", scope="work")]
    async with stage(tmp_path, caps=caps) as made:
        await made.do([*(item(n) for n in range(30)), item(30, max_tokens=5000)])
        made.prove()

    assert made.outcomes == {"ok": 30, "budget": 1}
    assert made.ends["doc-30"].outcome is Outcome.BUDGET


async def test_models_go_in_batches_of_their_own(tmp_path: Path) -> None:
    """A batch, and so a line of the ledger, is of one model."""
    models = ("claude-haiku-5-5", "claude-sonnet-5-5")
    async with stage(tmp_path) as made:
        await made.do(item(n, model=models[n % 2]) for n in range(10))
        made.prove()
        lines = [line for line in made.run.ledger.lines() if line.kind == "settle"]

    assert made.outcomes == {"ok": 10}
    assert sorted(row.model for row in made.progress.batches) == list(models)
    assert {line.model: line.posted for line in lines} == {
        row.model: row.posted_nanos for row in made.progress.batches
    }


async def test_a_job_waits_for_money_that_others_hold(tmp_path: Path) -> None:
    """Where only held money of others is in the way a job waits its turn; it goes on when that is free."""
    async with stage(tmp_path, cap="0.001") as made:
        others = made.run.ledger.hold(made.run.ledger.request(990_000, scope=made.run.scope))
        async with BatchJob(made.run, quick()) as job:

            async def free() -> None:
                while not made.run.ledger.waiting:
                    await asyncio.sleep(0.01)
                made.run.ledger.void(others)

            task = asyncio.create_task(free())
            async for done in job.results(item(n) for n in range(5)):
                made.ends[done.identity] = done
            await task
        made.prove()

    assert made.outcomes == {"ok": 5}


async def test_the_callers_word_is_marked(tmp_path: Path) -> None:
    """A bound that rests on the caller's word says so in the ledger, as it does for a call (rule 3)."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    allow = Allowances(web_search_tokens=3_000)
    async with stage(tmp_path, allow=allow) as made:
        await made.do([item(0), item(1, tools=[search])], quick(trial=False))
        made.prove()
        assert made.run.ledger.check().caller_word == 1


async def test_split_by_count_and_by_bytes(tmp_path: Path) -> None:
    """Batches are split by requests and by bytes (B-06)."""
    async with stage(tmp_path) as made:
        await made.do((item(n) for n in range(25)), quick(requests_max=10))
        assert [row.items for row in made.progress.batches] == [10, 10, 5]
        made.prove()
    async with stage(tmp_path, id="bytes") as made:
        await made.do((item(n) for n in range(25)), quick(bytes_max=1000))
        assert all(row.bytes <= 1000 for row in made.progress.batches)
        assert len(made.progress.batches) > 4
        made.prove()


async def test_one_item_that_is_too_large_fails_alone(tmp_path: Path) -> None:
    """An item above the limit ends as ``too_large``; the others are sent (B-06)."""
    large = item(1, "x" * 5_000)
    async with stage(tmp_path) as made:
        await made.do([item(0), large, item(2)], quick(item_bytes_max=4_000))
        made.prove()

    assert made.outcomes == {"ok": 2, "too_large": 1}
    assert "4,000" in made.ends["doc-1"].reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stream": True}, "stream"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tone": "kind"}]}, "messages.0.tone"),
        ({"temprature": 1}, "temprature"),
        ({"messages": [{"role": "user", "content": object()}]}, "content"),
        ({"metadata": {"user_id": float("nan")}}, "user_id"),
        (
            {"tools": [{"name": "t", "input_schema": {"type": "object", "x": float("nan")}}]},
            "input_schema",
        ),
        ({"tools": [{"name": "t"}]}, "tools.0"),
        ({"model": "claude-nothing"}, "claude-nothing"),
    ],
)
async def test_a_wrong_body_is_never_sent(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """A body that the SDK's types or the prices don't know ends before anything is sent (B-13, B-14)."""
    async with stage(tmp_path) as made:
        await made.do([item(0), item(1, **fields)])
        made.prove()

    assert made.outcomes == {"ok": 1, "bad_request": 1}
    assert words in made.ends["doc-1"].reason
    assert [row.items for row in made.progress.batches] == [1]


async def test_any_text_comes_through(tmp_path: Path) -> None:
    """Whatever characters a document holds, its request reaches the API and its answer comes back whole."""
    odd = 'line\u2028separator \x85 \ud800 lone, emoji \U0001f600, quote " and \\ slash\n\x00'
    async with stage(tmp_path) as made:
        await made.do([item(0, odd), item(1, "[[sim:text=a\u2028b\x85c]]")])
        made.prove()

    assert made.outcomes == {"ok": 2}
    message = made.ends["doc-1"].message
    assert message is not None
    assert message["content"][0]["text"] == "a\u2028b\x85c"


async def test_any_identity_makes_an_id_that_the_api_takes(tmp_path: Path) -> None:
    """Names of files are no ids: ours are hashes, on disk with what they stand for before anything is sent (B-01)."""
    names = ["x" * 500, "über/straße.txt", "a b\n c", "tickets.csv#12", ""]
    async with stage(tmp_path, sim={"keep_calls": 9}) as made:
        await made.do(Item(identity=name, body=item(n).body) for n, name in enumerate(names))
        made.prove()
        sent = [json.loads(call.body) for call in made.sim.world.calls if call.body]

    assert set(made.ends) == set(names)
    ids = [each["custom_id"] for body in sent for each in body.get("requests", ())]
    assert len(set(ids)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)


async def test_one_of_each_shape_is_tried_for_free(tmp_path: Path) -> None:
    """A mistake that only the API finds shows at one free count, before thousands are sent (B-13)."""
    refused = Fault(
        kind="error", on="count_tokens", status=400, message="tools: no", match="weather"
    )
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    async with stage(tmp_path, sim={"keep_calls": 50}) as made:
        made.sim.faults.extend([refused])
        wrong = [item(n, tools=[tool]) for n in range(100, 110)]
        await made.do([*(item(n) for n in range(10)), *wrong])
        made.prove()
        counts = [call for call in made.sim.calls if call.path.endswith("count_tokens")]

    assert made.outcomes == {"ok": 10, "bad_request": 10}
    assert "tools: no" in made.ends["doc-105"].reason
    assert len(counts) == 2


async def test_an_identity_comes_once(tmp_path: Path) -> None:
    """The same identity twice in one go is the caller's mistake, said by name (B-02)."""
    async with stage(tmp_path) as made:
        with pytest.raises(ConfigError, match=r"'doc-1'.*twice"):
            await made.do([item(0), item(1), item(1)])
        assert made.sim.bill.requests == 0


async def test_a_job_that_is_done_is_free_the_second_time(tmp_path: Path) -> None:
    """Done again, in whatever order, a job hands out the same answers and sends nothing (Z-01)."""
    async with Simulator() as sim:
        async with stage(tmp_path, sim=sim) as first:
            await first.do(items(20))
        bill = sim.bill.nanos
        async with stage(tmp_path, sim=sim) as second:
            await second.do(reversed(list(items(20))))
            second.prove()
        assert sim.bill.nanos == bill

    assert {name: done.message for name, done in second.ends.items()} == {
        name: done.message for name, done in first.ends.items()
    }
    assert all(done.reused for done in second.ends.values())


async def test_cancel_in_the_middle(tmp_path: Path) -> None:
    """A cancelled job settles what was answered by then; the rest is neither done nor billed (B-03)."""
    async with stage(tmp_path, sim={"batch_seconds": None}) as made:
        async with BatchJob(made.run, quick(requests_max=20)) as job:

            async def cancel() -> None:
                while sum(row.id is not None for row in job.progress().batches) < 2:
                    await asyncio.sleep(0.01)
                made.sim.process_batches(7)
                job.cancel()

            task = asyncio.create_task(cancel())
            async for done in job.results(item(n) for n in range(40)):
                made.ends[done.identity] = done
            await task
        made.prove()

    assert made.outcomes == {"ok": 14, "cancelled": 26}


async def test_detached_and_attached_again(tmp_path: Path) -> None:
    """A job that is left goes on at the provider with its hold, and is settled by whoever comes back."""
    async with Simulator(batch_seconds=None) as sim:
        async with (
            stage(tmp_path, sim=sim) as made,
            BatchJob(made.run, quick()) as job,
        ):

            async def leave() -> None:
                while not any(row.id for row in job.progress().batches):
                    await asyncio.sleep(0.01)
                job.detach()

            task = asyncio.create_task(leave())
            assert [done async for done in job.results(item(n) for n in range(5))] == []
            await task
            (row,) = job.progress().batches
            assert (row.state, job.is_detached) == (BatchLife.SUBMITTED, True)
            assert made.run.balance.held_nanos == row.bound_nanos

        await sim.finish_batches()
        async with stage(tmp_path, sim=sim) as back:
            assert back.run.balance.held_nanos == row.bound_nanos
            await back.do(None)
            back.prove()

    assert back.outcomes == {"ok": 5}
    assert sim.bill.requests == 5


async def test_a_stopped_run_leaves_its_batches(tmp_path: Path) -> None:
    """Ctrl-C (the run is stopped) detaches: nothing new is sent, holds stay."""
    async with (
        stage(tmp_path, sim={"batch_seconds": None}) as made,
        BatchJob(made.run, quick(requests_max=5, open_max=1)) as job,
    ):

        async def stop() -> None:
            while not any(row.id for row in job.progress().batches):
                await asyncio.sleep(0.01)
            made.run.stop("interrupted")

        task = asyncio.create_task(stop())
        assert [done async for done in job.results(item(n) for n in range(15))] == []
        await task
        assert job.is_detached
        progress = job.progress()
    assert (progress.sent, progress.waiting) == (5, 10)
    assert progress.held_nanos == progress.batches[0].bound_nanos


async def test_failed_items_can_be_finished_directly(tmp_path: Path) -> None:
    """With ``failed_direct`` what failed in a batch is finished by direct calls, at the direct price."""
    async with stage(tmp_path) as made:
        texts = ["", "[[sim:batch=overloaded]]", "[[sim:batch=expired]]", "[[sim:batch=invalid]]"]
        await made.do((item(n, text) for n, text in enumerate(texts)), quick(failed_direct=True))
        made.prove()
        kinds = sorted(row.kind for row in made.sim.bill.rows)

    assert made.outcomes == {"ok": 3, "bad_request": 1}
    assert [made.ends[f"doc-{n}"].via for n in range(4)] == ["batch", "direct", "direct", "batch"]
    assert kinds == ["batch", "message", "message"]


async def test_low_credit_stops_a_job(tmp_path: Path) -> None:
    """Items that failed for want of credit stop the rest, which can be resumed; nothing is lost (B-04)."""

    def given() -> Iterator[Item]:
        for n in range(30):
            yield item(n, "[[sim:batch=billing]]" if 5 <= n < 10 else "")

    async with stage(tmp_path) as made:
        await made.do(given(), quick(requests_max=10, open_max=1))
        made.prove()

    assert made.outcomes == {"ok": 5, "spend_limit": 25}


@pytest.mark.parametrize("kind", ["enforced_spend_limit", "billing", "unauthorized"])
async def test_a_batch_that_is_refused_costs_nothing(kind: str, tmp_path: Path) -> None:
    """Out of money or with a wrong key the batch's hold is void, and every item says why."""
    async with stage(tmp_path) as made:
        made.sim.faults.extend([Fault(kind=kind, on="batches", match="requests")])
        await made.do(item(n) for n in range(5))
        made.prove()
        assert [line.kind for line in made.run.ledger.lines()] == ["hold", "void"]

    word = "auth" if kind == "unauthorized" else "spend_limit"
    assert made.outcomes == {word: 5}


async def test_a_batch_that_is_too_large_is_made_smaller(tmp_path: Path) -> None:
    """If the API finds a batch too large after all, smaller ones are made (B-06)."""
    async with stage(tmp_path) as made:
        large = Fault(kind="error", on="batches", status=413, message="too large", match="requests")
        made.sim.faults.extend([large])
        await made.do(item(n) for n in range(20))
        made.prove()

    assert made.outcomes == {"ok": 20}
    assert len(made.progress.batches) >= 3


async def test_what_cannot_be_priced_raises_the_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Usage that is missing, or a result that is, is charged at its bound, said aloud, and never sent again (O-14)."""
    async with stage(tmp_path) as made:
        texts = ["", "[[sim:batch=no_usage]]", "[[sim:batch=missing]]"]
        with caplog.at_level(logging.ERROR, "earmark"):
            await made.do(item(n, text) for n, text in enumerate(texts))
        check, balance = made.run.ledger.check(), made.run.balance

    assert made.outcomes == {"ok": 2, "in_doubt": 1}
    assert (check.findings, check.overruns, check.unpriced) == ([], [], 1)
    assert balance.held_nanos == 0
    assert balance.posted_nanos > made.sim.bill.nanos
    assert "posted at their bounds" in caplog.text
    assert len(made.progress.batches) == 1


async def test_an_item_billed_as_a_direct_call_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch rate is taken from each result's own service tier, not assumed (B-09)."""
    async with stage(tmp_path) as made:
        with caplog.at_level(logging.ERROR, "earmark"):
            await made.do([item(0, "[[sim:batch=standard]][[sim:output=60]]"), item(1)])
        made.prove()

    assert made.ends["doc-0"].usage.get("tier") is None
    assert made.ends["doc-1"].usage.get("tier") == "batch"


async def test_results_that_break_off_are_read_again(tmp_path: Path) -> None:
    """A download that breaks off is begun again, and each line counts once."""
    async with stage(tmp_path) as made:
        cuts = [Fault(kind="cut", on="batches", after_events=n) for n in (10, 25)]
        made.sim.faults.extend(cuts)
        await made.do(items(40))
        made.prove()
        assert made.sim.faults.pending == 0

    assert made.outcomes == {word: 2 * number for word, number in ENDS.items()}


async def test_looking_goes_on_through_faults(tmp_path: Path) -> None:
    """Errors and resets while a batch is looked at are waited out; nothing is sent again."""
    async with stage(tmp_path, sim={"batch_seconds": 0.2}) as made:
        kinds = ("overloaded", "server_error", "rate_limited", "reset", "invalid_json")
        made.sim.faults.extend(
            [Fault(kind=kind, on="batches", match="/batches/", retry_after=0) for kind in kinds]
        )
        await made.do(item(n) for n in range(5))
        made.prove()
        assert made.sim.faults.pending == 0

    assert made.outcomes == {"ok": 5}
    assert len(made.progress.batches) == 1


async def test_a_run_needs_a_folder() -> None:
    """A job outlives its process, so a ledger in memory is refused in one sentence."""
    from budgets.ledger import Ledger

    with Ledger() as ledger:
        run = Run("work", ledger=ledger, kill_switch=False)
        async with run:
            with pytest.raises(ConfigError, match="needs a folder"):
                BatchJob(run)


async def test_batches_outside_a_job_are_not_sent(tmp_path: Path) -> None:
    """The client of a run makes no batch that no job holds for, whatever headers it is given (O-13)."""
    request = {"custom_id": "a", "params": dict(item(0).body)}
    async with stage(tmp_path) as made:
        for headers in ({}, {"x-earmark-hold": "batch-0"}):
            with pytest.raises(Unmetered, match="run_batches"):
                await made.run.client.messages.batches.create(
                    requests=[request],  # type: ignore[list-item]
                    extra_headers=headers,
                )
        assert made.sim.bill.requests == 0


async def test_somebody_is_told_at_the_end(tmp_path: Path) -> None:
    """The command and the webhook get counts and dollars, and nothing that a document says."""
    import sys

    from aiohttp import web

    from orchestrator.batches import Notify

    posted: list[bytes] = []

    async def hook(request: web.BaseRequest) -> web.Response:
        posted.append(await request.read())
        return web.Response()

    runner = web.ServerRunner(web.Server(hook))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    told = tmp_path / "told.json"
    save = f"import sys; open({str(told)!r}, 'wb').write(sys.stdin.buffer.read())"
    notify = Notify(
        command=(sys.executable, "-c", save), webhook=f"http://127.0.0.1:{port}/secret-path"
    )
    async with stage(tmp_path) as made:
        await made.do((item(n, "confidential") for n in range(3)), quick(notify=notify))
    await runner.cleanup()

    facts = json.loads(told.read_bytes())
    assert (facts["done"], facts["end"]) == ({"ok": 3}, "complete")
    assert json.loads(posted[0])["posted_usd"] == facts["posted_usd"]
    assert b"confidential" not in told.read_bytes() + posted[0]


async def test_a_hook_that_fails_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook that can't be reached is one line in the log, without its address; the job is done."""
    from orchestrator.batches import Notify

    notify = Notify(command=("no-such-program",), webhook="http://127.0.0.1:9/token-123")
    async with stage(tmp_path) as made:
        with caplog.at_level(logging.ERROR, "earmark"):
            await made.do([item(0)], quick(notify=notify))
        made.prove()

    assert "no-such-program" in caplog.text
    assert "token-123" not in caplog.text


async def test_progress_adds_up(tmp_path: Path) -> None:
    """Progress is told while it runs: items, money and time, and at the end everything has ended."""
    seen = []
    async with (
        stage(tmp_path, sim={"batch_seconds": 0.5}) as made,
        BatchJob(made.run, quick(), on_progress=seen.append) as job,
    ):
        ends = [done async for done in job.results(items(20))]
        last = seen[-1]
        assert last.is_complete
        assert (last.items, last.ended, len(ends)) == (20, 20, 20)
        assert last.posted_nanos == made.sim.bill.nanos
        assert any(one.held_nanos > 0 for one in seen)
        assert last.failed == 4
        assert {row.model for row in last.batches} == {MODEL}
