"""Clients that leave, leases that end and gateways that stop in the middle of an answer: its money is not lost."""

from __future__ import annotations

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from budgets import Cap, Ledger
from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.gateway import Gateway, Lease, Limits, Tokens, Upstream
from orchestrator.gateway.door import Door

from .gatewaying import Rig, ask, rig

#: Streams for about half a second.
PACED = "[[sim:output=100]][[sim:pace=200]]"


async def _begun(on: Rig, lease: Lease, text: str = PACED) -> asyncio.StreamWriter:
    """A stream whose first event has arrived."""
    import json

    raw = json.dumps(ask(text, stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", on.gateway.port)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {lease.key}\r\n"
    head += f"anthropic-version: 2023-06-01\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await reader.readuntil(b"message_start")
    return writer


async def test_a_stream_whose_client_is_gone_is_read_to_its_end() -> None:
    """The provider bills all of it, so all of it is settled, exactly (S-01, S-02)."""
    async with rig() as on:
        lease = on.gateway.lease("app")
        writer = await _begun(on, lease)
        writer.transport.abort()

        assert await lease.settled(10)
        await asyncio.to_thread(on.ledger.flush)
        assert on.kinds() == ["settle"]
        assert lease.figures().posted_nanos == on.sim.bill.nanos
        on.prove_exact()


@pytest.mark.parametrize("bound", [{"drain_s": 0.05}, {"drains": 0}], ids=["time", "number"])
async def test_beyond_the_bound_it_is_in_doubt(bound: dict[str, float]) -> None:
    """A stream that can't be read on in time, or is one too many, keeps its whole hold, in doubt."""
    async with rig(limits=Limits(**bound)) as on:  # type: ignore[arg-type]
        lease = on.gateway.lease("app")
        writer = await _begun(on, lease, "[[sim:output=400]][[sim:pace=100]]")
        writer.transport.abort()

        assert await lease.settled(10)
        assert on.kinds() == ["doubt"]
        assert lease.figures().in_doubt_nanos == on.ledger.balance().in_doubt_nanos > 0
        assert lease.figures().held_nanos == 0
        on.prove()


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_a_drain_takes_no_place_of_a_live_client(streamed: bool) -> None:
    """In a gate of one slot the next call goes at once, while the answer that nobody waits for is still read."""
    async with rig(width=1, limits=Limits(stop_s=0.1)) as on:
        left, lease = on.gateway.lease("left"), on.gateway.lease("app")
        if streamed:
            writer = await _begun(on, left, "[[sim:output=400]][[sim:pace=4]]")
            writer.transport.abort()
        else:
            call = asyncio.create_task(on.post(left, ask("[[sim:delay=60000]]")))
            await on.sim.arrived(1)
            call.cancel()
        async with asyncio.timeout(5):
            status, _, _ = await on.post(lease, ask())

        assert status == 200
        assert len(on.gateway.drains) == 1
        assert left.figures().held_nanos > 0
        assert on.kinds() == ["settle"]
    assert left.figures().in_doubt_nanos > 0


async def test_a_whole_answer_whose_client_is_gone_is_settled_too() -> None:
    """Sent is sent: the answer is waited for in the background."""
    async with rig() as on:
        lease = on.gateway.lease("app")
        call = asyncio.create_task(on.post(lease, ask("[[sim:delay=200]][[sim:output=9]]")))
        await on.sim.arrived(1)
        call.cancel()

        assert await lease.settled(10)
        assert on.kinds() == ["settle"]
        on.prove_exact()


async def test_closing_a_lease_cuts_its_streams_for_the_client_only() -> None:
    """The orphan's connection is closed at once; the ledger gets the final usage."""
    async with rig() as on:
        lease = on.gateway.lease("app")
        writer = await _begun(on, lease)
        lease.close()
        lease.close()

        assert await lease.settled(10)
        assert on.kinds() == ["settle"]
        on.prove_exact()
        writer.close()


async def test_a_lease_ends_by_itself() -> None:
    """At its end it is dead, as if it had been closed."""
    async with rig() as on:
        lease = on.gateway.lease("app", ends=datetime.now(UTC) + timedelta(seconds=0.2))
        first = await on.post(lease, ask())
        while lease.is_open:
            await asyncio.sleep(0.02)
        second = await on.post(lease, ask())

        assert (first[0], second[0]) == (200, 403)
        assert on.gateway.clients.all() == []


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("reset", ["doubt"]),
        ("overloaded", ["void"]),
        ("cut", ["doubt"]),
        ("sse_error", ["doubt"]),
    ],
)
async def test_an_upstream_that_breaks_off_breaks_off_for_the_client(
    fault: str, kinds: list[str]
) -> None:
    """A broken stream is broken for the client, too, and its hold ends as it does in process."""
    from anthropic import APIError
    from httpx2 import HTTPError

    async with rig() as on:
        client = on.sdk(on.gateway.lease("app"))
        with pytest.raises((APIError, HTTPError)):
            async with client.messages.stream(**ask(f"[[sim:fault={fault}]]")) as stream:
                await stream.get_final_message()
        await asyncio.to_thread(on.ledger.flush)
        assert on.kinds() == kinds
        on.prove()


async def test_an_upstream_that_is_not_there_costs_nothing() -> None:
    """The connection was never made: a 502 in the API's form, and the hold is void."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with rig() as on:
            upstream = Upstream(url=url, api_key="secret-of-the-operator")
            async with Gateway(ledger=on.ledger, upstream=upstream) as other:
                lease = other.lease("app")
                async with on.http.post(
                    f"{other.url}/v1/messages", json=ask(), headers={"x-api-key": lease.key}
                ) as answer:
                    said = await answer.text()

            assert answer.status == 502
            assert "nothing was sent" in said
            assert "secret" not in said + repr(upstream) + repr(other)
            assert on.kinds() == ["void"]


async def test_stopping_waits_for_what_is_under_way_and_leaves_no_port() -> None:
    """A stream ends whole, settled; afterwards nobody listens any more."""
    async with rig() as on:
        other = Gateway(ledger=on.ledger, upstream=on.gateway.upstream)
        await other.start()
        lease = other.lease("app")
        client = on.sdk(lease, base_url=other.url)
        async with client.messages.stream(**ask(PACED)) as stream:
            await anext(stream)
            ending = asyncio.create_task(other.stop())
            message = await stream.get_final_message()
        await ending

        assert message.usage.output_tokens == 100
        assert on.kinds() == ["settle"]
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", other.port)


async def test_stopping_has_an_end() -> None:
    """What does not end in time is in doubt; what waited for money is void or never held."""
    async with rig(caps=(Cap("0.006", scope="app"),), limits=Limits(stop_s=0.1)) as on:
        lease = on.gateway.lease("app")
        hanging = asyncio.create_task(on.post(lease, ask("[[sim:delay=60000]]")))
        await on.sim.arrived(1)
        waiting = asyncio.create_task(on.post(lease, ask()))
        while on.ledger.waiting == 0:
            await asyncio.sleep(0.01)
        await on.gateway.stop()
        status, body, _ = await waiting

        assert (status, body["error"]["type"]) == (503, "overloaded_error")
        assert on.kinds() == ["doubt"]
        assert "in doubt" in (await hanging)[1]["error"]["message"]


@pytest.mark.slow
async def test_health_answers_while_a_thousand_streams_are_open() -> None:
    """Nothing that a stream does keeps health and budget waiting (D-04)."""
    async with rig(caps=(Cap("1000"),), width=1100, sim={}) as on:
        gate = Gate(width=1100)
        lease = on.gateway.lease("app")
        lease.metering.gate = gate
        writers = []
        for _ in range(20):
            writers += await asyncio.gather(
                *(_begun(on, lease, "[[sim:output=400]][[sim:pace=4]]") for _ in range(50))
            )
        waits = []
        for _ in range(20):
            began = time.perf_counter()
            async with on.http.get(f"{on.gateway.url}/earmark/health") as answer:
                assert (await answer.json())["under_way"] == 1000
            waits.append(time.perf_counter() - began)
        for writer in writers:
            writer.transport.abort()
        on.gateway.drains._within_s = 0

        assert sorted(waits)[10] < 0.1


def test_beyond_loopback_it_needs_tokens(tmp_path: Path) -> None:
    """Nobody opens a purse to the network by an option alone."""
    ledger = Ledger()
    upstream = Upstream(url="http://127.0.0.1:9", api_key="k")
    with pytest.raises(ConfigError, match="needs tokens"):
        Gateway(ledger=ledger, upstream=upstream, host="0.0.0.0")
    tokens = Tokens(tmp_path)
    tokens.new("team/alice")

    assert Gateway(ledger=ledger, upstream=upstream, host="0.0.0.0", tokens=tokens) is not None
    ledger.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_gateway_in_front_of_itself_is_refused(tmp_path: Path, host: str) -> None:
    """By whatever name its own address is called: each request would be held for again and again."""
    tokens = Tokens(tmp_path)
    tokens.new("team/alice")
    with Ledger() as ledger:
        for name in ("127.0.0.1", "localhost"):
            with Door(host, 0) as door:
                upstream = Upstream(url=f"http://{name}:{door.port}/", api_key="k")
                gateway = Gateway(ledger=ledger, upstream=upstream, door=door, tokens=tokens)
                with pytest.raises(ConfigError, match="is this gateway itself"):
                    await gateway.start()
            with socket.socket() as free:  # what a start that failed had taken
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", door.port))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:y",
        "http://x:99999",
        "http://x?y=1",
        "https://me:pass-word@x",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    """One sentence, which holds no password."""
    with pytest.raises(ConfigError) as refused:
        Upstream(url=url, api_key="k")

    assert "pass-word" not in str(refused.value)
