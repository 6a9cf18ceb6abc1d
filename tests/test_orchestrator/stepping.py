"""Cancels a coroutine at its n-th suspension, so that tests can try every await of a call."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, Literal

#: ``waiting``: while what it waits for is open; ``done``: when that is done but nobody has seen it.
Moment = Literal["waiting", "done"]


async def cancel_at(step: int, made: Coroutine[Any, Any, Any], moment: Moment = "waiting") -> bool:
    """Run it in a task and cancel that task at the step-th suspension (1 is the first).

    Returns:
        True if it was cancelled, False if it came to its end before.
    """
    task: asyncio.Task[Any] | None = None

    def cancel(_: object = None) -> None:
        assert task is not None
        task.cancel()

    @types.coroutine
    def driven() -> Generator[Any, Any, Any]:
        inner = made.__await__()
        count = 0
        step_in: Any = lambda: inner.send(None)  # noqa: E731
        while True:
            try:
                waits_for = step_in()
            except StopIteration as end:
                return end.value
            count += 1
            if count == step:
                if moment == "done" and waits_for is not None and not waits_for.done():
                    waits_for.add_done_callback(cancel)
                else:
                    asyncio.get_running_loop().call_soon(cancel)
            try:
                yield waits_for
            except BaseException as error:
                thrown = error
                step_in = lambda: inner.throw(thrown)  # noqa: B023, E731
            else:
                step_in = lambda: inner.send(None)  # noqa: E731

    async def run() -> Any:
        return await driven()

    task = asyncio.create_task(run())
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False
