"""Patterns: time of 1,000 items through each pattern against the same calls with gather.

A server of its own process on loopback answers in 10 ms. What a pattern asks for is recorded once; the peer sends
the same bodies with the metered client and gather, and waits only where the pattern had to: for a plan, say. Both
use one run's client, its durable ledger and its gate, 64 calls at once; rounds are interleaved. CPU is that of the
client's whole process. Run: ``python benchmarks/patterns.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiohttp import web
from anthropic import APIRequest, Middleware
from overhead import ANSWER_S, FIELDS, REPLY, WIDTH

from budgets import Ledger
from orchestrator import Agent, Gate, Run
from patterns import (
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
#: Around one board.
CIRCLE = [replace(WORKER, name=f"a{number}", max_turns=10) for number in range(100)]
Way = Callable[[Run, int, str], Awaitable[Any]]


async def _many(count: int, one: Callable[[int], Awaitable[Any]], width: int = WIDTH) -> None:
    """Work on so many things, at most ``width`` of them at once, with gather."""
    left = iter(range(count))

    async def work() -> None:
        for number in left:
            await one(number)

    await asyncio.gather(*(work() for _ in range(width)))


async def _fan_out(run: Run, count: int, name: str) -> None:
    done = await fan_out(run, WORKER, [PROMPT] * count, width=WIDTH, name=name)
    assert done.outcomes == {"ok": count}


async def _pipeline(run: Run, count: int, name: str) -> None:
    done = await pipeline(run, [WORKER, WORKER], [PROMPT] * count, width=WIDTH, name=name)
    assert done.outcomes == {"ok": count}


async def _vote(run: Run, count: int, name: str) -> None:
    await _many(count, lambda _: vote(run, WORKER, PROMPT, n=3, name=name), WIDTH // 2)


async def _route(run: Run, count: int, name: str) -> None:
    routes = {"only": WORKER}
    await _many(count, lambda _: route(run, _first, routes, PROMPT, name=name))


async def _refine(run: Run, count: int, name: str) -> None:
    await _many(count, lambda _: refine(run, WORKER, lambda _: True, PROMPT, name=name))


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
    await _many(count, lambda _: handoff(run, [WORKER], PROMPT, name=name))


async def _board(run: Run, count: int, name: str) -> None:
    for number in range(count // len(CIRCLE)):
        done = await board(run, CIRCLE, PROMPT, rounds=1, name=f"{name}-{number}")
        assert done.outcomes == {"ok": len(CIRCLE)}


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


class Recorder(Middleware):
    """Keeps what was asked for, in stages: one begins where nothing was on its way.

    Attributes:
        stages: the bodies of the requests of each.
    """

    def __init__(self) -> None:
        self.stages: list[list[dict[str, Any]]] = []
        self._under_way = 0

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client."""
        assert isinstance(request.json, dict)
        if not self._under_way:
            self.stages.append([])
        self.stages[-1].append(request.json)
        self._under_way += 1
        try:
            return await call_next(request)
        finally:
            self._under_way -= 1


async def gathered(run: Run, stages: list[list[dict[str, Any]]]) -> None:
    """The peer: the metered client and gather, nothing else."""
    for bodies in stages:

        async def one(number: int, bodies: list[dict[str, Any]] = bodies) -> None:
            await run.client.messages.create(**bodies[number], timeout=run.client.timeout)

        await _many(len(bodies), one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one round: on the clock, and of the CPU."""

    wall: float
    cpu: float


async def timed(work: Callable[[], Awaitable[Any]]) -> Took:
    """How long something took; what was done before leaves no garbage for it."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return Took(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


@asynccontextmanager
async def running(url: str, ledger: Ledger, *middleware: Middleware) -> AsyncIterator[Run]:
    """A run whose gate is as wide as it gets and whose connections are made."""
    client = {"base_url": url, "api_key": "key", "middleware": middleware}
    run = Run(
        "bench",
        cap="100000",
        ledger=ledger,
        gate=Gate(width=WIDTH),
        kill_switch=False,
        client=client,
    )
    async with run:
        await gathered(run, [[FIELDS] * (4 * WIDTH)])
        yield run


Rounds = dict[str, list[tuple[Took, Took]]]


async def measure(url: str, folder: Path, ways: list[str], *, rounds: int, count: int) -> Rounds:
    """For each pattern what it and its peer took, in each round."""
    found: Rounds = {name: [] for name in ways}
    ledger = Ledger(folder / "ledger.db")
    asked: dict[str, list[list[dict[str, Any]]]] = {}
    recorder = Recorder()
    async with running(url, ledger, recorder) as run:
        for name in ways:
            recorder.stages.clear()
            await WAYS[name](run, count, name)
            asked[name] = list(recorder.stages)
    async with running(url, ledger) as run:
        for number in range(rounds):
            for name in ways:
                pattern = partial(WAYS[name], run, count, f"{name}-{number}")
                peer = partial(gathered, run, asked[name])
                if number % 2:
                    base = await timed(peer)
                    found[name].append((await timed(pattern), base))
                else:
                    took = await timed(pattern)
                    found[name].append((took, await timed(peer)))
    assert not ledger.check().findings
    ledger.close()
    return found


def report(found: Rounds, count: int) -> None:
    """Print the ratios of each pattern's rounds to those of its peer."""
    print(f"{count:,} items, against the metered client with gather (asked: wall 1.10 at most)")
    for name, rounds in found.items():
        wall = [took.wall / base.wall for took, base in rounds]
        cpu = statistics.median(took.cpu / base.cpu for took, base in rounds)
        print(
            f"{name:12} wall {statistics.median(wall):.3f}  (best {min(wall):.3f}, worst {max(wall):.3f})  "
            f"cpu {cpu:.3f}"
        )


def main() -> None:
    """Start the server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--items", type=int, default=1_000)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS), metavar="PATTERN")
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = f"http://127.0.0.1:{here.recv()}"
            measuring = measure(
                url, Path(folder), given.only, rounds=given.rounds, count=given.items
            )
            report(asyncio.run(measuring), given.items)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
