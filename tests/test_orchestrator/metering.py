"""What the tests of the meter share: a client under a meter in front of the simulator, and its proof."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

from budgets import Cap, Ledger
from budgets.records import Line
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.simulator import Simulator, SimulatorThread, running_simulator

MODEL = "claude-sonnet-5-5"


def ask(text: str = "Hello [[sim:output=50]]", **fields: Any) -> dict[str, Any]:
    """The keyword arguments of a small call."""
    return {
        "model": MODEL,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": text}],
        **fields,
    }


@dataclass(kw_only=True)
class Rig:
    """A metered client, its ledger and the server's own bill."""

    client: Any
    ledger: Ledger
    meter: Meter
    sim: Any

    @property
    def gate(self) -> Gate:
        return self.meter.gate

    def kinds(self) -> list[str]:
        """How the holds ended, in the order in which they did."""
        return [line.kind for line in self.ledger.lines() if line.kind != "hold"]

    def last(self) -> Line:
        """The line written last."""
        return list(self.ledger.lines())[-1]

    def prove(self) -> None:
        """Every line adds up, nothing is held, no slot is taken, and the server billed no more."""
        gc.collect()
        balance = self.ledger.balance()
        check = self.ledger.check()
        assert check.findings == []
        assert check.overruns == []
        assert balance.held_nanos == 0
        assert balance.posted_nanos + balance.in_doubt_nanos >= self.sim.bill.nanos
        assert self.gate.statistics().in_use == 0
        assert self.gate.statistics().waiting == 0

    def prove_exact(self, *, requests: int | None = None) -> None:
        """The ledger is the server's bill to the nano-dollar, and nothing is left open."""
        self.prove()
        balance = self.ledger.balance()
        assert balance.in_doubt_nanos == 0
        assert balance.posted_nanos == self.sim.bill.nanos
        if requests is not None:
            assert self.sim.bill.requests == requests


@asynccontextmanager
async def rig(
    *,
    ledger: Ledger | None = None,
    cap: str = "100",
    client: dict[str, Any] | None = None,
    sim: dict[str, Any] | None = None,
    **meter: Any,
) -> AsyncIterator[Rig]:
    """An ``AsyncAnthropic`` whose own retries are off unless ``client`` says otherwise."""
    async with Simulator(**(sim or {})) as simulator:
        book = ledger or Ledger(caps=[Cap(cap)])
        made = Meter(book, meter.pop("scope", "app"), **meter)
        options: dict[str, Any] = {"max_retries": 0, "middleware": [made], **(client or {})}
        async with AsyncAnthropic(api_key="key", base_url=simulator.url, **options) as sdk:
            yield Rig(client=sdk, ledger=book, meter=made, sim=simulator)
        book.close()


@contextmanager
def sync_rig(
    *,
    ledger: Ledger | None = None,
    cap: str = "100",
    client: dict[str, Any] | None = None,
    sim: dict[str, Any] | None = None,
    **meter: Any,
) -> Iterator[Rig]:
    """As ``rig``, for ``Anthropic``."""
    simulator: SimulatorThread
    with running_simulator(**(sim or {})) as simulator:
        book = ledger or Ledger(caps=[Cap(cap)])
        made = Meter(book, meter.pop("scope", "app"), **meter)
        options: dict[str, Any] = {"max_retries": 0, "middleware": [made], **(client or {})}
        with Anthropic(api_key="key", base_url=simulator.url, **options) as sdk:
            yield Rig(client=sdk, ledger=book, meter=made, sim=simulator)
        book.close()
