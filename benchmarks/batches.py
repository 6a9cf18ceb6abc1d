"""Batches: documents of 2 kB prepared, held and sent, and their results settled and written, at several sizes.

Run it as ``python benchmarks/batches.py [COUNT ...]``. Each size has a process of its own; the server has another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.batches import BatchJob, BatchSettings, Item, Polling
from orchestrator.batches.provider import Provider
from orchestrator.batches.waves import Waves
from orchestrator.run import Run

MODEL = "claude-haiku-5-5"
SIZES = (1_000, 10_000, 100_000)
SYSTEM = "Classify the ticket. " * 50
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["billing", "login", "other"]}},
    "required": ["label"],
    "additionalProperties": False,
}


def documents(count: int) -> Iterator[Item]:
    """Tickets of 2 kB."""
    for number in range(count):
        text = (f"Ticket {number}: I can't pay the invoice, the page says error {number}. " * 40)[
            :2048
        ]
        body = {
            "model": MODEL,
            "max_tokens": 100,
            "system": SYSTEM,
            "messages": [{"role": "user", "content": text}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        }
        yield Item(identity=f"tickets/{number:06}.txt", body=body)


def serve(pipe: Connection) -> None:
    """The stand-in for the API, until the pipe closes."""
    from orchestrator.simulator import running_simulator

    # Batches end when they are told to, so that sending and reading are measured apart.
    with running_simulator(batch_seconds=None) as server:
        pipe.send(server.url)
        while True:
            try:
                word = pipe.recv()
            except EOFError:
                return
            if word == "finish":
                began = time.perf_counter()
                server.finish_batches()
                pipe.send(time.perf_counter() - began)
            else:
                pipe.send(server.bill.nanos)


class Watch:
    """When things happened, in seconds."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.hold_s = 0.0
        self.sent_s = 0.0
        self.create_s = 0.0
        self.sent_cpu_s = 0.0
        self._ask, self._create = Waves._ask, Provider.create

        async def ask(waves: Waves, request: object) -> object:
            began = time.perf_counter()
            hold = await self._ask(waves, request)  # type: ignore[arg-type]
            self.hold_s += time.perf_counter() - began
            return hold

        async def create(provider: Provider, *arguments: object) -> object:
            began = time.perf_counter()
            made = await self._create(provider, *arguments)  # type: ignore[arg-type]
            self.sent_s = time.perf_counter() - self.began
            self.create_s += time.perf_counter() - began
            self.sent_cpu_s = time.process_time()
            return made

        Waves._ask = ask  # type: ignore[assignment, method-assign]
        Provider.create = create  # type: ignore[assignment, method-assign]


async def job(count: int, url: str, folder: Path, server: Connection) -> dict[str, float]:
    """One job, measured."""
    settings = BatchSettings(polling=Polling(first_s=0.2, longest_s=0.5), cache=False)
    with Ledger(folder / "ledger.db", caps=[Cap("1000")]) as ledger:
        run = Run(
            "bench",
            ledger=ledger,
            cap="900",
            kill_switch=False,
            client={"base_url": url, "api_key": "k"},
        )
        async with run, BatchJob(run, settings) as batches:
            watch, begun_cpu_s = Watch(), time.process_time()
            finish = asyncio.create_task(asyncio.to_thread(_finish, batches, count, server))
            ended = 0
            with (folder / "out.jsonl").open("w", encoding="utf-8") as out:
                async for done in batches.results(documents(count)):
                    out.write(
                        json.dumps(
                            {"id": done.identity, "outcome": done.outcome, "answer": done.message}
                        )
                    )
                    ended += 1
            total_s = time.perf_counter() - watch.began
            finished_at, processing_s, prepared_mb = await finish
            server.send("bill")
            assert (ended, run.balance.posted_nanos) == (count, server.recv())
    return {
        "count": count,
        "prepare_s": watch.sent_s - watch.create_s,
        "send_s": watch.create_s,
        "hold_s": watch.hold_s,
        "sent_cpu_s": watch.sent_cpu_s - begun_cpu_s,
        "settle_cpu_s": time.process_time() - watch.sent_cpu_s,
        "prepare_mb": prepared_mb,
        "settle_s": total_s - (finished_at - watch.began),
        "peak_mb": _peak_mb(),
        "server_s": processing_s,
    }


def _finish(batches: BatchJob, count: int, server: Connection) -> tuple[float, float, float]:
    """Once all is sent, have the server end its batches; when that was."""
    while sum(row.items for row in batches.progress().batches if row.id) < count:
        time.sleep(0.2)
    prepared_mb = _peak_mb()
    server.send("finish")
    processing_s = server.recv()
    return time.perf_counter(), processing_s, prepared_mb


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(count: int, pipe: Connection) -> None:
    """One size, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    server = context.Process(target=serve, args=(its,), daemon=True)
    server.start()
    its.close()
    with tempfile.TemporaryDirectory() as folder:
        pipe.send(asyncio.run(job(count, ours.recv(), Path(folder), ours)))
    ours.close()
    server.join(10)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=SIZES)
    print(
        "documents | prepare s | hold s | send s | (CPU s) | peak MB | settle+write s | (CPU s) | peak MB | server s",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    for count in parser.parse_args().counts:
        ours, its = context.Pipe()
        process = context.Process(target=one, args=(count, its))
        process.start()
        its.close()
        got = ours.recv()
        process.join()
        print(
            f"{count:>9,} | {got['prepare_s']:9.2f} | {got['hold_s']:6.3f} | {got['send_s']:6.2f} | "
            f"{got['sent_cpu_s']:7.2f} | {got['prepare_mb']:7.0f} | {got['settle_s']:14.2f} | "
            f"{got['settle_cpu_s']:7.2f} | {got['peak_mb']:7.0f} | {got['server_s']:8.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
