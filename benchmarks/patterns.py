"""Patterns: wall time of 1,000 items through each pattern against the same calls with gather.

A server of its own process on loopback answers in 10 ms. Both sides use one run's metered client, its durable
ledger and its gate, 64 calls at once; rounds are interleaved. Run: ``python benchmarks/patterns.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from overhead import FIELDS, WIDTH, serve

from budgets import Ledger
from orchestrator import Agent, Gate, Run
from patterns import fan_out, pipeline, refine, route, vote

PROMPT = FIELDS["messages"][0]["content"]
WORKER = Agent(name="worker", model=FIELDS["model"], max_tokens=FIELDS["max_tokens"], max_turns=1)
Way = Callable[[Run, int, str], Awaitable[Any]]


async def _gathered(run: Run, count: int, name: str) -> None:
    """The peer: the metered client and gather, nothing else."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await run.client.messages.create(**FIELDS)

    await asyncio.gather(*(work() for _ in range(WIDTH)))


async def _many(count: int, one: Callable[[], Awaitable[Any]]) -> None:
    """One small pattern for each item, as many at once as the peer has."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(work() for _ in range(WIDTH)))


async def _fan_out(run: Run, count: int, name: str) -> None:
    done = await fan_out(run, WORKER, [PROMPT] * count, width=WIDTH, name=name)
    assert done.outcomes == {"ok": count}


async def _pipeline(run: Run, count: int, name: str) -> None:
    done = await pipeline(run, [WORKER, WORKER], [PROMPT] * (count // 2), width=WIDTH, name=name)
    assert done.outcomes == {"ok": count // 2}


async def _vote(run: Run, count: int, name: str) -> None:
    await _many(count // 2, lambda: vote(run, WORKER, PROMPT, n=3, name=name))


async def _route(run: Run, count: int, name: str) -> None:
    routes = {"only": WORKER}
    await _many(count, lambda: route(run, _first, routes, PROMPT, name=name))


async def _refine(run: Run, count: int, name: str) -> None:
    await _many(count, lambda: refine(run, WORKER, lambda _: True, PROMPT, name=name))


async def _first(_: Any) -> str:
    return "only"


WAYS: dict[str, Way] = {
    "fan_out": _fan_out,
    "pipeline": _pipeline,
    "vote": _vote,
    "route": _route,
    "refine": _refine,
}


async def _seconds(way: Way, run: Run, count: int, name: str) -> float:
    begun = time.perf_counter()
    await way(run, count, name)
    return time.perf_counter() - begun


async def measure(url: str, folder: Path, *, rounds: int, count: int) -> dict[str, list[float]]:
    """For each pattern, the ratio of its wall time to the peer's beside it, in each round."""
    ratios: dict[str, list[float]] = {name: [] for name in WAYS}
    ledger = Ledger(folder / "ledger.db")
    options = {"base_url": url, "api_key": "key"}
    run = Run(
        "bench",
        cap="100000",
        ledger=ledger,
        gate=Gate(width=WIDTH),
        kill_switch=False,
        client=options,
    )
    async with run:
        await _gathered(run, 4 * WIDTH, "")  # connections are made, the gate is wide
        for number in range(rounds):
            for name, way in WAYS.items():
                label = f"{name}-{number}"
                first, second = (_gathered, way) if number % 2 else (way, _gathered)
                took = {first: await _seconds(first, run, count, label)}
                took[second] = await _seconds(second, run, count, label)
                ratios[name].append(took[way] / took[_gathered])
    assert not ledger.check().findings
    ledger.close()
    return ratios


def main() -> None:
    """Start the server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--items", type=int, default=1_000)
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = f"http://127.0.0.1:{here.recv()}"
            found = asyncio.run(measure(url, Path(folder), rounds=given.rounds, count=given.items))
    finally:
        server.terminate()
        server.join()
    print(
        f"{given.items:,} items, wall time against the metered client with gather (asked: at most 1.10)"
    )
    for name, ratios in found.items():
        print(
            f"{name:10} {statistics.median(ratios):.3f}  (best {min(ratios):.3f}, worst {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
