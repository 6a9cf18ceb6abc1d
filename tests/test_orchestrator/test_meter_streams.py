"""Streams: settled on their final usage, in doubt when cut, whoever reads them and however they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import httpx2
import pytest

from budgets import BudgetExceeded, Cap, Ledger
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.simulator import Fault, Simulator

from .metering import ask, rig

#: Paced, so that a stream can really be left in the middle.
SLOW = "Hello [[sim:output=100]][[sim:pace=200]]"


# ---- ways of reading one ----------------------------------------------------------------------------


async def _text_stream(client: Any) -> None:
    async with client.messages.stream(**ask()) as stream:
        assert "".join([text async for text in stream.text_stream])


async def _events(client: Any) -> None:
    async with client.messages.stream(**ask()) as stream:
        assert [event.type async for event in stream][-1] == "message_stop"


async def _until_done(client: Any) -> None:
    async with client.messages.stream(**ask()) as stream:
        await stream.until_done()


async def _final_message(client: Any) -> None:
    async with client.messages.stream(**ask()) as stream:
        assert (await stream.get_final_message()).usage.output_tokens == 50


async def _create(client: Any) -> None:
    stream = await client.messages.create(**ask(), stream=True)
    assert [event.type async for event in stream][-1] == "message_stop"


async def _beta_create(client: Any) -> None:
    async with await client.beta.messages.create(**ask(), stream=True) as stream:
        assert [event.type async for event in stream][-1] == "message_stop"


async def _beta_stream(client: Any) -> None:
    async with client.beta.messages.stream(**ask()) as stream:
        await stream.until_done()


async def _raw_parse(client: Any) -> None:
    raw = await client.messages.with_raw_response.create(**ask(), stream=True)
    assert [event.type async for event in await raw.parse()][-1] == "message_stop"


async def _streaming_parse(client: Any) -> None:
    async with client.messages.with_streaming_response.create(**ask(), stream=True) as raw:
        assert [event.type async for event in await raw.parse()][-1] == "message_stop"


async def _streaming_lines(client: Any) -> None:
    async with client.messages.with_streaming_response.create(**ask(), stream=True) as raw:
        assert "event: message_stop" in [line async for line in raw.iter_lines()]


async def _streaming_bytes(client: Any) -> None:
    async with client.messages.with_streaming_response.create(**ask(), stream=True) as raw:
        assert b"message_stop" in b"".join([chunk async for chunk in raw.iter_bytes(7)])


async def _streaming_read(client: Any) -> None:
    async with client.messages.with_streaming_response.create(**ask(), stream=True) as raw:
        assert b"message_stop" in await raw.read()


async def _sse_events(client: Any) -> None:
    stream = await client.messages.create(**ask(), stream=True)
    raw = anthropic.AsyncStream.raw_events(stream.response)
    assert [event.event async for event in raw][-1] == "message_stop"


async def _body_alone(client: Any) -> None:
    """``stream`` only in the body: the client loads all of it before anybody sees it."""
    raw = await client.messages.with_raw_response.create(**ask(), extra_body={"stream": True})
    assert b"message_stop" in await raw.read()


class _OwnStream(anthropic.AsyncStream[anthropic.types.RawMessageStreamEvent]):
    """A stream class of the caller's own."""


async def _own_class(client: Any) -> None:
    stream = await client.post(
        "/v1/messages",
        cast_to=anthropic.types.Message,
        body={**ask(), "stream": True},
        stream=True,
        stream_cls=_OwnStream,
    )
    assert type(stream) is _OwnStream
    assert [event.type async for event in stream][-1] == "message_stop"


READERS = [
    _text_stream,
    _events,
    _until_done,
    _final_message,
    _create,
    _beta_create,
    _beta_stream,
    _raw_parse,
    _streaming_parse,
    _streaming_lines,
    _streaming_bytes,
    _streaming_read,
    _sse_events,
    _body_alone,
    _own_class,
]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("read", READERS)
async def test_every_reader_settles(read: Callable[[Any], Any], packed: bool) -> None:
    """However a stream is read, compressed or not, it is posted at the server's figure (C-09)."""
    async with rig() as on:
        if packed:
            on.sim.faults.extend(["gzip"])
        await read(on.client)

        assert on.last().note["stop_reason"] == "end_turn"
        assert on.last().usage["output_tokens"] == 50  # not the placeholder of the start (C-19)
        on.prove_exact(requests=1)


async def test_settled_before_it_is_read_to_the_end() -> None:
    """The final usage settles: the last event is not waited for, and the slot is free at once."""
    async with rig() as on:
        stream = await on.client.messages.create(**ask(SLOW), stream=True)
        async for event in stream:
            if event.type == "message_delta":
                break
        assert on.kinds() == ["settle"]
        assert on.gate.statistics().in_use == 0
        await stream.close()
        on.prove_exact(requests=1)


async def test_same_cost_as_without_a_stream() -> None:
    """Cached reads and writes cost the same streamed or not (C-09, C-12)."""
    async with rig() as on:
        system = [{"type": "text", "text": "z" * 20_000, "cache_control": {"type": "ephemeral"}}]
        for _ in range(2):
            async with on.client.messages.stream(**ask(system=system)) as stream:
                await stream.until_done()
        await on.client.messages.create(**ask(system=system))

        costs = [line.posted for line in on.ledger.lines() if line.kind == "settle"]
        assert costs[0] > costs[1] == costs[2]
        on.prove_exact(requests=3)


# ---- ways of leaving one ------------------------------------------------------------------------------


async def _leave_by_break(client: Any) -> None:
    async with client.messages.stream(**ask(SLOW)) as stream:
        async for _ in stream.text_stream:
            break


async def _leave_by_close(client: Any) -> None:
    stream = await client.messages.create(**ask(SLOW), stream=True)
    await anext(aiter(stream))
    await stream.close()


async def _leave_unread(client: Any) -> None:
    async with client.messages.stream(**ask(SLOW)):
        pass


async def _leave_by_error(client: Any) -> None:
    async def read() -> None:
        async with client.messages.stream(**ask(SLOW)) as stream:
            async for _ in stream.text_stream:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await read()


async def _leave_by_drop(client: Any) -> None:
    await client.messages.create(**ask(SLOW), stream=True)


async def _leave_by_aclose(client: Any) -> None:
    async def texts() -> AsyncIterator[str]:
        async with client.messages.stream(**ask(SLOW)) as stream:
            async for text in stream.text_stream:
                yield text

    made = texts()
    await anext(made)
    await made.aclose()  # type: ignore[attr-defined]


async def _leave_by_cancel(client: Any) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async with client.messages.stream(**ask(SLOW)) as stream:
            async for _ in stream.text_stream:
                begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _leave_lines(client: Any) -> None:
    async with client.messages.with_streaming_response.create(**ask(SLOW), stream=True) as raw:
        async for _ in raw.iter_lines():
            break


@pytest.mark.parametrize(
    "leave",
    [
        _leave_by_break,
        _leave_by_close,
        _leave_unread,
        _leave_by_error,
        _leave_by_drop,
        _leave_by_aclose,
        _leave_by_cancel,
        _leave_lines,
    ],
)
async def test_left_streams_are_in_doubt(leave: Callable[[Any], Any]) -> None:
    """A stream that is left stays charged in full, at once, and its slot is free (S-01, H-01)."""
    async with rig() as on:
        await leave(on.client)
        gc.collect()

        hold, end = on.ledger.lines()
        assert end.kind == "doubt"
        assert end.in_doubt == hold.nanos
        assert on.gate.statistics().in_use == 0
        on.prove()


async def test_a_dropped_stream_ends_while_its_task_lives_on() -> None:
    """Nothing but its reader keeps a stream open: not the context that opened it."""
    async with rig(gate=Gate(width=1)) as on:
        for _ in range(3):
            await on.client.messages.create(**ask(SLOW), stream=True)
            gc.collect()
        assert on.kinds() == ["doubt"] * 3
        on.prove()


@pytest.mark.parametrize("short_of", ["slots", "money"])
async def test_streams_forgotten_in_a_ring_stop_nobody_for_ever(short_of: str) -> None:
    """An error that a frame keeps holds its stream open until the collector runs: it does when all others wait."""
    held_each = None if short_of == "slots" else "0.02"
    async with rig(gate=Gate(width=2 if short_of == "slots" else 64), cap=held_each or "9") as on:
        gc.disable()
        try:
            async with asyncio.timeout(30):
                for _ in range(6):
                    await asyncio.create_task(_read_badly(on.client))
        except BudgetExceeded:
            assert short_of == "money"  # their streams are in doubt now, which nobody waits for
        finally:
            gc.enable()
        assert set(on.kinds()) == {"doubt"}


async def _read_badly(client: Any) -> None:
    kept = None
    try:
        stream = await client.messages.create(**ask(SLOW), stream=True)
        async for _ in stream:
            raise ValueError("not what was wanted")
    except ValueError as error:
        kept = error  # a ring: the error's traceback has this very frame
    assert kept is not None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(kind="cut", after_events=5), httpx2.RemoteProtocolError),
        (Fault(kind="no_stop"), None),
        (Fault(kind="sse_error", after_events=5), anthropic.APIStatusError),
        (Fault(kind="invalid_json", after_events=5), ValueError),
        (Fault(kind="hang_stream", after_events=4), httpx2.ReadTimeout),
    ],
    ids=["cut", "no_stop", "sse_error", "half_event", "silence"],
)
async def test_broken_streams_are_in_doubt(fault: Fault, error: type[Exception] | None) -> None:
    """A stream that breaks after its start stays charged in full; its bill is never above it (S-02)."""
    async with rig(client={"timeout": httpx2.Timeout(30, read=0.3)}) as on:
        on.sim.faults.extend([fault])
        expected = contextlib.nullcontext() if error is None else pytest.raises(error)
        with expected:
            async with on.client.messages.stream(**ask("[[sim:output=100]]")) as stream:
                await stream.until_done()

        assert on.kinds() == ["doubt"]
        while on.sim.stats.in_progress:  # the server notices in its own time
            await asyncio.sleep(0)
        assert on.ledger.balance().in_doubt_nanos > on.sim.bill.nanos > 0
        on.prove()


async def test_an_error_before_the_start_is_void() -> None:
    """An overload inside a 200 stream, before any output, is given back (S-05, rule 8)."""
    async with rig() as on:
        on.sim.faults.extend([Fault(kind="sse_error", after_events=0)])
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with on.client.messages.stream(**ask()) as stream:
                await stream.until_done()

        assert caught.value.type == "overloaded_error"
        assert on.kinds() == ["void"]
        assert on.last().note["error"] == "overloaded_error"


async def test_an_error_status_of_a_stream_is_void() -> None:
    """An error status in place of a stream is given back, and the next call passes (S-05)."""
    async with rig(gate=Gate(width=1)) as on:
        on.sim.faults.extend(["overloaded", None])
        with pytest.raises(anthropic.OverloadedError):
            async with on.client.messages.stream(**ask()) as stream:
                await stream.until_done()
        await on.client.messages.create(**ask())
        assert on.kinds() == ["void", "settle"]
        on.prove_exact(requests=1)


async def test_missing_usage_of_a_stream() -> None:
    """A stream that ends properly but says no usage stays charged in full (C-01)."""
    async with rig() as on:
        on.sim.faults.extend(["no_usage"])
        stream = await on.client.messages.create(**ask(), stream=True)
        async for _ in stream:
            pass
        balance = on.ledger.balance()
        assert balance.posted_nanos + balance.in_doubt_nanos == next(iter(on.ledger.lines())).nanos


# ---- bytes that came another way --------------------------------------------------------------------


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._data), self._size):
            yield self._data[at : at + self._size]


async def _recorded() -> bytes:
    async with (
        Simulator() as sim,
        anthropic.AsyncAnthropic(api_key="key", base_url=sim.url) as client,
        client.messages.with_streaming_response.create(**ask(), stream=True) as raw,
    ):
        return await raw.read()


@pytest.mark.parametrize("size", [1, 13, 100_000])
@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate", "two members", "loaded"])
async def test_bytes_in_any_pieces(encoding: str, size: int) -> None:
    """Cut anywhere, compressed in either way, or loaded beforehand: the usage is found."""
    plain = await _recorded()
    packed = {
        "gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "two members": gzip.compress(plain[:99]) + gzip.compress(plain[99:]),
    }.get(encoding, plain)
    name = {"two members": "gzip", "loaded": "identity"}.get(encoding, encoding)

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream", "content-encoding": name}
        if encoding == "loaded":
            return httpx2.Response(200, headers=headers, content=packed)
        return httpx2.Response(200, headers=headers, stream=_Pieces(packed, size))

    http_client = anthropic.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))
    async with rig(client={"http_client": http_client}) as on:
        stream = await on.client.messages.create(**ask(), stream=True)
        async for _ in stream:
            pass
        assert on.kinds() == ["settle"]
        assert on.last().usage["output_tokens"] == 50


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_bytes_that_can_not_be_read(encoding: str) -> None:
    """An encoding that can't be watched, or that is broken, leaves the hold in doubt."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-encoding": encoding}
        return httpx2.Response(200, headers=headers, stream=_Pieces(b"not this encoding", 5))

    http_client = anthropic.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))
    async with rig(client={"http_client": http_client}) as on:
        stream = await on.client.messages.create(**ask(), stream=True)
        with contextlib.suppress(httpx2.DecodingError):
            async for _ in stream:
                pass
        await stream.close()
        assert on.kinds() == ["doubt"]


async def test_only_encodings_that_can_be_watched_are_asked_for() -> None:
    """A stream asks for gzip or deflate, unless the caller asks for something else."""
    async with rig(sim={"keep_calls": 3}) as on:
        await _create(on.client)
        stream = await on.client.messages.create(
            **ask(), stream=True, extra_headers={"Accept-Encoding": "identity"}
        )
        async for _ in stream:
            pass
        asked = [call.headers["accept-encoding"] for call in on.sim.calls]
        assert asked == ["gzip, deflate", "identity"]
        on.prove_exact(requests=2)


# ---- nested calls ------------------------------------------------------------------------------------


async def test_nested_under_a_tight_cap_is_declined() -> None:
    """A call inside the caller's own open stream can't wait for that stream's money: declined (R-09)."""
    async with rig(cap="0.005") as on:
        async with on.client.messages.stream(**ask(SLOW)) as stream:
            async for _ in stream.text_stream:
                with pytest.raises(BudgetExceeded, match="the caller's own open stream"):
                    await on.client.messages.create(**ask())
                break
        on.prove()


async def test_nested_under_a_gate_of_one_does_not_deadlock() -> None:
    """A call inside an open stream gets through a gate of width 1, five deep (R-09, R-10)."""
    async with rig(gate=Gate(width=1)) as on:

        async def dive(depth: int) -> None:
            async with on.client.messages.stream(**ask(SLOW)) as stream:
                async for _ in stream.text_stream:
                    if depth:
                        await dive(depth - 1)
                    break

        await asyncio.wait_for(dive(5), 20)
        await on.client.messages.create(**ask())
        on.prove()


async def test_after_a_stream_nothing_is_tied() -> None:
    """A finished stream ties no money: the next call waits for others instead of being declined."""
    async with rig(cap="0.02") as on:
        for _ in range(3):
            await _until_done(on.client)
        on.sim.faults.extend([Fault(kind="hang")])
        big = ask(max_tokens=1_200)
        first = asyncio.create_task(on.client.messages.create(**big))
        await on.sim.arrived(4)
        second = asyncio.create_task(on.client.messages.create(**big))
        while on.ledger.waiting == 0:
            await asyncio.sleep(0)
        on.sim.release()
        await asyncio.gather(first, second)
        on.prove_exact(requests=5)


def test_two_loops_one_ledger() -> None:
    """Loops in two threads share a ledger and a gate; the sums are the servers' (R-13)."""
    ledger = Ledger(caps=[Cap("100")])
    gate = Gate(width=2)
    billed: list[int] = []

    async def work() -> None:
        async with Simulator() as sim:
            meter = Meter(ledger, "app", gate=gate)
            async with anthropic.AsyncAnthropic(
                api_key="key", base_url=sim.url, middleware=[meter]
            ) as client:
                await asyncio.gather(*(_until_done(client) for _ in range(20)))
            billed.append(sim.bill.nanos)

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ledger.balance().posted_nanos == sum(billed) > 0
    assert ledger.balance().held_nanos == 0
    assert gate.statistics().in_use == 0
    assert ledger.check().findings == []
