"""Patterns: wall time of 1,000 items through each pattern against the same calls with gather.

A server of its own process on loopback answers in 10 ms. Both sides use one run's metered client, its durable
ledger and its gate, 64 calls at once; rounds are interleaved. Run: ``python benchmarks/patterns.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiohttp import web
from overhead import ANSWER_S, FIELDS, REPLY, WIDTH

from budgets import Ledger
from orchestrator import Agent, Gate, Run, tool
from patterns import (
    Board,
    Team,
    board,
    fan_out,
    handoff,
    hierarchy,
    orchestrate,
    pipeline,
    refine,
    route,
    vote,
)

PROMPT = FIELDS["messages"][0]["content"]
LEAD = Agent(name="lead", model=FIELDS["model"], max_tokens=60_000)
WORKER = Agent(name="worker", model=FIELDS["model"], max_tokens=FIELDS["max_tokens"], max_turns=1)
Way = Callable[[Run, int, str], Awaitable[Any]]


async def _gathered(run: Run, count: int, _: str, fields: Any = FIELDS) -> None:
    """The peer: the metered client and gather, nothing else."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await run.client.messages.create(**fields)

    await asyncio.gather(*(work() for _ in range(WIDTH)))


async def _many(count: int, one: Callable[[], Awaitable[Any]], width: int = WIDTH) -> None:
    """One small pattern for each item, with as many calls at once as the peer has."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(work() for _ in range(width)))


async def _fan_out(run: Run, count: int, name: str) -> None:
    done = await fan_out(run, WORKER, [PROMPT] * count, width=WIDTH, name=name)
    assert done.outcomes == {"ok": count}


async def _pipeline(run: Run, count: int, name: str) -> None:
    done = await pipeline(run, [WORKER, WORKER], [PROMPT] * (count // 2), width=WIDTH, name=name)
    assert done.outcomes == {"ok": count // 2}


async def _vote(run: Run, count: int, name: str) -> None:
    await _many(count // 2, lambda: vote(run, WORKER, PROMPT, n=3, name=name), WIDTH // 2)


async def _route(run: Run, count: int, name: str) -> None:
    routes = {"only": WORKER}
    await _many(count, lambda: route(run, _first, routes, PROMPT, name=name))


async def _refine(run: Run, count: int, name: str) -> None:
    await _many(count, lambda: refine(run, WORKER, lambda _: True, PROMPT, name=name))


async def _orchestrate(run: Run, count: int, name: str) -> None:
    task = f"tasks={count} {PROMPT}"
    done = await orchestrate(run, LEAD, WORKER, task, workers_max=count, rounds=1, name=name)
    assert done.outcomes == {"ok": count}, done.reason


async def _hierarchy(run: Run, count: int, name: str) -> None:
    team = Team("team", LEAD, [WORKER])
    task = f"tasks={count} {PROMPT}"
    done = await hierarchy(run, team, task, workers_max=count, name=name)
    assert done.outcomes == {"ok": count}, done.reason


async def _handoff(run: Run, count: int, name: str) -> None:
    await _many(count, lambda: handoff(run, [WORKER], PROMPT, name=name))


async def _board(run: Run, count: int, name: str) -> None:
    agents = [Agent(name=f"a{n}", model=WORKER.model, max_tokens=400) for n in range(count // 10)]
    for number in range(10):
        done = await board(run, agents, PROMPT, rounds=1, name=f"{name}-{number}")
        assert done.outcomes == {"ok": count // 10}


async def _gathered_with_tools(run: Run, count: int, name: str) -> None:
    """The peer of a board, whose agents have its tools in each request."""
    tools = [tool(one).definition for one in Board(run).tools()]
    await _gathered(run, count, name, {**FIELDS, "tools": tools})


async def _first(_: Any) -> str:
    return "only"


WAYS: dict[str, Way] = {
    "fan_out": _fan_out,
    "pipeline": _pipeline,
    "vote": _vote,
    "route": _route,
    "refine": _refine,
    "orchestrate": _orchestrate,
    "hierarchy": _hierarchy,
    "handoff": _handoff,
    "board": _board,
}


def serve(pipe: Connection) -> None:
    """The server's process: answers after 10 ms; a lead gets as many tasks as its prompt asks for."""
    reply = json.loads(REPLY)

    async def answer(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        await asyncio.sleep(ANSWER_S)
        asked = (
            _TASKS.search(body) if b"LeadPlan" in body or b"You lead this work" in body else None
        )
        if asked is None:
            return web.Response(body=REPLY, content_type="application/json")
        plan = json.dumps({"tasks": [_task(number) for number in range(int(asked[1]))]})
        told = {**reply, "content": [{"type": "text", "text": plan}]}
        return web.json_response(told)

    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


_TASKS = re.compile(rb"tasks=(\d+)")


def _task(number: int) -> dict[str, Any]:
    return {
        "title": f"t{number}",
        "objective": f"look at {number}",
        "output_format": "free",
        "boundaries": "none",
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
                peer = _gathered_with_tools if way is _board else _gathered
                first, second = (peer, way) if number % 2 else (way, peer)
                took = {first: await _seconds(first, run, count, label)}
                took[second] = await _seconds(second, run, count, label)
                ratios[name].append(took[way] / took[peer])
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
