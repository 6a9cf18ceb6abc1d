"""What the tests of the gateway share: a gateway in front of the simulator, clients of it, and their proof."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic

from budgets import Cap, Ledger
from orchestrator.gate import Gate
from orchestrator.gateway import Gateway, Lease, Limits, Upstream
from orchestrator.simulator import Simulator

MODEL = "claude-sonnet-5-5"
REAL_KEY = "the-real-key-of-the-upstream"


def ask(text: str = "Hello [[sim:output=50]]", **fields: Any) -> dict[str, Any]:
    """The body of a small call."""
    return {
        "model": MODEL,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": text}],
        **fields,
    }


@dataclass(kw_only=True)
class Rig:
    """A gateway, its ledger, the server behind it, and a plain HTTP client."""

    gateway: Gateway
    ledger: Ledger
    sim: Simulator
    http: aiohttp.ClientSession
    clients: list[AsyncAnthropic] = field(default_factory=list)

    def sdk(self, lease: Lease, **options: Any) -> AsyncAnthropic:
        """The official client on a lease."""
        fields = {"max_retries": 0, "api_key": lease.key, "base_url": lease.base_url, **options}
        made = AsyncAnthropic(**fields)
        self.clients.append(made)
        return made

    async def post(
        self, lease: Lease, body: dict[str, Any], path: str = "/v1/messages", **headers: str
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """One request by hand: status, JSON and headers (names in lower case)."""
        said = {"x-api-key": lease.key, **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.http.post(self.gateway.url + path, json=body, headers=said) as answer:
            names = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, await answer.json(), names

    def kinds(self) -> list[str]:
        """How the holds ended, in the order in which they did."""
        return [line.kind for line in self.ledger.lines() if line.kind != "hold"]

    def prove(self) -> None:
        """Every line adds up, nothing is held, no slot is taken, and the server billed no more."""
        gc.collect()
        balance, check = self.ledger.balance(), self.ledger.check()
        assert check.findings == []
        assert check.overruns == []
        assert balance.held_nanos == 0
        assert balance.posted_nanos + balance.in_doubt_nanos >= self.sim.bill.nanos
        assert self.gateway.exchanges == set()

    def prove_exact(self) -> None:
        """The ledger is the server's bill to the nano-dollar, and nothing is left open."""
        self.prove()
        balance = self.ledger.balance()
        assert (balance.posted_nanos, balance.in_doubt_nanos) == (self.sim.bill.nanos, 0)


@asynccontextmanager
async def rig(
    *,
    caps: tuple[Cap, ...] = (Cap("100"),),
    ledger: Ledger | None = None,
    sim: dict[str, Any] | None = None,
    limits: Limits | None = None,
    width: int = 64,
    **options: Any,
) -> AsyncIterator[Rig]:
    """A gateway in front of the simulator."""
    async with Simulator(**(sim or {})) as simulator, _by_hand() as http:
        book = ledger or Ledger(caps=caps)
        upstream = Upstream(url=simulator.url, api_key=REAL_KEY)
        options.setdefault("gate", Gate(width=width))
        async with Gateway(ledger=book, upstream=upstream, limits=limits, **options) as gateway:
            made = Rig(gateway=gateway, ledger=book, sim=simulator, http=http)
            yield made
            for client in made.clients:
                await client.close()
        book.close()


def _by_hand() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"anthropic-version": "2023-06-01"})
