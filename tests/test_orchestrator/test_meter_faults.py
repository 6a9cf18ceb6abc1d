"""Bad days of calls without a stream: what was never sent is void, what may be billed is in doubt."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from budgets import Cap, Ledger, LedgerUnavailable
from orchestrator.gate import Gate, RateDeadline
from orchestrator.meter import Meter
from orchestrator.simulator import Fault, Limits
from orchestrator.transport import Passes, async_http_client

from .metering import Rig, ask, rig
from .stepping import Moment, cancel_at


def _closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_refused_connection_is_void() -> None:
    """Nobody listens: nothing was billed, the hold is given back at once (H-06)."""
    async with rig() as on:
        client = on.client.with_options(base_url=f"http://127.0.0.1:{_closed_port()}")
        with pytest.raises(anthropic.APIConnectionError):
            await client.messages.create(**ask())
        assert on.kinds() == ["void"]
        assert "ConnectError" in on.last().note["reason"]
        on.prove_exact(requests=0)


async def test_unknown_host_is_void() -> None:
    """A name that resolves to nothing: the same (H-06)."""
    async with rig() as on:
        client = on.client.with_options(base_url="http://nowhere.invalid")
        with pytest.raises(anthropic.APIConnectionError):
            await client.messages.create(**ask())
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


async def test_pool_timeout_is_void() -> None:
    """No connection free in the client's pool: the request never left (R-13)."""
    limits = httpx2.Limits(max_connections=1)
    timeout = httpx2.Timeout(30, pool=0.05)
    http_client = anthropic.DefaultAsyncHttpxClient(limits=limits, timeout=timeout)
    async with rig(client={"http_client": http_client, "timeout": timeout}) as on:
        on.sim.faults.extend([Fault(kind="hang")])
        first = asyncio.create_task(on.client.messages.create(**ask()))
        await on.sim.arrived(1)
        with pytest.raises(anthropic.APITimeoutError):
            await on.client.messages.create(**ask())
        on.sim.release()
        await first
        assert on.kinds() == ["void", "settle"]
        on.prove_exact(requests=1)


async def test_no_key_is_void() -> None:
    """A client without a key fails while it builds the request: nothing left (H-06)."""
    async with rig() as on:
        client = on.client.copy()
        client.api_key = None
        with pytest.raises(TypeError, match="authentication"):
            await client.messages.create(**ask())
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


@pytest.mark.parametrize("billed", [True, False])
async def test_reset_is_in_doubt(billed: bool) -> None:
    """A connection reset after sending may have been billed: charged in full (S-08)."""
    async with rig() as on:
        on.sim.faults.extend([Fault(kind="reset", billed=billed)])
        with pytest.raises(anthropic.APIConnectionError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["doubt"]
        on.prove()


@pytest.mark.parametrize("billed", [True, False])
async def test_read_timeout_is_in_doubt(billed: bool) -> None:
    """No answer in time: it may have been billed (S-08)."""
    async with rig(client={"timeout": httpx2.Timeout(30, read=0.1)}) as on:
        on.sim.faults.extend([Fault(kind="hang", billed=billed)])
        with pytest.raises(anthropic.APITimeoutError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["doubt"]
        while on.sim.stats.in_progress:
            await asyncio.sleep(0)
        assert on.sim.bill.requests == int(billed)
        on.prove()


@asynccontextmanager
async def _rude_server(answer: bytes) -> AsyncIterator[str]:
    """Reads a request, says this much, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (b"", "doubt"),
        (b"garbage\r\n\r\n", "doubt"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", "doubt"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "doubt"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "doubt"),
        (b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\n{}", "void"),
        (b"HTTP/1.1 418 Teapot\r\ncontent-length: 0\r\n\r\n", "void"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_rude_servers(answer: bytes, end: str, stream: bool) -> None:
    """Closed, garbage, half an answer: in doubt. An error status: void, read or not."""
    async with rig() as on, _rude_server(answer) as url:
        client = on.client.with_options(base_url=url)
        try:
            reply = await client.messages.create(**ask(), stream=stream)
            if stream:
                async for _ in reply:
                    pass
        except (anthropic.APIError, httpx2.HTTPError):
            pass
        assert on.kinds() == [end]
        on.prove()


async def test_error_status_with_a_cut_body_is_void() -> None:
    """The status was there before any output: the rest of an error does not matter (rule 8)."""
    half = b"HTTP/1.1 500 Oops\r\ncontent-length: 500\r\n\r\n{"
    async with rig() as on, _rude_server(half) as url:
        client = on.client.with_options(base_url=url)
        with pytest.raises((anthropic.APIError, httpx2.HTTPError)):
            async with client.messages.stream(**ask()) as stream:
                await stream.until_done()
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


@pytest.mark.parametrize(
    "kind",
    [
        "rate_limited",
        "enforced_spend_limit",
        "own_spend_limit",
        "billing",
        "unauthorized",
        "forbidden",
        "overloaded",
        "server_error",
        "unavailable",
        "gateway_timeout",
    ],
)
async def test_error_replies_are_void(kind: str) -> None:
    """An error status before any output is given back, with its word in the line (rule 8)."""
    async with rig() as on:
        on.sim.faults.extend([kind])
        with pytest.raises(anthropic.APIStatusError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["void"]
        assert on.last().note["request_id"].startswith("req_sim_")
        on.prove_exact(requests=0)


# ---- cancelled before it was sent -----------------------------------------------------------------


async def _cancelled(made: Any, until: Any) -> None:
    task = asyncio.create_task(made)
    while not until():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_while_waiting_for_a_slot() -> None:
    """A call that waits in the gate leaves nothing behind (H-01)."""
    async with rig(gate=Gate(width=1)) as on:
        on.sim.faults.extend([Fault(kind="hang")])
        first = asyncio.create_task(on.client.messages.create(**ask()))
        await on.sim.arrived(1)
        await _cancelled(
            on.client.messages.create(**ask()), lambda: on.gate.statistics().waiting == 1
        )
        on.sim.release()
        await first
        assert len(list(on.ledger.lines())) == 2
        on.prove_exact(requests=1)


@pytest.mark.parametrize("durable", [False, True])
async def test_cancelled_while_waiting_for_money(durable: bool, tmp_path: Path) -> None:
    """A call that waits for held money leaves nothing behind, and the next one gets its turn (H-01)."""
    ledger = Ledger(tmp_path / "ledger.db" if durable else None, caps=[Cap("0.008")])
    async with rig(ledger=ledger) as on:
        on.sim.faults.extend([Fault(kind="hang")])
        first = asyncio.create_task(on.client.messages.create(**ask()))
        await on.sim.arrived(1)
        await _cancelled(on.client.messages.create(**ask()), lambda: ledger.waiting == 1)
        while ledger.waiting:
            await asyncio.sleep(0)
        on.sim.release()
        await first
        await on.client.messages.create(**ask())
        assert on.kinds() == ["settle", "settle"]
        on.prove_exact(requests=2)


async def test_cancelled_while_waiting_for_the_rate() -> None:
    """A call that holds money and waits for the rate gives it back (H-01)."""
    gate = Gate(requests_per_minute=1)
    async with rig(gate=gate) as on:
        while on.kinds() != ["settle"]:
            await on.client.messages.create(**ask())

        def waits() -> bool:
            return any(group.waiting_for_rate for group in gate.statistics().groups.values())

        # The bucket may let a few through at first.
        for _ in range(5):
            task = asyncio.create_task(on.client.messages.create(**ask()))
            while not task.done() and not waits():
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                break
        assert on.kinds()[-1] == "void"
        on.prove_exact()


async def test_a_deadline_that_comes_first() -> None:
    """A call that can't leave before the run's deadline is not sent, and holds nothing."""
    async with rig(deadline=0.0) as on:
        with pytest.raises(RateDeadline):
            await on.client.messages.create(**ask())
        assert list(on.ledger.lines()) == []
        on.prove_exact(requests=0)


def _guarded() -> dict[str, Any]:
    passes = Passes()
    return {"passes": passes, "client": {"http_client": async_http_client(passes)}}


async def _idle(on: Rig) -> None:
    """Until ledger and server have taken note of a cancellation."""
    while on.ledger.balance().held_nanos or on.sim.stats.in_progress:
        await asyncio.sleep(0.001)


async def _plain(on: Rig) -> None:
    await on.client.messages.create(**ask())


async def _streamed(on: Rig) -> None:
    async with on.client.messages.stream(**ask("[[sim:output=60]][[sim:pace=6000]]")) as stream:
        await stream.until_done()


async def _counting(on: Rig) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    await on.client.messages.create(
        **ask(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])
    )


@pytest.mark.parametrize("moment", ["waiting", "done"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
@pytest.mark.parametrize("guard", [True, False], ids=["guarded", "plain"])
@pytest.mark.parametrize("call", [_plain, _streamed, _counting])
async def test_cancelled_at_every_await(
    call: Any, guard: bool, durable: bool, moment: Moment, tmp_path: Path
) -> None:
    """Cancelled at each await in turn: no money or slot leaks, and nothing billed is ever void (H-01)."""
    ledger = Ledger(tmp_path / "ledger.db" if durable else None, caps=[Cap("100")])
    async with rig(ledger=ledger, gate=Gate(width=4), **(_guarded() if guard else {})) as on:
        ends: set[str] = set()
        for step in range(1, 300):
            billed, lines = on.sim.bill.nanos, len(list(ledger.lines()))
            was_cancelled = await cancel_at(step, call(on), moment)
            await asyncio.wait_for(_idle(on), 10)
            new = list(ledger.lines())[lines:]
            charged = sum(line.posted + line.in_doubt for line in new)
            assert charged >= on.sim.bill.nanos - billed, (step, new)
            assert len(new) in {0, 2}, (step, new)
            assert on.gate.statistics().in_use == 0, step
            ends.update(line.kind for line in new[1:])
            if not was_cancelled:
                break
        else:
            pytest.fail("the call never came to its end")

        assert {"doubt", "settle"} <= ends
        if guard and call is not _counting:
            # Before its first byte it is known that nothing was billed (H-06).
            assert "void" in ends
        on.prove()


# ---- the ledger's own bad days ------------------------------------------------------------------------


async def test_no_hold_no_call(tmp_path: Path) -> None:
    """If the hold can't be written, nothing is sent (O-04)."""
    ledger = Ledger(tmp_path / "ledger.db", caps=[Cap("1")])
    async with rig(ledger=ledger) as on:
        ledger.close()
        with pytest.raises(LedgerUnavailable):
            await on.client.messages.create(**ask())
        assert on.sim.stats.arrived == 0
        assert on.gate.statistics().in_use == 0


async def test_an_answer_is_handed_over_though_it_can_not_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is paid for: a ledger that fails at settling is logged, and its hold stays."""
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, caps=[Cap("1")])
    async with rig(ledger=ledger) as on:
        on.sim.faults.extend([Fault(kind="hang")])
        task = asyncio.create_task(on.client.messages.create(**ask()))
        await on.sim.arrived(1)
        ledger.close()
        on.sim.release()
        message = await task

        assert message.usage.output_tokens == 50
        assert "closed" in caplog.text
        assert on.gate.statistics().in_use == 0
        with Ledger(path) as again:
            assert again.balance().in_doubt_nanos >= on.sim.bill.nanos


async def test_a_listener_that_fails_tears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A listener's fault is logged; the money is settled all the same."""

    class Broken:
        def before_call(self) -> None:
            pass

        def held(self, attempt: Any) -> None:
            pass

        def ended(self, attempt: Any, ending: Any) -> None:
            raise RuntimeError("broken listener")

        def declined(self, error: Any) -> None:
            pass

        def retrying(self, error: Any, tries: int, wait_s: float) -> None:
            pass

    async with rig(listener=Broken()) as on:
        await on.client.messages.create(**ask())
        assert "broken listener" in caplog.text
        on.prove_exact(requests=1)


async def test_rate_limits_of_the_server_are_learned() -> None:
    """The gate reads the limits from the server's headers, on calls and on streams."""
    async with rig(sim={"limits": Limits(requests_per_minute=500)}) as on:
        await on.client.messages.create(**ask())
        (group,) = on.gate.statistics().groups.values()
        assert group.limits["requests"] == 500


async def test_a_429_pauses_everyone() -> None:
    """One 429 pauses all calls that share the limit, not only its own (R-02)."""
    gate = Gate(width=4)
    async with rig(gate=gate) as on:
        on.sim.faults.extend([Fault(kind="rate_limited", retry_after=30)])
        with pytest.raises(anthropic.RateLimitError):
            await on.client.messages.create(**ask())
        second = Meter(on.ledger, "other", gate=gate)
        other = on.client.with_options(middleware=[second])
        task = asyncio.create_task(other.messages.create(**ask()))
        while not gate.statistics().waiting:
            await asyncio.sleep(0)
        (group,) = gate.statistics().groups.values()
        assert group.paused_s > 25
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        on.prove_exact(requests=0)
