"""Tool calls in an agent's loop: approvals, breakers, limits, repetition, and the provider's own tools."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import AgentResult
from orchestrator.approvals import ApprovalRequest
from orchestrator.breakers import Breakers
from orchestrator.errors import ConfigError
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.server_tools import TOKENS_PER_SEARCH, code_execution, web_fetch, web_search
from orchestrator.tools import BadCall, Tool, tool
from orchestrator.wire import Allowances, Uses

from .answering import answered, message
from .gate_clock import ManualClock
from .running import Stage, helper, say, stage

SECRET = "sk-not-for-the-journal"


@tool(needs_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


def called(name: str, /, **given: Any) -> str:
    return f"[[sim:tool={name} {json.dumps(given)}]]"


def results(result: AgentResult) -> list[dict[str, Any]]:
    return [
        block
        for message in result.messages
        if message["role"] == "user" and isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def events(st: Stage, kind: str) -> list[dict[str, Any]]:
    assert st.run.folder.journal is not None
    st.run.journal.flush()
    return [one for one in read_journal(st.run.folder.journal) if one["event"] == kind]


# ---- approvals ----------------------------------------------------------------------------------------


async def _later(verdict: Any) -> Any:
    await asyncio.sleep(0)
    return verdict


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("verdict", "told", "failed"),
    [
        (True, "a.txt is gone", False),
        (False, "was refused", True),
        ("not on a Sunday", "refused: not on a Sunday", True),
        (None, "was refused", True),
    ],
    ids=str,
)
async def test_a_tool_that_needs_approval_asks_first(
    verdict: Any, told: str, failed: bool, later: bool, tmp_path: Path
) -> None:
    """A yes lets it through; a no, with its reason, is told to the model, and the loop goes on."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Any:
        asked.append(request)
        return _later(verdict) if later else verdict

    async with stage(approve=approve, folder=tmp_path) as st:
        result = await helper(tools=[delete]).run(
            st.run, called("delete", path="a.txt"), unit="doc-1"
        )
        assert result.outcome is Outcome.OK
        (given,) = results(result)
        assert told in given["content"]
        assert given["is_error"] is failed
        (request,) = asked
        assert (request.agent, request.tool, request.unit) == ("helper", "delete", "doc-1")
        assert request.arguments == {"path": "a.txt"}
        assert request.scope == f"{st.run.scope}/helper"
        assert request.spent > 0
        (event,) = events(st, "approval")
        assert event["verdict"] == ("refused" if failed else "approved")
        st.prove_exact()


async def test_nobody_to_ask_is_a_no() -> None:
    """A tool that needs approval is never called by default."""
    async with stage() as st:
        result = await helper(tools=[delete]).run(st.run, called("delete", path="a"))
        assert "nobody can be asked" in results(result)[0]["content"]


async def test_an_approval_that_fails_is_a_no() -> None:
    """The model is told so, without what went wrong inside."""

    def approve(request: ApprovalRequest) -> bool:
        raise KeyError(SECRET)

    async with stage(approve=approve) as st:
        result = await helper(tools=[delete]).run(st.run, called("delete", path="a"))
        told = results(result)[0]["content"]
        assert "could not be asked for (KeyError)" in told
        assert SECRET not in told


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("raised", [StopIteration(), asyncio.CancelledError(), TimeoutError()])
async def test_an_approval_that_ends_oddly_is_a_no(raised: BaseException, later: bool) -> None:
    """Nothing hangs, nobody is cancelled, and the tool is not called."""

    def approve(request: ApprovalRequest) -> Any:
        raise raised

    async def approve_later(request: ApprovalRequest) -> Any:
        return approve(request)

    async with stage(approve=approve_later if later else approve) as st:
        work = helper(tools=[delete]).run(st.run, called("delete", path="a"))
        result = await asyncio.wait_for(work, 10)
        assert result.outcome is Outcome.OK
        assert results(result)[0]["is_error"] is True
        assert "so it was not called" in results(result)[0]["content"]
        st.prove_exact()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("raised", [StopIteration(), asyncio.CancelledError(), TimeoutError()])
async def test_a_tool_that_ends_oddly_fails_alone(raised: BaseException, later: bool) -> None:
    """A ``next`` without a default in a plain function, say: the model hears of it, and nothing hangs."""

    def odd() -> str:
        """Be odd."""
        raise raised

    async def odd_later() -> str:
        return odd()

    made = tool(odd_later if later else odd, name="odd", description="Be odd.")
    async with stage() as st:
        result = await asyncio.wait_for(helper(tools=[made]).run(st.run, called("odd")), 10)
        assert result.outcome is Outcome.OK
        assert results(result)[0]["is_error"] is True
        st.prove_exact()


async def test_calls_with_the_same_id_are_answered_one_by_one() -> None:
    """Whatever a model, or something in between, has numbered twice: each has its own result."""
    twice = [
        {"type": "tool_use", "id": "t1", "name": "delete", "input": {"path": path}}
        for path in ("a", "b")
    ]
    body = message(content=twice, stop_reason="tool_use")
    async with answered(body, approve=lambda _: True) as (run, arrived):
        result = await helper(tools=[delete], max_turns=2).run(run, "Hello")
        assert result.outcome is Outcome.STALLED
        told = arrived[1]["messages"][-1]["content"]
        assert [one["content"] for one in told] == ["a is gone", "b is gone"]


async def test_an_agents_own_approval_comes_first() -> None:
    """The run's stands in for agents without one."""
    async with stage(approve=lambda _: False) as st:
        agent = helper(tools=[delete], approve=lambda _: True)
        result = await agent.run(st.run, called("delete", path="a"))
        assert results(result)[0]["is_error"] is False


async def test_nobody_is_asked_about_a_call_that_can_not_be_made() -> None:
    """Arguments are checked before a person is bothered."""
    async with stage(approve=lambda _: pytest.fail("asked")) as st:
        result = await helper(tools=[delete]).run(st.run, called("delete", where="a"))
        assert "don't fit" in results(result)[0]["content"]


async def test_arguments_are_in_no_journal(tmp_path: Path) -> None:
    """They may hold secrets; nor are they in what is printed of a request."""
    seen: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(repr(request))
        return False

    async with stage(approve=approve, folder=tmp_path) as st:
        await helper(tools=[delete]).run(st.run, called("delete", path=SECRET))
        assert st.run.folder.journal is not None
        st.run.journal.flush()
        assert SECRET not in st.run.folder.journal.read_text() + seen[0]


async def test_a_policy_that_is_out_of_money_ends_the_loop() -> None:
    """A verdict by a model of its own is a call like any other."""
    async with stage(cap="0.0008") as st:

        async def approve(request: ApprovalRequest) -> bool:
            for _ in range(100):
                await say(st.run)
            return True

        agent = helper(tools=[delete], approve=approve)
        result = await agent.run(st.run, called("delete", path="a"))
        assert (result.outcome, result.turns) == (Outcome.BUDGET, 1)
        st.prove_exact()


# ---- breakers -----------------------------------------------------------------------------------------


class Flaky:
    """A tool that fails until it is mended."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_broken = True
        self.error: Exception = OSError("the disk is gone")

    def __call__(self, number: int) -> str:
        self.calls += 1
        if self.is_broken:
            raise self.error
        return "fine"

    @property
    def tool(self) -> Tool:
        return tool(self, name="flaky", description="Work, sometimes.")


async def use(st: Stage, flaky: Flaky, number: int, name: str = "helper") -> dict[str, Any]:
    """One call of the tool by an agent; its result."""
    agent = helper(name=name, tools=[flaky.tool])
    return results(await agent.run(st.run, called("flaky", number=number)))[0]


async def test_a_failing_tool_is_out_for_a_while(tmp_path: Path) -> None:
    """After k failures in a row it is not called, for any agent of the run; then one call tries it."""
    clock, flaky = ManualClock(), Flaky()
    breakers = Breakers(failures=3, rest_s=60, clock=clock)
    async with stage(breakers=breakers, folder=tmp_path) as st:
        for number in range(3):
            assert "disk" in (await use(st, flaky, number, f"a{number}"))["content"]
        out = await use(st, flaky, 3, "another")
        assert "out for another 60 s" in out["content"]
        assert out["is_error"] is True
        assert flaky.calls == 3
        clock.advance(60)
        assert "disk" in (await use(st, flaky, 4))["content"]
        assert "is out" in (await use(st, flaky, 5))["content"]
        clock.advance(60)
        flaky.is_broken = False
        assert (await use(st, flaky, 6))["content"] == "fine"
        assert (await use(st, flaky, 7))["content"] == "fine"
        assert flaky.calls == 6
        assert [one.get("why") for one in events(st, "tool")] == [
            *["OSError"] * 3,
            "out",
            "OSError",
            "out",
            None,
            None,
        ]


async def test_the_definition_of_a_tool_that_is_out_stays() -> None:
    """Taking it out of the request would break the cached prefix."""
    async with stage(breakers=Breakers(failures=1), sim={"keep_calls": 9}) as st:
        agent = helper(tools=[Flaky().tool], same_calls=9)
        await agent.run(st.run, called("flaky", number=1) + "[[sim:turns=3]]")
        sent = [json.loads(one.body) for one in st.sim.calls if one.path == "/v1/messages"]
        assert len({json.dumps(body["tools"]) for body in sent}) == 1
        assert len(sent) == 4


@pytest.mark.parametrize("error", [BadCall("no such file"), ConfigError("a mistake")])
async def test_what_is_not_the_tools_fault_is_not_counted(error: Exception) -> None:
    """A call that its caller can mend, and errors of ours."""
    flaky = Flaky()
    flaky.error = error
    async with stage(breakers=Breakers(failures=1)) as st:
        for number in range(3):
            await use(st, flaky, number)
        assert flaky.calls == 3


async def test_bad_arguments_and_declines_are_not_counted() -> None:
    """Only what the function itself does counts."""
    flaky = Flaky()
    flaky.is_broken = False
    async with stage(breakers=Breakers(failures=1)) as st:
        agent = helper(tools=[flaky.tool])
        for _ in range(3):
            await agent.run(st.run, called("flaky", number="x"))
        assert (await use(st, flaky, 1))["content"] == "fine"


async def test_a_success_in_between_starts_the_count_anew() -> None:
    """Failures in a row, not failures."""
    flaky = Flaky()
    async with stage(breakers=Breakers(failures=2)) as st:
        for broken in (True, False, True, False, True):
            flaky.is_broken = broken
            await use(st, flaky, flaky.calls)
        assert flaky.calls == 5


async def test_only_one_call_tries_a_tool_again() -> None:
    """And a try that is given up leaves the next one free to try."""
    clock = ManualClock()
    breaker = Breakers(failures=1, rest_s=10, clock=clock).of("x", print)
    assert breaker.out_s() == 0
    breaker.failed()
    assert breaker.out_s() == 10
    clock.advance(10)
    assert breaker.out_s() == 0
    assert breaker.out_s() > 0
    breaker.gave_up()
    assert breaker.out_s() == 0
    breaker.succeeded()
    assert breaker.out_s() == 0


def test_a_breaker_goes_with_its_function() -> None:
    """Functions that are made for one call (a handoff's, say) are not kept for the length of a run."""
    breakers = Breakers(failures=1)

    def made() -> Any:
        big = bytearray(1_000)
        return lambda: len(big)

    kept = made()
    for _ in range(100):
        breakers.of("once", made()).failed()
        breakers.of("kept", kept).failed()
    gc.collect()
    assert breakers.count == 1
    assert breakers.of("kept", kept).out_s() > 0


def test_a_method_has_one_breaker_however_often_it_is_looked_up() -> None:
    """Two agents with the same method of the same object share it; another object has its own."""

    class Shop:
        def find(self) -> None: ...

    one, other = Shop(), Shop()
    breakers = Breakers(failures=1)
    breakers.of("find", one.find).failed()
    gc.collect()
    assert breakers.of("find", one.find).out_s() > 0
    assert breakers.of("find", other.find).out_s() == 0


@pytest.mark.parametrize("fields", [{"failures": 0}, {"rest_s": -1}])
def test_a_breaker_without_bounds_is_a_mistake(fields: dict[str, Any]) -> None:
    """Said when it is made."""
    with pytest.raises(ConfigError):
        Breakers(**fields)


# ---- repetition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_calls", [3, 6])
async def test_a_failing_call_repeated_ends_the_loop(same_calls: int) -> None:
    """A-01: also beyond the point where its breaker answers in the tool's place."""
    async with stage() as st:
        agent = helper(tools=[Flaky().tool], same_calls=same_calls, max_turns=50)
        result = await agent.run(st.run, called("flaky", number=1) + "[[sim:turns=50]]")
        assert result.outcome is Outcome.STALLED
        assert result.turns <= same_calls + 3
        st.prove_exact()


async def test_parallel_calls_that_repeat_end_the_loop_too() -> None:
    """Each of several calls of one reply is looked at; one that repeats among others is enough."""
    count = iter(range(100))

    def poll() -> int:
        """Look again."""
        return next(count)

    async with stage() as st:
        agent = helper(tools=[Flaky().tool, poll], same_calls=3, max_turns=50)
        prompt = called("poll") + called("flaky", number=1) + "[[sim:turns=50]]"
        result = await agent.run(st.run, prompt)
        assert (result.outcome, result.turns) == (Outcome.STALLED, 3)
        assert "flaky was called 3 times alike" in result.reason


async def test_the_reason_says_what_repetition_cost() -> None:
    """A-02: 220 identical calls with a context of 200k each are money, not just calls."""

    def fixed() -> str:
        """Say the same."""
        return "same"

    async with stage() as st:
        agent = helper(tools=[fixed], same_calls=3, max_turns=9)
        result = await agent.run(st.run, called("fixed") + "[[sim:turns=9]][[sim:output=100]]")
        assert "was spent on it since" in result.reason
        amount = result.reason.partition("$")[2].partition(" ")[0]
        assert 0 < float(amount) < float(result.cost)


# ---- limits of one call -------------------------------------------------------------------------------


async def test_a_long_result_is_cut_with_a_mark() -> None:
    """It is paid for in every further turn."""

    @tool(result_chars=50)
    def long() -> str:
        """Say much."""
        return "x" * 120

    assert await long.call({}) == "x" * 50 + (
        "\n[cut: 50 of 120 characters are shown; ask for less at a time]"
    )
    assert len(str(await tool(long, result_chars=500).call({}))) == 120


async def test_blocks_go_out_as_blocks() -> None:
    """Text and images side by side; the text shares the limit."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}

    @tool(result_chars=10)
    def look() -> list[dict[str, Any]]:
        """Look."""
        return [{"type": "text", "text": "12345678"}, image, {"type": "text", "text": "90abcdef"}]

    blocks = await look.call({})
    assert isinstance(blocks, list)
    assert [one["type"] for one in blocks] == ["text", "image", "text"]
    assert blocks[1] == image
    assert blocks[2]["text"].startswith("90\n[cut: 2 of 8")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_slow_tool_is_not_waited_for(asynchronous: bool) -> None:
    """The model is told, and the agent goes on."""
    import time

    def slow() -> str:
        """Take long."""
        time.sleep(0.3)
        return "late"

    async def slower() -> str:
        """Take longer."""
        await asyncio.Event().wait()
        return "never"

    made = tool(slower if asynchronous else slow, name="slow", timeout_s=0.05)
    async with stage() as st:
        result = await helper(tools=[made]).run(st.run, called("slow"))
        assert result.outcome is Outcome.OK
        assert "slow did not end in 0.05 s" in results(result)[0]["content"]


def test_a_decorated_function_can_still_be_called() -> None:
    """The decorator takes nothing away."""
    assert delete(path="a") == "a is gone"
    assert delete.needs_approval
    renamed = tool(delete, name="remove", description="Remove it.", needs_approval=False)
    assert (renamed.definition["name"], renamed.needs_approval) == ("remove", False)
    assert renamed.schema == delete.schema


@pytest.mark.parametrize("fields", [{"timeout_s": 0}, {"result_chars": 0}, {"name": "no good"}])
def test_bad_limits_are_said_at_once(fields: dict[str, Any]) -> None:
    """Before any call."""

    def fine() -> None:
        """Do nothing."""

    with pytest.raises(ConfigError):
        tool(fine, **fields)


# ---- the provider's own tools -------------------------------------------------------------------------


async def test_a_search_passes_on_the_callers_word() -> None:
    """It is held for, marked in the ledger as the caller's word, and billed to the cent."""
    async with stage(cap="20") as st:
        agent = helper(name="searcher", tools=[web_search(max_uses=3)])
        result = await agent.run(st.run, "Find it [[sim:searches=2]]")
        assert result.outcome is Outcome.OK
        hold, _ = st.run.ledger.lines()
        assert hold.note["caller_word"] == ["web_search_tokens"]
        assert hold.nanos > 3 * (10_000_000 + TOKENS_PER_SEARCH * 100)
        st.prove_exact()


async def test_the_word_is_for_that_agent_alone() -> None:
    """Another agent that brings the bare tool is declined as before."""
    bare = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    async with stage(cap="20") as st:

        async def delegate() -> str:
            """Ask another one."""
            inner = await helper(name="inner", extra={"tools": [bare]}).run(st.run, "Hello")
            return inner.reason

        agent = helper(tools=[web_search(max_uses=1), delegate])
        result = await agent.run(st.run, called("delegate"))
        assert "Allowances(web_search_tokens" in results(result)[0]["content"]


async def test_a_dearer_search_than_said_is_an_overrun() -> None:
    """The word was wrong: it is posted all the same, and the alarm is raised."""
    async with stage(cap="20") as st:
        made = web_search(max_uses=1, tokens_per_search=1)
        agent = helper(tools=[made], max_tokens=1)
        await agent.run(st.run, "Find it [[sim:searches=1]][[sim:search_tokens=900000]]")
        assert len(st.run.ledger.check().overruns) == 1


@pytest.mark.parametrize(
    "made",
    [
        web_search(max_uses=2, allowed_domains=["example.com"], user_location={"type": "x"}),
        web_search(max_uses=2, code=Uses(uses=2, tokens=1_000)),
        web_fetch(max_uses=2, max_content_tokens=5_000),
        web_fetch(max_uses=2, max_content_tokens=5_000, blocked_domains=["example.com"]),
        code_execution(max_uses=2, tokens_per_use=1_000),
    ],
    ids=lambda made: str(sorted(made.definition)),
)
async def test_each_has_a_bound(made: Any) -> None:
    """Every one of them is admitted as it stands, without further words of the run's."""
    async with stage(cap="50") as st:
        result = await helper(tools=[made]).run(st.run, "Hello")
        assert result.outcome is Outcome.OK, result.reason
        hold, _ = st.run.ledger.lines()
        assert hold.note["caller_word"]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_uses": 0},
        {"max_uses": 1, "tokens_per_search": 0},
        {"max_uses": 1, "allowed_domains": ["a"], "blocked_domains": ["b"]},
    ],
    ids=str,
)
def test_a_bound_that_is_none_is_said_at_once(fields: dict[str, Any]) -> None:
    """When the tool is made."""
    with pytest.raises(ValueError):
        web_search(**fields)


async def test_what_was_found_are_sources() -> None:
    """Pages that a search found, each once; the blocks go back to the provider unchanged."""
    async with stage(cap="20", sim={"keep_calls": 9}) as st:
        agent = helper(tools=[web_search(max_uses=3), delete], max_turns=2)
        result = await agent.run(st.run, "Find it [[sim:searches=2]]" + called("delete", path="x"))
        (source,) = result.sources
        assert (source.url, source.title) == (
            "https://simulated.example.com/",
            "Simulated result",
        )
        sent = [json.loads(one.body) for one in st.sim.calls if one.path == "/v1/messages"]
        kinds = [block["type"] for block in sent[-1]["messages"][1]["content"]]
        assert kinds[:2] == ["server_tool_use", "web_search_tool_result"]


async def test_the_runs_own_allowances_still_count() -> None:
    """A tool's word is added to them."""
    async with stage(cap="20", allow=Allowances(web_search_tokens=2_000)) as st:
        fetch = web_fetch(max_uses=1, max_content_tokens=1_000)
        bare = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
        result = await helper(tools=[fetch], extra={"tools": [bare]}).run(st.run, "Hello")
        assert result.outcome is Outcome.OK, result.reason
