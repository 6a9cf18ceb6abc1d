"""The ledger alone: pairs of hold and settle per second on a file with full sync, and how long one pair takes.

Three ways in the same run: one task (each commit carries one operation: what a ledger without group commit
does all the time), 64 tasks in one process, and 8 processes of 8 tasks on one file. The ratio is to the
first. Run: ``python benchmarks/ledger.py [--seconds 5]``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from budgets import Cap, Ending, Ledger

USAGE = {"model": "claude-haiku-5-5", "input_tokens": 900, "output_tokens": 40}


async def pairs(ledger: Ledger, tasks: int, seconds: float) -> list[float]:
    """Hold and settle in ``tasks`` tasks until time is up; the duration of every pair."""
    durations: list[float] = []
    end = time.perf_counter() + seconds

    async def work() -> None:
        while (began := time.perf_counter()) < end:
            request = ledger.request(200_000, scope="bench/run", model="claude-haiku-5-5")
            hold = await ledger.hold_async(request)
            await ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=110_000, usage=USAGE))
            durations.append(time.perf_counter() - began)

    await asyncio.gather(*(work() for _ in range(tasks)))
    return durations


def one_process(path: Path, tasks: int, seconds: float) -> list[float]:
    with Ledger(path, caps=[Cap("1000", scope="bench"), Cap("1000", per="day")]) as ledger:
        return asyncio.run(pairs(ledger, tasks, seconds))


def report(name: str, durations: list[float], seconds: float, base: float | None) -> float:
    rate = len(durations) / seconds
    cuts = statistics.quantiles(durations, n=100)
    ratio = "" if base is None else f"   x{rate / base:.1f}"
    print(
        f"{name:38s} {rate:8,.0f} pairs/s   p50 {cuts[49] * 1e3:7.2f} ms   p99 {cuts[98] * 1e3:7.2f} ms{ratio}"
    )
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        base = report(
            "1 task: one operation a commit",
            one_process(Path(folder, "a.db"), 1, seconds),
            seconds,
            None,
        )
        report(
            "64 tasks: group commit", one_process(Path(folder, "b.db"), 64, seconds), seconds, base
        )
        with multiprocessing.get_context("spawn").Pool(8) as pool:
            jobs = [(Path(folder, "c.db"), 8, seconds)] * 8
            pool.starmap(
                one_process, [(Path(folder, "w.db"), 1, 0.2)] * 8
            )  # all are there before it counts
            parts = pool.starmap(one_process, jobs, chunksize=1)
        report(
            "8 processes x 8 tasks, one file", [d for part in parts for d in part], seconds, base
        )
        counts = [len(part) for part in parts]
        print(f"{'':38s} least {min(counts)} and most {max(counts)} pairs of a process")
        with Ledger(Path(folder, "c.db")) as ledger:
            assert ledger.check().ok


if __name__ == "__main__":
    main()
