"""A job of batches in a process of its own, for tests that kill it: at a named step, or whenever they like."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from orchestrator.batches import BatchJob
from orchestrator.batches.following import Follower
from orchestrator.batches.job_store import JobStore
from orchestrator.batches.provider import Provider
from orchestrator.batches.waves import Waves

from .batching import items, quick, stage_at

#: A step, and whether the process dies before or after it.
POINTS: dict[str, tuple[type, str, bool]] = {
    "before it is packed": (JobStore, "pack", False),
    "after it is packed": (JobStore, "pack", True),
    "before its hold": (Waves, "_ask", False),
    "after its hold": (Waves, "_ask", True),
    "before it is sent": (Provider, "create", False),
    "after it is sent": (Provider, "create", True),
    "after its id is written": (Follower, "_submitted", True),
    "while it is looked at": (Provider, "retrieve", True),
    "before results are written": (JobStore, "apply", False),
    "after results are written": (JobStore, "apply", True),
    "before it is settled": (Follower, "_settle", False),
    "after the ledger's line": (Follower, "_end", True),
    "after it is settled": (Follower, "_settle", True),
    "before a direct answer is written": (JobStore, "end_direct", False),
}


def die_at(point: str, nth: int) -> None:
    """Have this process kill itself at a step."""
    owner, name, afterwards = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)
    passed = 0

    def die_if_due() -> None:
        nonlocal passed
        passed += 1
        if passed >= nth:
            os.kill(os.getpid(), signal.SIGKILL)

    async def in_async(*args: Any, **options: Any) -> Any:
        if not afterwards:
            die_if_due()
        result = await real(*args, **options)
        if afterwards:
            die_if_due()
        return result

    def in_sync(*args: Any, **options: Any) -> Any:
        if not afterwards:
            die_if_due()
        result = real(*args, **options)
        if afterwards:
            die_if_due()
        return result

    setattr(owner, name, in_async if asyncio.iscoroutinefunction(real) else in_sync)


async def _job(folder: Path, url: str, count: int, *, direct: bool) -> dict[str, Any]:
    """The job, to its end; what each item came to."""
    ends: dict[str, list[Any]] = {}
    async with stage_at(folder, url) as run:
        # Small batches: several are under way at once.
        async with BatchJob(run, quick(requests_max=25, failed_direct=direct)) as job:
            async for done in job.results(items(count)):
                assert done.identity not in ends
                ends[done.identity] = [done.outcome.value, done.posted_nanos, done.reused]
        check = run.ledger.check()
        return {
            "ends": ends,
            "posted": run.balance.posted_nanos,
            "held": run.balance.held_nanos,
            "in_doubt": run.balance.in_doubt_nanos,
            "findings": check.findings + check.overruns,
        }


def work(
    pipe: Connection,
    folder: Path,
    url: str,
    count: int,
    *,
    direct: bool = False,
    point: str = "",
    nth: int = 1,
) -> None:
    """What the process does; it says ``ready`` first and, if it lives, what came of it."""
    if point:
        die_at(point, nth)
    pipe.send("ready")
    pipe.send(asyncio.run(_job(folder, url, count, direct=direct)))
