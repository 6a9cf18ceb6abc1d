"""An agent's work as a whole: its time, its conversation, its place in the journal, and what it hands back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import Agent, AgentResult, Performer
from orchestrator.context import Tally
from orchestrator.errors import ConfigError, OutOfTime
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from orchestrator.sources import Source, sources_of
from orchestrator.time_limits import left_s, within
from patterns import fan_out

from .running import MODEL, Stage, helper, say, stage

LABELS = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["billing", "bug"]}},
    "required": ["label"],
    "additionalProperties": False,
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def called(name: str, /, **given: Any) -> str:
    return f"[[sim:tool={name} {json.dumps(given)}]]"


def sent(st: Stage) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in st.sim.calls if one.path == "/v1/messages"]


def events(st: Stage) -> list[dict[str, Any]]:
    assert st.run.folder.journal is not None
    st.run.journal.flush()
    return list(read_journal(st.run.folder.journal))


# ---- money --------------------------------------------------------------------------------------------


async def test_context_that_is_sent_again_stops_nothing_while_it_is_cheap() -> None:
    """Money is the cap: a hundred thousand tokens read from the cache again and again are a few cents (Z-06)."""
    words = "The house has many rooms. " * 4_000
    async with stage(cap="0.25") as st:
        agent = helper(system=words, tools=[add], same_calls=99, max_turns=30)
        result = await agent.run(st.run, called("add", a=1, b=2) + "[[sim:turns=20]]")
        st.prove()

    assert result.outcome is Outcome.OK
    assert result.turns == 21
    assert result.tally.tokens["cache_read_tokens"] > 300_000


# ---- time ---------------------------------------------------------------------------------------------


async def test_an_agent_that_takes_too_long_ends_as_timeout(tmp_path: Path) -> None:
    """What was sent is in doubt, the result has what it cost, and the others go on."""
    faults = Faults([Fault(kind="hang")])
    async with stage(sim={"faults": faults}, folder=tmp_path) as st:
        slow = asyncio.create_task(helper(name="slow", timeout_s=0.4).run(st.run, "Hello"))
        await st.sim.arrived(1)
        other = await helper(name="other").run(st.run, "Hello")
        result = await slow
        assert (result.outcome, other.outcome) == (Outcome.TIMEOUT, Outcome.OK)
        assert "0.4 s (timeout_s)" in result.reason
        assert result.tally.in_doubt_nanos == st.run.balance.in_doubt_nanos > 0
        assert 0.4 <= result.seconds < 10
        last = [one for one in events(st) if one["event"] == "outcome"][-1]
        assert last["in_doubt_nanos"] == result.tally.in_doubt_nanos
        st.prove()


async def test_a_call_that_hangs_takes_no_others_with_it() -> None:
    """Siblings with the same prefix wait for its warmer for a share of their own time, then go on without it."""
    faults = Faults([Fault(kind="hang")])
    async with stage(sim={"faults": faults}, cache_settle_s=0) as st:
        agent = helper(system="Rules of the house. " * 4_000, timeout_s=3)
        done = await fan_out(st.run, agent, [f"Item {n} [[sim:output=5]]" for n in range(12)])
        assert done.outcomes == {"timeout": 1, "ok": 11}
        assert st.run.caching.writes == 1
        st.prove()


async def test_what_has_no_time_left_is_not_sent() -> None:
    """Nothing is in doubt of a call whose answer could not be waited for."""
    async with stage() as st:
        with within(1e-9), pytest.raises(OutOfTime, match="not sent"):
            await say(st.run)
        result = await helper(timeout_s=1e-9).run(st.run, "Hello")
        assert result.outcome is Outcome.TIMEOUT
        assert st.sim.stats.arrived == 0
        assert st.run.balance.in_doubt_nanos == 0


def test_an_inner_limit_never_lengthens_the_outer_one() -> None:
    """What is around it counts, too."""
    with within(1), within(100):
        assert 0 < (left_s() or 0) <= 1
    assert left_s() is None


async def test_time_runs_while_its_tools_work() -> None:
    """Also a tool that never ends is ended with it."""

    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    async with stage() as st:
        result = await helper(tools=[wait], timeout_s=1.5).run(st.run, called("wait"))
        assert (result.outcome, result.turns) == (Outcome.TIMEOUT, 1)
        assert result.tally.posted_nanos == st.sim.bill.nanos
        st.prove_exact()


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_no_time_at_all_is_a_mistake(timeout_s: float) -> None:
    """Said when the agent is made."""
    with pytest.raises(ConfigError, match="timeout_s"):
        helper(timeout_s=timeout_s)


# ---- the conversation ---------------------------------------------------------------------------------


async def test_another_agent_goes_on_with_the_conversation() -> None:
    """A handoff: what was said before is sent again, then the new task."""
    async with stage(sim={"keep_calls": 9}) as st:
        first = await helper(tools=[add]).run(st.run, called("add", a=1, b=2))
        peer = helper(name="peer", tools=[add])
        second = await peer.run(st.run, "And now?", messages=first.messages)
        assert second.outcome is Outcome.OK
        assert sent(st)[-1]["messages"] == [
            *first.messages,
            {"role": "user", "content": "And now?"},
        ]
        assert len(second.messages) == len(first.messages) + 2


async def test_calls_that_nobody_answered_are_answered() -> None:
    """A conversation that ended at its calls (another agent's tools, say) can still be gone on with."""
    async with stage(sim={"keep_calls": 9}) as st:
        call = {"type": "tool_use", "id": "toolu_1", "name": "gone", "input": {}}
        past = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [call]}]
        result = await helper(tools=[add]).run(st.run, "Go on", messages=past)
        assert result.outcome is Outcome.OK
        first, second = sent(st)[-1]["messages"][-1]["content"]
        assert (first["tool_use_id"], first["is_error"]) == ("toolu_1", True)
        assert second == {"type": "text", "text": "Go on"}


async def test_repairs_of_a_tool_loop_start_from_the_task() -> None:
    """J-05: neither the broken answer nor the loop that led to it is sent again; what came before it is."""
    past = [
        {"role": "user", "content": "Before"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    ]
    async with stage(sim={"keep_calls": 20}) as st:
        agent = helper(tools=[add], output=LABELS, repairs=2)
        prompt = called("add", a=1, b=2) + '[[sim:text={"label": "zzz"}]]'
        result = await agent.run(st.run, prompt, messages=past)
        assert (result.outcome, result.turns) == (Outcome.INVALID, 6)
        lengths = [len(body["messages"]) for body in sent(st)]
        assert lengths == [3, 5] * 3
        sizes = [len(json.dumps(body)) for body in sent(st)][3::2]
        assert len(set(sizes)) == 1
        st.prove_exact()


async def test_a_result_says_how_it_ended() -> None:
    """Model, stop reason and seconds of the work."""
    async with stage() as st:
        result = await helper().run(st.run, "Hello")
        assert (result.model, result.stop_reason, result.sources) == (MODEL, "end_turn", ())
        assert result.seconds > 0
        cut = await helper(max_tokens=5).run(st.run, "[[sim:output=50]]")
        assert (cut.outcome, cut.stop_reason) == (Outcome.TRUNCATED, "max_tokens")


def test_citations_are_sources_with_their_claims() -> None:
    """Of the web, of search results and of documents; a page that was only found has no claim."""
    web = {"type": "web_search_result_location", "url": "https://a", "title": "A"}
    given = {"type": "search_result_location", "source": "kb/1", "title": "KB"}
    page = {"type": "page_location", "document_title": "Doc"}
    content = [
        {
            "type": "web_search_tool_result",
            "content": [{"type": "web_search_result", "url": "https://b", "title": "B"}],
        },
        {"type": "web_search_tool_result", "content": {"type": "web_search_tool_result_error"}},
        {
            "type": "web_fetch_tool_result",
            "content": {
                "type": "web_fetch_result",
                "url": "https://c",
                "content": {"type": "document", "title": None},
            },
        },
        {
            "type": "text",
            "text": "It is so.",
            "citations": [{**one, "cited_text": "so"} for one in (web, given, page)],
        },
        {"type": "text", "text": "Nothing.", "citations": None},
    ]
    claim = {"cited_text": "so", "claim": "It is so."}
    assert list(sources_of(content)) == [
        Source(title="B", url="https://b"),
        Source(title="", url="https://c"),
        Source(title="A", url="https://a", **claim),
        Source(title="KB", url="kb/1", **claim),
        Source(title="Doc", url="", **claim),
    ]


# ---- the journal --------------------------------------------------------------------------------------


async def test_a_tree_can_be_drawn_from_the_journal(tmp_path: Path) -> None:
    """Every event of a call, a tool and an agent says where it is, as a path within the ledger."""
    async with stage(folder=tmp_path) as st:

        async def delegate(task: str) -> str:
            """Ask another one."""
            return (await helper(name="inner").run(st.run, task, unit="part-1")).text

        outer = helper(name="outer", tools=[delegate])
        result = await outer.run(st.run, called("delegate", task="Hello"), unit="all")
        top = st.run.scope
        seen = [
            (one["event"], one["scope"], one.get("parent", ""), one["unit"])
            for one in events(st)
            if one["event"] in {"begin", "outcome", "tool", "hold", "settle"}
        ]
        inner = (f"{top}/outer/inner", "outer", "part-1")
        around = (f"{top}/outer", "", "all")
        assert seen == [
            ("begin", *around),
            ("hold", *around),
            ("settle", *around),
            ("begin", *inner),
            ("hold", *inner),
            ("settle", *inner),
            ("outcome", *inner),
            ("tool", *around),
            ("hold", *around),
            ("settle", *around),
            ("outcome", *around),
        ]
        last = [one for one in events(st) if one["event"] == "outcome"][-1]
        assert last["posted_nanos"] == result.tally.posted_nanos
        assert last["calls"] == 3
        assert last["model"] == MODEL
        assert last["input_tokens"] == result.tally.tokens["input_tokens"]


async def test_declines_say_where_they_happened(tmp_path: Path) -> None:
    """With the scope and the agent whose call it was."""
    async with stage(folder=tmp_path, cap="0.0000001") as st:
        await helper().run(st.run, "Hello", unit="doc")
        (event,) = [one for one in events(st) if one["event"] == "decline"]
        assert (event["agent"], event["unit"]) == ("helper", "doc")
        assert event["scope"] == f"{st.run.scope}/helper"


# ---- what is raised -----------------------------------------------------------------------------------


async def test_a_cancellation_carries_what_was_spent() -> None:
    """C-27: the figures of the calls that were answered are not lost with the agent."""
    begun = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with stage() as st:
        work = asyncio.create_task(helper(tools=[wait]).run(st.run, called("wait")))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await work
        tally = caught.value.tally  # type: ignore[attr-defined]
        assert isinstance(tally, Tally)
        assert tally.posted_nanos == st.sim.bill.nanos > 0
        assert "1 calls, $0.0000" in caught.value.__notes__[0]
        st.prove_exact()


@pytest.mark.parametrize("fault", ["html", "invalid_json"])
async def test_an_answer_that_can_not_be_read_is_in_doubt(fault: str) -> None:
    """It came with success, so it may have been billed; that is its outcome, not a fault of the caller's."""
    async with stage() as st:
        result = await helper().run(st.run, f"[[sim:fault={fault}]]")
        assert result.outcome is Outcome.IN_DOUBT
        assert result.tally.in_doubt_nanos > 0
        st.prove()


# ---- performers ---------------------------------------------------------------------------------------


def test_an_agent_is_a_performer() -> None:
    """So is anything with a name that does a task under a run; a function is not."""

    class Worker:
        name = "worker"

        async def run(self, run: Any, prompt: Any, **fields: Any) -> AgentResult:
            raise NotImplementedError

    performer: Performer = Agent(name="a", model=MODEL)
    assert isinstance(performer, Performer)
    assert isinstance(Worker(), Performer)
    assert not isinstance(add, Performer)
