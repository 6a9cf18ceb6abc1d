"""Overshoot: a thousand calls at once under a cap that pays for about three hundred.

What the calls really cost is log-normal. Printed for each way: what the server billed above the cap, and the
share of the cap that was used, both by the server's own bill. The ways: one process on a ledger in memory,
one on a durable ledger, eight on one file, and beside them a plain counter that checks first and charges
afterwards. Run: ``python benchmarks/overshoot.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anthropic import AsyncAnthropic
from anthropic.types import Message

from budgets import BudgetExceeded, Cap, Ledger
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.simulator import running_simulator

CAP_NANOS = 1_900_000_000
CAP = "1.9"
MAX_TOKENS = 1_000
CALLS = 1_000
PROCESSES = 8


def fields(seed: int) -> dict[str, Any]:
    """One call: about 570 tokens of output in the middle, at most 1,000."""
    output = min(MAX_TOKENS, max(1, int(random.Random(seed).lognormvariate(6.35, 0.5))))
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": f"work [[sim:output={output}]]"}],
    }


async def metered(url: str, ledger: Ledger, seeds: range) -> int:
    """All calls at once under the meter; how many were served."""
    # Eight gates side by side, as eight processes of one machine have.
    meter = Meter(ledger, "bench", gate=Gate(width=128))
    async with AsyncAnthropic(
        api_key="key", base_url=url, max_retries=0, middleware=[meter]
    ) as client:
        calls = (client.messages.create(**fields(seed)) for seed in seeds)
        answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, (Message, BudgetExceeded)), answer
    return sum(isinstance(answer, Message) for answer in answers)


async def checked_then_charged(url: str) -> int:
    """The plain way: look at the sum, call, add what it cost. Calls that see room at once all pass."""
    spent = 0
    served = 0
    async with AsyncAnthropic(api_key="key", base_url=url, max_retries=0) as client:
        limit = asyncio.Semaphore(128)

        async def call(seed: int) -> None:
            nonlocal spent, served
            async with limit:
                if spent >= CAP_NANOS:
                    return
                usage = (await client.messages.create(**fields(seed))).usage
                spent += usage.input_tokens * 2_000 + usage.output_tokens * 10_000
                served += 1

        await asyncio.gather(*(call(seed) for seed in range(CALLS)))
    return served


def in_process(url: str, path: str, first: int, start: Any, served: Any) -> None:
    """One of several processes on one file."""
    with Ledger(path) as ledger:
        start.wait()
        share = CALLS // PROCESSES
        served.put(asyncio.run(metered(url, ledger, range(first, first + share))))


def eight_processes(url: str, folder: Path) -> int:
    """The same calls, shared out among eight processes."""
    path = str(folder / "shared.db")
    with Ledger(path, caps=[Cap(CAP)]) as ledger:
        context = multiprocessing.get_context("spawn")
        start, served = context.Barrier(PROCESSES), context.Queue()
        workers = [
            context.Process(
                target=in_process, args=(url, path, n * CALLS // PROCESSES, start, served)
            )
            for n in range(PROCESSES)
        ]
        for worker in workers:
            worker.start()
        total = sum(served.get() for _ in workers)
        for worker in workers:
            worker.join()
        check = ledger.check()
        assert not check.findings, check.findings
        assert ledger.balance().held_nanos == 0
    return total


@contextmanager
def server(latency_s: float) -> Iterator[str]:
    """A simulator with a bill of its own."""
    with running_simulator(latency_s=latency_s) as simulator:
        yield simulator.url


def show(name: str, url: str, served: int, seconds: float) -> None:
    """One line of the result, from the server's own bill."""
    with urllib.request.urlopen(f"{url}/sim/bill?rows=0") as reply:
        billed = int(json.load(reply)["nanos"])
    over = max(0, billed - CAP_NANOS) / 1e9
    print(
        f"{name:36} served {served:5}   billed ${billed / 1e9:.6f} of ${CAP_NANOS / 1e9:.2f}   "
        f"over ${over:.6f}   used {billed / CAP_NANOS:8.3%}   {seconds:5.1f} s"
    )


def main() -> None:
    """Run each way against a fresh server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds until an answer")
    given = parser.parse_args()

    def in_memory(url: str, _: Path) -> int:
        return asyncio.run(metered(url, Ledger(caps=[Cap(CAP)]), range(CALLS)))

    def durable(url: str, folder: Path) -> int:
        with Ledger(folder / "one.db", caps=[Cap(CAP)]) as ledger:
            return asyncio.run(metered(url, ledger, range(CALLS)))

    def plain(url: str, _: Path) -> int:
        return asyncio.run(checked_then_charged(url))

    ways = {
        "metered, in memory": in_memory,
        "metered, durable": durable,
        "metered, 8 processes on one file": eight_processes,
        "check, call, then charge": plain,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, run in ways.items():
            with server(given.latency) as url:
                began = time.perf_counter()
                served = run(url, Path(folder))
                show(name, url, served, time.perf_counter() - began)


if __name__ == "__main__":
    main()
