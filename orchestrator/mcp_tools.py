"""Tools of MCP servers, for ``Agent(tools=[...])``: a command, an address, a server in this process, a session.

They run on our side: each call passes through approvals, breakers and limits like any other tool. Needs the
extra ``mcp``. (The API's own ``mcp_servers`` run at the provider, and need ``Allowances(mcp=...)``.)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .tools import RESULT_CHARS, BadCall, Result, Tool

if TYPE_CHECKING:
    from anthropic.lib.tools import BetaAsyncFunctionTool
    from mcp import Client, ClientSession, StdioServerParameters
    from mcp.server import MCPServer

_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]")
#: Pages of a list of tools; a server that never ends it is cut off.
_PAGES_MAX = 100


@asynccontextmanager
async def mcp_tools(
    server: str | Sequence[str] | StdioServerParameters | MCPServer | ClientSession | Client,
    *,
    only: Collection[str] | None = None,
    prefix: str = "",
    needs_approval: bool | Collection[str] = False,
    timeout_s: float | None = 60.0,
    result_chars: int = RESULT_CHARS,
) -> AsyncIterator[list[Tool]]:
    """The tools of an MCP server, for as long as the block lasts: ``async with mcp_tools(...) as tools``.

    Args:
        server: a command as a list (``["npx", "some-server"]``, or ``StdioServerParameters`` with environment
            and folder), an address (``https://...``, streamable HTTP), a server object of this process, or a
            session that is open already (it stays open).
        only: names of the tools to take; None takes all.
        prefix: put in front of each name, where two servers have tools of the same name.
        needs_approval: True for all of its tools, or the names of those that need it.
        timeout_s, result_chars: for each call; see ``tools.Tool``.

    Raises:
        ConfigError: the ``mcp`` package is not there, the server can't be started or reached, or it lacks a
            tool that is named in ``only`` or ``needs_approval``.
    """
    try:
        from anthropic.lib.tools.mcp import async_mcp_tool
        from mcp import Client, ClientSession
    except ImportError:
        raise ConfigError(
            "mcp_tools: the package mcp is not installed; run: pip install 'earmark[mcp]'"
        ) from None
    failure: Exception | None = None
    async with AsyncExitStack() as stack:
        session: Any = server
        try:
            if not isinstance(server, (Client, ClientSession)):
                session = await stack.enter_async_context(Client(_target(server)))
            listed = await _listed(session)
        except Exception as error:
            raise ConfigError(
                f"mcp_tools: {_named(server)} can't be used as an MCP server ({_first(error)})"
            ) from error
        # The SDK's helper knows how results of either version of the package become content blocks.
        found = {one.name: async_mcp_tool(one, session) for one in listed}
        asking = set(needs_approval) if isinstance(needs_approval, Collection) else set()
        try:
            names = _chosen(_named(server), list(found), only, asking)
            yield [
                Tool(
                    name=_UNUSABLE.sub("_", prefix + name)[:64],
                    description=found[name].description or name,
                    schema=dict(found[name].input_schema),
                    function=_Remote(found[name]),
                    arguments=None,
                    needs_approval=name in asking or needs_approval is True,
                    timeout_s=timeout_s,
                    result_chars=result_chars,
                )
                for name in names
            ]
        except Exception as error:  # noqa: BLE001 - raised below, once the client has closed
            failure = error  # the client's task group would wrap it in a group
    if failure is not None:
        raise failure


def _chosen(
    server: str, found: list[str], only: Collection[str] | None, asking: set[str]
) -> list[str]:
    wanted = set(found) if only is None else set(only)
    missing = sorted((wanted | asking) - set(found))
    if missing:
        raise ConfigError(
            f"mcp_tools: {server} has no tool {missing[0]!r}; it has {', '.join(sorted(found)) or 'none'}"
        )
    return [name for name in found if name in wanted]


class _Remote:
    """One tool of a server, as a function."""

    def __init__(self, made: BetaAsyncFunctionTool[Any]) -> None:
        self._made = made

    async def __call__(self, **arguments: Any) -> Result:
        from anthropic.lib.tools import ToolError
        from anthropic.lib.tools.mcp import UnsupportedMCPValueError

        try:
            result = await self._made.call(arguments)
        except ToolError as error:
            # The server is there and says what was wrong with the call.
            raise BadCall(str(error)) from None
        except UnsupportedMCPValueError as error:
            raise BadCall(f"{self._made.name} returned what can't be shown: {error}") from None
        if isinstance(result, str):
            return result
        blocks: list[dict[str, Any]] = [dict(one) for one in result]
        if all(one.get("type") == "text" for one in blocks):
            return "\n".join(str(one["text"]) for one in blocks)
        return blocks


def _target(server: Any) -> Any:
    """What the client of the ``mcp`` package takes."""
    from mcp import StdioServerParameters

    if isinstance(server, str):
        if "://" not in server:
            raise ValueError(f"no address; give a command as a list: {shlex.split(server)}")
        return server
    if isinstance(server, Sequence):
        if not server:
            raise ValueError("the command is empty; give it as ['program', 'argument']")
        return StdioServerParameters(command=server[0], args=list(server[1:]))
    return server


async def _listed(session: Any) -> list[Any]:
    """All tools of a server, page by page."""
    from mcp import ClientSession
    from mcp.types import PaginatedRequestParams

    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES_MAX):
        if isinstance(session, ClientSession):
            page: Any = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        else:
            page = await session.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _named(server: Any) -> str:
    """A server as it is named in messages: never with what may be a secret (arguments, a query, a password)."""
    if isinstance(server, str):
        return server.partition("?")[0].rpartition("@")[2]
    if isinstance(server, Sequence):
        return str(server[0]) if server else "nothing"
    command = getattr(server, "command", None)
    return str(command or getattr(server, "name", None) or type(server).__name__)


def _first(error: BaseException) -> str:
    """The first real error of a group, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
