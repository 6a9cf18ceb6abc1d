"""Lanes: connections are reused, never shared, closed when stale, and waited for when there are no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from orchestrator import lanes as module
from orchestrator.lanes import Lanes

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%s\r\nok"


class Server:
    """Answers every request on a real socket; counts connections and can be told to hold answers back."""

    def __init__(self) -> None:
        self.connections = 0
        self.open = 0
        self.extra = b""
        self.go = asyncio.Event()
        self.go.set()
        self.arrived = asyncio.Semaphore(0)
        self.left = asyncio.Semaphore(0)
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.arrived.release()
                await self.go.wait()
                writer.write(REPLY % self.extra)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()
            self.left.release()


@asynccontextmanager
async def serving(limit: int = 8) -> AsyncIterator[tuple[Server, httpx2.AsyncClient]]:
    """A server, and a client whose connections are lanes."""
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    transport = httpx2.AsyncHTTPTransport()
    transport._pool = Lanes(transport._pool, limit=limit)  # type: ignore[assignment, arg-type]
    try:
        async with httpx2.AsyncClient(transport=transport) as client:
            yield server, client
    finally:
        listening.close()


async def test_one_after_the_other_share_a_connection() -> None:
    """Requests that follow each other go over one connection."""
    async with serving() as (server, client):
        for _ in range(5):
            assert (await client.get(server.url)).text == "ok"
        assert server.connections == 1


async def test_calls_at_once_have_a_connection_each_and_leave_it_for_later() -> None:
    """No two requests share a connection, and those that were opened serve the next ones."""
    async with serving() as (server, client):
        for _ in range(2):
            server.go.clear()
            calls = [asyncio.create_task(client.get(server.url)) for _ in range(6)]
            for _ in calls:
                await server.arrived.acquire()
            server.go.set()
            assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 6
        assert server.connections == 6


async def test_more_than_the_limit_wait_for_their_turn() -> None:
    """There are never more connections than the limit, and everybody is served."""
    async with serving(limit=2) as (server, client):
        answers = await asyncio.gather(*(client.get(server.url) for _ in range(20)))
        assert len(answers) == 20
        assert server.connections == 2


async def test_who_waits_too_long_gets_the_pool_timeout() -> None:
    """A request that finds no connection in its time says so, and takes nobody's place."""
    async with serving(limit=1) as (server, client):
        server.go.clear()
        first = asyncio.create_task(client.get(server.url))
        await server.arrived.acquire()
        with pytest.raises(httpx2.PoolTimeout, match="no connection came free"):
            await client.get(server.url, timeout=httpx2.Timeout(5, pool=0.01))
        server.go.set()
        assert (await first).text == "ok"
        assert (await client.get(server.url)).text == "ok"


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    """A server that went away from an idle connection is met with a new one."""
    async with serving() as (server, client):
        await client.get(server.url)
        server.writers[0].close()
        await server.left.acquire()
        assert (await client.get(server.url)).text == "ok"
        assert server.connections == 2


async def test_connection_close_is_heeded() -> None:
    """An answer that says that its connection ends ends it."""
    async with serving() as (server, client):
        server.extra = b"connection: close\r\n"
        for _ in range(2):
            await client.get(server.url)
        assert server.connections == 2


@pytest.mark.parametrize("sent", [False, True])
async def test_a_cancelled_call_gives_its_place_back(sent: bool) -> None:
    """Cancelled while it waits for a connection or for its answer, a call leaves no hole in the pool."""
    async with serving(limit=1) as (server, client):
        server.go.clear()
        first = asyncio.create_task(client.get(server.url))
        await server.arrived.acquire()
        second = asyncio.create_task(client.get(server.url))
        await asyncio.sleep(0)
        gone, stays = (first, second) if sent else (second, first)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        server.go.set()
        assert (await stays).text == "ok"
        assert (await client.get(server.url)).text == "ok"


async def test_a_stream_left_early_does_not_lend_its_connection() -> None:
    """What is left of an unread answer never becomes the next one's."""
    async with serving() as (server, client):
        async with client.stream("GET", server.url):
            pass
        assert (await client.get(server.url)).text == "ok"
        assert server.connections == 2


async def test_unused_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that a busy moment opened don't stay open for ever."""
    async with serving() as (server, client):
        await asyncio.gather(*(client.get(server.url) for _ in range(4)))
        opened = server.open
        assert opened > 1
        monkeypatch.setattr(module, "_KEEP_S", 0.0)
        for _ in range(opened - 1):
            await client.get(server.url)
            await server.left.acquire()
        assert server.open == 1


async def test_other_hosts_have_connections_of_their_own() -> None:
    """A connection serves the host that it was opened to, whichever was used last."""
    async with serving() as (server, client), serving() as (other, _):
        for url in (server.url, other.url, server.url, other.url):
            assert (await client.get(url)).text == "ok"
        assert (server.connections, other.connections) == (1, 1)


async def test_closing_the_client_closes_busy_connections() -> None:
    """Whoever closes the client leaves no connection behind, not even one with an answer half read."""
    async with serving() as (server, client):
        await client.get(server.url)
        request = client.build_request("GET", server.url)
        half = await client.send(request, stream=True)
        await client.aclose()
        await server.left.acquire()
        await half.aclose()
        assert server.open == 0
