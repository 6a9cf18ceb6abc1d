"""What the tests of batches share: items of every kind, a job in front of the simulator, and its proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.batches import BatchJob, BatchSettings, Done, Item, Polling
from orchestrator.run import Run
from orchestrator.simulator import Simulator

MODEL = "claude-haiku-5-5"
KEY = "sk-ant-test-batches"
QUICK = Polling(first_s=0.02, longest_s=0.05)
#: Of each twenty items some end in other ways than well.
WAYS = {
    3: "[[sim:batch=invalid]]",
    5: "[[sim:batch=expired,1]]",
    7: "[[sim:refuse]]",
    9: "[[sim:output=500]]",
    11: "[[sim:refuse=4]]",
    13: "[[sim:batch=overloaded,1]]",
}
#: What they end in, and how many of twenty.
ENDS = {"ok": 16, "bad_request": 1, "refusal": 2, "truncated": 1}


def item(number: int, text: str = "", **fields: Any) -> Item:
    """One item; ``text`` may hold directives for the simulator."""
    content = f"Document {number} {text}"
    body = {"model": MODEL, "max_tokens": 60, "messages": [{"role": "user", "content": content}]}
    return Item(identity=f"doc-{number}", body={**body, **fields})


def items(count: int, **fields: Any) -> Iterator[Item]:
    """Items of all kinds."""
    for number in range(count):
        yield item(number, WAYS.get(number % 20, ""), **fields)


def quick(**fields: Any) -> BatchSettings:
    """Settings with which no test waits long."""
    return BatchSettings(**{"polling": QUICK, "grace_s": 0.2, **fields})


@dataclass(kw_only=True)
class Stage:
    """A run, its server, and what its job handed out."""

    run: Run
    sim: Simulator
    ends: dict[str, Done] = field(default_factory=dict)

    async def do(self, given: Any, settings: BatchSettings | None = None) -> BatchJob:
        """Do a job to its end; every identity comes once."""
        async with BatchJob(self.run, settings or quick()) as job:
            async for done in job.results(given):
                assert done.identity not in self.ends, "an item ended twice"
                self.ends[done.identity] = done
            self.progress = job.progress()
            return job

    @property
    def outcomes(self) -> Counter[str]:
        """How many ended in which way."""
        return Counter(done.outcome.value for done in self.ends.values())

    @property
    def events(self) -> list[str]:
        """The words of the journal."""
        from orchestrator.journal import read_journal

        assert self.run.journal.path is not None
        return [str(event["event"]) for event in read_journal(self.run.journal.path)]

    def prove(self, *, held: int = 0) -> None:
        """The ledger is the server's bill to the nano-dollar, and so is the sum over items."""
        check, balance = self.run.ledger.check(), self.run.balance
        assert check.findings == []
        assert check.overruns == []
        assert balance.held_nanos == held
        assert balance.in_doubt_nanos == 0
        assert balance.posted_nanos == self.sim.bill.nanos
        assert sum(done.posted_nanos for done in self.ends.values()) == self.sim.bill.nanos


@asynccontextmanager
async def stage(
    folder: Path, *, sim: dict[str, Any] | Simulator | None = None, **fields: Any
) -> AsyncIterator[Stage]:
    """A run with a ledger in a file, in front of a simulator (a given one stays open)."""
    if isinstance(sim, Simulator):
        async with _run(folder, sim, fields) as made:
            yield made
        return
    async with Simulator(**(sim or {})) as simulator, _run(folder, simulator, fields) as made:
        yield made


@asynccontextmanager
async def _run(folder: Path, sim: Simulator, fields: dict[str, Any]) -> AsyncIterator[Stage]:
    async with stage_at(folder, sim.url, **fields) as run:
        yield Stage(run=run, sim=sim)


@asynccontextmanager
async def stage_at(folder: Path, url: str, *, key: str = KEY, **fields: Any) -> AsyncIterator[Run]:
    """The run of this folder, taken up again if it was there before."""
    options = {"id": "job", "cap": "5", "kill_switch": False, **fields}
    with Ledger(folder / "ledger.db", caps=[Cap("100", owner="the test")]) as ledger:
        run = Run("work", ledger=ledger, client={"base_url": url, "api_key": key}, **options)
        async with run:
            yield run
