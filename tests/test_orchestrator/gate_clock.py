"""A clock that tests of the gate move by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class ManualClock:
    """Time stands still until ``advance``; alarms ring inside it, in order, at their own time."""

    def __init__(self, *, monotonic: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = monotonic
        self._offset = wall - monotonic
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now + self._offset

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._alarms, (when, next(self._count), callback))

    async def sleep(self, seconds: float) -> None:
        """Wait on this clock: for whoever plays the server."""
        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        self.call_at(self._now + seconds, wake)
        await future

    def advance(self, seconds: float) -> None:
        """Move on; whoever an alarm wakes runs when the caller next awaits."""
        end = self._now + seconds
        while self._alarms and self._alarms[0][0] <= end:
            when, _, callback = heapq.heappop(self._alarms)
            self._now = max(self._now, when)
            callback()
        self._now = end

    async def run(self, seconds: float) -> None:
        """Move on alarm by alarm, letting every woken task run at the time of its alarm."""
        end = self._now + seconds
        await settle()
        while self._alarms and self._alarms[0][0] <= end:
            self.advance(max(0.0, self._alarms[0][0] - self._now))
            await settle()
        self.advance(end - self._now)
        await settle()


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(8):
        await asyncio.sleep(0)
