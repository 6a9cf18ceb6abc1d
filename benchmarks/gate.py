"""The gate against a server that enforces a limit, beside a plain semaphore with retries.

    python benchmarks/gate.py [--seconds 50] [--requests 1000] [--tokens 400000]

A loopback server enforces requests and input tokens a minute by token buckets of a short burst, as
strictly as the real one may. The driver has far more work than the limits allow. Printed: the share
of the tighter limit that was used after the warm-up, and the share of all answers that were 429.
Nothing is billed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import httpx2
from aiohttp import web

from orchestrator.gate import Gate

MODEL = "claude-opus-5-5"
BURST_S = 1.0
LATENCY_S = (0.3, 1.2)


@dataclass(slots=True)
class Allowance:
    """A token bucket that says no instead of going into debt; full to begin with."""

    per_minute: int
    level: float = float("inf")
    at: float = field(default_factory=time.monotonic)

    def refill(self) -> None:
        now = time.monotonic()
        per_s = self.per_minute / 60
        self.level = min(per_s * BURST_S, self.level + (now - self.at) * per_s)
        self.at = now

    def missing_s(self, need: float) -> float:
        self.refill()
        return max(0.0, need - self.level) / (self.per_minute / 60)


class Server:
    """Enforces both limits and keeps the record that the benchmark reads."""

    def __init__(self, requests: int, tokens: int) -> None:
        self.requests = Allowance(requests)
        self.tokens = Allowance(tokens)
        self.accepted: list[tuple[float, int]] = []
        self.refused: list[float] = []
        self.busy = self.busiest = 0

    async def answer(self, request: web.Request) -> web.Response:
        size = int(request.query["size"])
        wait = max(self.requests.missing_s(1), self.tokens.missing_s(size))
        headers = {
            "anthropic-ratelimit-requests-limit": str(self.requests.per_minute),
            "anthropic-ratelimit-input-tokens-limit": str(self.tokens.per_minute),
        }
        if wait > 0:
            self.refused.append(time.monotonic())
            return web.json_response(
                {}, status=429, headers={**headers, "retry-after": str(int(wait) + 1)}
            )
        self.requests.level -= 1
        self.tokens.level -= size
        self.accepted.append((time.monotonic(), size))
        headers["anthropic-ratelimit-requests-remaining"] = str(int(self.requests.level))
        headers["anthropic-ratelimit-input-tokens-remaining"] = str(round(self.tokens.level, -3))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(random.uniform(*LATENCY_S))
        self.busy -= 1
        return web.json_response({"input_tokens": size}, headers=headers)


Call = Callable[[httpx2.AsyncClient, str, int], Coroutine[None, None, None]]


def through_gate(gate: Gate) -> Call:
    async def call(client: httpx2.AsyncClient, url: str, size: int) -> None:
        while True:
            with await gate.enter(MODEL) as ticket:
                # A bound by bytes: about four times what it is.
                await ticket.pace(input_tokens=size * 4, output_tokens=64_000)
                response = await client.post(url, params={"size": size})
                ticket.observe(response.status_code, response.headers)
                if response.status_code == 200:
                    ticket.usage(input_tokens=response.json()["input_tokens"], output_tokens=50)
                    return

    return call


def with_semaphore(width: int) -> Call:
    semaphore = asyncio.Semaphore(width)

    async def call(client: httpx2.AsyncClient, url: str, size: int) -> None:
        async with semaphore:
            while True:
                response = await client.post(url, params={"size": size})
                if response.status_code == 200:
                    return
                wait = float(response.headers["retry-after"])
                await asyncio.sleep(wait * random.uniform(1, 1.25))

    return call


async def measure(call: Call, options: argparse.Namespace) -> tuple[float, float, int]:
    """Used share of the tighter limit after warm-up, share of 429 over all, most at once."""
    server = Server(options.requests, options.tokens)
    app = web.Application()
    app.router.add_post("/", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    chance = random.Random(7)
    limits = httpx2.Limits(max_connections=1000)
    begin = time.monotonic()
    async with httpx2.AsyncClient(limits=limits, timeout=600, trust_env=False) as client:
        tasks = {
            asyncio.create_task(call(client, url, chance.randint(50, 2 * options.size - 50)))
            for _ in range(int(options.requests * options.seconds / 60 * 1.5) + 200)
        }
        await asyncio.sleep(options.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    end = begin + options.seconds
    await runner.cleanup()
    start = begin + options.warm_up
    window = end - start
    inside = [size for at, size in server.accepted if start <= at <= end]
    used = max(
        len(inside) / (options.requests * window / 60),
        sum(inside) / (options.tokens * window / 60),
    )
    total = len(server.accepted) + len(server.refused)
    return used, len(server.refused) / max(1, total), server.busiest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--warm-up", type=float, default=5)
    parser.add_argument("--requests", type=int, default=1000, help="limit a minute")
    parser.add_argument(
        "--tokens", type=int, default=400_000, help="limit of input tokens a minute"
    )
    parser.add_argument("--size", type=int, default=300, help="mean input tokens of a call")
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    print(
        f"{options.requests:,} requests and {options.tokens:,} input tokens a minute, bursts of "
        f"{BURST_S:g} s; {options.seconds:g} s each, {options.warm_up:g} s of them warm-up; simulated server"
    )
    print(f"{'':24}{'limit used':>12}{'429':>10}{'most at once':>14}")
    rows = {
        "gate": through_gate(Gate(options.width)),
        "semaphore with retries": with_semaphore(options.width),
    }
    for name, call in rows.items():
        used, refused, busiest = asyncio.run(measure(call, options))
        print(f"{name:24}{used:>11.1%}{refused:>10.2%}{busiest:>14}")


if __name__ == "__main__":
    main()
