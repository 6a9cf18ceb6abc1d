"""The simulator's HTTP face: authentication, error form, limits of size, and what it accepts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from orchestrator.simulator import Settings, Simulator

MODEL = "claude-sonnet-5-5"
OLD = "2023-06-01"
NEW = "2026-10-21"
TOOL = {"name": "Bash", "description": "run", "input_schema": {"type": "object"}}


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(settings=Settings(keep_calls=5)) as simulator:
        yield simulator


@pytest.fixture
async def http(sim: Simulator) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"x-api-key": "key", "anthropic-version": OLD}
    async with httpx2.AsyncClient(base_url=sim.url, headers=headers) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
    return {**asked, **fields}


async def test_missing_key(sim: Simulator) -> None:
    """Without a key the answer is a 401 in the API's form, with its request id."""
    async with httpx2.AsyncClient(base_url=sim.url) as http:
        reply = await http.post("/v1/messages", json=body(), headers={"anthropic-version": OLD})

    assert reply.status_code == 401
    assert reply.json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "x-api-key header is required"},
        "request_id": reply.headers["request-id"],
    }


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "claude-opus-9"}, 404, "model: claude-opus-9"),
        ({"model": None}, 400, "model: Field required"),
        ({"max_tokens": None}, 400, "max_tokens: Field required"),
        ({"max_tokens": 128_001}, 400, "128001 > 128000"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "text.text"),
        ({"speed": "fast"}, 400, "speed"),
        ({"inference_geo": "mars"}, 400, "inference_geo"),
        ({"model": "claude-haiku-4-5", "inference_geo": "us"}, 400, "inference_geo"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, 400, "thinking.type"),
        ({"model": "claude-opus-5-5", "thinking": {"type": "disabled"}}, 400, "thinking"),
        (
            {"model": "claude-opus-5-5", "tool_choice": {"type": "any"}, "tools": [TOOL]},
            400,
            "forc",
        ),
        ({"tool_choice": {"type": "tool", "name": "No"}, "tools": [TOOL]}, 400, "not found"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "json_schema"),
        ({"thread": {"type": "create"}}, 400, "message-threads-2026-08-12"),
        ({"messages": [{"role": "user", "content": "[[sim:dance]]"}]}, 400, "[[sim:dance]]"),
    ],
)
async def test_refused_requests(
    sim: Simulator, http: httpx2.AsyncClient, fields: dict[str, Any], status: int, words: str
) -> None:
    """A bad request is refused in the API's form and costs nothing."""
    reply = await http.post("/v1/messages", json=body(**fields))

    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert sim.bill.requests == 0


@pytest.mark.parametrize(
    ("version", "status"), [(OLD, 200), (NEW, 400)], ids=["old version", "new version"]
)
@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
async def test_sampling_parameters(
    http: httpx2.AsyncClient, version: str, status: int, field: str
) -> None:
    """Sampling parameters are refused from version 2026-10-21 on, for counts as well."""
    headers = {"anthropic-version": version}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = await http.post(path, json=body(**{field: 1}), headers=headers)
        assert reply.status_code == status


async def test_version_is_required(sim: Simulator) -> None:
    """A request without ``anthropic-version`` is a 400."""
    async with httpx2.AsyncClient(base_url=sim.url, headers={"x-api-key": "key"}) as http:
        assert (await http.post("/v1/messages", json=body())).status_code == 400


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff\xfe"])
async def test_not_json(http: httpx2.AsyncClient, data: bytes) -> None:
    """A body that isn't a JSON object is a 400."""
    reply = await http.post("/v1/messages", content=data)

    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_too_large(http: httpx2.AsyncClient) -> None:
    """More than 32 MB is a 413 with its own type."""
    reply = await http.post("/v1/messages", content=b" " * (32 * 1024 * 1024 + 1))

    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")


async def test_prompt_longer_than_the_context(http: httpx2.AsyncClient) -> None:
    """A prompt above the model's context is the well-known 400."""
    long = [{"role": "user", "content": "word" * 200_000}]
    reply = await http.post("/v1/messages", json=body(model="claude-haiku-4-5", messages=long))

    assert reply.status_code == 400
    words = "prompt is too long: 200003 tokens > 200000 maximum"
    assert reply.json()["error"]["message"] == words


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("POST", "/sim/nothing", 404),
        ("GET", "/v1/messages/batches/none", 404),
        ("GET", "/v1/messages/batches?limit=0", 400),
        ("GET", "/sim/bill?rows=many", 400),
        ("GET", "/", 200),
        ("HEAD", "/api/hello", 200),
        ("GET", "/sim/stats", 200),
    ],
)
async def test_routes(http: httpx2.AsyncClient, method: str, path: str, status: int) -> None:
    """Unknown paths and methods get an error in the API's form; the rest is there."""
    reply = await http.request(method, path)

    assert reply.status_code == status
    if status >= 400:
        assert reply.json()["type"] == "error"


async def test_the_front_page_says_simulated(http: httpx2.AsyncClient) -> None:
    """Whoever looks at the address learns that it is simulated; so does every reply."""
    front = await http.get("/")
    reply = await http.post("/v1/messages", json=body())

    assert "simulated" in front.text
    assert reply.headers["x-simulated"] == "true"
    assert reply.json()["content"][0]["text"].startswith("Simulated")


async def test_what_the_cli_sends(sim: Simulator, http: httpx2.AsyncClient) -> None:
    """A request shaped like the CLI's is served: system entries, markers, betas, unknown fields."""
    mark = {"cache_control": {"type": "ephemeral"}}
    asked = body(
        model="claude-opus-5-5",
        max_tokens=128_000,
        stream=True,
        system=[{"type": "text", "text": "You are an agent. " * 200, **mark}],
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        metadata={"user_id": '{"session_id": "s"}'},
        tools=[TOOL, {**TOOL, "name": "Read", **mark}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x"}]},
            {"role": "user", "content": [{"type": "text", "text": "use tool Bash", **mark}]},
            {"role": "system", "content": "<total_tokens>100 left</total_tokens>"},
        ],
    )
    headers = {"anthropic-beta": "a-2025-01-01,b-2026-01-01", "x-claude-code-session-id": "s"}
    reply = await http.post("/v1/messages?beta=true", json=asked, headers=headers)

    assert reply.status_code == 200
    assert '"stop_reason":"tool_use"' in reply.text
    assert '"name":"Bash"' in reply.text
    (call,) = sim.calls
    assert (call.path, call.headers["x-claude-code-session-id"]) == ("/v1/messages?beta=true", "s")
    assert json.loads(call.body) == asked


async def test_nothing_a_client_sends_breaks_the_form(http: httpx2.AsyncClient) -> None:
    """Odd but valid JSON gets an answer in the API's form, never a bare failure."""
    for odd in (
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "mystery", "x": None}]}]},
        {"tools": [{}], "tool_choice": {"type": "any"}},
        {"system": [{"type": "text", "text": ""}]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/none"}}}},
    ):
        data = json.dumps(body(**odd)).encode()
        reply = await http.post("/v1/messages", content=data)
        assert (reply.status_code, reply.json()["type"]) == (200, "message")


async def test_header_directives(http: httpx2.AsyncClient) -> None:
    """Directives may stand in a header, where documents are not to be touched."""
    reply = await http.post(
        "/v1/messages", json=body(), headers={"x-sim": "[[sim:output=7]][[sim:stop=pause_turn]]"}
    )

    assert reply.json()["usage"]["output_tokens"] == 7
    assert reply.json()["stop_reason"] == "pause_turn"
