"""A halt: the word that a run has stopped, for tasks and threads that wait for something else meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future


class Halt:
    """Set once, from any thread or signal handler; everyone who waits hears of it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._waiting: set[Future[None]] = set()

    @property
    def is_set(self) -> bool:
        """Whether it was said."""
        return self._event.is_set()

    def set(self) -> None:
        """Say it. May be called twice."""
        self._event.set()
        for one in list(self._waiting):
            if not one.done():
                one.set_result(None)

    def wait(self, timeout_s: float | None) -> bool:
        """Block until it is said or the time is over; True if it was said."""
        return self._event.wait(timeout_s)

    async def wait_async(self, timeout_s: float | None) -> bool:
        """As ``wait``, without blocking the loop."""
        said: Future[None] = Future()
        self._waiting.add(said)
        try:
            if not self._event.is_set():
                await asyncio.wait([asyncio.wrap_future(said)], timeout=timeout_s)
        finally:
            self._waiting.discard(said)
        return self._event.is_set()
