"""An agent: its tool loop, its output, its repairs, its ends, and what nested agents may spend."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from budgets.errors import BudgetError, BudgetExceeded
from orchestrator.agent import Agent, AgentResult
from orchestrator.context import current_call
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from patterns import fan_out

from .running import MODEL, Stage, helper, say, stage

LABELS = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["billing", "bug"]}},
    "required": ["label"],
    "additionalProperties": False,
}
KEEP = {"sim": {"keep_calls": 50}}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def add_slowly(a: int, b: int) -> int:
    """Add two numbers, slowly."""
    await asyncio.sleep(0)
    return a + b


def fail(a: int) -> int:
    """Fail."""
    raise OSError("the disk is gone")


def called(name: str, /, **given: Any) -> str:
    return f"[[sim:tool={name} {json.dumps(given)}]]"


def bodies(st: Stage) -> list[dict[str, Any]]:
    return [json.loads(c.body) for c in st.sim.calls if c.path.startswith("/v1/messages")]


def tool_results(result: AgentResult) -> list[dict[str, Any]]:
    return [
        block
        for message in result.messages
        if message["role"] == "user" and isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


# ---- the tool loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [add, add_slowly])
async def test_a_tool_is_called_and_its_result_goes_back(tool: Any) -> None:
    """Sync and async tools alike; the loop ends with the model's answer."""
    async with stage() as st:
        result = await helper(tools=[tool]).run(st.run, called(tool.__name__, a=2, b=3))
        assert (result.outcome, result.turns) == (Outcome.OK, 2)
        (given,) = tool_results(result)
        assert (given["content"], given["is_error"]) == ("5", False)
        assert result.text.startswith("Simulated answer")
        assert result.tally.calls == 2
        st.prove_exact()


async def test_parallel_tool_calls_run_together_and_are_answered_in_order() -> None:
    """All calls of one reply overlap, and each result carries its call's id."""
    meeting = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other one."""
        await meeting.wait()
        return name

    async with stage() as st:
        prompt = called("meet", name="first") + called("meet", name="second")
        result = await asyncio.wait_for(helper(tools=[meet]).run(st.run, prompt), 5)
        assert [block["content"] for block in tool_results(result)] == ["first", "second"]
        asked = [block["id"] for block in result.messages[1]["content"]]
        assert [block["tool_use_id"] for block in tool_results(result)] == asked


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (called("add", a="many", b=1), "arguments of add don't fit"),
        (called("add"), "Field required"),
        (called("fail", a=1), "OSError: the disk is gone"),
    ],
)
async def test_a_tool_that_fails_is_told_to_the_model(prompt: str, told: str) -> None:
    """Bad arguments and exceptions are results that say so; the loop goes on."""
    async with stage() as st:
        result = await helper(tools=[add, fail]).run(st.run, prompt)
        assert result.outcome is Outcome.OK
        (given,) = tool_results(result)
        assert told in given["content"]
        assert given["is_error"] is True


async def test_a_tool_that_is_not_there_is_told_to_the_model() -> None:
    """The model may name what it was not given (by a server tool's name, say)."""
    other = {"name": "other", "description": "d", "input_schema": {"type": "object"}}
    async with stage() as st:
        agent = helper(tools=[add], extra={"tools": [other]})
        result = await agent.run(st.run, called("other"))
        (given,) = tool_results(result)
        assert (given["content"], given["is_error"]) == ("there is no tool other", True)


async def test_a_tool_that_cancels_itself_fails_alone() -> None:
    """Its own cancellation is not the agent's."""

    async def stop() -> None:
        """Cancel something of its own."""
        raise asyncio.CancelledError

    async with stage() as st:
        result = await helper(tools=[stop]).run(st.run, called("stop"))
        assert result.outcome is Outcome.OK
        assert tool_results(result)[0]["is_error"] is True


async def test_identical_calls_with_identical_results_end_the_loop() -> None:
    """A-01: the same call and the same result K times is ``stalled``."""
    async with stage() as st:
        agent = helper(tools=[fail], same_calls=3, max_turns=50)
        result = await agent.run(st.run, called("fail", a=1) + "[[sim:turns=50]]")
        assert result.outcome is Outcome.STALLED
        assert "3 times alike" in result.reason
        assert st.sim.stats.arrived == result.turns == 3


async def test_identical_calls_with_new_results_go_on() -> None:
    """Polling is no stall."""
    count = iter(range(100))

    def poll() -> int:
        """Look again."""
        return next(count)

    async with stage() as st:
        agent = helper(tools=[poll], same_calls=2, max_turns=50)
        result = await agent.run(st.run, called("poll") + "[[sim:turns=6]]")
        assert (result.outcome, result.turns) == (Outcome.OK, 7)


async def test_max_turns_counts_model_calls() -> None:
    """R-15: a limit of 4 is 4 calls."""
    async with stage() as st:
        agent = helper(tools=[add], same_calls=99, max_turns=4)
        result = await agent.run(st.run, called("add", a=1, b=1) + "[[sim:turns=50]]")
        assert (result.outcome, st.sim.stats.arrived) == (Outcome.STALLED, 4)
        assert "max_turns" in result.reason


async def test_a_decline_inside_a_tool_ends_the_loop() -> None:
    """No model is asked what to do about money that is out."""

    async with stage(cap="0.0008") as st:

        async def spend() -> str:
            """Spend what is left."""
            for _ in range(100):
                await say(st.run)
            return "rich"

        result = await helper(tools=[spend]).run(st.run, called("spend") + "[[sim:turns=9]]")
        assert result.outcome is Outcome.BUDGET
        assert result.turns == 1
        assert result.tally.posted_nanos == st.run.balance.posted_nanos
        st.prove_exact()


# ---- output -------------------------------------------------------------------------------------------


class Ticket(BaseModel):
    """What is asked for."""

    label: str


@pytest.mark.parametrize(
    ("output", "value"),
    [(LABELS, {"label": "bug"}), (Ticket, Ticket(label="bug"))],
    ids=["schema", "pydantic"],
)
async def test_output_is_parsed(output: Any, value: Any) -> None:
    """A schema gives JSON, a model an instance."""
    async with stage() as st:
        agent = helper(output=output)
        result = await agent.run(st.run, '[[sim:text={"label": "bug"}]]')
        assert (result.outcome, result.value) == (Outcome.OK, value)


@pytest.mark.parametrize("repairs", [0, 1, 3])
async def test_repairs_are_counted_and_do_not_grow(repairs: int) -> None:
    """J-05: the broken answer is not pasted back, so that every try is as long as the first."""
    async with stage(**KEEP) as st:
        agent = helper(output=LABELS, repairs=repairs)
        result = await agent.run(st.run, '[[sim:text={"label": "zzz"}]] Which one?')
        assert result.outcome is Outcome.INVALID
        assert "'zzz' is not one of" in result.reason
        assert result.value is None
        sent = bodies(st)
        assert len(sent) == 1 + repairs
        assert all(len(body["messages"]) == 1 for body in sent)
        assert len({len(json.dumps(body)) for body in sent[1:]}) <= 1
        st.prove_exact()


async def test_a_repair_that_helps_is_ok_at_the_price_of_both() -> None:
    """The check's word is passed on, and what the first try cost is counted."""
    seen: list[str] = []

    def check(text: str) -> str | None:
        seen.append(text)
        return "say more" if len(seen) == 1 else None

    async with stage(**KEEP) as st:
        result = await helper(check=check, repairs=1).run(st.run, "Hello")
        assert (result.outcome, result.turns, result.tally.calls) == (Outcome.OK, 2, 2)
        assert "say more" in str(bodies(st)[1]["messages"])
        assert result.tally.posted_nanos == st.sim.bill.nanos


async def test_content_blocks_may_be_repaired_too() -> None:
    """The note is one more block."""
    async with stage(**KEEP) as st:
        agent = helper(output=LABELS, repairs=1)
        block = {"type": "text", "text": '[[sim:text={"label": "zzz"}]]'}
        await agent.run(st.run, [block])
        assert len(bodies(st)[1]["messages"][0]["content"]) == 2


# ---- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "outcome"),
    [
        ("[[sim:refuse]]", Outcome.REFUSAL),
        ("[[sim:refuse=30]]", Outcome.REFUSAL),
        ("[[sim:output=900]]", Outcome.TRUNCATED),
        ("[[sim:stop=model_context_window_exceeded]]", Outcome.TRUNCATED),
        ("[[sim:fault=unauthorized]]", Outcome.AUTH),
        ("[[sim:fault=html]]", Outcome.IN_DOUBT),
        ("x " * 2_300_000, Outcome.TOO_LARGE),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_every_end_has_its_word(prompt: str, outcome: Outcome) -> None:
    """Nothing is raised, no value is handed out, and what it cost is counted."""
    async with stage() as st:
        result = await helper(output=LABELS, repairs=1).run(st.run, prompt)
        assert result.outcome is outcome
        assert result.value is None
        assert result.reason
        assert result.tally.posted_nanos == st.run.balance.posted_nanos
        st.prove()


async def test_a_paused_turn_is_gone_on_with() -> None:
    """``pause_turn`` sends the reply back as it is."""
    async with stage(**KEEP) as st:
        agent = helper(max_turns=3)
        result = await agent.run(st.run, "[[sim:stop=pause_turn]]")
        assert result.outcome is Outcome.STALLED
        roles = [message["role"] for message in bodies(st)[-1]["messages"]]
        assert roles == ["user", "assistant", "assistant"]


async def test_cancellation_passes_and_is_written_down(tmp_path: Any) -> None:
    """It is the only thing that an agent raises; the journal has its outcome all the same."""
    from orchestrator.journal import read_journal

    faults = Faults([Fault(kind="hang")])
    async with stage(folder=tmp_path, sim={"faults": faults}) as st:
        work = asyncio.create_task(helper().run(st.run, "Hello"))
        await st.sim.arrived(1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        st.prove()
        assert st.run.folder.journal is not None
        last = list(read_journal(st.run.folder.journal))[-1]
        assert (last["event"], last["outcome"]) == ("outcome", "cancelled")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_turns": 0},
        {"max_tokens": 0},
        {"same_calls": 1},
        {"repairs": -1},
        {"tools": [add, add]},
        {"name": ""},
        {"name": "a//b"},
        {"cap": 0.5},
        {"cap": "lots"},
        {"output": {"type": "nonsense"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_mistake_is_said_when_the_agent_is_made(fields: dict[str, Any]) -> None:
    """Not at its first call, in the middle of a night."""
    with pytest.raises((ConfigError, BudgetError)):
        helper(**fields)


# ---- nested agents, scopes and caps -------------------------------------------------------------------


async def test_a_nested_agent_is_counted_by_all_around_it() -> None:
    """O-10: the totals of a nested run are the sums of the ledger's lines, scope by scope."""
    async with stage() as st:

        async def delegate(task: str) -> str:
            """Ask another one."""
            inner = await helper(name="inner").run(st.run, task)
            assert inner.tally.calls == 1
            return inner.text

        outer = helper(name="outer", tools=[delegate])
        result = await outer.run(st.run, called("delegate", task="Look it up"))
        ledger, top = st.run.ledger, st.run.scope
        assert result.tally.calls == 3
        assert result.tally.posted_nanos == ledger.balance(f"{top}/outer").posted_nanos
        inner_cost = ledger.balance(f"{top}/outer/inner").posted_nanos
        assert 0 < inner_cost < result.tally.posted_nanos
        agents = {line.note.get("agent") for line in ledger.lines(f"{top}/outer/inner")}
        assert agents == {"inner"}


@pytest.mark.parametrize("capped", ["run", "outer", "inner"])
async def test_a_child_inherits_every_cap_above_it(capped: str) -> None:
    """O-06: whichever ancestor has the cap, nothing below it spends more."""
    small = "0.0004"
    async with stage(cap=small if capped == "run" else "5") as st:

        async def work(task: str) -> str:
            """Ask many times."""
            agent = helper(name="inner", cap=small if capped == "inner" else None)
            done = await fan_out(st.run, agent, [task] * 30, width=8)
            assert done.outcomes["budget"] > 0
            return "done"

        outer = helper(name="outer", tools=[work], cap=small if capped == "outer" else None)
        await outer.run(st.run, called("work", task="Hello"))
        scope = {"run": "", "outer": "/outer", "inner": "/outer/fan_out/inner"}[capped]
        spent = st.run.ledger.balance(st.run.scope + scope)
        assert 0 < spent.posted_nanos <= 400_000
        st.prove_exact()


async def test_an_agents_cap_holds_over_all_its_runs() -> None:
    """It is what the agent may spend in this run, ever, not each time."""
    async with stage() as st:
        agent = helper(cap="0.0004")
        outcomes = [(await agent.run(st.run, "Hello")).outcome for _ in range(90)]
        assert outcomes[0] is Outcome.OK
        assert outcomes[-1] is Outcome.BUDGET
        assert st.run.balance.posted_nanos <= 400_000


async def test_unit_and_kept_answer_are_in_the_ledger() -> None:
    """A paid answer survives a crash: the line that settles it knows what it was about."""
    async with stage() as st:
        await helper().run(
            st.run, "Hello", unit="doc-1", keep=lambda message: message["stop_reason"]
        )
        line = list(st.run.ledger.lines())[-1]
        assert line.kind == "settle"
        assert {"unit": "doc-1", "kept": "end_turn", "agent": "helper"}.items() <= line.note.items()
        assert current_call().unit == ""


async def test_one_agent_runs_many_times_at_once() -> None:
    """It keeps no state."""
    async with stage() as st:
        agent = Agent(name="many", model=MODEL, output=LABELS, max_tokens=100)
        done = await fan_out(
            st.run, agent, [f'[[sim:text={{"label": "{w}"}}]]' for w in ["bug", "billing"] * 20]
        )
        assert [value["label"] for value in done.values] == ["bug", "billing"] * 20
        st.prove_exact()


async def test_an_exception_of_the_money_layer_reaches_plain_calls() -> None:
    """Only agents turn declines into outcomes."""
    async with stage(cap="0.0000001") as st:
        with pytest.raises(BudgetExceeded):
            await say(st.run)
        assert (await helper().run(st.run, "Hello")).outcome is Outcome.BUDGET
