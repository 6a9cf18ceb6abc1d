"""The guard: nothing billable without a live hold, and the truth about what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from orchestrator.errors import Unmetered
from orchestrator.simulator import Fault
from orchestrator.transport import HOLD_HEADER, AsyncGuard, Passes, async_http_client, http_client

from .metering import MODEL, Rig, ask, rig


@asynccontextmanager
async def guarded(base_url: str = "", **options: Any) -> AsyncIterator[Rig]:
    """A client as ``Run`` builds it."""
    passes = Passes(base_url)
    http = async_http_client(passes)
    client = {"http_client": http, **options.pop("client", {})}
    async with rig(passes=passes, client=client, **options) as on:
        yield on


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_copy_without_its_meter_can_not_spend(retries: int) -> None:
    """A copy of the client that drops the meter is stopped in one sentence, at once, unsent (O-10)."""
    async with guarded() as on:
        naked = on.client.with_options(middleware=[], max_retries=retries)
        with pytest.raises(Unmetered, match=r"\[yours, \*client.middleware\]"):
            await naked.messages.create(**ask())
        with pytest.raises(Unmetered):
            async with naked.messages.stream(**ask()) as stream:
                await stream.until_done()
        with pytest.raises(Unmetered):
            await naked.messages.batches.create(requests=[{"custom_id": "a", "params": ask()}])
        with pytest.raises(Unmetered):
            await naked.post("/v1/complete", cast_to=object, body={})
        assert on.sim.stats.arrived == 0


async def test_what_is_free_passes_without_a_meter() -> None:
    """Counting and reading need no hold."""
    async with guarded() as on:
        naked = on.client.with_options(middleware=[])
        assert (await naked.models.list()).data
        counted = await naked.messages.count_tokens(model=MODEL, messages=ask()["messages"])
        assert counted.input_tokens > 0


async def test_metered_calls_pass_and_the_header_stays_here() -> None:
    """Calls and streams of the meter pass; the hold's id never goes on the wire."""
    async with guarded(sim={"keep_calls": 9}) as on:
        await on.client.messages.create(**ask())
        async with on.client.messages.stream(**ask()) as stream:
            await stream.until_done()
        assert len(on.sim.calls) == 2
        assert all(HOLD_HEADER not in call.headers for call in on.sim.calls)
        on.prove_exact(requests=2)


async def test_a_pass_is_good_for_its_own_hold_only() -> None:
    """An invented or a used id opens nothing."""
    async with guarded() as on:
        await on.client.messages.create(**ask())
        used = next(iter(on.ledger.lines())).hold
        naked = on.client.with_options(middleware=[])
        for hold_id in (used, "0" * 32):
            with pytest.raises(Unmetered):
                await naked.messages.create(**ask(), extra_headers={HOLD_HEADER: hold_id})
        on.prove_exact(requests=1)


async def test_a_base_url_with_a_path() -> None:
    """Behind a gateway's prefix, free paths are still known as free, and others as billable."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"input_tokens": 7})

    passes = Passes("http://gateway/anthropic/")
    guard = AsyncGuard(httpx2.MockTransport(answer), passes)
    http = anthropic.DefaultAsyncHttpxClient(transport=guard)
    async with anthropic.AsyncAnthropic(
        api_key="key", base_url="http://gateway/anthropic/", http_client=http
    ) as naked:
        counted = await naked.messages.count_tokens(model=MODEL, messages=ask()["messages"])
        assert counted.input_tokens == 7
        with pytest.raises(Unmetered):
            await naked.messages.create(**ask())


async def test_a_redirect_keeps_its_pass() -> None:
    """A redirected request is the same attempt."""
    async with rig() as on:
        target = on.sim.url

        class Redirecting(httpx2.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                if request.url.host == "redirect.invalid":
                    headers = {"location": f"{target}{request.url.path}"}
                    return httpx2.Response(307, headers=headers, request=request)
                return await super().handle_async_request(request)

        passes = Passes()
        http = anthropic.DefaultAsyncHttpxClient(transport=AsyncGuard(Redirecting(), passes))
        on.meter._passes = passes
        client = on.client.with_options(http_client=http, base_url="http://redirect.invalid")
        # Credentials don't follow to another host, so the answer is a 401: sent, and void.
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ask())
        assert on.kinds() == ["void"]
        await http.aclose()


async def test_cancelled_before_its_first_byte_is_void() -> None:
    """Behind the guard it is known that nothing had left: the hold is given back (H-06)."""

    class Slow(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

    reached = asyncio.Event()
    passes = Passes()
    http = anthropic.DefaultAsyncHttpxClient(transport=AsyncGuard(Slow(), passes))
    async with rig(passes=passes, client={"http_client": http}) as on:
        task = asyncio.create_task(on.client.messages.create(**ask()))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


async def test_cancelled_after_its_first_byte_is_in_doubt() -> None:
    """Once bytes have left nobody knows what was billed (S-08)."""
    async with guarded() as on:
        on.sim.faults.extend([Fault(kind="hang", billed=True)])
        task = asyncio.create_task(on.client.messages.create(**ask()))
        await on.sim.arrived(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert on.kinds() == ["doubt"]
        while not on.sim.bill.requests:
            await asyncio.sleep(0)
        on.prove()


async def test_a_transport_that_does_not_tell_leaves_it_in_doubt() -> None:
    """Only transports that say when a request leaves are believed that it has not (rule 8)."""

    class Foreign(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise httpx2.ReadTimeout("sent, but no answer")

    passes = Passes()
    http = anthropic.DefaultAsyncHttpxClient(transport=AsyncGuard(Foreign(), passes))
    async with rig(passes=passes, client={"http_client": http}) as on:
        with pytest.raises(anthropic.APITimeoutError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["doubt"]


async def test_passes_without_a_guard_leave_it_in_doubt() -> None:
    """A meter whose client has no guard after all never gives back what may have been sent."""
    http = anthropic.DefaultAsyncHttpxClient(timeout=httpx2.Timeout(30, read=0.1))
    client = {"http_client": http, "timeout": httpx2.Timeout(30, read=0.1)}
    async with rig(passes=Passes(), client=client) as on:
        on.sim.faults.extend([Fault(kind="hang", billed=True)])
        with pytest.raises(anthropic.APITimeoutError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["doubt"]
        while not on.sim.bill.requests:
            await asyncio.sleep(0)
        on.prove()


async def test_proxies_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard stands in front of proxies as well, and does not switch them off."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    passes = Passes()
    async with async_http_client(passes) as asynchronous:
        with http_client(passes) as blocking:
            for made in (asynchronous, blocking):
                transport = made._transport_for_url(httpx2.URL("http://api.example"))
                assert type(transport).__name__ in {"AsyncGuard", "Guard"}
                assert transport is not made._transport  # the mounted proxy's
            with pytest.raises(Unmetered):
                blocking.post("http://api.example/v1/messages", json=ask())
