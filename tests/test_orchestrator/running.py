"""What the tests of runs, agents and patterns share: a run in front of the simulator, and its proof."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.agent import Agent
from orchestrator.retry import Retry
from orchestrator.run import Run
from orchestrator.simulator import Simulator

MODEL = "claude-haiku-5-5"
KEY = "sk-ant-test-0123456789-secret"
#: No test waits for a back-off.
QUICK = {"first_s": 0.001, "longest_s": 0.002}


@dataclass(kw_only=True)
class Stage:
    """A run and the server that it talks to."""

    run: Run
    sim: Simulator

    def prove(self) -> None:
        """Nothing is held, no slot is taken, every line adds up, and the server billed no more."""
        gc.collect()
        self.run._drain()
        check, balance = self.run.ledger.check(), self.run.balance
        assert check.findings == []
        assert check.overruns == []
        assert balance.held_nanos == 0
        assert balance.posted_nanos + balance.in_doubt_nanos >= self.sim.bill.nanos
        assert self.run.gate.statistics().in_use == 0
        assert self.run.gate.statistics().waiting == 0

    def prove_exact(self) -> None:
        """And the ledger is the server's bill to the nano-dollar."""
        self.prove()
        assert self.run.balance.in_doubt_nanos == 0
        assert self.run.balance.posted_nanos == self.sim.bill.nanos


@asynccontextmanager
async def stage(
    *,
    sim: dict[str, Any] | None = None,
    folder: Path | None = None,
    own_ledger: Ledger | None = None,
    **fields: Any,
) -> AsyncIterator[Stage]:
    """A run with a ledger in memory (a file below ``folder``, if given) and without signals."""
    options = {"cap": "5", "kill_switch": False, "retry": Retry(**QUICK), **fields}
    async with Simulator(**(sim or {})) as simulator:
        path = None if folder is None else folder / "ledger.db"
        made = own_ledger or Ledger(path, caps=[Cap("100", owner="the test")])
        if own_ledger is not None and folder is not None:
            options["folder"] = folder
        with made as ledger:
            run = Run(
                "work",
                ledger=ledger,
                client={"base_url": simulator.url, "api_key": KEY},
                **options,
            )
            async with run:
                yield Stage(run=run, sim=simulator)


def helper(**fields: Any) -> Agent:
    """A small agent."""
    return Agent(**{"name": "helper", "model": MODEL, "max_tokens": 200, **fields})


async def say(run: Run, text: str = "Hello [[sim:output=20]]", **fields: Any) -> Any:
    """One plain call."""
    request = {"model": MODEL, "max_tokens": 100, **fields}
    return await run.client.messages.create(messages=[{"role": "user", "content": text}], **request)
