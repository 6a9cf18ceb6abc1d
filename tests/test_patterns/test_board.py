"""Board: findings that all agents post to and read, refused once the money is gone, and agents around it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from budgets.errors import BudgetExceeded
from budgets.reserves import drawing_on
from budgets.scopes import scope
from orchestrator.context import calling_as
from orchestrator.errors import ConfigError, RunStopped
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Cue, Fault, Faults
from orchestrator.tools import BadCall, tool
from patterns.board import board
from patterns.findings import Board
from tests.test_orchestrator.running import MODEL, Stage, helper, say, stage


def agent(name: str, **fields: Any) -> Any:
    return helper(**{"name": name, "system": f"You are {name}.", **fields})


def calls(who: str, name: str, given: dict[str, Any], times: int = 1) -> Cue:
    """A cue: this agent calls a tool once; its next turn ends."""
    return Cue(match=f"You are {who}.", say=f"[[sim:tool={name} {json.dumps(given)}]]", times=times)


def posts(who: str, topic: str, text: str, **fields: Any) -> Cue:
    return calls(who, "post_finding", {"topic": topic, "text": text, **fields})


async def _spent(st: Stage, place: str = "place", cap: str = "0.0005") -> None:
    """Use the money of a place up, until a call is declined there."""
    with scope(place, cap, kind="part"):
        for _ in range(100):
            try:
                await say(st.run, "Hello [[sim:output=90]]", max_tokens=100)
            except BudgetExceeded:
                return
    raise AssertionError("the cap never tripped")


# ---- the board ----------------------------------------------------------------------------------------


async def test_findings_are_kept_with_author_time_and_version() -> None:
    """The author is the agent that calls; a correction replaces, and nothing is lost."""
    async with stage() as st:
        shared = Board(st.run)
        with calling_as("scout"):
            first = shared.post("cellar", "It is wet.", ["https://one.example.com"])
        second = shared.post("cellar", "It is damp.", author="other", replaces=1)
        shared.post("roof", "It leaks.", author="other")
        assert (first.version, first.author, second.version) == (1, "scout", 2)
        assert [one.text for one in shared.history()] == ["It is wet.", "It is damp.", "It leaks."]
        assert [one.text for one in shared.findings("cellar")] == ["It is damp."]
        assert [one.version for one in shared.findings(since=2)] == [3]
        topics = shared.snapshot()["topics"]
        assert list(topics) == ["cellar", "roof"]
        assert json.loads(json.dumps(shared.snapshot()))["version"] == 3


async def test_the_same_finding_is_there_once() -> None:
    """Two agents that find the same make one finding."""
    async with stage() as st:
        shared = Board(st.run)
        assert shared.post("a", "x").version == shared.post("a", " x ").version == 1


@pytest.mark.parametrize(
    ("topic", "text", "sources", "replaces"),
    [
        ("", "x", [], 0),
        ("t" * 101, "x", [], 0),
        ("t", " ", [], 0),
        ("t", "x" * 51, [], 0),
        ("t", "x", ["s"] * 21, 0),
        ("t", "x", ["s" * 501], 0),
        ("t", "x", [], 9),
    ],
    ids=[
        "no topic",
        "long topic",
        "no text",
        "long text",
        "many sources",
        "long source",
        "unknown",
    ],
)
async def test_a_post_has_bounds(topic: str, text: str, sources: list[str], replaces: int) -> None:
    """The model is told which, and nothing is kept."""
    async with stage() as st:
        shared = Board(st.run, chars_max=50)
        with pytest.raises(BadCall):
            shared.post(topic, text, sources, replaces=replaces)
        assert shared.version == 0


async def test_a_full_board_says_so() -> None:
    """And takes no more."""
    async with stage() as st:
        shared = Board(st.run, findings_max=2)
        shared.post("a", "1")
        shared.post("a", "2")
        with pytest.raises(BadCall, match="full"):
            shared.post("a", "3")
        assert shared.version == 2


async def test_a_long_board_is_read_in_pieces() -> None:
    """Each read says where to go on; together they are all, once each."""
    async with stage() as st:
        shared = Board(st.run)
        for number in range(40):
            shared.post("a", f"{number} " + "x" * 2_000)
        found: list[int] = []
        since, more = 0, True
        while more:
            got = shared.read(since=since)
            assert len(json.dumps(got)) < 30_000
            found += [one["version"] for one in got["findings"]]
            since, more = got["version"], got["more"]
        assert found == list(range(1, 41))


async def test_many_threads_may_post_at_once() -> None:
    """Versions have no gaps and no doubles."""
    async with stage() as st:
        shared = Board(st.run)

        def post(who: int) -> None:
            for number in range(50):
                shared.post("a", f"{who}-{number}", author=str(who))

        threads = [threading.Thread(target=post, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.version for one in shared.history()] == list(range(1, 401))


async def test_a_kept_board_goes_on_where_it_was(tmp_path: Path) -> None:
    """It lies beside the journal; a line that a crash cut off is passed over; the journal names each finding."""
    async with stage(folder=tmp_path) as st:
        shared = Board(st.run, keep=True)
        shared.post("a", "Ärger", ["s"], author="scout")
        assert shared.path is not None
        with shared.path.open("a") as file:
            file.write('{"version": 2, "te')
        again = Board(st.run, keep=True)
        assert [(one.author, one.text, one.sources) for one in again.history()] == [
            ("scout", "Ärger", ("s",))
        ]
        path = st.run.folder.journal
        assert path is not None
        st.run.journal.flush()
        events = [event for event in read_journal(path) if event["event"] == "finding"]
        assert [(event["agent"], event["topic"], event["version"]) for event in events] == [
            ("scout", "a", 1)
        ]
        assert "Ärger" not in path.read_text(encoding="utf-8")


async def test_a_torn_line_does_not_swallow_the_next_finding(tmp_path: Path) -> None:
    """What is posted after a crash has a line of its own."""
    async with stage(folder=tmp_path) as st:
        shared = Board(st.run, keep=True)
        shared.post("a", "one")
        assert shared.path is not None
        with shared.path.open("a") as file:
            file.write('{"version": 2, "te')
        Board(st.run, keep=True).post("a", "two")
        assert [one.text for one in Board(st.run, keep=True).history()] == ["one", "two"]


@pytest.mark.parametrize(
    "fields", [{"findings_max": 0}, {"chars_max": 0}, {"keep": True}], ids=["most", "chars", "keep"]
)
async def test_a_board_that_can_not_be_is_refused(fields: dict[str, Any]) -> None:
    """A bound below 1, or a file where the run has no folder."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="board"):
            Board(st.run, **fields)


# ---- money --------------------------------------------------------------------------------------------


async def test_once_the_money_is_gone_it_refuses_and_keeps_what_is_posted() -> None:
    """Reads are refused; a post is kept, since it is paid for, and then refused: both end the loop."""
    async with stage() as st:
        shared = Board(st.run)
        post, read, topics = (tool(one) for one in shared.tools())
        await _spent(st)
        with scope("place", kind="part"):
            for one, given in (
                (post, {"topic": "a", "text": "last words"}),
                (read, {}),
                (topics, {}),
            ):
                with pytest.raises(BudgetExceeded, match="finish now"):
                    await one.call(given)
        assert [one.text for one in shared.history()] == ["last words"]
        assert "posted" in str(await post.call({"topic": "a", "text": "elsewhere there is money"}))


async def test_a_refusal_ends_our_own_loop_as_budget() -> None:
    """No model is asked what to do about it."""
    async with stage(sim={"cues": (calls("scout", "read_late", {}),)}) as st:
        read = tool(Board(st.run).tools()[1])
        begun, spent = asyncio.Event(), asyncio.Event()

        async def read_late() -> str:
            """Read when the money is gone."""
            begun.set()
            await spent.wait()
            return str(await read.call({}))

        with scope("place", kind="part"):
            work = asyncio.create_task(agent("scout", tools=[read_late]).run(st.run, "Look."))
        await begun.wait()
        await _spent(st)
        spent.set()
        ended = await work
        assert (ended.outcome, ended.turns) == (Outcome.BUDGET, 1)
        assert "finish now" in ended.reason
        st.prove_exact()


async def test_a_refusal_ends_a_loop_that_swallows_it() -> None:
    """A tool runner sends it to the model: the next call raises it again."""
    async with stage() as st:
        shared = Board(st.run)
        read = tool(shared.tools()[1])
        await _spent(st)
        with scope("place", kind="part"), pytest.raises(BudgetExceeded) as caught:
            await read.call({})
        conversation = [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "read_findings", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": str(caught.value),
                        "is_error": True,
                    }
                ],
            },
        ]
        before = st.sim.bill.requests
        with pytest.raises(BudgetExceeded):
            await st.run.client.messages.create(
                model=MODEL, max_tokens=10, messages=conversation, tools=[read.definition]
            )
        assert st.sim.bill.requests == before


async def test_who_draws_on_a_reserve_may_still_read() -> None:
    """The closing call has money of its own."""
    async with stage() as st:
        shared = Board(st.run)
        shared.post("a", "found")
        read = tool(shared.tools()[1])
        with scope("place", "0.0008", kind="part"):
            reserve = await st.run.reserve("0.0002")
        await _spent(st, cap="0.0008")
        with scope("place", kind="part"), drawing_on(reserve):
            assert "found" in str(await read.call({}))


async def test_in_a_stopped_run_it_raises() -> None:
    """So that the loop ends; what was posted is kept."""
    async with stage() as st:
        shared = Board(st.run)
        st.run.stop("enough")
        with pytest.raises(RunStopped):
            await tool(shared.tools()[0]).call({"topic": "a", "text": "late"})
        assert shared.version == 1


# ---- agents around it ---------------------------------------------------------------------------------


async def test_agents_work_around_a_board_until_one_concludes() -> None:
    """Findings of one round are there for all in the next; the conclusion is the value."""
    cues = (
        posts("historian", "cellar", "It was always wet.", sources=["The chronicle"]),
        posts("surveyor", "drain", "It is blocked."),
        calls("historian", "conclude", {"answer": "The drain is blocked."}),
    )
    async with stage(sim={"cues": cues, "keep_calls": 20}) as st:
        pair = [agent("historian"), agent("surveyor")]
        done = await board(st.run, pair, "Why is the cellar wet?", rounds=3)
        assert {one.author for one in done.findings} == {"historian", "surveyor"}
        assert done.concluded_by in {"", "historian"}
        assert done.ok
        assert done.posted_nanos == st.run.balance.posted_nanos
        assert all(part.name in {"historian", "surveyor"} for part in done.parts)
        st.prove_exact()


async def test_the_conclusion_is_the_value() -> None:
    """Who said it is known, and no further round begins."""
    cues = (calls("historian", "conclude", {"answer": "It is the drain."}),)
    async with stage(sim={"cues": cues}) as st:
        done = await board(st.run, [agent("historian"), agent("surveyor")], "Why?", rounds=5)
        assert (done.value, done.concluded_by, done.rounds) == ("It is the drain.", "historian", 1)
        assert done.ok


async def test_a_round_without_news_ends_it() -> None:
    """Nobody has anything to add: the findings by topic are the value."""
    async with stage(sim={"cues": (posts("historian", "cellar", "Wet."),)}) as st:
        done = await board(st.run, [agent("historian")], "Why?", rounds=9)
        assert (done.ok, done.rounds) == (True, 2)
        assert list(done.value) == ["cellar"]
        assert [part.item for part in done.parts] == [1, 2]


async def test_a_condition_says_when_it_is_done() -> None:
    """It sees the board after each round; if it never says so, the work is stalled."""
    sim = {"cues": (posts("historian", "cellar", "Wet."),)}
    async with stage(sim=sim) as st:
        done = await board(
            st.run,
            [agent("historian")],
            "Why?",
            done=lambda on: "cellar" in on.snapshot()["topics"],
        )
        assert (done.ok, done.rounds) == (True, 1)
    async with stage(sim=sim) as st:
        never = await board(st.run, [agent("historian")], "Why?", done=lambda on: False)
        assert (never.outcome, never.rounds) == (Outcome.STALLED, 2)
        assert "nothing new" in never.reason


async def test_a_failed_agent_is_a_part_and_the_others_go_on() -> None:
    """Its outcome is in the result."""
    cues = (Cue(match="You are surveyor.", say="[[sim:refuse]]", times=0),)
    async with stage(sim={"cues": cues}) as st:
        done = await board(st.run, [agent("historian"), agent("surveyor")], "Why?", rounds=2)
        assert [part.outcome.value for part in done.parts] == ["ok", "refusal"]
        assert done.outcome is Outcome.REFUSAL


async def test_cancelling_leaks_nothing() -> None:
    """Turns under way are cancelled; what was posted stays on the board."""
    sim = {"cues": (posts("historian", "a", "x"),), "faults": Faults([None, Fault(kind="hang")])}
    async with stage(sim=sim) as st:
        shared = Board(st.run)
        work = asyncio.create_task(board(st.run, [agent("historian")], "Why?", on=shared))
        await st.sim.arrived(2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert shared.version == 1
        st.prove()


async def test_a_plan_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Each agent once a round; nothing is sent."""
    async with stage() as st:
        done = await board(st.run, [agent("historian")], "Why?", rounds=4, plan_only=True, cap="1")
        assert "historian x4" in capsys.readouterr().out
        assert done.plan is not None
        assert st.sim.bill.requests == 0


@pytest.mark.parametrize(
    ("agents", "rounds"),
    [([], 1), ([agent("a"), agent("a")], 1), ([agent("a")], 0)],
    ids=["none", "twice", "rounds"],
)
async def test_a_callers_mistake_is_one_sentence(agents: list[Any], rounds: int) -> None:
    """It is said before anything is spent."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="board"):
            await board(st.run, agents, "Why?", rounds=rounds)


@pytest.mark.slow
async def test_overshoot_is_zero_with_500_agents_and_failures() -> None:
    """By the server's own bill, under a cap that carries some of them only; no post is lost."""
    faults = Faults([], seed=5, rates={"overloaded": 0.05, "reset": 0.02})
    cues = tuple(posts(f"agent-{n:03}", "a", f"Finding {n}") for n in range(0, 500, 2))
    async with stage(sim={"cues": cues, "faults": faults}, cap="3") as st:
        crowd = [agent(f"agent-{n:03}") for n in range(500)]
        done = await board(st.run, crowd, "Why?", rounds=1, cap="0.02")
        assert 0 < done.outcomes["ok"] < 500
        assert done.outcome is Outcome.BUDGET
        assert len(done.findings) > 10
        st.prove()
        assert st.sim.bill.nanos <= 20_000_000
        assert done.posted_nanos + done.in_doubt_nanos <= 20_000_000


# ---- workers of the Agent SDK -------------------------------------------------------------------------


async def test_it_is_served_to_workers_of_the_agent_sdk() -> None:
    """The tools work over MCP: posts have the worker's name, mistakes and refusals are errors of the tool."""
    pytest.importorskip("claude_agent_sdk")
    mcp = pytest.importorskip("mcp")
    async with stage() as st:
        shared = Board(st.run)
        with scope("place", "0.0005", kind="part"):
            server = shared.sdk_server("worker-1")
        assert (server["type"], server["name"]) == ("sdk", "board")
        async with mcp.Client(server["instance"]) as session:
            listed = await session.list_tools()
            assert [one.name for one in listed.tools] == [
                "post_finding",
                "read_findings",
                "list_topics",
            ]
            told = await session.call_tool("post_finding", {"topic": "a", "text": "found"})
            assert "version 1" in told.content[0].text
            assert shared.history()[0].author == "worker-1"
            wrong = await session.call_tool("post_finding", {"topic": "a", "text": ""})
            assert _failed(wrong)
            await _spent(st)
            refused = await session.call_tool("read_findings", {})
            assert _failed(refused)
            assert "finish now" in refused.content[0].text


def _failed(result: Any) -> bool:
    return bool(getattr(result, "is_error", None) or getattr(result, "isError", False))


async def test_without_the_agent_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one sentence, with the extra by name."""
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    async with stage() as st:
        with pytest.raises(ConfigError, match=r"earmark\[agents\]"):
            Board(st.run).sdk_server("worker")
