"""Overhead: throughput of metered calls with the durable ledger against the bare SDK.

A server of its own process on loopback answers in 10 ms; 64 calls are under way at once. The ledger is measured
in both ways in which an app meets it: a ``Meter`` in an ``AsyncAnthropic`` of its own, and the client that a
``Run`` builds. Rounds of all clients are interleaved, so that a noisy machine is noisy for all; CPU is that of
the whole process of the client. Run: ``python benchmarks/overhead.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiohttp import web
from anthropic import APIRequest, AsyncAnthropic

from budgets import Cap, Ledger
from orchestrator.clients import guarded_async_client
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.transport import Passes

WIDTH = 64
ANSWER_S = 0.01
FIELDS: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Say hello to the reader of this page. " * 20}],
}
REPLY = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": [{"type": "text", "text": "Hello, reader. " * 20}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 200,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 80,
            "service_tier": "standard",
            "inference_geo": "global",
        },
    }
).encode()


def serve(pipe: Connection) -> None:
    """The server's process: answers every request after 10 ms."""

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        await asyncio.sleep(ANSWER_S)
        return web.Response(body=REPLY, content_type="application/json")

    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


async def noop(request: APIRequest, call_next: Any) -> Any:
    """A middleware that does nothing: what the SDK itself asks for having one."""
    return await call_next(request)


async def calls_per_second(client: AsyncAnthropic, calls: int) -> tuple[float, float]:
    """Throughput with 64 calls under way at once, and milliseconds of CPU that a call took."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            await client.messages.create(**FIELDS)

    began, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(WIDTH)))
    cpu_ms = (time.process_time() - worked) / calls * 1e3
    return calls / (time.perf_counter() - began), cpu_ms


Rounds = dict[str, list[tuple[float, float]]]


async def measure(url: str, folder: Path, *, rounds: int, calls: int) -> Rounds:
    """Interleaved rounds of each client; calls per second and CPU of each round."""
    durable = Ledger(folder / "ledger.db", caps=[Cap("1000000")])
    memory = Ledger(caps=[Cap("1000000")])
    ways: dict[str, list[Any]] = {
        "bare SDK": [],
        "SDK with a no-op middleware": [noop],
        "metered, ledger in memory": [Meter(memory, "bench", gate=Gate(width=WIDTH))],
        "metered, durable ledger": [Meter(durable, "bench", gate=Gate(width=WIDTH))],
    }
    passes = Passes()
    meter = Meter(durable, "bench", gate=Gate(width=WIDTH), passes=passes)
    clients = {
        name: AsyncAnthropic(api_key="key", base_url=url, max_retries=0, middleware=middleware)
        for name, middleware in ways.items()
    }
    clients["client of a Run, durable ledger"] = guarded_async_client(
        meter, passes, pool=WIDTH, api_key="key", base_url=url
    )
    found: Rounds = {name: [] for name in clients}
    for client in clients.values():  # connections are made, the gate is wide
        await calls_per_second(client, 4 * WIDTH)
    for number in range(rounds):
        # Every way is first, second and last as often as the others.
        names = list(clients)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(await calls_per_second(clients[name], calls))
    for client in clients.values():
        await client.close()
    check = durable.check()
    assert not check.findings, check.findings
    assert durable.balance().held_nanos == 0
    durable.close()
    return found


def report(found: Rounds) -> None:
    """Print medians, and the ratios of each round to the bare SDK's round beside it."""
    bare = found["bare SDK"]
    for name, rounds in found.items():
        pairs = list(zip(rounds, bare, strict=True))
        ratios = [rate / base for (rate, _), (base, _) in pairs]
        cpu = statistics.median(base / used for (_, used), (_, base) in pairs)
        print(
            f"{name:32} {statistics.median(rate for rate, _ in rounds):7.0f} calls/s   "
            f"{statistics.median(ratios):.3f} of bare (worst {min(ratios):.3f})   "
            f"CPU {statistics.median(used for _, used in rounds):.2f} ms a call, {cpu:.3f} of bare"
        )


def main() -> None:
    """Start the server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=1_500, help="calls in each round")
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{here.recv()}"
        with tempfile.TemporaryDirectory() as folder:
            made = measure(url, Path(folder), rounds=given.rounds, calls=given.calls)
            report(asyncio.run(made))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
