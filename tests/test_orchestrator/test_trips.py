"""Trips: what happens when a cap declines a call is what the caller chose, for tasks, threads and streams."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from anthropic import beta_async_tool

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.scopes import scope
from orchestrator.errors import ConfigError, RunStopped
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.simulator import SimulatorThread, running_simulator
from orchestrator.trips import Ask, Cheaper, Policy, RaiseCap, TripQuestion, UseModel, on_trip
from patterns import fan_out

from .running import KEY, MODEL, Stage, helper, say, stage

SONNET = "claude-sonnet-5-5"
#: A call of the cheap model is held at 96,140 nano-dollars (by bytes; less when counted) and costs 10,900; one
#: of the dear model at 1,925,000 and 218,000. This has room for the cheap one only.
TIGHT = "0.001"
#: For some calls of the cheap one, for none of the dear one.
FEW_CHEAP = "0.00011"
#: For some calls of the dear one.
FEW_DEAR = "0.0018"


def events(st: Stage, kind: str = "trip") -> list[dict[str, Any]]:
    assert st.run.folder.journal is not None
    st.run.journal.flush()
    return [one for one in read_journal(st.run.folder.journal) if one["event"] == kind]


async def dear(run: Run, **fields: Any) -> Any:
    """A call of the dear model."""
    return await say(run, model=SONNET, **fields)


async def streamed(run: Run, **fields: Any) -> Any:
    """The same, as a stream."""
    body = {"model": SONNET, "max_tokens": 100, **fields}
    messages = [{"role": "user", "content": "Hello [[sim:output=20]]"}]
    async with run.client.messages.stream(messages=messages, **body) as stream:
        return await stream.get_final_message()


async def in_a_thread(run: Run, **fields: Any) -> Any:
    """The same by the sync client."""
    body = {"model": SONNET, "max_tokens": 100, **fields}
    messages: Any = [{"role": "user", "content": "Hello [[sim:output=20]]"}]
    return await asyncio.to_thread(run.sync_client.messages.create, messages=messages, **body)


WAYS = [dear, streamed, in_a_thread]


class Evening:
    """A ledger's clock that stands shortly before midnight until the day is turned by hand."""

    def __init__(self, left_s: float = 600) -> None:
        self.now = datetime(2026, 11, 30, tzinfo=UTC) - timedelta(seconds=left_s)

    def __call__(self) -> datetime:
        return self.now

    def turn(self) -> None:
        self.now += timedelta(days=1)


# ---- cheaper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_cheaper_model_goes_on(way: Any, tmp_path: Path) -> None:
    """The call is made with the next model of the chain, and the tries before it shut nothing."""
    async with stage(cap=TIGHT, on_trip=Cheaper(SONNET, MODEL), folder=tmp_path) as st:
        assert (await way(st.run)).model == MODEL
        assert (await way(st.run)).model == MODEL
        (event, _) = events(st)
        assert (event["policy"], event["model"], event["to"]) == ("cheaper", SONNET, MODEL)
        st.prove_exact()


async def test_the_end_of_the_chain_declines_and_shuts_the_scope() -> None:
    """Rule 13: what its last model could not afford stays declined, for smaller calls too."""
    async with stage(cap=FEW_CHEAP, on_trip=Cheaper(SONNET, MODEL)) as st:
        assert (await dear(st.run)).model == MODEL
        with pytest.raises(BudgetExceeded):
            await asyncio.wait_for(forever(dear, st.run), 10)
        with pytest.raises(BudgetExceeded) as caught:
            await say(st.run, max_tokens=1)
        assert caught.value.latched
        st.prove_exact()


async def test_a_dear_try_does_not_shut_a_scope_that_the_cheap_one_fits() -> None:
    """What is left is for the cheap model, though the dear one was declined for posted money."""
    async with stage(cap=FEW_DEAR, on_trip=Cheaper(SONNET, MODEL)) as st:
        models = [(await dear(st.run)).model for _ in range(12)]
        switch = models.index(MODEL)
        assert switch > 0
        assert set(models[switch:]) == {MODEL}
        st.prove_exact()


async def test_an_agent_says_with_which_model_it_ended(tmp_path: Path) -> None:
    """The agent's own policy counts, and its result names the model of the last answer."""
    async with stage(cap=TIGHT, folder=tmp_path) as st:
        plain = await helper(model=SONNET).run(st.run, "Hello")
        chain = await helper(model=SONNET, on_trip=Cheaper(MODEL)).run(st.run, "Hello")
        assert (plain.outcome, chain.outcome) == (Outcome.BUDGET, Outcome.OK)
        assert (plain.model, chain.model) == ("", MODEL)
        (event,) = events(st)
        assert (event["agent"], event["scope"]) == ("helper", f"{st.run.scope}/helper")


# ---- waiting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_waits_for_the_window(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps no slot and no money meanwhile, and goes when the day turns; those without room, a day later."""
    monkeypatch.setattr("orchestrator.trip_middleware._NAP_S", 0.02)
    evening = Evening(left_s=0.05)
    with Ledger(caps=[Cap(FEW_DEAR, per="day")], clock=evening) as ledger:
        fields = {"ledger": ledger, "cap": None, "folder": tmp_path, "on_trip": "wait"}
        async with own_stage(**fields) as st:
            # No more than a small machine has threads.
            made = [asyncio.create_task(way(st.run)) for _ in range(5)]
            await until(lambda: sum(one.done() for one in made) + len(events(st)) == 5)
            assert st.sim.bill.requests < 5
            assert st.run.gate.statistics().in_use == 0
            assert st.run.balance.held_nanos == 0
            assert events(st)[0]["policy"] == "wait"
            assert events(st)[0]["until"] == "2026-11-30T00:00:00+00:00"
            async with asyncio.timeout(20):
                while not all(one.done() for one in made):
                    evening.turn()
                    await asyncio.wait(made, timeout=0.1)
            await asyncio.gather(*made)
            # The server enters a stream when it has ended there, too.
            await until(lambda: st.sim.bill.requests == 5)
            st.prove_exact()


async def test_who_comes_too_late_for_a_window_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a call that is too large by its bytes and fits when it is counted, however often others were quicker."""
    monkeypatch.setattr("orchestrator.trip_middleware._NAP_S", 0.3)
    evening = Evening(left_s=0.05)
    with Ledger(caps=[Cap(FEW_DEAR, per="day")], clock=evening) as ledger:
        fields = {"ledger": ledger, "cap": None, "folder": tmp_path, "on_trip": "wait"}
        async with own_stage(**fields) as st:
            await dear(st.run)
            late = asyncio.create_task(dear(st.run))
            for day in range(1, 4):
                await until(lambda day=day: len(events(st)) == day or late.done())
                evening.turn()
                if day < 3:
                    with on_trip("decline"), contextlib.suppress(BudgetExceeded):
                        await dear(st.run)
            assert (await asyncio.wait_for(late, 20)).model == SONNET
            st.prove_exact()


@pytest.mark.parametrize(
    ("cap", "fields"),
    [
        (Cap(FEW_CHEAP), {}),
        (Cap("0.00001", per="day"), {}),
        (Cap(FEW_CHEAP, per="day"), {"deadline_s": 20}),
    ],
    ids=["for ever", "dearer than the cap", "after the deadline"],
)
async def test_what_no_window_frees_is_not_waited_for(cap: Cap, fields: dict[str, Any]) -> None:
    """A cap for ever, a call dearer than the whole cap, and a window after the deadline: declined at once."""
    with Ledger(caps=[cap], clock=Evening()) as ledger:
        async with own_stage(ledger=ledger, cap=None, on_trip="wait", **fields) as st:
            with pytest.raises(BudgetExceeded):
                await asyncio.wait_for(forever(say, st.run), 10)
            st.prove_exact()


@pytest.mark.parametrize("way", WAYS)
async def test_a_stopped_run_waits_no_longer(way: Any, tmp_path: Path) -> None:
    """Whoever waits for a window hears at once that the run has stopped."""
    with Ledger(caps=[Cap(FEW_DEAR, per="day")], clock=Evening()) as ledger:
        async with own_stage(ledger=ledger, cap=None, on_trip="wait", folder=tmp_path) as st:
            made = asyncio.create_task(forever(way, st.run))
            await until(lambda: len(events(st)) >= 1)
            st.run.stop("enough")
            with pytest.raises(RunStopped, match="enough"):
                await asyncio.wait_for(made, 5)
            st.prove_exact()


async def test_cancelling_a_call_that_waits_leaves_nothing(tmp_path: Path) -> None:
    """No hold, no slot, no charge."""
    with Ledger(caps=[Cap(FEW_CHEAP, per="day")], clock=Evening()) as ledger:
        async with own_stage(ledger=ledger, cap=None, on_trip="wait", folder=tmp_path) as st:
            made = asyncio.create_task(forever(say, st.run))
            await until(lambda: len(events(st)) >= 1)
            made.cancel()
            with pytest.raises(asyncio.CancelledError):
                await made
            st.prove_exact()


async def test_a_raised_cap_ends_the_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever waits looks up now and then: another process may have raised the cap."""
    monkeypatch.setattr("orchestrator.trip_middleware._NAP_S", 0.02)
    with Ledger(caps=[Cap(FEW_CHEAP, per="day")], clock=Evening()) as ledger:
        async with own_stage(ledger=ledger, cap=None, on_trip="wait", folder=tmp_path) as st:
            made = asyncio.gather(*(say(st.run) for _ in range(5)))
            await until(lambda: len(events(st)) >= 1)
            ledger.set_cap(Cap("1", per="day"))
            assert len(await asyncio.wait_for(made, 5)) == 5


async def test_first_cheaper_then_wait(tmp_path: Path) -> None:
    """A tuple is tried in order, and after the wait the call is made as it was asked for."""
    evening = Evening(left_s=0.05)
    with Ledger(caps=[Cap(FEW_CHEAP, per="day")], clock=evening) as ledger:
        policy: Policy = (Cheaper(MODEL), "wait")
        async with own_stage(ledger=ledger, cap=None, on_trip=policy, folder=tmp_path) as st:
            made = asyncio.create_task(forever(dear, st.run))
            await until(lambda: any(one["policy"] == "wait" for one in events(st)))
            before = len(events(st))
            evening.turn()
            await until(lambda: len(events(st)) > before)
            made.cancel()
            await asyncio.gather(made, return_exceptions=True)
            policies = [one["policy"] for one in events(st)]
            assert set(policies[: before - 1]) == {"cheaper"}
            assert policies[before - 1 : before + 1] == ["wait", "cheaper"]
            st.prove()


# ---- asking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_answer_raises_the_cap(way: Any, kind: str, tmp_path: Path) -> None:
    """Whoever is asked sees the decline and its figures; the call goes on under the new cap."""
    asked: list[TripQuestion] = []

    def answer(question: TripQuestion) -> RaiseCap:
        asked.append(question)
        return RaiseCap(by="0.01")

    async def answer_later(question: TripQuestion) -> RaiseCap:
        await asyncio.sleep(0)
        return answer(question)

    policy = Ask(answer if kind == "sync" else answer_later)
    async with stage(cap=TIGHT, on_trip=policy, folder=tmp_path) as st:
        assert (await way(st.run)).model == SONNET
        (question,) = asked
        assert (question.run, question.model, question.can_raise) == (st.run.id, SONNET, True)
        assert "the cap of $0.001" in question.text
        assert f"{question.decline.asked:f}" in question.text
        cap = st.run.balance.cap
        assert cap is not None
        assert cap.nanos == 11_000_000
        (event,) = events(st)
        assert (event["answer"], event["to_nanos"]) == ("raised", 11_000_000)
        st.prove_exact()


@pytest.mark.parametrize(
    "answered",
    [
        None,
        False,
        RuntimeError("nobody home"),
        StopIteration(),
        asyncio.CancelledError(),
        "what?",
        True,
        RaiseCap(to="0"),
    ],
)
async def test_a_no_is_a_decline_and_is_asked_for_once(answered: Any, tmp_path: Path) -> None:
    """So is a callback that fails, and an answer that helps nobody; the next call does not ask again."""
    asked: list[TripQuestion] = []

    def answer(question: TripQuestion) -> Any:
        asked.append(question)
        if isinstance(answered, BaseException):
            raise answered
        return answered

    async with stage(cap=TIGHT, on_trip=Ask(answer), folder=tmp_path) as st:
        for _ in range(3):
            with pytest.raises(BudgetExceeded):
                await asyncio.wait_for(dear(st.run), 10)
        assert len(asked) == 1
        assert [one["answer"] for one in events(st)] == ["declined"]
        assert st.sim.bill.requests == 0


async def test_an_answer_may_be_another_model() -> None:
    """For this call alone; one that says the same for ever does not make it try for ever."""
    async with stage(cap=TIGHT, on_trip=Ask(lambda _: UseModel(MODEL))) as st:
        assert (await dear(st.run)).model == MODEL
    async with stage(cap="0.0000001", on_trip=Ask(lambda _: UseModel(MODEL))) as st:
        with pytest.raises(BudgetExceeded):
            await asyncio.wait_for(dear(st.run), 5)


@pytest.mark.parametrize("way", [dear, in_a_thread])
async def test_parallel_declines_share_one_question(way: Any) -> None:
    """One person is asked once, and everybody goes on."""
    asked: list[TripQuestion] = []

    async def answer(question: TripQuestion) -> RaiseCap:
        asked.append(question)
        await asyncio.sleep(0.1)
        return RaiseCap(to="5")

    async with stage(cap=TIGHT, on_trip=Ask(answer)) as st:
        replies = await asyncio.gather(*(way(st.run) for _ in range(20)))
        assert len(replies) == st.sim.bill.requests == 20
        assert len(asked) == 1
        st.prove_exact()


@pytest.mark.parametrize("answered", [None, RuntimeError("nobody home"), "what?"])
async def test_parallel_declines_share_a_no(answered: Any) -> None:
    """Fifty at once ask once, however useless the answer, and nothing is sent any more."""
    asked: list[TripQuestion] = []

    async def answer(question: TripQuestion) -> Any:
        asked.append(question)
        await asyncio.sleep(0.05)
        if isinstance(answered, Exception):
            raise answered
        return answered

    async with stage(cap=TIGHT, on_trip=Ask(answer)) as st:
        done = await fan_out(st.run, helper(model=SONNET), ["Hello"] * 50, width=50)
        assert done.outcomes == {"budget": 50}
        assert (len(asked), st.sim.bill.requests) == (1, 0)


async def test_a_fan_out_at_the_end_of_the_chain_is_shut_with_little_asked() -> None:
    """All of a chain declined for posted money: the scope is latched, and what is left over does not go out."""
    async with stage(cap=FEW_CHEAP, on_trip=Cheaper(SONNET, MODEL)) as st:
        done = await fan_out(
            st.run, helper(model=SONNET, max_tokens=100), ["Hello [[sim:output=20]]"] * 60
        )
        assert set(done.outcomes) == {"ok", "budget"}
        assert any("was declined before" in part.reason for part in done.failed)
        with pytest.raises(BudgetExceeded) as caught:
            await say(st.run, max_tokens=1)
        assert caught.value.latched
        st.prove_exact()


async def test_one_question_at_a_time() -> None:
    """Two caps in the way of two calls are two questions, one after the other."""
    now, most = 0, 0

    async def answer(question: TripQuestion) -> RaiseCap:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return RaiseCap(by="1")

    async with stage(on_trip=Ask(answer)) as st:
        agents = [helper(name=f"a{number}", model=SONNET, cap=TIGHT) for number in range(4)]
        done = await asyncio.gather(*(agent.run(st.run, "Hello") for agent in agents))
        assert {one.outcome for one in done} == {Outcome.OK}
        assert most == 1
        st.prove_exact()


async def test_whoever_gives_up_asking_leaves_the_question_to_the_next() -> None:
    """Cancelling the call that asks does not answer for the others."""
    asked = 0
    begun = asyncio.Event()

    async def answer(question: TripQuestion) -> RaiseCap:
        nonlocal asked
        asked += 1
        begun.set()
        if asked == 1:
            await asyncio.Event().wait()
        return RaiseCap(to="5")

    async with stage(cap=TIGHT, on_trip=Ask(answer)) as st:
        first = asyncio.create_task(dear(st.run))
        await begun.wait()
        second = asyncio.create_task(dear(st.run))
        await asyncio.sleep(0.05)
        first.cancel()
        assert (await asyncio.wait_for(second, 5)).model == SONNET
        assert asked == 2
        st.prove_exact()


async def test_a_stopped_run_gives_up_its_question() -> None:
    """Ctrl-C while somebody thinks."""
    begun = asyncio.Event()

    async def answer(question: TripQuestion) -> RaiseCap:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with stage(cap=TIGHT, on_trip=Ask(answer)) as st:
        made = asyncio.create_task(dear(st.run))
        await begun.wait()
        st.run.stop("enough")
        with pytest.raises(RunStopped):
            await asyncio.wait_for(made, 5)


async def test_calls_of_the_callback_do_not_ask_themselves() -> None:
    """A policy that is a model of its own may run out of money, too: that is a no."""
    async with stage(cap=TIGHT) as st:

        async def answer(question: TripQuestion) -> Any:
            return (await dear(st.run)).content

        with on_trip(Ask(answer)), pytest.raises(BudgetExceeded):
            await asyncio.wait_for(dear(st.run), 5)


@pytest.mark.parametrize(
    "cap",
    [
        Cap(TIGHT),
        Cap(TIGHT, per="day"),
        Cap(TIGHT, per="run"),
        Cap(TIGHT, per="agent"),
        Cap(TIGHT, per="call"),
        Cap(TIGHT, scope="work"),
    ],
    ids=str,
)
async def test_every_kind_of_cap_can_be_raised(cap: Cap) -> None:
    """Where a decline names one agent or run, the cap on each of them is what is raised."""
    with Ledger(caps=[cap]) as ledger:
        async with own_stage(
            ledger=ledger, cap=None, on_trip=Ask(lambda _: RaiseCap(to="1"))
        ) as st:
            result = await helper(model=SONNET).run(st.run, "Hello")
            assert result.outcome is Outcome.OK
            (entry,) = [one for one in ledger.caps() if one.cap.key == cap.key]
            assert (entry.cap.amount, entry.cap.owner) == (1, "an answer")
            st.prove_exact()


async def test_a_fallback_cap_can_not_be_raised() -> None:
    """It stands in for caps that nobody set; the question says so."""
    asked: list[bool] = []

    def answer(question: TripQuestion) -> RaiseCap:
        asked.append(question.can_raise)
        return RaiseCap(to="1")

    with Ledger(fallback=[Cap(TIGHT)]) as ledger:
        async with own_stage(ledger=ledger, cap=None, on_trip=Ask(answer)) as st:
            with pytest.raises(BudgetExceeded):
                await dear(st.run)
            assert asked == [False]


# ---- which policy -------------------------------------------------------------------------------------


async def test_the_innermost_word_counts() -> None:
    """A block over the run, an agent over the block."""
    async with stage(cap=TIGHT, on_trip=Cheaper(MODEL)) as st:
        agent = {"model": SONNET, "max_tokens": 100}
        with on_trip("decline"):
            assert (await helper(**agent).run(st.run, "Hello")).outcome is Outcome.BUDGET
    async with stage(cap=TIGHT) as st:
        with on_trip(Cheaper(MODEL)):
            assert (await helper(**agent).run(st.run, "Hello")).outcome is Outcome.OK
            firm = helper(**agent, on_trip="decline")
            assert (await firm.run(st.run, "Hello")).outcome is Outcome.BUDGET


@pytest.mark.parametrize("policy", ["later", 3, ("wait", "perhaps"), Cheaper])
def test_a_policy_that_is_none_is_said_at_once(policy: Any) -> None:
    """When the agent is made or the block is entered, not at the first decline."""
    with pytest.raises(ConfigError, match="is not a policy"):
        helper(on_trip=policy)
    with pytest.raises(ConfigError, match="is not a policy"), on_trip(policy):
        pass


@pytest.mark.parametrize("fields", [{}, {"to": "1", "by": "1"}, {"to": "much"}, {"by": 0.5}])
def test_an_amount_is_said_once(fields: dict[str, Any]) -> None:
    """Neither both nor none, and never a float."""
    with pytest.raises(ValueError):
        RaiseCap(**fields)
    with pytest.raises(ConfigError):
        Cheaper()


async def test_a_decline_that_a_tool_swallowed_ends_the_loop_once() -> None:
    """The decline was final where it was made; it is neither asked about nor waited for again."""
    asked: list[TripQuestion] = []

    def answer(question: TripQuestion) -> None:
        asked.append(question)

    async with stage(cap="5", on_trip=Ask(answer)) as st:

        @beta_async_tool
        async def delegate(task: str) -> str:
            """Give a task to somebody else.

            Args:
                task: the task
            """
            with scope("poor", cap="0.00001"):
                await say(st.run)
            return "done"

        runner = st.run.client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=100,
            messages=[{"role": "user", "content": "Go [[sim:turns=5]]"}],
            tools=[delegate],
        )
        with pytest.raises(BudgetExceeded):
            await asyncio.wait_for(runner.until_done(), 10)
        assert len(asked) == 1
        assert st.sim.bill.requests == 1
        st.prove_exact()


def test_threads_of_a_sync_program_share_a_question() -> None:
    """Without any loop; an async callback will do."""
    asked: list[TripQuestion] = []

    async def answer(question: TripQuestion) -> RaiseCap:
        asked.append(question)
        await asyncio.sleep(0.2)
        return RaiseCap(to="5")

    simulator: SimulatorThread
    with running_simulator() as simulator, Ledger() as ledger:
        options = {"base_url": simulator.url, "api_key": KEY}
        run = Run("work", cap=TIGHT, ledger=ledger, client=options, on_trip=Ask(answer))
        body: dict[str, Any] = {"model": SONNET, "max_tokens": 100}
        messages: Any = [{"role": "user", "content": "Hello"}]

        def work() -> None:
            run.sync_client.messages.create(messages=messages, **body)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert simulator.bill.requests == 6
        assert len(asked) == 1
        run.close()


# ---- helpers of these tests ---------------------------------------------------------------------------


async def forever(way: Any, run: Run) -> None:
    while True:
        await way(run)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.01)


def own_stage(**fields: Any) -> Any:
    return stage(own_ledger=fields.pop("ledger"), **fields)
