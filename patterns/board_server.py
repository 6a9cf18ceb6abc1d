"""A board as an in-process MCP server, for workers of the Agent SDK.

The server runs in this process: what a worker posts is on the board at once, and the refusals of the board reach
its model as errors of the tool.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.tools import Tool, tool


def sdk_server(name: str, functions: Sequence[Callable[..., Any]]) -> Any:
    """A server for ``ClaudeAgentOptions(mcp_servers={"board": ...})``.

    Its calls count as made here and now, in the scope of whoever asks for the server.

    Args:
        name: of the server.
        functions: the tools of a board.

    Raises:
        ConfigError: the Agent SDK is not installed.
    """
    try:
        from claude_agent_sdk import create_sdk_mcp_server
        from claude_agent_sdk import tool as sdk_tool
    except ImportError:
        raise ConfigError(
            f"board {name}: the Agent SDK is not installed; run pip install 'earmark[agents]'"
        ) from None
    here = contextvars.copy_context()
    served = []
    for one in (tool(function) for function in functions):
        declared = sdk_tool(one.name, one.description, one.schema)
        served.append(declared(_handler(one, here)))
    return create_sdk_mcp_server(name, tools=served)


def _handler(
    one: Tool, here: contextvars.Context
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            result = await asyncio.create_task(one.call(arguments), context=here.copy())
        except Exception as error:  # noqa: BLE001 - the model is told, whatever it is
            return {"content": [{"type": "text", "text": str(error)}], "is_error": True}
        return {"content": [{"type": "text", "text": str(result)}]}

    return handle
