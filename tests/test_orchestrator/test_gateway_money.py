"""Caps at the gateway: nothing passes them, what is held is waited for, and a no says which cap and until when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from budgets import Cap
from orchestrator.gateway import Limits
from orchestrator.wire import Allowances

from .gatewaying import ask, rig

#: The bound of ``ask()`` is below a cent; its cost is 518,000 nano-dollars.
SUBAGENT = {"x_claude_code_session_id": "s", "x_claude_code_agent_id": "a"}


async def test_out_of_money_is_402_in_the_apis_own_form() -> None:
    """The body names the cap and when it opens again, nothing was sent, and it is not to be tried again."""
    async with rig(caps=(Cap("0.001", per="day", scope="app"),)) as on:
        lease = on.gateway.lease("app")
        status, body, headers = await on.post(lease, ask())
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()

        assert (status, body["type"], body["error"]["type"]) == (402, "error", "billing_error")
        assert "$0.001 per day (UTC) on scope 'app'" in body["error"]["message"]
        assert f"opens again at {tomorrow}" in body["error"]["message"]
        assert body["error"]["details"]["error_code"] == "earmark_cap"
        assert body["error"]["details"]["reopens_at"].startswith(tomorrow)
        assert headers["x-should-retry"] == "false"
        assert headers["x-earmark"] == "cap"
        assert on.sim.bill.requests == 0
        assert lease.figures().declined == 1


async def test_a_subagent_hears_429_and_no_retry() -> None:
    """So that its parent keeps what it had written so far."""
    async with rig(caps=(Cap("0.001", scope="app"),)) as on:
        status, body, headers = await on.post(on.gateway.lease("app"), ask(), **SUBAGENT)

        assert (status, body["error"]["type"]) == (429, "rate_limit_error")
        assert headers["x-should-retry"] == "false"


async def test_a_call_waits_while_only_held_money_is_in_the_way() -> None:
    """The second call goes when the first has settled; neither is declined."""
    async with rig(caps=(Cap("0.006", scope="app"),)) as on:
        lease = on.gateway.lease("app")
        slow = asyncio.create_task(on.post(lease, ask("[[sim:delay=300]][[sim:output=9]]")))
        await on.sim.arrived(1)
        second = await on.post(lease, ask("[[sim:output=9]]"))

        assert (second[0], (await slow)[0]) == (200, 200)
        on.prove_exact()


async def test_a_wait_has_an_end() -> None:
    """What does not come free in time is a 429 that may be tried again, and says which cap is in the way."""
    async with rig(caps=(Cap("0.006", scope="app"),), limits=Limits(wait_s=0.1, stop_s=0.2)) as on:
        lease = on.gateway.lease("app")
        hanging = asyncio.create_task(on.post(lease, ask("[[sim:delay=60000]]")))
        await on.sim.arrived(1)
        status, body, headers = await on.post(lease, ask())

        assert (status, headers["retry-after"]) == (429, "10")
        assert "'app'" in body["error"]["message"]
        assert "only held money is in the way" in body["error"]["message"]
        hanging.cancel()


async def test_no_patience_at_all_is_no_decline() -> None:
    """With nothing to wait for a call goes, however little it may wait; with held money in the way it hears so soon."""
    async with rig(caps=(Cap("0.006", scope="app"),), limits=Limits(wait_s=0, stop_s=0.2)) as on:
        lease = on.gateway.lease("app")
        first = await on.post(lease, ask("[[sim:output=9]]"))
        hanging = asyncio.create_task(on.post(lease, ask("[[sim:delay=60000]]")))
        await on.sim.arrived(2)
        second = await on.post(lease, ask())

        assert (first[0], second[0], second[2]["x-earmark"]) == (200, 429, "held")
        hanging.cancel()


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    """Its place in the queue is given up, and its slot."""
    async with rig(caps=(Cap("0.006", scope="app"),)) as on:
        lease = on.gateway.lease("app")
        first = asyncio.create_task(on.post(lease, ask("[[sim:delay=400]][[sim:output=9]]")))
        await on.sim.arrived(1)
        second = asyncio.create_task(on.post(lease, ask()))
        while on.ledger.waiting == 0:
            await asyncio.sleep(0.01)
        second.cancel()
        while on.ledger.waiting:
            await asyncio.sleep(0.01)
        await first

        assert on.sim.bill.requests == 1
        on.prove_exact()


async def test_a_patient_stream_hears_pings_until_its_turn() -> None:
    """Headers and pings come while it waits; then the stream itself, whole."""
    limits = Limits(patient_s=0.05, ping_s=0.05)
    async with rig(caps=(Cap("0.006", scope="app"),), limits=limits) as on:
        lease = on.gateway.lease("app")
        first = asyncio.create_task(on.post(lease, ask("[[sim:delay=500]][[sim:output=9]]")))
        await on.sim.arrived(1)
        events = [
            event.type async for event in await on.sdk(lease).messages.create(**ask(), stream=True)
        ]
        await first

        assert events[0] == "message_start"
        assert events[-1] == "message_stop"
        on.prove_exact()


async def test_a_patient_stream_hears_of_a_decline_as_an_event() -> None:
    """Once it has its headers, only an event in the API's form can say no."""
    limits = Limits(patient_s=0.05, ping_s=0.05, wait_s=0.3, stop_s=0.2)
    async with rig(caps=(Cap("0.006", scope="app"),), limits=limits) as on:
        lease = on.gateway.lease("app")
        hanging = asyncio.create_task(on.post(lease, ask("[[sim:delay=60000]]")))
        await on.sim.arrived(1)
        async with on.http.post(
            f"{on.gateway.url}/v1/messages",
            json=ask(stream=True),
            headers={"x-api-key": lease.key},
        ) as answer:
            said = await answer.text()

        assert answer.status == 200
        assert said.startswith("event: ping\n")
        assert "event: error\n" in said
        assert "only held money is in the way" in said
        hanging.cancel()


UNBOUNDED = {
    "priority tier": ask(service_tier="auto"),
    "searches": ask(tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]),
    "unknown field": ask(of_tomorrow=1),
    "unknown tool": ask(tools=[{"type": "tool_of_tomorrow", "name": "x"}]),
    "unknown model": {**ask(), "model": "claude-of-tomorrow"},
    "unknown place": ask(inference_geo="moon"),
}


@pytest.mark.parametrize("name", UNBOUNDED)
async def test_what_has_no_bound_is_a_400_that_names_it(name: str) -> None:
    """A request whose cost nobody can bound is refused by name, in the API's form; nothing is sent."""
    async with rig() as on:
        lease = on.gateway.lease("app")
        status, body, _ = await on.post(lease, UNBOUNDED[name])

        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert "nothing was sent" in body["error"]["message"]
        assert on.sim.bill.requests == 0
        assert lease.figures().declined == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("unknown field", "if it costs nothing have whoever runs this gateway vouch for it"),
        ("unknown tool", "if it is run by the caller, have whoever runs this gateway vouch for it"),
        ("fetches", "set it on the tool, or have whoever runs this gateway give it --fetch-tokens"),
        ("no uses", "set it on the tool (said by the Earmark gateway"),
    ],
)
async def test_what_a_client_is_told_it_can_do(name: str, advice: str) -> None:
    """A client passes no allowances: it hears what it can change, and what whoever runs the gateway can say."""
    web = {"type": "web_fetch_20250910", "name": "web_fetch"}
    more = {"fetches": ask(tools=[{**web, "max_uses": 1}]), "no uses": ask(tools=[web])}
    async with rig() as on:
        _, body, _ = await on.post(on.gateway.lease("app"), {**UNBOUNDED, **more}[name])

        assert advice in body["error"]["message"]
        assert "pass Allowances" not in body["error"]["message"]


ABSURD = [10**30, 2**63 - 1, 10**400, -1, True, 1.5, 1e300, "5", [], {}]
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_FETCH = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 1}
_ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5"}
LIMITS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "max_tokens": lambda value: ask(max_tokens=value),
    "max_uses": lambda value: ask(tools=[{**_SEARCH, "max_uses": value}]),
    "max_content_tokens": lambda value: ask(tools=[{**_FETCH, "max_content_tokens": value}]),
    "advisor": lambda value: ask(tools=[{**_ADVISOR, "max_uses": value, "max_tokens": 2048}]),
    "fallback": lambda value: ask(fallbacks=[{"model": "claude-haiku-4-5", "max_tokens": value}]),
    "budget_tokens": lambda value: ask(thinking={"type": "enabled", "budget_tokens": value}),
    "task_budget": lambda value: ask(
        output_config={"task_budget": {"type": "tokens", "total": value}}
    ),
    "trigger": lambda value: ask(
        context_management={
            "edits": [
                {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": value}}
            ]
        }
    ),
}
#: What does not limit the price is the upstream's to judge, and so is a limit that is larger than what is there.
PASSED_ON = {"budget_tokens", "task_budget", "max_content_tokens", "trigger"}


@pytest.mark.parametrize("name", LIMITS)
async def test_absurd_numbers_are_the_clients_mistake(name: str) -> None:
    """No number in a request, however large or odd, is a fault of ours: it is a 400, or the upstream's to judge."""
    async with rig(allow=Allowances(web_search_tokens=5_000)) as on:
        lease = on.gateway.lease("app")
        for value in ABSURD:
            status, body, headers = await on.post(lease, LIMITS[name](value))
            passed_on = "x-earmark" not in headers
            if passed_on:
                assert name in PASSED_ON
                continue
            assert (status, body["error"]["type"]) == (400, "invalid_request_error"), value
            assert "nothing was sent" in body["error"]["message"]
            assert len(body["error"]["message"]) < 600
        on.prove_exact()


async def test_the_operators_word_lets_searches_through() -> None:
    """With a bound for what a search brings in, web search is held for and settled, marked as a word."""
    async with rig(allow=Allowances(web_search_tokens=5_000)) as on:
        lease = on.gateway.lease("app")
        body = {**UNBOUNDED["searches"], "messages": ask("[[sim:searches=2]]")["messages"]}
        status, _, _ = await on.post(lease, body)
        held = next(iter(on.ledger.lines()))

        assert status == 200
        assert "web_search_tokens" in held.note["caller_word"]
        on.prove_exact()


async def test_a_place_that_is_not_named_is_held_for_at_the_dearer_price() -> None:
    """The request is not changed, so the hold covers 1.1 times the price; named ``global`` it does not."""
    async with rig(sim={"keep_calls": 5}) as on:
        lease = on.gateway.lease("app")
        await on.post(lease, ask())
        await on.post(lease, ask(inference_geo="global"))
        open_place, named = [line.nanos for line in on.ledger.lines() if line.kind == "hold"]

        assert open_place > named
        assert b"inference_geo" not in on.sim.calls[0].body
        assert b"service_tier" not in on.sim.calls[1].body


@pytest.mark.slow
async def test_a_thousand_calls_at_once_spend_the_cap_and_no_more() -> None:
    """A cap for two thirds of them is used to 99 % or more, and passed by nothing, by the server's own bill."""
    cost = 518_000
    cap = 667 * cost
    limits = Limits(wait_s=100)
    async with rig(
        caps=(Cap.from_nanos(cap, per=None, scope="app", tz="UTC", owner="code"),), limits=limits
    ) as on:
        lease = on.gateway.lease("app")
        # A limit near to what they write: the rest that no call fits into is below half a percent then.
        answers = await asyncio.gather(*(on.post(lease, ask(max_tokens=60)) for _ in range(1000)))
        bound = max(line.nanos for line in on.ledger.lines() if line.kind == "hold")
        statuses = Counter(status for status, _, _ in answers)

        assert set(statuses) == {200, 402}
        assert on.sim.bill.nanos <= cap
        assert bound < cap // 150
        assert on.sim.bill.nanos >= max(cap - bound, cap * 99 // 100)
        assert statuses[200] == on.sim.bill.requests
        on.prove_exact()
