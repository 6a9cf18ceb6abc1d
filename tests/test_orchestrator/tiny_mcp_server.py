"""A small MCP server over stdio, run by the tests as a process of its own."""

from __future__ import annotations

import os

from mcp.server import MCPServer

server = MCPServer("tiny", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def find(name: str) -> str:
    """Find something."""
    raise ValueError(f"there is no {name}")


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    server.run()
