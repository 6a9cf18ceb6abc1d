"""Tools of MCP servers: real servers, over stdio, over HTTP, and in this process."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, ClientSession
from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent

from orchestrator.errors import ConfigError
from orchestrator.mcp_tools import mcp_tools
from orchestrator.outcomes import Outcome
from orchestrator.tools import BadCall

from .running import helper, stage

SCRIPT = str(Path(__file__).with_name("tiny_mcp_server.py"))
STDIO = [sys.executable, SCRIPT]


def in_process() -> MCPServer:
    made = MCPServer("here", log_level="CRITICAL")

    @made.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @made.tool(name="look.at")
    def look_at() -> list[Any]:
        """Look."""
        return [
            TextContent(type="text", text="a picture:"),
            ImageContent(type="image", data="aGk=", mime_type="image/png"),
        ]

    @made.tool()
    def long() -> str:
        """Say much."""
        return "x" * 200

    return made


def called(name: str, /, **given: Any) -> str:
    return f"[[sim:tool={name} {json.dumps(given)}]]"


def told(result: Any) -> Any:
    return result.messages[2]["content"][0]["content"]


async def test_an_agent_uses_a_server_over_stdio() -> None:
    """Its tools stand beside plain functions, and a call goes out, comes back, and is billed like any other."""
    async with stage() as st, mcp_tools(STDIO) as tools:
        assert [one.name for one in tools] == ["add", "find", "crash"]
        agent = helper(tools=tools)
        result = await agent.run(st.run, called("add", a=2, b=3))
        assert (result.outcome, told(result)) == (Outcome.OK, "5")
        st.prove_exact()


async def test_what_a_server_says_was_wrong_is_told_to_the_model() -> None:
    """An error of the call, by the server that made it; no breaker counts it."""
    async with mcp_tools(STDIO, only=["find"]) as (find,):
        for _ in range(4):
            with pytest.raises(BadCall, match="find"):
                await find.call({"name": "x"})


async def test_a_server_that_dies_is_a_tool_that_fails() -> None:
    """The agent hears of it and goes on; nothing hangs."""
    async with stage() as st, mcp_tools(STDIO, timeout_s=5) as tools:
        result = await helper(tools=tools).run(st.run, called("crash"))
        assert result.outcome is Outcome.OK
        assert result.messages[2]["content"][0]["is_error"] is True


async def test_a_server_in_this_process() -> None:
    """Text and images come as blocks, names that the API does not take are changed, results are cut."""
    async with mcp_tools(in_process(), prefix="my_", result_chars=20) as tools:
        by_name = {one.name: one for one in tools}
        assert set(by_name) == {"my_add", "my_look_at", "my_long"}
        assert await by_name["my_add"].call({"a": 1, "b": 2}) == "3"
        blocks = await by_name["my_look_at"].call({})
        assert [one["type"] for one in blocks] == ["text", "image"]
        assert "[cut: 20 of 200" in str(await by_name["my_long"].call({}))
        schema = by_name["my_add"].definition["input_schema"]
        assert schema["properties"]["a"]["type"] == "integer"


async def test_an_open_session_stays_open() -> None:
    """Whoever opened it closes it; a client and its session alike."""
    async with Client(in_process()) as client:
        sessions: list[Client | ClientSession] = [client, client.session]
        for session in sessions:
            async with mcp_tools(session, only=["add"]) as (add,):
                assert await add.call({"a": 1, "b": 2}) == "3"
        assert (await client.list_tools()).tools


async def test_approval_can_be_asked_for() -> None:
    """For all of a server's tools, or for some."""
    async with mcp_tools(in_process(), needs_approval=True) as tools:
        assert all(one.needs_approval for one in tools)
    async with mcp_tools(in_process(), needs_approval=["add"]) as tools:
        assert [one.name for one in tools if one.needs_approval] == ["add"]


def _nobody_listens() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://user:secret@127.0.0.1:{free.getsockname()[1]}/mcp?key=secret"


@pytest.mark.parametrize(
    ("server", "fields", "problem"),
    [
        (["no-such-program-anywhere"], {}, "no-such-program-anywhere can't be used"),
        ([sys.executable, "-c", "pass"], {}, "can't be used as an MCP server"),
        ("npx some-server", {}, r"give a command as a list: \['npx', 'some-server'\]"),
        ([], {}, "the command is empty"),
        (_nobody_listens(), {}, "/mcp can't be used"),
        (in_process(), {"only": ["add", "subtract"]}, "has no tool 'subtract'; it has add, long"),
        (in_process(), {"needs_approval": ["subtract"]}, "has no tool 'subtract'"),
    ],
    ids=["missing", "no server", "a string", "empty", "nobody", "only", "approval"],
)
async def test_a_server_that_can_not_be_used_is_one_sentence(
    server: Any, fields: dict[str, Any], problem: str
) -> None:
    """It names the server and the cause, and no secret."""
    with pytest.raises(ConfigError, match=problem) as caught:
        async with mcp_tools(server, **fields):
            pass
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'earmark\[mcp\]'"):
        async with mcp_tools(STDIO):
            pass


async def test_what_is_raised_inside_passes() -> None:
    """As it is, and the server ends."""
    with pytest.raises(KeyError, match="mine"):
        async with mcp_tools(STDIO):
            raise KeyError("mine")
