"""Every fault of the simulator, as the official client sees it, and what it leaves on the bill."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from orchestrator.simulator import Fault, Faults, Simulator
from orchestrator.simulator.faults import KINDS

MODEL = "claude-sonnet-5-5"


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as made:
        yield made


def asked(text: str = "Hello [[sim:output=100]]") -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}


async def create(client: AsyncAnthropic, text: str = "Hello [[sim:output=100]]") -> Any:
    return await client.messages.create(**asked(text))


async def stream(client: AsyncAnthropic) -> list[Any]:
    async with client.messages.stream(**asked()) as opened:
        return [event async for event in opened if event.type != "text"]


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code", "retry_after"),
    [
        ("rate_limited", 429, "rate_limit_error", None, "1"),
        ("enforced_spend_limit", 429, "rate_limit_error", "enforced_spend_limit_reached", None),
        ("own_spend_limit", 400, "invalid_request_error", None, None),
        ("billing", 402, "billing_error", None, None),
        ("unauthorized", 401, "authentication_error", None, None),
        ("forbidden", 403, "permission_error", None, None),
        ("overloaded", 529, "overloaded_error", None, None),
        ("server_error", 500, "api_error", None, None),
        ("unavailable", 503, "api_error", None, None),
        ("gateway_timeout", 504, "timeout_error", None, None),
    ],
)
async def test_error_replies(
    sim: Simulator,
    client: AsyncAnthropic,
    kind: str,
    status: int,
    error_type: str,
    code: str | None,
    retry_after: str | None,
) -> None:
    """Each error kind has its status, type, code and headers, once, and bills nothing."""
    sim.faults.extend([kind])
    with pytest.raises(anthropic.APIStatusError) as caught:
        await create(client)
    error = caught.value

    assert (error.status_code, error.type, error.error_code) == (status, error_type, code)
    assert error.response.headers.get("retry-after") == retry_after
    assert error.request_id is not None
    assert error.request_id.startswith("req_sim_")
    assert sim.bill.requests == 0
    await create(client)


async def test_spend_limits_are_told_apart(sim: Simulator, client: AsyncAnthropic) -> None:
    """The SDK raises its own class for the enforced limit; the own limit has its known words."""
    sim.faults.extend(["enforced_spend_limit", "own_spend_limit"])

    with pytest.raises(anthropic.EnforcedSpendLimitReachedError):
        await create(client)
    with pytest.raises(anthropic.BadRequestError, match="reached your specified API usage limits"):
        await create(client)


async def test_any_error(sim: Simulator, client: AsyncAnthropic) -> None:
    """Kind ``error`` takes status, message, code, retry-after and x-should-retry as given."""
    sim.faults.extend(
        [
            Fault(
                kind="error",
                status=409,
                message="busy",
                code="some_code",
                retry_after=0.5,
                should_retry=False,
            )
        ]
    )
    with pytest.raises(anthropic.ConflictError, match="busy") as caught:
        await create(client)

    assert caught.value.error_code == "some_code"
    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["x-should-retry"]) == ("0.5", "false")


async def test_error_event_in_a_stream(sim: Simulator, client: AsyncAnthropic) -> None:
    """An overload inside a 200 stream ends it; what was generated until then is billed (S-05)."""
    sim.faults.extend([Fault(kind="sse_error", after_events=6)])
    with pytest.raises(anthropic.APIStatusError) as caught:
        await stream(client)

    assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")
    (row,) = sim.bill.rows
    assert 0 < row.counts.output < 100
    assert not row.complete


async def test_cut_stream_is_billed_for_what_was_generated(
    sim: Simulator, client: AsyncAnthropic
) -> None:
    """After a lost connection the bill holds the input and the output sent until then."""
    sim.faults.extend([Fault(kind="cut", after_events=5)])
    with pytest.raises(httpx2.RemoteProtocolError):
        await stream(client)

    (row,) = sim.bill.rows
    # start, block start, ping and two of sixteen deltas of 25 characters were sent
    assert row.counts.output == 100 * 2 // 16
    assert row.nanos == row.counts.input * 2_000 + row.counts.output * 10_000
    assert not row.complete


async def test_stream_that_ends_too_early(sim: Simulator, client: AsyncAnthropic) -> None:
    """A clean end without message_stop raises nothing; the whole output is billed."""
    sim.faults.extend(["no_stop"])
    async with client.messages.stream(**asked()) as opened:
        final = await opened.get_final_message()

    assert (final.stop_reason, final.usage.output_tokens) == (None, 1)
    assert sim.bill.counts.output == 100


@pytest.mark.parametrize("billed", [True, False])
async def test_reset_before_the_reply(sim: Simulator, client: AsyncAnthropic, billed: bool) -> None:
    """A connection reset before the reply may or may not have been billed (S-08)."""
    sim.faults.extend([Fault(kind="reset", billed=billed)])
    with pytest.raises(anthropic.APIConnectionError):
        await create(client)

    assert sim.bill.requests == int(billed)
    assert (sim.bill.nanos > 0) is billed


@pytest.mark.parametrize("billed", [True, False])
async def test_hang_until_the_client_gives_up(
    sim: Simulator, client: AsyncAnthropic, billed: bool
) -> None:
    """A request that hangs is billed, if at all, when the client gives up."""
    sim.faults.extend([Fault(kind="hang", billed=billed)])
    task = asyncio.create_task(create(client))
    await sim.arrived(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await create(client)

    assert sim.bill.requests == 1 + int(billed)
    assert sim.stats.in_progress == 0


async def test_hang_until_released(sim: Simulator, client: AsyncAnthropic) -> None:
    """A hanging request goes on as if nothing had happened once it is released."""
    sim.faults.extend(["hang"])
    task = asyncio.create_task(create(client))
    await sim.arrived(1)
    assert (sim.stats.in_progress, sim.bill.requests) == (1, 0)
    sim.release()

    assert (await task).usage.output_tokens == 100
    assert sim.bill.requests == 1


async def test_client_leaves_a_hanging_stream(sim: Simulator, client: AsyncAnthropic) -> None:
    """A stream that falls silent is billed for what was generated when the client leaves."""
    sim.faults.extend([Fault(kind="hang_stream", after_events=4)])
    async with client.messages.stream(**asked()) as opened:
        seen = []
        async for event in opened:
            seen.append(event.type)
            if event.type == "content_block_delta":
                break
    await create(client)

    cut, whole = sim.bill.rows
    assert cut.kind == "stream"
    assert (cut.complete, whole.complete) == (False, True)
    assert cut.counts.output == 100 // 16


async def test_paced_stream_left_early(sim: Simulator, client: AsyncAnthropic) -> None:
    """A stream left in the middle is billed for at least what was seen, and less than all."""
    text = "[[sim:output=100]][[sim:pace=400]]"
    async with client.messages.stream(**asked(text)) as opened:
        async for event in opened:
            if event.type == "content_block_delta":
                break
    await create(client)

    cut = sim.bill.rows[0] if sim.bill.rows[0].kind == "stream" else sim.bill.rows[1]
    assert 0 < cut.counts.output < 100


@pytest.mark.parametrize("kind", ["invalid_json", "html"])
async def test_garbage_with_status_200(sim: Simulator, client: AsyncAnthropic, kind: str) -> None:
    """Half a document or a web page comes with 200; only the half document was billed."""
    sim.faults.extend([kind])
    raw = await client.messages.with_raw_response.create(**asked())

    with pytest.raises(json.JSONDecodeError):
        json.loads(await raw.read())
    assert sim.bill.requests == int(kind == "invalid_json")


async def test_missing_usage(sim: Simulator, client: AsyncAnthropic) -> None:
    """``no_usage`` leaves usage out, in a plain reply and in a stream."""
    sim.faults.extend(["no_usage", "no_usage"])
    raw = await client.messages.with_raw_response.create(**asked())
    assert "usage" not in json.loads(await raw.read())
    async with client.messages.with_streaming_response.create(**asked(), stream=True) as reply:
        assert "usage" not in await reply.text()
    assert sim.bill.counts.output == 200


async def test_missing_split(sim: Simulator, client: AsyncAnthropic) -> None:
    """``no_split`` reports cache writes only as a sum."""
    sim.faults.extend(["no_split"])
    system: Any = [{"type": "text", "text": "x" * 8_000, "cache_control": {"type": "ephemeral"}}]
    message = await client.messages.create(**asked(), system=system)

    assert message.usage.cache_creation is None
    assert message.usage.cache_creation_input_tokens == 2_000


async def test_another_model_serves(sim: Simulator, client: AsyncAnthropic) -> None:
    """``other_model`` names and bills the model that served."""
    sim.faults.extend([Fault(kind="other_model", model="claude-haiku-4-5")])
    message = await create(client)

    assert message.model == "claude-haiku-4-5"
    assert sim.bill.nanos == message.usage.input_tokens * 1_000 + 100 * 5_000


async def test_gzip_stream(sim: Simulator, client: AsyncAnthropic) -> None:
    """A compressed stream is a stream all the same."""
    sim.faults.extend(["gzip"])
    async with client.messages.stream(**asked()) as opened:
        final = await opened.get_final_message()
        encoding = opened.response.headers["content-encoding"]

    assert (encoding, final.usage.output_tokens) == ("gzip", 100)


async def test_script_is_first_come_first_served(sim: Simulator, client: AsyncAnthropic) -> None:
    """A script is used up in order; None lets a request pass, ``match`` picks its own."""
    sim.faults.extend(
        [None, Fault(kind="overloaded", times=2), Fault(kind="billing", match="special")]
    )
    statuses = []
    for text in ("a", "special", "b", "c", "special", "d"):
        try:
            await create(client, text)
            statuses.append(200)
        except anthropic.APIStatusError as error:
            statuses.append(error.status_code)

    assert statuses == [200, 529, 529, 200, 402, 200]
    assert sim.faults.pending == 0


async def test_directive_fault_happens_every_time(client: AsyncAnthropic) -> None:
    """A fault asked for in the prompt happens on each attempt."""
    for _ in range(2):
        with pytest.raises(anthropic.OverloadedError):
            await create(client, "[[sim:fault=overloaded]]")


async def test_faults_on_other_endpoints(sim: Simulator, client: AsyncAnthropic) -> None:
    """Token counts and batches have faults of their own, which messages don't use up."""
    sim.faults.extend(
        [Fault(kind="overloaded", on="count_tokens"), Fault(kind="server_error", on="batches")]
    )
    await create(client)

    with pytest.raises(anthropic.OverloadedError):
        await client.messages.count_tokens(model=MODEL, messages=asked()["messages"])
    with pytest.raises(anthropic.InternalServerError):
        await client.messages.batches.list()


def test_rates_are_seeded() -> None:
    """The same seed gives the same faults, at about the asked rate."""
    rates = {"overloaded": 0.2, "cut": 0.1}

    def drawn(seed: int) -> list[str | None]:
        faults = Faults(rates=rates, seed=seed)
        found = [faults.draw("messages", b"", stream=True) for _ in range(1_000)]
        return [None if fault is None else fault.kind for fault in found]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 150 < drawn(1).count("overloaded") < 250
    assert 70 < drawn(1).count("cut") < 130


def test_stream_faults_pass_over_plain_requests() -> None:
    """A fault that needs a stream waits in the script for one."""
    faults = Faults(["cut"])

    assert faults.draw("messages", b"", stream=False) is None
    assert faults.draw("messages", b"", stream=True) == Fault(kind="cut")


async def test_plan_over_http(sim: Simulator, client: AsyncAnthropic) -> None:
    """A plan can be posted as JSON; what it doesn't know is a 400 that says so."""
    async with httpx2.AsyncClient(base_url=sim.url) as http:
        plan = {"script": ["billing", None, {"kind": "rate_limited", "retry_after": 7}]}
        assert (await http.post("/sim/faults", json=plan)).json()["ok"] is True
        for bad, words in (
            ({"script": ["nonsense"]}, "there is no fault 'nonsense'"),
            ({"script": [{"kind": "cut", "often": 1}]}, "its fields are"),
            ({"rate": {}}, "unknown field 'rate'"),
            ({"rates": {"cut": 2}}, "chances from 0 to 1"),
        ):
            refused = await http.post("/sim/faults", json=bad)
            assert refused.status_code == 400
            assert words in refused.json()["error"]["message"]

    with pytest.raises(anthropic.PaymentRequiredError):
        await create(client)
    await create(client)
    with pytest.raises(anthropic.RateLimitError) as caught:
        await create(client)
    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_every_fault_leaves_the_simulator_serving(kind: str) -> None:
    """Whatever the fault, the next request is served and nothing stays in progress."""
    async with (
        Simulator(faults=Faults([Fault(kind=kind, seconds=0.01)])) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        # What the client makes of it is its own business.
        with contextlib.suppress(anthropic.APIError, httpx2.HTTPError, ValueError, AttributeError):
            await stream(client)
        await create(client)

        assert sim.bill.rows[-1].complete
        assert sim.stats.in_progress == 0
