"""Gateway: what it costs to go through it, everything on (durable ledger, gate, leases), against going direct.

Three processes on loopback: a server that answers after 50 ms (far sooner than any model), ``earmark gateway``
as its users run it, and the client that measures. Each of them is busy at once, so two cores are few for it.
Rounds through the gateway and past it are interleaved, so that a noisy machine is noisy for both.
Run: ``python benchmarks/gateway.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
import psutil
from aiohttp import web

from budgets import Cap, Ledger
from orchestrator.gateway import Tokens

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 64
BODY = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Say hello to the reader of this page. " * 20}],
}
PLAIN = json.dumps(BODY).encode()
STREAMED = json.dumps({**BODY, "stream": True}).encode()
USAGE: dict[str, Any] = {
    "input_tokens": 200,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 80,
    "service_tier": "standard",
    "inference_geo": "global",
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}
TEXT = "Hello, reader. " * 20
REPLY = json.dumps(
    {**MESSAGE, "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn"}
).encode()


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


EVENTS = [
    _event("message_start", message=MESSAGE),
    _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *(
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT[n::20]})
        for n in range(20)
    ),
    _event("content_block_stop", index=0),
    _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 80}),
    _event("message_stop"),
]


def serve(pipe: Connection, answer_s: float) -> None:
    """The API's process: answers every request after a moment."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        await asyncio.sleep(answer_s)
        if b'"stream": true' not in raw:
            return web.Response(body=REPLY, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in EVENTS:
            await response.write(event)
        await response.write_eof()
        return response

    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def gateway(upstream: str, ledger: Path) -> Iterator[tuple[str, str, int]]:
    """``earmark gateway`` as its users run it, with a token for the client: its address, the key, its pid."""
    _, key = Tokens.beside(ledger).new("bench")
    with Ledger(ledger, caps=[Cap("100000", scope="bench")]):
        pass
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "earmark",
            "gateway",
            "--json",
            "--port",
            "0",
            "--cap-day",
            "1000000",
            "--ledger",
            str(ledger),
            "--upstream",
            upstream,
        ],
        env={**os.environ, "ANTHROPIC_API_KEY": "key", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while not said.endswith("\n}\n"):
        said += process.stdout.readline()
    try:
        yield json.loads(said)["url"], key, process.pid
    finally:
        process.terminate()
        process.communicate()
    with Ledger(ledger) as after:
        balance, check = after.balance("bench"), after.check()
    assert (check.findings, balance.held_nanos, balance.in_doubt_nanos) == ([], 0, 0), check


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the API."""

    session: aiohttp.ClientSession
    url: str
    headers: dict[str, str]

    async def call(self, body: bytes) -> float:
        """One call; seconds."""
        began = time.perf_counter()
        async with self.session.post(self.url, data=body, headers=self.headers) as response:
            await response.read()
            assert response.status == 200, await response.text()
        return time.perf_counter() - began

    async def per_second(self, calls: int, body: bytes = PLAIN) -> float:
        """Throughput with 64 calls under way at once."""
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                await self.call(body)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(WIDTH)))
        return calls / (time.perf_counter() - began)

    async def latencies(self, calls: int, rate: float) -> list[float]:
        """Seconds of each of so many calls, so many of which begin each second."""
        began, tasks = time.perf_counter(), []
        for number in range(calls):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(self.call(PLAIN)))
        return list(await asyncio.gather(*tasks))


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(direct: Way, through: Way, keeper: int, given: argparse.Namespace) -> None:
    """Everything, printed as it is known."""
    for way in (direct, through):  # connections are made, the gate is wide
        await way.per_second(8 * WIDTH)
    rates: list[tuple[float, float]] = []
    for number in range(given.rounds):
        ways = (direct, through) if number % 2 else (through, direct)
        one, other = [await way.per_second(given.calls) for way in ways]
        rates.append((one, other) if number % 2 else (other, one))
    ratios = [ours / bare for bare, ours in rates]
    print(
        f"64 at once: direct {statistics.median(r[0] for r in rates):.0f}/s, through "
        f"{statistics.median(r[1] for r in rates):.0f}/s, "
        f"kept {statistics.median(ratios):.2f} (worst {min(ratios):.2f}, best {max(ratios):.2f})"
    )
    bare: list[float] = []
    ours: list[float] = []
    added: list[tuple[float, float]] = []
    for number in range(given.rounds):
        ways = (direct, through) if number % 2 else (through, direct)
        first, second = [await way.latencies(300, 100) for way in ways]
        here, there = (first, second) if number % 2 else (second, first)
        bare += here
        ours += there
        added.append(
            (
                _percentile(there, 0.5) - _percentile(here, 0.5),
                _percentile(there, 0.99) - _percentile(here, 0.99),
            )
        )
    print(
        f"100 a second: direct p50 {_percentile(bare, 0.5) * 1e3:.1f} ms, p99 {_percentile(bare, 0.99) * 1e3:.1f} ms; "
        f"added p50 {statistics.median(a[0] for a in added) * 1e3:.1f} ms, "
        f"p99 {statistics.median(a[1] for a in added) * 1e3:.1f} ms"
    )
    process = psutil.Process(keeper)
    sizes = []
    for _ in range(5):
        await through.per_second(given.streams // 5, STREAMED)
        sizes.append(process.memory_info().rss / 1e6)
    print(
        f"{given.streams:,} streams: memory of the gateway after each fifth "
        f"{', '.join(f'{size:.0f}' for size in sizes)} MB"
    )


async def go(upstream: str, ours: tuple[str, str, int], given: argparse.Namespace) -> None:
    """Connect both ways and measure."""
    base, key, keeper = ours
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        direct = Way(session, f"{upstream}/v1/messages", headers)
        through = Way(session, f"{base}/v1/messages", {**headers, "x-api-key": key})
        await measure(direct, through, keeper, given)


def main() -> None:
    """Start the processes, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=1_500, help="calls in each round")
    parser.add_argument("--answer-ms", type=int, default=50, help="of the server, for each call")
    parser.add_argument("--streams", type=int, default=10_000)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there, given.answer_ms / 1000), daemon=True)
    server.start()
    upstream = f"http://127.0.0.1:{here.recv()}"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            gateway(upstream, Path(folder) / "ledger.db") as ours,
        ):
            asyncio.run(go(upstream, ours, given))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
