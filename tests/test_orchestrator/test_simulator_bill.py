"""The simulator's bill: sums worked out by hand, to the nano-dollar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic

from orchestrator.simulator import Bill, Counts, Settings, Simulator
from orchestrator.simulator.catalog import MODELS, Terms, price

MIXED = Counts(input=10_000, output=2_000, write_5m=3_000, write_1h=4_000, read=5_000)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def client(sim: Simulator) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(
    ("model", "nanos"),
    [
        ("claude-fable-5-2", 255_000_000),
        ("claude-fable-5-1", 318_750_000),
        ("claude-opus-5-5", 128_000_000),
        ("claude-opus-5", 161_250_000),
        ("claude-opus-4-8", 161_250_000),
        ("claude-sonnet-5-5", 64_000_000),
        ("claude-sonnet-5", 64_500_000),
        ("claude-haiku-5-5", 3_225_000),
        ("claude-haiku-4-5", 32_250_000),
    ],
)
def test_price_list(model: str, nanos: int) -> None:
    """All five rates of each model give the sum that was measured at the real client."""
    assert price([(MODELS[model], MIXED)], Terms()) == nanos


@pytest.mark.parametrize(
    ("counts", "nanos"),
    [
        (Counts(input=100_000), 10_000_000),
        (Counts(input=100_001), 50_000_500),
        (Counts(input=60_000, read=40_000, output=10), 6_000_000 + 400_000 + 5_000),
        (Counts(input=60_000, read=60_000), 5 * (6_000_000 + 600_000)),
        (Counts(input=100_001, output=1_000), 5 * (10_000_100 + 500_000)),
    ],
)
def test_haiku_tier(counts: Counts, nanos: int) -> None:
    """A prompt above 100,000 tokens, cached ones included, makes everything five times dearer."""
    assert price([(MODELS["claude-haiku-5-5"], counts)], Terms()) == nanos


@pytest.mark.parametrize(
    ("terms", "nanos"),
    [
        (Terms(), 128_000_000),
        (Terms(us=True), 140_800_000),
        (Terms(batch=True), 64_000_000),
        (Terms(batch=True, us=True), 70_400_000),
        (Terms(fast=True), 256_000_000),
        (Terms(fast=True, us=True), 281_600_000),
    ],
)
def test_factors(terms: Terms, nanos: int) -> None:
    """Batch halves, the US adds a tenth, fast doubles; they stack."""
    assert price([(MODELS["claude-opus-5-5"], MIXED)], terms) == nanos


def test_searches_are_flat() -> None:
    """A web search costs a cent, whatever multiplies the tokens."""
    parts = [(MODELS["claude-opus-5-5"], Counts(input=10))]

    assert price(parts, Terms(us=True), web_searches=3) == 44_000 + 30_000_000


def test_a_charge_is_rounded_up_once() -> None:
    """Half a nano-dollar is charged as a whole one, once for the whole request."""
    haiku = MODELS["claude-haiku-5-5"]
    one = Counts(write_5m=1)  # 125 nano-dollars, 62.5 in a batch

    assert price([(haiku, one)], Terms(batch=True)) == 63
    assert price([(haiku, one), (haiku, one)], Terms(batch=True)) == 125


def test_the_public_example() -> None:
    """The public example costs $1.4568 with caching and $2.204 without."""
    opus, sonnet = MODELS["claude-opus-5-5"], MODELS["claude-sonnet-5-5"]
    lead = [Counts(write_5m=12_000, input=4_000, output=1_500)]
    lead += [Counts(read=12_000, input=4_000, output=1_500)] * 5
    worker = [Counts(write_5m=8_000, input=6_000, output=800)]
    worker += [Counts(read=8_000, input=6_000, output=800)] * 9
    cached = sum(price([(opus, turn)], Terms()) for turn in lead)
    cached += 4 * sum(price([(sonnet, turn)], Terms()) for turn in worker)
    plain = 6 * price([(opus, Counts(input=16_000, output=1_500))], Terms())
    plain += 40 * price([(sonnet, Counts(input=14_000, output=800))], Terms())
    searches = 4 * price([], Terms(), web_searches=5)

    assert cached + searches == 1_456_800_000
    assert plain + searches == 2_204_000_000


@pytest.mark.parametrize(
    ("fields", "nanos"),
    [
        ({"model": "claude-opus-5-5"}, 11 * 4_000 + 50 * 20_000),
        ({"model": "claude-opus-5-5", "speed": "fast"}, 2 * (11 * 4_000 + 50 * 20_000)),
        ({"model": "claude-sonnet-5-5", "inference_geo": "global"}, 11 * 2_000 + 50 * 10_000),
        ({"model": "claude-sonnet-5-5", "inference_geo": "us"}, 574_200),
        ({"model": "claude-haiku-5-5"}, 11 * 100 + 50 * 500),
    ],
)
async def test_requests_are_charged_by_their_fields(
    sim: Simulator, client: AsyncAnthropic, fields: dict[str, Any], nanos: int
) -> None:
    """What multiplies the price is read from the request and reported in usage."""
    message = await client.messages.create(
        max_tokens=100, messages=user("Hello, please [[sim:output=50]]"), **fields
    )

    assert (message.usage.input_tokens, message.usage.output_tokens) == (11, 50)
    assert message.usage.inference_geo == fields.get("inference_geo", "global")
    assert message.usage.speed == fields.get("speed")
    assert sim.bill.nanos == nanos


async def test_a_workspace_default_makes_us_inference_dearer() -> None:
    """A workspace default of ``us`` costs a tenth more although the request names no place."""
    async with (
        Simulator(settings=Settings(default_geo="us")) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key") as client,
    ):
        message = await client.messages.create(
            model="claude-opus-5-5", max_tokens=100, messages=user("[[sim:output=50]]")
        )

    assert message.usage.inference_geo == "us"
    tokens = message.usage.input_tokens * 4_000 + 50 * 20_000
    assert sim.bill.nanos == tokens * 11 // 10


async def test_web_searches_are_bounded_and_charged(sim: Simulator, client: AsyncAnthropic) -> None:
    """Searches stop at ``max_uses``; their results are input, and each costs a cent."""
    message = await client.messages.create(
        model="claude-sonnet-5-5",
        max_tokens=100,
        tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}],
        messages=user("[[sim:searches=5]][[sim:search_tokens=1000]][[sim:output=10]]"),
    )

    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 2
    assert message.usage.input_tokens > 2_000
    assert sim.bill.nanos == message.usage.input_tokens * 2_000 + 100_000 + 20_000_000


async def test_iterations_are_the_bill(sim: Simulator, client: AsyncAnthropic) -> None:
    """Compaction and advisor are billed beside the top level, each at its own model (C-13)."""
    text = "[[sim:output=10]][[sim:compaction=1000,100]][[sim:advisor=claude-opus-5-5,200,20]]"
    message = await client.messages.create(
        model="claude-sonnet-5-5", max_tokens=100, messages=user(text)
    )

    iterations = (message.usage.model_extra or {})["iterations"]
    assert [item["type"] for item in iterations] == ["compaction", "advisor_message", "message"]
    own = message.usage.input_tokens * 2_000 + 10 * 10_000
    compaction = 1_000 * 2_000 + 100 * 10_000
    advisor = 200 * 4_000 + 20 * 20_000
    assert sim.bill.nanos == own + compaction + advisor
    assert sim.bill.counts.output == 130


@pytest.mark.parametrize(("directive", "nanos"), [("refuse", 0), ("refuse=7", 9 * 2_000 + 70_000)])
async def test_refusals(sim: Simulator, client: AsyncAnthropic, directive: str, nanos: int) -> None:
    """A refusal before any output is reported but free; one after output is billed."""
    message = await client.messages.create(
        model="claude-sonnet-5-5", max_tokens=100, messages=user(f"[[sim:{directive}]]no bomb")
    )

    assert (message.stop_reason, message.content) == ("refusal", [])
    assert message.usage.input_tokens > 0
    assert sim.bill.nanos == nanos
    assert sim.bill.requests == 1


async def test_bill_over_http(sim: Simulator, client: AsyncAnthropic) -> None:
    """The bill is served as JSON and can be reset; both count from then on."""
    for _ in range(3):
        await client.messages.create(
            model="claude-haiku-5-5", max_tokens=9, messages=user("[[sim:output=5]]")
        )
    async with httpx2.AsyncClient(base_url=sim.url) as http:
        bill = (await http.get("/sim/bill?rows=2")).json()
        await http.post("/sim/reset")
        empty = (await http.get("/sim/bill")).json()

    assert bill["nanos"] == 3 * (7 * 100 + 5 * 500)
    assert bill["usd"] == "0.000009600"
    assert bill["by_model"] == {"claude-haiku-5-5": {"requests": 3, "nanos": 9_600}}
    assert [row["nanos"] for row in bill["rows"]] == [3_200, 3_200]
    assert (empty["nanos"], empty["requests"], empty["rows"]) == (0, 0, [])


def test_rows_are_a_ring_and_totals_are_not() -> None:
    """Memory stays flat: only the latest rows are kept, while totals cover everything."""
    bill = Bill("tag", keep_rows=3)
    for number in range(1, 6):
        bill.add(
            number=number,
            model="claude-haiku-5-5",
            kind="message",
            nanos=number,
            counts=Counts(input=1),
            web_searches=0,
            complete=number != 5,
        )

    assert [row.number for row in bill.rows] == [3, 4, 5]
    assert [row.complete for row in bill.rows] == [True, True, False]
    assert (bill.nanos, bill.requests, bill.counts.input) == (15, 5, 5)
    assert bill.row("msg_sim_tag_00000004") == bill.rows[1]
    assert bill.row("msg_sim_tag_00000001") is None
    assert bill.row("msg_sim_other_00000004") is None
