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

#: Seconds that the requests of a worker that has ended have to be settled, and in a run that was stopped, where they
#: are in doubt then: whoever pressed Ctrl-C does not wait for a provider that hangs.
SETTLE_S, STOPPED_S = 15.0, 2.0
#: The same for whatever else is under way in the gateway of a stopped run.
_REST_S = 0.5
_TICK_S = 0.1


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
        """Wait until nothing of it is under way; False if that takes too long."""
        ...

    def give_up(self) -> None:
        """What is under way is in doubt, and not waited for any more."""
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
    gateway = Gateway(ledger=run.ledger, gate=run.gate, prices=run.prices, upstream=upstream)
    return await run.keep(_serving(run, gateway))


@asynccontextmanager
async def _serving(run: Run, gateway: Any) -> AsyncIterator[Any]:
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(None if run.stopped is None else _REST_S)


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
    await _settled(run, lease)


async def _settled(run: Run, lease: Lease) -> None:
    """Wait for the ends of its requests, within bounds; a run may be stopped meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_S
    is_stopped = False
    while not await lease.settled(_TICK_S):  # until the deadline at most
        if run.stopped is not None and not is_stopped:
            is_stopped, deadline = True, min(deadline, loop.time() + STOPPED_S)
        if loop.time() > deadline:
            if is_stopped:
                lease.give_up()
                await lease.settled(_REST_S)
            return
