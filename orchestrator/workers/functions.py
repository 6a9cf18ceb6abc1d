"""Functions: Python tools of ours, served in this process to a session of the Agent SDK.

A board's tools reach all workers that way. Approvals, breakers and the journal are those of ``tool_calls``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import Finished
from orchestrator.tool_calls import ToolCalls
from orchestrator.tools import Tool

from .reading import OWN_SERVER


def server_of(
    functions: Sequence[Tool], calls: ToolCalls, on_end: Callable[[Exception | str], None]
) -> Any:
    """A server for ``ClaudeAgentOptions(mcp_servers=...)``. Its calls count as made here and now.

    Args:
        functions: what is served.
        calls: answers the calls.
        on_end: told when a call means that the work ends: the exception (``Finished``, a decline), or a reason.
    """
    from claude_agent_sdk import create_sdk_mcp_server  # the extra
    from claude_agent_sdk import tool as sdk_tool

    here = contextvars.copy_context()
    served = [
        sdk_tool(one.name, one.description, one.schema)(_handler(one.name, calls, here, on_end))
        for one in functions
    ]
    return create_sdk_mcp_server(OWN_SERVER, tools=served)


def _handler(
    name: str,
    calls: ToolCalls,
    here: contextvars.Context,
    on_end: Callable[[Exception | str], None],
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        use = {"type": "tool_use", "id": f"own-{name}", "name": name, "input": arguments}
        turn = await asyncio.create_task(calls.answer([use]), context=here.copy())
        result = turn.message["content"][0]
        if turn.error is not None or turn.repeated:
            on_end(turn.error or turn.repeated)
        return {
            "content": _content(result["content"]),
            "is_error": result["is_error"] and not isinstance(turn.error, Finished),
        }

    return handle


def _content(told: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A result as MCP has it."""
    if isinstance(told, str):
        return [{"type": "text", "text": told}]
    return [_block(block) for block in told]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, Mapping) and "data" in source:
        return {"type": "image", "data": source["data"], "mimeType": source.get("media_type")}
    return {"type": "text", "text": str(block.get("text", ""))}
