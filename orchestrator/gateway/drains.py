"""Drains: the rest of answers whose clients are gone is read in the background, to their final usage.

Within bounds of number and time; beyond them a request is given up, and its hold is in doubt. A drain gives its slot
in the gate back when its client goes, since nobody waits for it: what it may still take of the upstream is bounded
by the number of drains alone, which is small.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Drains:
    """Tasks that read on although nobody listens any more.

    Args:
        most: so many at once.
        within_s: seconds that each has.
    """

    def __init__(self, *, most: int, within_s: float) -> None:
        self._most = most
        self._within_s = within_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Let a task go on, within bounds; one too many is cancelled at once."""
        if task.done() or task in self._tasks:
            return
        if len(self._tasks) >= self._most:
            self._give_up(task)
            return
        self._tasks.add(task)
        timer = asyncio.get_running_loop().call_later(self._within_s, self._give_up, task)

        def over(done: asyncio.Task[Any]) -> None:
            timer.cancel()
            self._tasks.discard(done)
            if not done.cancelled():
                done.exception()  # looked at: there is nobody left to tell

        task.add_done_callback(over)

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self.given_up += 1
        task.cancel()

    async def close(self) -> None:
        """Give up what is left."""
        tasks = list(self._tasks)
        for task in tasks:
            self._give_up(task)
        await asyncio.gather(*tasks, return_exceptions=True)
