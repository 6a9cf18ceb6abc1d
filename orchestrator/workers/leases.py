"""Leases: a worker's right to spend, lent by the gateway of its run, which lives as long as the run does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from orchestrator.listener import Listener
from orchestrator.run import Run

from .report import Figures

#: Seconds that the requests of a worker that has ended have to be settled; then they are in doubt.
SETTLE_S = 15.0


class Lease(Protocol):
    """One worker's right to spend, in its scope, until it is closed."""

    @property
    def base_url(self) -> str: ...
    @property
    def key(self) -> str: ...

    def figures(self) -> Figures:
        """What its calls came to until now."""
        ...

    def close(self) -> None:
        """End it: nothing more is let through."""
        ...

    async def settled(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing of it is under way."""
        ...


class Leases(Protocol):
    """Whoever lends: a ``Gateway``."""

    def lease(self, *, under: str, listener: Listener) -> Lease:
        """A lease in the context of whoever calls this: its scopes and its tallies.

        Args:
            under: the scope that the outermost of those hangs below.
            listener: hears of its holds and their ends.
        """
        ...


_gateways: WeakKeyDictionary[Run, asyncio.Task[Any]] = WeakKeyDictionary()


async def gateway_of(run: Run) -> Any:
    """The gateway of a run: started when the first worker asks, stopped when the run is left.

    Raises:
        ConfigError: the run has not been entered, or its client has no key.
    """
    starting = _gateways.get(run)
    if starting is None:
        starting = _gateways[run] = asyncio.create_task(_start(run))
    try:
        return await asyncio.shield(starting)
    except Exception:
        if _gateways.get(run) is starting:
            del _gateways[run]
        raise


async def _start(run: Run) -> Any:
    from orchestrator.gateway import Gateway, Upstream  # aiohttp: only where workers run

    client = run.client
    upstream = Upstream(
        url=str(client.base_url), api_key=client.api_key, auth_token=client.auth_token
    )
    return await run.keep(
        Gateway(ledger=run.ledger, gate=run.gate, prices=run.prices, upstream=upstream)
    )


@asynccontextmanager
async def leased(run: Run, lender: Leases | None, listener: Listener) -> AsyncIterator[Lease]:
    """A lease for what is done inside; closed at its end, once its requests are settled.

    Args:
        run: whose gateway lends, and whose scope, caps and journal its calls have.
        lender: in place of the run's gateway.
        listener: hears of its holds and their ends.
    """
    lender = lender or await gateway_of(run)
    lease = lender.lease(under=run.scope, listener=listener)
    try:
        yield lease
    finally:
        lease.close()  # first, so that an orphan can't spend
    # Nobody waits after a cancellation: the gateway itself sees to the rest, and is waited for at the run's end.
    await lease.settled(SETTLE_S)
