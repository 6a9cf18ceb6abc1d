"""Calls without a stream: every billable path of the async client ends on the bill to the nano-dollar."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from typing import Any, Literal

import anthropic
import httpx2
import pydantic
import pytest
from anthropic import APIRequest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budgets import BudgetExceeded, Cap, Ledger, scope
from orchestrator.errors import ConfigError, Unmetered
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.simulator import Fault

from .metering import MODEL, ask, rig


class Label(pydantic.BaseModel):
    """What ``messages.parse`` is asked for."""

    label: Literal["cat", "dog"]
    why: str


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5"])
async def test_create(model: str) -> None:
    """A plain call is posted at the server's own figure, and the rest of its hold is released."""
    async with rig() as on:
        await on.client.messages.create(**ask(model=model))

        on.prove_exact(requests=1)
        hold, settled = on.ledger.lines()
        assert (hold.kind, settled.kind, settled.scope) == ("hold", "settle", "app")
        assert 0 < settled.posted < hold.nanos
        assert settled.usage is not None
        assert settled.usage["output_tokens"] == 50


async def test_beta_create() -> None:
    """The beta surface posts to the same path and is metered as well."""
    async with rig() as on:
        await on.client.beta.messages.create(**ask(), betas=["interleaved-thinking-2025-05-14"])
        on.prove_exact(requests=1)


async def test_caches_are_settled_by_lifetime() -> None:
    """Writes of both lifetimes and reads are posted at their own rates (C-06, C-08)."""
    async with rig() as on:
        system = [
            {
                "type": "text",
                "text": "a" * 20_000,
                "cache_control": {"type": "ephemeral", "ttl": "1h"},
            },
            {"type": "text", "text": "b" * 20_000, "cache_control": {"type": "ephemeral"}},
        ]
        for _ in range(2):
            await on.client.messages.create(**ask(system=system))

        on.prove_exact(requests=2)
        counts = on.sim.bill.counts
        assert min(counts.write_1h, counts.write_5m, counts.read) > 0


@pytest.mark.parametrize("extra", [{"inference_geo": "us"}, {"speed": "fast"}])
async def test_dearer_places_and_speeds(extra: dict[str, str]) -> None:
    """What makes a call dearer is on the hold and on the bill."""
    async with rig() as on:
        await on.client.messages.create(**ask(model="claude-opus-5-5"), **extra)
        on.prove_exact(requests=1)


async def test_output_limit_is_set_where_none_is_given() -> None:
    """A body without max_tokens is sent with one: the hold is never whatever is left (H-04)."""
    async with rig(sim={"keep_calls": 1}) as on:
        await on.client.post(
            "/v1/messages",
            cast_to=object,
            body={"model": MODEL, "messages": [{"role": "user", "content": "hello"}]},
        )

        sent = json.loads(on.sim.calls[0].body)
        assert sent["max_tokens"] > 0
        assert sent["service_tier"] == "standard_only"
        assert next(iter(on.ledger.lines())).nanos < 10**9
        on.prove_exact(requests=1)


async def test_extra_body_and_headers_are_priced() -> None:
    """What extra_body adds is in the bound, and beta headers of any case are seen."""
    async with rig() as on:
        await on.client.messages.create(
            **ask(),
            extra_body={"system": "x" * 5_000},
            extra_headers={"Anthropic-Beta": "context-1m-2025-08-07"},
        )
        on.prove_exact(requests=1)
        assert next(iter(on.ledger.lines())).nanos > 5_000 * 2_000


async def test_parse() -> None:
    """Structured answers are metered, and come out parsed."""
    async with rig() as on:
        fields = ask('[[sim:text={"label": "cat", "why": "meow"}]]')
        message = await on.client.messages.parse(**fields, output_format=Label)

        assert message.parsed_output.label == "cat"
        on.prove_exact(requests=1)


@pytest.mark.parametrize("surface", ["messages", "beta"])
async def test_billed_before_it_is_parsed(surface: str) -> None:
    """An answer cut in the middle of its JSON raises, and is posted all the same (C-25, J-02)."""
    async with rig() as on:
        api = on.client.messages if surface == "messages" else on.client.beta.messages
        cut = ask('[[sim:text={"label": "cat", "wh]][[sim:stop=max_tokens]]')
        with pytest.raises(pydantic.ValidationError):
            await api.parse(**cut, output_format=Label)

        assert on.last().kind == "settle"
        assert on.last().note["stop_reason"] == "max_tokens"
        on.prove_exact(requests=1)


async def test_raw_response() -> None:
    """``with_raw_response`` hands out the untouched body, settled."""
    async with rig() as on:
        raw = await on.client.messages.with_raw_response.create(**ask())

        on.prove_exact(requests=1)
        assert (await raw.parse()).usage.output_tokens == 50


async def test_streaming_response_of_a_plain_call() -> None:
    """``with_streaming_response`` without a stream is settled, and its bytes can still be read."""
    async with rig() as on, on.client.messages.with_streaming_response.create(**ask()) as raw:
        on.prove_exact(requests=1)
        read = b"".join([chunk async for chunk in raw.iter_bytes()])
        assert json.loads(read)["type"] == "message"


async def test_plain_http_response() -> None:
    """``cast_to=httpx2.Response`` is metered like any other."""
    async with rig() as on:
        response = await on.client.post("/v1/messages", cast_to=httpx2.Response, body=ask())
        assert response.json()["usage"]["output_tokens"] == 50
        on.prove_exact(requests=1)


async def test_count_tokens_is_free_and_gated() -> None:
    """Counting makes no hold, but takes a slot in a lane of its own."""
    async with rig() as on:
        counted = await on.client.messages.count_tokens(model=MODEL, messages=ask()["messages"])

        assert counted.input_tokens > 0
        assert list(on.ledger.lines()) == []
        (group,) = on.gate.statistics().groups.values()
        assert group.admitted == 1
        assert "count_tokens" in group.group
        on.prove_exact(requests=0)


async def test_free_paths_pass() -> None:
    """Reading models and batches needs no hold and no money."""
    async with rig(cap="0") as on:
        assert (await on.client.models.list()).data
        assert (await on.client.models.retrieve(MODEL)).id == MODEL
        assert (await on.client.messages.batches.list()).data == []
        with pytest.raises(anthropic.NotFoundError):
            await on.client.messages.batches.retrieve("msgbatch_none")
        assert list(on.ledger.lines()) == []


async def test_batches_are_declined() -> None:
    """Batches go through a job that outlives the client: one clear sentence, and nothing is sent (O-13)."""
    async with rig(sim={"keep_calls": 9}) as on:
        requests = [{"custom_id": "a", "params": ask()}]
        for batches in (on.client.messages.batches, on.client.beta.messages.batches):
            with pytest.raises(Unmetered, match="message batches run for hours"):
                await batches.create(requests=requests)
        assert on.sim.calls == []


async def test_unknown_paths_are_declined() -> None:
    """Whatever can bill and has no price here is not sent (O-11, O-12)."""
    async with rig(sim={"keep_calls": 9}) as on:
        with pytest.raises(Unmetered, match="POST /v1/complete"):
            await on.client.post("/v1/complete", cast_to=object, body={"prompt": "x"})
        with pytest.raises(Unmetered, match="/v1/sessions"):
            await on.client.beta.sessions.create(agent="agent_1", environment_id="env_1")
        with pytest.raises(Unmetered, match="/v1/agents"):
            await on.client.beta.agents.create(name="a", model=MODEL)
        with pytest.raises(Unmetered, match="its body is not JSON"):
            await on.client.post("/v1/messages", cast_to=object, content=b"{}")
        assert on.sim.calls == []
        assert list(on.ledger.lines()) == []


async def test_each_attempt_has_a_line() -> None:
    """The client's own retries are attempts with holds of their own (C-24)."""
    async with rig(client={"max_retries": 2}) as on:
        on.sim.faults.extend([Fault(kind="server_error", should_retry=True), "overloaded", None])
        on.client = on.client.with_options(
            max_retries=2, middleware=[_hurry, *on.client.middleware]
        )
        await on.client.messages.create(**ask())

        assert on.kinds() == ["void", "void", "settle"]
        on.prove_exact(requests=1)


async def _hurry(request: APIRequest, call_next: Any) -> Any:
    """A middleware in front that tells the client to retry at once."""
    response = await call_next(request)
    response.http_response.headers["retry-after-ms"] = "1"
    return response


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("enforced_spend_limit", anthropic.EnforcedSpendLimitReachedError),
        ("own_spend_limit", anthropic.BadRequestError),
        ("billing", anthropic.PaymentRequiredError),
    ],
)
async def test_spend_limits_are_not_repeated(kind: str, error: type[Exception]) -> None:
    """The SDK would repeat a spend limit in vain; under the meter it does not (R-08)."""
    async with rig(client={"max_retries": 2}) as on:
        on.sim.faults.extend([kind])
        with pytest.raises(error):
            await on.client.messages.create(**ask())

        assert on.kinds() == ["void"]
        assert on.sim.stats.arrived == 1
        (group,) = on.gate.statistics().groups.values()
        assert group.throttled == 0
        on.prove_exact(requests=0)


async def test_copies_of_the_client_keep_the_meter() -> None:
    """``with_options`` and ``copy`` are metered, and middleware in front sees each attempt."""
    seen: list[str] = []

    async def watcher(request: APIRequest, call_next: Any) -> Any:
        seen.append(request.url)
        return await call_next(request)

    async with rig() as on:
        copy = on.client.with_options(timeout=30.0, middleware=[watcher, *on.client.middleware])
        await copy.messages.create(**ask())
        await copy.copy().messages.create(**ask())

        assert seen == ["/v1/messages"] * 2
        on.prove_exact(requests=2)


async def test_middleware_behind_the_meter_must_not_answer() -> None:
    """A middleware behind the meter that answers by itself is the caller's mistake, in one sentence."""

    async def cached(request: APIRequest, call_next: Any) -> Any:
        return {"cached": True}

    async with rig() as on:
        wrong = on.client.with_options(middleware=[*on.client.middleware, cached])
        with pytest.raises(ConfigError, match="the meter goes last"):
            await wrong.messages.create(**ask())
        assert on.kinds() == ["doubt"]
        on.prove()


async def test_a_caller_may_use_the_request_twice() -> None:
    """The meter leaves the request as it got it, so that middleware in front may send it again."""

    async def twice(request: APIRequest, call_next: Any) -> Any:
        before = json.dumps(request.json)
        await call_next(request)
        assert json.dumps(request.json) == before
        assert "service_tier" not in request.json
        return await call_next(request)

    async with rig() as on:
        client = on.client.with_options(middleware=[twice, *on.client.middleware])
        await client.messages.create(**ask())
        on.prove_exact(requests=2)


# ---- 200s that can't be priced --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["invalid_json", "html"])
async def test_unreadable_answers_are_in_doubt(kind: str) -> None:
    """A 200 that is no message stays charged in full (S-08)."""
    async with rig() as on:
        on.sim.faults.extend([kind])
        # What the client makes of half a document is its own business.
        with contextlib.suppress(ValueError):
            await on.client.messages.create(**ask())

        assert on.kinds() == ["doubt"]
        on.prove()


async def test_missing_usage_posts_the_whole_hold() -> None:
    """No usage: the hold is posted in full and flagged, never released (C-01)."""
    async with rig() as on:
        on.sim.faults.extend(["no_usage"])
        await on.client.messages.with_raw_response.create(**ask())

        hold, settled = on.ledger.lines()
        assert settled.kind == "settle"
        assert settled.posted == hold.nanos
        assert settled.note["unpriced"] == "no usage"
        assert on.ledger.check().unpriced == 1


async def test_another_model_is_priced_as_served() -> None:
    """The model that served decides, not the one asked for (C-29)."""
    async with rig() as on:
        on.sim.faults.extend([Fault(kind="other_model", model="claude-haiku-4-5")])
        await on.client.messages.create(**ask())
        on.prove_exact(requests=1)


def _canned(usage: Any, model: str = MODEL) -> httpx2.AsyncClient:
    """An HTTP client that answers with this usage."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
        content = [{"type": "text", "text": "hi"}]
        body = {**message, "content": content, "stop_reason": "end_turn", "usage": usage}
        return httpx2.Response(200, json=body)

    return anthropic.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5, "output_tokens": 3},
        {"input_tokens": 10**12, "output_tokens": 3},
        {"input_tokens": "many", "output_tokens": 3},
        {"input_tokens": 0, "output_tokens": 0},
        {},
    ],
)
async def test_absurd_usages_post_the_whole_hold(usage: dict[str, Any]) -> None:
    """A usage that can't be true is no usage (C-04)."""
    async with rig(client={"http_client": _canned(usage)}) as on:
        await on.client.messages.create(**ask())
        hold, settled = on.ledger.lines()
        assert settled.posted == hold.nanos
        assert "unpriced" in settled.note


async def test_unknown_served_model_posts_the_whole_hold(caplog: pytest.LogCaptureFixture) -> None:
    """A model without a price is posted in full, flagged and logged (C-01, C-02)."""
    usage = {"input_tokens": 5, "output_tokens": 3}
    async with rig(client={"http_client": _canned(usage, "claude-nonsense-9")}) as on:
        await on.client.messages.create(**ask())
        hold, settled = on.ledger.lines()
        assert settled.posted == hold.nanos
        assert "claude-nonsense-9" in settled.note["unpriced"]
        assert "claude-nonsense-9" in caplog.text


async def test_overruns_are_posted_and_raise_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """A real cost above the hold is posted all the same, logged, and listed by the checker."""
    usage = {"input_tokens": 100_000, "output_tokens": 100_000}
    async with rig(client={"http_client": _canned(usage)}) as on:
        await on.client.messages.create(**ask())
        hold, settled = on.ledger.lines()
        assert settled.posted == 100_000 * 2_000 + 100_000 * 10_000 > hold.nanos
        assert "overrun" in caplog.text
        assert len(on.ledger.check().overruns) == 1


# ---- the bound binds ------------------------------------------------------------------------------

_TEXT = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        ["ﷺ" * 40, "🧪" * 30, "日本語テキスト" * 9, "naïve café " * 12, "\x7f\t\n" * 20]
    ),
)
_MARK = st.sampled_from([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


@st.composite
def _bodies(draw: Any) -> dict[str, Any]:
    def marked(block: dict[str, Any]) -> dict[str, Any]:
        mark = draw(_MARK)
        return block if mark is None else {**block, "cache_control": mark}

    text = draw(_TEXT).replace("[[", "") or "x"
    # Long blocks reach the cache minimum, so that writes really happen.
    blocks = [marked({"type": "text", "text": text * draw(st.sampled_from([1, 1, 200]))})]
    if draw(st.booleans()):
        source = {"type": "text", "media_type": "text/plain", "data": draw(_TEXT) or "x"}
        blocks.append(marked({"type": "document", "source": source}))
    ask_for = draw(st.integers(0, 700))
    blocks.append({"type": "text", "text": f"go [[sim:output={ask_for}]]"})
    body: dict[str, Any] = {
        "model": draw(
            st.sampled_from(
                ["claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5", "claude-opus-5"]
            )
        ),
        "messages": [{"role": "user", "content": blocks}],
    }
    if draw(st.booleans()):
        body["max_tokens"] = draw(st.integers(1, 600))
    if draw(st.booleans()):
        body["system"] = [marked({"type": "text", "text": draw(_TEXT) or "x"})]
    if draw(st.booleans()):
        schema = {
            "type": "object",
            "properties": {"näme": {"type": "string", "description": draw(_TEXT)}},
        }
        body["tools"] = [
            {"name": f"tool_{n}", "description": draw(_TEXT), "input_schema": schema}
            for n in range(draw(st.integers(1, 3)))
        ]
    elif draw(st.booleans()):
        schema = {
            "type": "object",
            "properties": {"label": {"enum": ["a", "ü"]}},
            "required": ["label"],
            "additionalProperties": False,
        }
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if body["model"] == "claude-opus-5-5" and draw(st.booleans()):
        body["speed"] = "fast"
    geo = draw(st.sampled_from([None, "global", "us"]))
    return body if geo is None else {**body, "inference_geo": geo}


@pytest.mark.parametrize("home", ["global", "us"])
async def test_bounds_bind(home: str) -> None:
    """Whatever is asked for, the server's bill is never above the hold (rules 3 and 4, O-16)."""
    async with rig(sim={"default_geo": home}, cap="10000") as on:
        bodies: list[dict[str, Any]] = []

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
        @given(_bodies())
        def collect(body: dict[str, Any]) -> None:
            bodies.append(body)

        collect()
        refused = 0
        for body in bodies:
            try:
                await on.client.post("/v1/messages", cast_to=object, body=body)
            except anthropic.BadRequestError:
                refused += 1

        assert refused < len(bodies) / 4  # lifetimes in an order that the API refuses
        assert on.sim.bill.requests == len(bodies) - refused > 50
        on.prove_exact()


# ---- bytes first, the counter only when needed ----------------------------------------------------


def _arrivals(on: Any) -> list[str]:
    return [call.path.removeprefix("/v1/") for call in on.sim.calls]


async def test_no_count_where_bytes_fit() -> None:
    """A call whose byte bound fits under its caps asks the counter nothing."""
    async with rig(sim={"keep_calls": 9}) as on:
        await on.client.messages.create(**ask("word " * 1_000))
        assert _arrivals(on) == ["messages"]


async def test_one_count_where_only_the_counter_fits() -> None:
    """A call that fits only by the token counter makes one count, and is sent."""
    async with rig(sim={"keep_calls": 9}, cap="0.02") as on:
        await on.client.messages.create(**ask("word " * 2_000, max_tokens=20))

        assert _arrivals(on) == ["messages/count_tokens", "messages"]
        assert len(list(on.ledger.lines())) == 2
        on.prove_exact(requests=1)


async def test_no_count_where_it_can_not_help() -> None:
    """When the output alone does not fit, there is nothing to count: declined at once."""
    async with rig(sim={"keep_calls": 9}, cap="0.02") as on:
        with pytest.raises(BudgetExceeded):
            await on.client.messages.create(**ask("word " * 2_000, max_tokens=20_000))
        assert _arrivals(on) == []


async def test_no_count_while_held_money_is_in_the_way() -> None:
    """A call that only has to wait its turn waits, and asks the counter nothing."""
    async with rig(sim={"keep_calls": 9}, cap="0.03") as on:
        on.sim.faults.extend([Fault(kind="hang")])
        fields = ask("word " * 1_000, max_tokens=800)
        first = asyncio.create_task(on.client.messages.create(**fields))
        await on.sim.arrived(1)
        second = asyncio.create_task(on.client.messages.create(**fields))
        while on.ledger.waiting == 0:
            await asyncio.sleep(0)
        on.sim.release()
        await asyncio.gather(first, second)

        assert _arrivals(on) == ["messages", "messages"]
        on.prove_exact(requests=2)


@pytest.mark.parametrize("error", [httpx2.ConnectError, httpx2.ReadTimeout, None])
async def test_a_counter_that_fails_falls_back_to_bytes(error: type[Exception] | None) -> None:
    """Without the counter the byte bound stands and decides; no error of the counter comes out."""

    class Broken(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.path.endswith("count_tokens"):
                if error is not None:
                    raise error("broken")
                return httpx2.Response(529, request=request)
            return await super().handle_async_request(request)

    http_client = anthropic.DefaultAsyncHttpxClient(transport=Broken())
    async with rig(client={"http_client": http_client}, cap="0.02") as on:
        with pytest.raises(BudgetExceeded):
            await on.client.messages.create(**ask("word " * 2_000, max_tokens=20))
        assert on.sim.stats.arrived == 0
        on.prove_exact(requests=0)


_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _picture(**fields: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
    return ask(messages=[{"role": "user", "content": content}], **fields)


async def test_images_are_counted() -> None:
    """An image's bytes bound nothing, so the counter is always asked (F-11)."""
    async with rig(sim={"keep_calls": 9}) as on:
        await on.client.messages.create(**_picture())
        assert _arrivals(on) == ["messages/count_tokens", "messages"]
        assert next(iter(on.ledger.lines())).nanos < 10**8
        on.prove_exact(requests=1)


async def test_images_without_a_counter_hold_the_context_window() -> None:
    """If the counter can't be reached, an image is held at the most that the model reads (F-11)."""
    async with rig(sim={"keep_calls": 9}) as on:
        on.sim.faults.extend([Fault(kind="overloaded", on="count_tokens", times=0)])
        await on.client.messages.create(**_picture())
        assert next(iter(on.ledger.lines())).nanos > 10**9
        on.prove_exact(requests=1)


async def test_a_probe_never_latches() -> None:
    """A byte bound that did not fit shuts nothing: the call, and smaller ones after it, still pass."""
    async with rig(cap="0.02") as on:
        await on.client.messages.create(**ask("word " * 1_500, max_tokens=20))
        await on.client.messages.create(**ask("word " * 1_500, max_tokens=20))
        await on.client.messages.create(**ask(max_tokens=20))
        on.prove_exact(requests=3)


async def test_two_meters_on_one_ledger_share_a_gate() -> None:
    """Meters on one ledger share the key's limits, unless they are told otherwise."""
    async with rig() as on:
        assert Meter(on.ledger).gate is on.gate
        own = Gate(width=3)
        assert Meter(on.ledger, gate=own).gate is own


async def test_scopes_nest_below_the_meter() -> None:
    """A call in nested scopes is charged below the meter's own, and every cap on the way applies."""
    async with rig() as on:
        async with scope("team"), scope("worker", cap="5"):
            await on.client.messages.create(**ask())
        assert on.last().scope == "app/team/worker"
        assert on.ledger.balance("app/team").posted_nanos == on.sim.bill.nanos
        on.prove_exact()


async def test_a_durable_ledger_is_the_bill_too(tmp_path: Any) -> None:
    """With the SQLite ledger, read by another one after closing, the sums are the server's."""
    path = tmp_path / "ledger.db"
    async with rig(ledger=Ledger(path, caps=[Cap("5")])) as on:
        for _ in range(3):
            await on.client.messages.create(**ask())
        async with on.client.messages.stream(**ask()) as stream:
            await stream.until_done()
        on.prove_exact(requests=4)
        billed = on.sim.bill.nanos
    with Ledger(path) as again:
        assert again.balance().posted_nanos == billed


@pytest.mark.parametrize("leave", ["asyncio.run", "a bare loop"])
def test_a_loop_that_ends_leaves_its_last_call_settled(tmp_path: Any, leave: str) -> None:
    """Nobody waits for a settlement, and yet it comes into the file when the loop ends with the call."""
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, caps=[Cap("5")])
    usage = {"input_tokens": 10, "output_tokens": 5}
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "usage": usage}
    reply = {**answer, "content": [], "stop_reason": "end_turn"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=reply))
    http = httpx2.AsyncClient(transport=transport)
    client = anthropic.AsyncAnthropic(api_key="key", http_client=http, middleware=[Meter(ledger)])

    if leave == "asyncio.run":
        asyncio.run(client.messages.create(**ask()))
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(client.messages.create(**ask()))
        loop.close()

    with contextlib.closing(sqlite3.connect(path)) as file:  # as another program sees it
        deadline = time.monotonic() + 10  # a slow disk is written to by a thread
        while not (posted := file.execute("SELECT sum(posted) FROM lines").fetchone()[0]):
            assert time.monotonic() < deadline
    assert posted == ledger.balance().posted_nanos
    ledger.close()


async def test_a_usage_that_is_said_twice_posts_the_whole_hold() -> None:
    """Readers take the first or the last of two keys: which of them is billed can't be known."""
    said = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    plain = json.dumps({**said, "stop_reason": "end_turn"})[:-1]
    two = ', "usage": {"input_tokens": 9, "output_tokens": 900}, "usage": {"input_tokens": 9, "output_tokens": 1}}'
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=plain + two))
    ledger = Ledger(caps=[Cap("5")])
    http = httpx2.AsyncClient(transport=transport)
    async with anthropic.AsyncAnthropic(
        api_key="key", http_client=http, middleware=[Meter(ledger)]
    ) as client:
        await client.messages.create(**ask())
    hold, settled = ledger.lines()
    assert (settled.kind, settled.posted) == ("settle", hold.nanos)
    assert settled.note["unpriced"] == "no usage"
