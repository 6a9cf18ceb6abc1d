"""A folder of tickets with a long rubric over message batches: half the price, and four bills side by side.

You will see the labels, what was decided about caching the rubric, and what the same answers would have cost without
a cache and by direct calls. Costs about $0.01 on the real API, and takes up to a day there.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from stand_in import api

from orchestrator import Run
from orchestrator.batches import BatchJob, BatchSettings, Item, Polling
from orchestrator.documents import Document, Problem, find, read
from patterns.bulk import BatchedJob, Classify, Results

HERE = Path(__file__).parent
LABELS = ("billing", "bug", "feature", "account", "other")
POLLING = Polling(first_s=0.1, longest_s=60)


def tickets() -> Iterator[Document | Problem]:
    for found in find(HERE / "tickets"):
        yield read(found)


async def work(folder: Path, options: dict[str, str]) -> None:
    rubric = (HERE / "tickets-rubric.md").read_text(encoding="utf-8")
    task = Classify(labels=LABELS, rubric=rubric, model="claude-haiku-5-5")
    top = "simulated" if options else ""
    run = Run("tickets", cap="0.50", scope=top, ledger=folder / "ledger.db", client=options)
    with Results(folder / "results") as results:
        async with run, BatchJob(run, BatchSettings(polling=POLLING)) as job:
            asked = BatchedJob(run, task, results)
            items = (Item(identity=one, body=body) for one, body in asked.items(tickets()))
            async with aclosing(job.results(items)) as ends:
                async for done in ends:
                    asked.done(done)
            for choice in job.progress().choices:
                print(choice)
            bills = job.progress().bills
            print("labels:", dict(Counter(row.label for row in results.rows()).most_common()))
            for name, dollars in bills.dollars.items():
                print(f"{name:22} ${dollars:.6f}")
            print(f"{bills.hits} of {bills.results} answers read the rubric from the cache")
            assert run.balance.posted == bills.dollars["batch"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, api() as options:
        asyncio.run(work(Path(folder), options))


if __name__ == "__main__":
    main()
