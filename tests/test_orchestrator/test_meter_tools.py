"""Tool loops: every turn is metered, threads or not, and a decline inside a tool ends the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

from budgets import BudgetExceeded, Cap, Ledger, Unbounded, scope
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.wire import Allowances

from .metering import ask, rig, sync_rig

#: Three turns that call a tool, then an answer.
TURNS = "look it up [[sim:turns=3]][[sim:output=40]]"
THREAD: list[Any] = [{}, {"thread": False}]


@beta_async_tool
async def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: the word
    """
    return f"{word}: found"


@beta_tool
def look_up_sync(word: str) -> str:
    """Look a word up.

    Args:
        word: the word
    """
    return f"{word}: found"


@pytest.mark.parametrize("thread", THREAD, ids=["threads", "full bodies"])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_turn_is_on_the_bill(thread: dict[str, Any], stream: bool) -> None:
    """A tool runner's turns are calls with holds of their own, streamed or not, threaded or not."""
    async with rig(sim={"keep_calls": 9}) as on:
        runner = on.client.beta.messages.tool_runner(
            **ask(TURNS), tools=[look_up], stream=stream, **thread
        )
        turns = 0
        async for reply in runner:
            turns += 1
            if stream:
                async for _ in reply:
                    pass
        assert turns == 4
        assert on.kinds() == ["settle"] * 4
        on.prove_exact(requests=4)
        threaded = [b'"thread"' in call.body for call in on.sim.calls]
        assert threaded == [not thread] * 4


@pytest.mark.parametrize("thread", THREAD, ids=["threads", "full bodies"])
def test_every_turn_is_on_the_bill_sync(thread: dict[str, Any]) -> None:
    """The same for the sync client."""
    with sync_rig() as on:
        runner = on.client.beta.messages.tool_runner(**ask(TURNS), tools=[look_up_sync], **thread)
        runner.until_done()
        on.prove_exact(requests=4)


async def test_a_thread_is_held_for_all_that_it_contains() -> None:
    """Later turns send only what is new, and are held for the whole conversation."""
    async with rig() as on:
        text = "word " * 2_000 + TURNS
        runner = on.client.beta.messages.tool_runner(**ask(text), tools=[look_up])
        await runner.until_done()
        holds = [line.nanos for line in on.ledger.lines() if line.kind == "hold"]
        # The counter's figure of the first turn is what the later ones build on.
        assert all(later > 2_000 * 2_000 for later in holds)
        on.prove_exact(requests=4)


async def test_a_thread_of_another_meter_is_declined() -> None:
    """A thread begun elsewhere has no bound here, unless the caller vouches for it."""
    async with rig() as on:
        first = await on.client.beta.messages.create(
            **ask(), extra_body={"thread": {"type": "create"}}, betas=["message-threads-2026-08-12"]
        )
        goes_on = {"type": "continue", "previous_message_id": first.id}
        for allow, passes in ((None, False), (Allowances(unknown_threads=True), True)):
            meter = Meter(on.ledger, "app", allow=allow)
            client = on.client.with_options(middleware=[meter])
            call = client.beta.messages.create(
                **ask(), extra_body={"thread": goes_on}, betas=["message-threads-2026-08-12"]
            )
            if passes:
                await call
            else:
                with pytest.raises(Unbounded, match="thread"):
                    await call
        on.prove_exact(requests=2)


def _poor_tool(client: AsyncAnthropic, cap: str) -> Any:
    @beta_async_tool
    async def delegate(task: str) -> str:
        """Give a task to somebody else.

        Args:
            task: the task
        """
        with scope("helper", cap=cap):
            message = await client.messages.create(**ask(task))
        return str(message.content)

    return delegate


@pytest.mark.parametrize("thread", THREAD, ids=["threads", "full bodies"])
@pytest.mark.parametrize("same", [True, False], ids=["same meter", "another meter"])
async def test_a_decline_inside_a_tool_ends_the_loop(thread: dict[str, Any], same: bool) -> None:
    """The runner turns the exception into a tool result; the next turn raises it again (A-01)."""
    async with rig() as on:
        inner = on.client
        if not same:
            inner = on.client.with_options(middleware=[Meter(on.ledger, "app/other")])
        runner = on.client.beta.messages.tool_runner(
            **ask(TURNS), tools=[_poor_tool(inner, "0.00001")], **thread
        )
        with pytest.raises(BudgetExceeded) as caught:
            await runner.until_done()

        assert caught.value.cap.amount.normalize().as_tuple().digits == (1,)
        assert "helper" in caught.value.scope
        on.prove_exact(requests=1)  # the turn that asked for the tool, and no other


def test_a_decline_inside_a_tool_ends_the_loop_sync() -> None:
    """The same for the sync client."""
    with sync_rig() as on:
        client: Anthropic = on.client

        @beta_tool
        def delegate(task: str) -> str:
            """Give a task to somebody else.

            Args:
                task: the task
            """
            with scope("helper", cap="0.00001"):
                return str(client.messages.create(**ask(task)).content)

        runner = client.beta.messages.tool_runner(**ask(TURNS), tools=[delegate])
        with pytest.raises(BudgetExceeded, match="helper"):
            runner.until_done()
        on.prove_exact(requests=1)


async def test_a_conversation_may_go_on_when_its_cap_was_raised() -> None:
    """The swallowed decline is raised once; afterwards the ledger's word counts."""
    async with rig() as on:
        with scope("helper", cap="0.00001"), pytest.raises(BudgetExceeded) as caught:
            await on.client.messages.create(**ask())
        result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
        use = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {}}
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**result, "content": f"Error: {caught.value}"}]},
        ]
        tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
        with pytest.raises(BudgetExceeded) as again:
            await on.client.messages.create(**ask(messages=messages, tools=tools))
        assert again.value.id == caught.value.id

        await on.client.messages.create(**ask(messages=messages, tools=tools))
        on.prove_exact(requests=1)


async def test_a_text_about_a_decline_ends_nothing() -> None:
    """Only what a tool failed with counts: not a user's text, not a good result, no unknown id."""
    async with rig() as on:
        with scope("helper", cap="0.00001"), pytest.raises(BudgetExceeded) as caught:
            await on.client.messages.create(**ask())
        use = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {}}
        good = {"type": "tool_result", "tool_use_id": "t1", "content": caught.value.id}
        unknown = {
            "type": "tool_result",
            "tool_use_id": "t1",
            "is_error": True,
            "content": "decline-0123456789ab",
        }
        tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
        await on.client.messages.create(**ask(f"see {caught.value.id}"))
        for block in (good, unknown):
            messages = [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [block]},
            ]
            await on.client.messages.create(**ask(messages=messages, tools=tools))
        on.prove_exact(requests=3)


async def test_a_tool_may_call_under_a_gate_of_one() -> None:
    """A turn holds its slot for its HTTP call only, so its tools can call, five deep (R-09)."""
    async with rig(gate=Gate(width=1)) as on:

        def tool_at(depth: int) -> Any:
            @beta_async_tool
            async def deeper(word: str) -> str:
                """Go deeper.

                Args:
                    word: any word
                """
                if depth == 0:
                    return word
                runner = on.client.beta.messages.tool_runner(
                    **ask("[[sim:turns=1]][[sim:output=20]]"), tools=[tool_at(depth - 1)]
                )
                return str((await runner.until_done()).content)

            return deeper

        runner = on.client.beta.messages.tool_runner(
            **ask("[[sim:turns=1]][[sim:output=20]]"), tools=[tool_at(4)]
        )
        await runner.until_done()
        on.prove_exact(requests=10)


def test_a_tool_may_call_under_a_gate_of_one_sync() -> None:
    """The same for synchronous callers (R-10)."""
    with sync_rig(gate=Gate(width=1)) as on:

        @beta_tool
        def deeper(word: str) -> str:
            """Go deeper.

            Args:
                word: any word
            """
            return str(on.client.messages.create(**ask(word)).content)

        for _ in _replies(on.client, deeper):
            pass
        on.prove_exact(requests=5)


def _replies(client: Anthropic, tool: Any) -> Iterator[Any]:
    yield from client.beta.messages.tool_runner(
        **ask("[[sim:turns=2]][[sim:output=20]]"), tools=[tool], max_iterations=5
    )


async def test_the_cap_ends_a_loop_that_would_not_end() -> None:
    """A loop that calls a tool for ever spends its cap and no more (A-01, A-02)."""
    ledger = Ledger(caps=[Cap("0.03", scope="app")])
    async with rig(ledger=ledger) as on:
        runner = on.client.beta.messages.tool_runner(
            **ask("[[sim:turns=100000]][[sim:output=40]]"), tools=[look_up]
        )
        with pytest.raises(BudgetExceeded):
            await runner.until_done()
        assert 0 < on.sim.bill.nanos <= 30_000_000
        on.prove_exact()
