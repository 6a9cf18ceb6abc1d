"""The gateway for its clients: official SDKs work unchanged, each in its scope, and nothing gets past it."""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, AuthenticationError, PermissionDeniedError

from budgets import Cap
from budgets.scopes import scope
from orchestrator.context import calling_as
from orchestrator.gateway import Gateway, Upstream
from orchestrator.gateway.routes import route_of

from .gatewaying import MODEL, REAL_KEY, Rig, ask, rig


async def test_the_official_client_works_in_every_way() -> None:
    """Plain, streamed, beta, counted, listed: the ledger equals the server's bill."""
    async with rig() as on:
        client = on.sdk(on.gateway.lease("app"))
        plain = await client.messages.create(**ask())
        async with client.messages.stream(**ask()) as stream:
            message = await stream.get_final_message()
        beta = await client.beta.messages.create(**ask(), betas=["some-beta-2026-01-01"])
        events = [event async for event in await client.messages.create(**ask(), stream=True)]
        count = await client.messages.count_tokens(model=MODEL, messages=ask()["messages"])
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)

        assert {plain.usage.output_tokens, message.usage.output_tokens} == {50}
        assert beta.usage.output_tokens == 50
        assert events[-1].type == "message_stop"
        assert count.input_tokens > 0
        assert MODEL in models
        assert one.id == MODEL
        assert on.kinds() == ["settle"] * 4
        on.prove_exact()


async def test_the_blocking_client_works() -> None:
    """Anthropic, in a thread, plain and streamed."""
    async with rig() as on:
        lease = on.gateway.lease("app")

        def work() -> str:
            with Anthropic(api_key=lease.key, base_url=lease.base_url, max_retries=0) as client:
                client.messages.create(**ask())
                with client.messages.stream(**ask("[[sim:text=all of it]]")) as stream:
                    return stream.get_final_text()

        assert await asyncio.to_thread(work) == "all of it"
        on.prove_exact()


@pytest.mark.parametrize("way", ["key", "bearer", "path and key", "path alone"])
async def test_a_lease_is_shown_in_either_header_or_in_the_path(way: str) -> None:
    """The key arrives as x-api-key, as a bearer token, or in the path; the real one never comes from clients."""
    async with rig(sim={"keep_calls": 10}) as on:
        lease = on.gateway.lease("app")
        headers = {"authorization": f"Bearer {lease.key}"} if way == "bearer" else {}
        headers |= {"x-api-key": lease.key} if "key" in way else {}
        paths = {"path and key": f"/lease/{lease.id}", "path alone": f"/lease/{lease.key}"}
        url = f"{on.gateway.url}{paths.get(way, '')}/v1/messages"
        async with on.http.post(url, json=ask(), headers=headers) as answer:
            assert answer.status == 200
        sent = on.sim.calls[-1].headers

        assert sent["x-api-key"] == REAL_KEY
        assert "authorization" not in sent
        assert lease.key not in str(on.sim.calls)
        on.prove_exact()


async def test_a_token_of_the_operators_goes_out_as_a_bearer() -> None:
    """The credentials go to the upstream in the form in which they were configured."""
    async with rig(sim={"keep_calls": 10}) as on:
        upstream = Upstream(url=on.sim.url, auth_token=REAL_KEY)
        async with Gateway(ledger=on.ledger, upstream=upstream) as other:
            lease = other.lease("app")
            async with AsyncAnthropic(api_key=lease.key, base_url=other.url) as client:
                await client.messages.create(**ask())

        assert on.sim.calls[-1].headers["authorization"] == f"Bearer {REAL_KEY}"
        assert "x-api-key" not in on.sim.calls[-1].headers


@pytest.mark.parametrize("key", ["", "sk-ant-of-somebody", "earmark-guessed", "\udcff"])
async def test_nobody_spends_without_a_key_of_ours(key: str) -> None:
    """Without a lease's key nothing is sent, and the answer is in the API's form."""
    async with rig() as on:
        headers = {"x-api-key": key.encode("utf-8", "replace").decode()} if key else {}
        url = f"{on.gateway.url}/v1/messages"
        async with on.http.post(url, json=ask(), headers=headers) as answer:
            body = await answer.json()

        assert answer.status == 401
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
        assert on.sim.bill.requests == 0


async def test_a_lease_is_dead_at_once_when_it_is_closed() -> None:
    """An orphan that goes on with the key of a closed lease can't spend; an id without its key is nothing."""
    async with rig() as on:
        lease, other = on.gateway.lease("app"), on.gateway.lease("other")
        client = on.sdk(lease)
        await client.messages.create(**ask())
        lease.close()
        with pytest.raises(PermissionDeniedError, match="lease has ended"):
            await client.messages.create(**ask())
        stranger = on.sdk(other, base_url=lease.base_url)
        with pytest.raises(AuthenticationError):
            await stranger.messages.create(**ask())

        assert on.sim.bill.requests == 1
        assert lease.figures().posted_nanos == on.sim.bill.nanos
        on.prove_exact()


REFUSED = [
    ("POST", "/v1/complete"),
    ("POST", "/v1/messages/"),
    ("POST", "//v1/messages"),
    ("POST", "/v1/./messages"),
    ("POST", "/v1/%6Dessages"),
    ("POST", "/v1/Messages"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches/msgbatch_1/results"),
    ("POST", "/v1/messages/batches/msgbatch_1/cancel"),
    ("POST", "/v1/sessions"),
    ("POST", "/v1/agents"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file_1/content"),
    ("GET", "/v1/organizations/cost_report"),
    ("GET", "/v1/models/../messages"),
    ("GET", "/v1/models/.."),
    ("PUT", "/v1/messages"),
    ("DELETE", "/v1/models/x"),
    ("POST", "/anthropic/v1/messages"),
    ("POST", "/api/hello"),
    ("POST", "/sim/reset"),
    ("GET", "/sim/bill"),
]


@pytest.mark.parametrize(("method", "path"), REFUSED)
async def test_whatever_is_not_known_is_refused(method: str, path: str) -> None:
    """Paths that can bill and can't be priced, and paths nobody knows, never reach the upstream (O-11, O-12)."""
    async with rig(sim={"keep_calls": 10}) as on:
        lease = on.gateway.lease("app")
        reader, writer = await asyncio.open_connection("127.0.0.1", on.gateway.port)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {lease.key}\r\n"
        writer.write(f"{head}content-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())
        said = await reader.read()
        writer.close()

        assert said.split(b" ")[1] in {b"404", b"403"}
        assert b'"type": "error"' in said
        assert on.sim.calls == []


def test_routes_know_the_ways_of_a_client() -> None:
    """Each known spelling is what it is, with its query, below a lease or not."""
    route = route_of("POST", "/lease/L-1/v1/messages?beta=true")

    assert (route.kind, route.lease, route.target) == ("messages", "L-1", "/v1/messages?beta=true")
    assert route_of("HEAD", "/").kind == "hello"
    assert route_of("HEAD", "/lease/L-1/api/hello").kind == "hello"
    assert route_of("GET", "/v1/models?limit=5").kind == "free"
    assert route_of("POST", "/v1/messages/count_tokens").kind == "count_tokens"
    assert route_of("GET", "/lease/L-1").kind == "hello"


async def test_files_pass_where_the_operator_allows_it() -> None:
    """With files=True the Files API is passed on; the simulator has none, and its answer comes back."""
    async with rig(files=True) as on:
        lease = on.gateway.lease("app")
        status, body, _ = await on.post(lease, {"a": 1}, "/v1/files")

        assert (status, body["error"]["message"]) == (404, "Not found: /v1/files")


async def test_spend_shows_per_session_and_per_agent() -> None:
    """What a client says of its session and agents is a place below the lease, nested as the agents are."""
    async with rig() as on:
        lease = on.gateway.lease("team")
        session = {"x_claude_code_session_id": "s/../1"}
        await on.post(lease, ask(), **session)
        await on.post(lease, ask(), **session, x_claude_code_agent_id="a1")
        deeper = {"x_claude_code_agent_id": "a2", "x_claude_code_parent_agent_id": "a1"}
        await on.post(lease, ask(), **session, **deeper)
        by_body = ask(metadata={"user_id": '{"session_id": "s2"}'})
        await on.post(lease, by_body)
        figures = lease.figures()

        assert set(figures.agents) == {
            "session-s-..-1/main",
            "session-s-..-1/agent-a1",
            "session-s-..-1/agent-a1/agent-a2",
            "session-s2/main",
        }
        assert figures.calls == 4
        assert figures.posted_nanos == sum(one.posted_nanos for one in figures.agents.values())
        nested = on.ledger.balance("team/session-s-..-1/agent-a1")
        assert nested.posted_nanos == 2 * figures.posted_nanos // 4
        on.prove_exact()


async def test_places_are_bounded_in_number() -> None:
    """A client that makes up sessions without end is counted on under one name."""
    from orchestrator.gateway import Limits

    async with rig(limits=Limits(places=2)) as on:
        lease = on.gateway.lease("team")
        for number in range(4):
            await on.post(lease, ask(), x_claude_code_session_id=f"s{number}")

        assert set(lease.figures().agents) == {"session-s0/main", "session-s1/main", "further"}
        assert lease.figures().agents["further"].calls == 2


async def test_a_lease_belongs_to_the_context_that_it_was_made_in() -> None:
    """Its calls count in the scopes and tallies around it, though others' requests come through the same door."""
    async with rig() as on:
        with calling_as("lead") as tally, scope("lead", cap="5"):
            lease = on.gateway.lease("worker", under="app/run-1", cap="2")
        other = on.gateway.lease("other")
        await on.post(lease, ask())
        await on.post(other, ask())

        assert lease.scope == "app/run-1/lead/worker"
        assert tally.posted_nanos == lease.figures().posted_nanos == on.sim.bill.nanos // 2
        assert on.ledger.balance("app/run-1/lead/worker").cap == Cap(
            "2", scope="app/run-1/lead/worker"
        )
        assert on.ledger.balance("other").posted_nanos == on.sim.bill.nanos // 2


async def test_clients_without_a_key_are_let_in_on_loopback_only_as_programs() -> None:
    """Where it is allowed any program of this machine may spend, a web page in its browser may not."""
    async with rig(anonymous="gateway") as on:
        url = f"{on.gateway.url}/v1/messages"
        async with on.http.post(url, json=ask(), headers={"x-api-key": "any"}) as answer:
            assert answer.status == 200
        for headers in ({"origin": "https://example.com"}, {"host": "rebound.example.com"}):
            async with on.http.post(url, json=ask(), headers=headers) as answer:
                assert answer.status == 403

        assert on.ledger.balance("gateway").posted_nanos == on.sim.bill.nanos > 0
        assert on.sim.bill.requests == 1


async def _get(on: Rig, path: str, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with on.http.get(on.gateway.url + path, headers=named) as answer:
        kind = answer.headers["content-type"]
        return answer.status, await answer.json() if "json" in kind else await answer.text()


async def test_the_metrics_sum_money_without_drift() -> None:
    """What is posted is shown to the nano-dollar, however many calls it came of."""
    async with rig() as on:
        lease = on.gateway.lease("app")
        for _ in range(12):
            await on.post(lease, ask())
        said = (await _get(on, "/earmark/metrics"))[1]

        found = re.search(r"^earmark_gateway_posted_usd_total (\S+)$", str(said), re.MULTILINE)
        assert found is not None
        assert Decimal(found[1]) * 10**9 == on.sim.bill.nanos > 0
        assert "earmark_gateway_in_doubt_usd_total 0.0" in said
        on.prove_exact()


async def test_it_says_how_it_is_and_what_is_left() -> None:
    """Health, metrics and budget: all to this machine, a client's own figures to the client."""
    async with rig(caps=(Cap("3", scope="app"),)) as on:
        lease = on.gateway.lease("app")
        await on.post(lease, ask(), x_claude_code_session_id="s1")
        await on.post(lease, ask(), "/v1/complete")
        own = await _get(on, "/earmark/budget", x_api_key=lease.key)
        everything = await _get(on, "/earmark/budget")
        metrics = await _get(on, "/earmark/metrics")

        assert await _get(on, "/earmark/health") == (
            200,
            {"status": "ok", "under_way": 0, "waiting_for_money": 0, "draining": 0},
        )
        assert own[1]["scope"] == "app"
        assert own[1]["cap"]["usd"] == "3.00"
        assert "session-s1/main" in own[1]["here"]["agents"]
        assert "clients" not in own[1]
        assert [one["scope"] for one in everything[1]["clients"]] == ["app"]
        assert 'earmark_gateway_requests_total{route="messages"} 1.0' in metrics[1]
        assert 'earmark_gateway_refused_total{reason="unknown_path"} 1.0' in metrics[1]
        assert 'earmark_gateway_holds_ended_total{kind="settle"} 1.0' in metrics[1]
        assert (await _get(on, "/earmark/metrics", x_api_key=lease.key))[0] == 403
        assert (await _get(on, "/earmark/budget", x_forwarded_for="10.0.0.1"))[0] == 401
        assert REAL_KEY not in str((own, everything, metrics, on.gateway, on.gateway.upstream))
