"""A clock: the one place where this package asks for the time and for a call at a later time.

Whoever waits for time takes a ``Clock``, so that tests move time by hand and never sleep.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

#: The alarm thread looks up at least this often; longer waits are several of these.
_NAP_S = 3600.0


class Clock(Protocol):
    """Two readings of time and an alarm. All values are in seconds."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; deadlines and waits are counted on these."""
        ...

    def time(self) -> float:
        """Seconds since 1970 (UTC), to compare with dates that a server names."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back once, soon after ``monotonic()`` has reached ``when``, from any thread.

        Must be safe to call from a finalizer; must not call back before it returns.
        """
        ...


class SystemClock:
    """The machine's clock; alarms ring on one daemon thread, started when first needed.

    A thread and not a loop's timer: a loop that stops or is closed can't hold up the waiters of
    others.
    """

    def __init__(self) -> None:
        # SimpleQueue.put is safe even when a finalizer runs inside another put; a Condition is not.
        self._inbox: queue.SimpleQueue[tuple[float, int, Callable[[], None]]] = queue.SimpleQueue()
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()

    def monotonic(self) -> float:
        """Seconds of ``time.monotonic``."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds of ``time.time``."""
        return time.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Ring at ``when`` (monotonic seconds) on the alarm thread."""
        self._inbox.put((when, next(self._count), callback))
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            # Named before it starts: a finalizer that rings during the start must not start
            # another.
            self._thread = threading.Thread(target=self._ring, name="earmark-clock", daemon=True)
            self._thread.start()

    def _ring(self) -> None:
        alarms: list[tuple[float, int, Callable[[], None]]] = []
        while True:  # a daemon thread: ends with the process
            now = time.monotonic()
            while alarms and alarms[0][0] <= now:
                try:
                    heapq.heappop(alarms)[2]()
                except Exception:  # noqa: BLE001 - one user must not stop the alarms of others
                    _log.exception("an alarm of the clock failed; the clock goes on")
            nap = min(alarms[0][0] - time.monotonic(), _NAP_S) if alarms else _NAP_S
            try:
                heapq.heappush(alarms, self._inbox.get(timeout=max(0.0, nap)))
            except queue.Empty:
                continue


#: The clock that everything uses unless it is given another.
SYSTEM_CLOCK = SystemClock()
