"""A run: its caps, its deadline, its end, its record, and what the provider's limits do to it."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from anthropic import APIStatusError

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from orchestrator.errors import ConfigError, RunStopped, SpendLimit
from orchestrator.failures import outcome_of
from orchestrator.gate import Gate, RateDeadline
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.run import Run, new_run_id
from orchestrator.simulator import Fault, Faults, Simulator

from .running import KEY, MODEL, QUICK, Stage, helper, say, stage

SPEND_LIMITS = ("enforced_spend_limit", "own_spend_limit", "billing")


def record_of(run: Run) -> dict[str, Any]:
    assert run.folder.path is not None
    loaded: dict[str, Any] = json.loads((run.folder.path / "run.json").read_text(encoding="utf-8"))
    return loaded


def events_of(run: Run) -> list[dict[str, Any]]:
    assert run.folder.journal is not None
    return list(read_journal(run.folder.journal))


# ---- caps ---------------------------------------------------------------------------------------------


async def test_a_run_spends_no_more_than_its_cap() -> None:
    """Calls go on until the next one does not fit; then they are declined, and nothing is over."""
    async with stage(cap="0.0005") as st:
        with pytest.raises(BudgetExceeded) as declined:  # noqa: PT012
            for _ in range(100):
                await say(st.run)
        st.prove_exact()
        assert st.run.balance.posted_nanos <= 500_000
        assert declined.value.cap.scope == st.run.scope
        assert declined.value.cap.owner == "the run"


async def test_further_caps_are_set_as_they_are() -> None:
    """``caps`` may limit any scope, and they bind."""
    async with stage(cap="5", caps=[Cap("0.0000001", scope="work")]) as st:
        with pytest.raises(BudgetExceeded):
            await say(st.run)
        assert st.sim.stats.arrived == 0


async def test_nothing_runs_without_any_cap() -> None:
    """A run that names no cap is bound by the defaults of the ledger."""
    async with (
        Simulator() as sim,
        Run(
            "free", ledger=Ledger(), kill_switch=False, client={"base_url": sim.url, "api_key": KEY}
        ) as run,
    ):
        assert run.balance.cap is not None
        assert run.balance.remaining_nanos is not None
        run.ledger.close()


# ---- names, places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": "a/b"}, {"name": "x" * 65}, {"id": ".."}, {"id": "a b"}],
    ids=str,
)
def test_a_name_that_can_not_be_used_is_said_at_once(fields: dict[str, Any]) -> None:
    """Names and ids become folders and scopes."""
    with pytest.raises(ConfigError, match="can't be used"):
        Run(**{"ledger": Ledger(), **fields})


def test_ids_of_runs_are_new() -> None:
    """Two runs of one name and one second do not share an id."""
    assert len({new_run_id("classify") for _ in range(50)}) > 45


async def test_the_usual_ledger_is_taken_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a ledger a run takes ``.earmark/ledger.db`` and closes it at its end."""
    monkeypatch.chdir(tmp_path)
    async with Simulator() as sim:
        client = {"base_url": sim.url, "api_key": KEY}
        async with Run("app", cap="1", kill_switch=False, client=client) as run:
            await say(run)
        with Ledger(tmp_path / ".earmark" / "ledger.db") as ledger:
            assert ledger.balance(run.scope).posted_nanos == sim.bill.nanos
            assert (tmp_path / ".earmark" / "runs" / run.id / "run.json").exists()


async def test_a_ledger_in_memory_writes_nothing_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file appears where nobody asked for one."""
    monkeypatch.chdir(tmp_path)
    async with stage() as st:
        await say(st.run)
    assert list(tmp_path.iterdir()) == []


async def test_a_second_run_of_the_same_id_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """It is told in one sentence; the caps of the one under way stay as they are."""
    with Ledger(tmp_path / "ledger.db") as ledger:
        first = Run("work", id="one", cap="5", ledger=ledger)
        with pytest.raises(ConfigError, match="under way"):
            Run("work", id="one", cap="900", ledger=ledger)
        assert [entry.cap.nanos for entry in ledger.caps() if entry.cap.scope == first.scope] == [
            5_000_000_000
        ]
        first.close()
        Run("work", id="one", cap="5", ledger=ledger).close()


async def test_a_base_url_with_a_path_is_no_way_around() -> None:
    """Behind a gateway with a prefix the free token counter passes, and everything else is metered."""
    run = Run(ledger=Ledger(), client={"base_url": "http://127.0.0.1:9/proxy", "api_key": KEY})
    async with run.client:
        assert run._passes._prefix == "/proxy"
    run.close()
    run.ledger.close()


# ---- life ---------------------------------------------------------------------------------------------


async def test_outside_of_async_with_it_works_too() -> None:
    """A run may be used plainly and closed by hand."""
    async with Simulator() as sim:
        run = Run(cap="1", ledger=Ledger(), client={"base_url": sim.url, "api_key": KEY})
        await say(run)
        assert run.balance.posted_nanos == sim.bill.nanos > 0
        await run.client.close()
        run.close()
        run.close()
        run.ledger.close()


async def test_the_sync_client_is_metered_too() -> None:
    """The same caps and tallies hold for threads."""
    import asyncio

    async with stage() as st:
        ask: dict[str, Any] = {"model": MODEL, "max_tokens": 50}
        await asyncio.to_thread(
            st.run.sync_client.messages.create,
            messages=[{"role": "user", "content": "Hi"}],
            **ask,
        )
        st.prove_exact()
        assert st.run.tally.calls == 1


async def test_a_run_that_has_ended_takes_no_calls() -> None:
    """Entering it again, or checking it, says that it has ended."""
    async with stage() as st:
        pass
    with pytest.raises(ConfigError, match="has ended"):
        await st.run.__aenter__()
    with pytest.raises(RunStopped, match="has ended"):
        st.run.check()


async def test_a_stopped_run_sends_nothing_new() -> None:
    """``stop`` is heard before the next call, and the first reason stays."""
    async with stage() as st:
        await say(st.run)
        st.run.stop("enough")
        st.run.stop("later")
        with pytest.raises(RunStopped, match="enough"):
            await say(st.run)
        assert st.sim.stats.arrived == 1
        st.prove_exact()


async def test_a_call_that_waited_for_its_turn_is_not_sent_after_a_stop() -> None:
    """Who waits for a slot when the run is stopped gives its hold back and leaves nothing."""
    import asyncio

    async with stage(gate=Gate(width=1), sim={"faults": Faults([Fault(kind="hang")])}) as st:
        first = asyncio.create_task(say(st.run))
        await st.sim.arrived(1)
        waiting = asyncio.create_task(say(st.run))
        while not st.run.gate.statistics().waiting:
            await asyncio.sleep(0)
        st.run.stop("enough")
        st.sim.release()
        await first
        with pytest.raises(RunStopped):
            await waiting
        assert st.sim.stats.arrived == 1
        st.prove_exact()


async def test_a_deadline_ends_waiting() -> None:
    """A rate limit that outlasts the deadline is not waited for."""
    faults = Faults([Fault(kind="rate_limited", retry_after=3600, times=0)])
    async with stage(sim={"faults": faults}, deadline_s=0.5) as st:
        with pytest.raises((RateDeadline, APIStatusError)) as caught:
            await say(st.run)
        assert outcome_of(caught.value)[0] is Outcome.RATE_LIMITED
        st.prove_exact()


# ---- the provider's limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPEND_LIMITS)
async def test_the_providers_spend_limit_ends_the_run(kind: str, tmp_path: Path) -> None:
    """Each of its three forms is never retried, latches for every later call, and is the run's outcome."""
    async with stage(folder=tmp_path, sim={"faults": Faults([Fault(kind=kind, times=1)])}) as st:
        with pytest.raises(APIStatusError) as caught:
            await say(st.run)
        assert outcome_of(caught.value)[0] is Outcome.SPEND_LIMIT
        with pytest.raises(SpendLimit, match="resumed"):
            await say(st.run)
        result = await helper().run(st.run, "Hello")
        assert result.outcome is Outcome.SPEND_LIMIT
        assert st.sim.stats.arrived == 1
        st.prove_exact()
    assert record_of(st.run)["outcome"] == "spend_limit"
    again = Run("work", id=st.run.id, ledger=Ledger(tmp_path / "ledger.db"))
    again.check()
    again.close()
    again.ledger.close()


# ---- what is written down -----------------------------------------------------------------------------


async def _busy(st: Stage) -> None:
    """Every way in which a hold ends."""
    await say(st.run)
    with pytest.raises(APIStatusError):
        await say(st.run, "[[sim:fault=unauthorized]]")
    st.sim.faults.extend([Fault(kind="overloaded"), Fault(kind="reset", billed=True)])
    await say(st.run)
    await say(st.run)
    await helper(name="second").run(st.run, "One more", unit="doc-1")


async def test_the_journal_is_complete(tmp_path: Path) -> None:
    """Each hold has exactly one line for its end, and the sums of the journal are the ledger's."""
    async with stage(folder=tmp_path) as st:
        await _busy(st)
        st.prove()
        balance = st.run.balance
    events = events_of(st.run)
    held = [event["hold"] for event in events if event["event"] == "hold"]
    ends = Counter(e["hold"] for e in events if e["event"] in {"settle", "void", "doubt"})
    assert len(held) == len(set(held)) == 7
    assert ends == Counter(held)
    posted = sum(e["nanos"] for e in events if e["event"] == "settle")
    doubted = sum(e["nanos"] for e in events if e["event"] == "doubt")
    assert (posted, doubted) == (balance.posted_nanos, balance.in_doubt_nanos)
    assert doubted > 0
    last = [e for e in events if e["event"] == "settle"][-1]
    assert {"agent": "second", "unit": "doc-1", "model": MODEL}.items() <= last.items()
    assert {"input_tokens", "output_tokens", "latency_ms", "stop_reason"} <= last.keys()
    assert (events[0]["event"], events[-1]["event"]) == ("run", "end")
    assert all(event["run"] == st.run.id for event in events)


async def test_the_record_is_right_while_it_runs_and_at_its_end(tmp_path: Path) -> None:
    """``run.json`` has no end while the run is under way, so that a crash can be told."""
    async with stage(folder=tmp_path) as st:
        await say(st.run)
        before = record_of(st.run)
    after = record_of(st.run)
    assert (before["ended"], before["outcome"], before["pid"]) == (None, None, os.getpid())
    assert (after["outcome"], after["calls"]) == ("ok", 1)
    assert after["posted_usd"] == f"{st.sim.bill.nanos / 1e9:.9f}".rstrip("0")
    assert after["ended"] is not None


@pytest.mark.parametrize(
    ("error", "outcome"), [(RunStopped("x"), "cancelled"), (ValueError("x"), "infra")], ids=str
)
async def test_the_record_says_how_it_ended(tmp_path: Path, error: Exception, outcome: str) -> None:
    """What ends the block ends the run."""
    with pytest.raises(type(error)):
        async with stage(folder=tmp_path) as st:
            raise error
    assert record_of(st.run)["outcome"] == outcome
    assert events_of(st.run)[-1] | {"event": "end", "outcome": outcome} == events_of(st.run)[-1]


@pytest.mark.parametrize("broken", ["full", "folder"])
async def test_a_journal_that_can_not_be_written_stops_nothing(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It complains once; money is right without it."""
    place = tmp_path / "runs" / "one"
    place.mkdir(parents=True)
    if broken == "full":
        (place / "journal.jsonl").symlink_to("/dev/full")
    else:
        (place / "journal.jsonl").mkdir()
    with caplog.at_level(logging.ERROR, "earmark"):
        async with stage(folder=tmp_path, id="one") as st:
            for _ in range(5):
                await say(st.run)
            st.prove_exact()
    assert [record.message for record in caplog.records if "journal" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


async def test_no_secret_is_written_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the key nor a header with it is in a file, a log line or an error."""
    with caplog.at_level(logging.DEBUG, "earmark"):
        async with stage(folder=tmp_path) as st:
            await _busy(st)
            with pytest.raises(APIStatusError) as caught:  # noqa: PT012
                st.sim.faults.extend([Fault(kind="unauthorized", message=f"invalid key {KEY}")])
                await say(st.run)
            assert KEY not in outcome_of(caught.value)[1]
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    said = capfd.readouterr()
    for text in (written.decode(errors="replace"), caplog.text, said.out, said.err):
        assert KEY not in text
        assert "authorization" not in text.lower()


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("unauthorized", Outcome.AUTH),
        ("forbidden", Outcome.AUTH),
        ("overloaded", Outcome.OVERLOADED),
        ("server_error", Outcome.INFRA),
        ("gateway_timeout", Outcome.TIMEOUT),
        ("reset", Outcome.IN_DOUBT),
    ],
)
async def test_after_a_thousand_failures_nothing_has_leaked(kind: str, outcome: Outcome) -> None:
    """The gate's slots and the held sum are what they were, whatever the failure."""
    faults = Faults([Fault(kind=kind, times=0)])
    from orchestrator.retry import Retry

    async with stage(cap="50", sim={"faults": faults}, retry=Retry(attempts=2, **QUICK)) as st:
        from patterns import fan_out

        done = await fan_out(st.run, lambda text: say(st.run, text), ["Hello"] * 170, width=16)
        assert done.outcomes == {outcome.value: 170}
        st.prove()
        st.sim.faults.clear()
        await say(st.run)
