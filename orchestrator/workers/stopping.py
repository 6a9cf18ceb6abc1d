"""Stopping: an attempt's owner and its processes brought to an end, by interrupt, then terminate, then kill."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .processes import KILL_S, TERM_S, Tree

logger = logging.getLogger("earmark")

#: Seconds that an interrupted program has to answer and to end.
INTERRUPT_S = 3.0


async def stop(
    owner: asyncio.Task[Any], tree: Tree, interrupt: Callable[[], Awaitable[object]] | None
) -> None:
    """End an attempt. Bounded: it takes no longer than the sum of its steps, whatever the program does.

    That is 3 s for the interrupt and 2 s for SIGTERM, after which nothing that can be killed is alive.

    Args:
        owner: the task that owns the session; nobody else ends it.
        tree: its processes.
        interrupt: asks the program to stop its turn; None where it can't be asked (any more).
    """
    if interrupt is not None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(INTERRUPT_S):
                await interrupt()
                await asyncio.wait({owner})
        if owner.done():
            return
    tree.terminate()
    if await _done(owner, TERM_S):
        return
    tree.kill()
    if await _done(owner, KILL_S):
        return
    owner.cancel()
    if not await _done(owner, KILL_S):
        logger.error("worker: its session does not close; its processes are gone, it is left alone")


async def stop_whatever_comes(
    owner: asyncio.Task[Any], tree: Tree, interrupt: Callable[[], Awaitable[object]] | None
) -> None:
    """The same for a caller that was cancelled: it goes on by itself; cancelled again, all are killed at once.

    Raises:
        CancelledError: cancelled again.
    """
    ending = asyncio.ensure_future(stop(owner, tree, interrupt))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        tree.kill()
        raise


async def end_at_once(owner: asyncio.Task[Any], tree: Tree) -> None:
    """Kill everyone in this turn, and wait until the session's owner has noticed."""
    tree.kill()
    if not await _done(owner, KILL_S):
        owner.cancel()


async def _done(owner: asyncio.Task[Any], seconds: float) -> bool:
    await asyncio.wait({owner}, timeout=seconds)
    return owner.done()
