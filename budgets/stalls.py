"""Stalls: calls wait for money or for a slot, and nothing moves; then what nobody refers to any more is collected.

A stream that was dropped inside a ring of references (an error that a frame keeps, and that keeps the frame) ends
only when Python's garbage collector finds it, and until then it has its hold and its slot. Where everybody else
waits nothing is allocated, so the collector would never run: the wait would last for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import threading
import time
import weakref
from typing import Protocol

#: Nothing has moved for this many seconds: look through what is young, which is quick, since most of what is
#: dropped has just been made. While it does not help each pause is twice as long.
_FIRST_S = 0.25
_LONGEST_S = 30.0
#: Look through everything once nothing has moved for so long. Twice as long each time that it did not help, since
#: calls that just take their time are no stall; half as long each time that it did.
_FULL_AFTER_S = 1.0
_YOUNG, _ALL = 1, 2


class Queue(Protocol):
    """Where calls wait."""

    def standing(self) -> int | None:
        """None if nobody waits, else a number that is another one once somebody's wait has ended."""


class _Pace:
    """How long to wait until the next look, and how much to look through."""

    def __init__(self) -> None:
        self.pause_s = _FIRST_S
        self._stood_s = 0.0
        self._full_after_s = _FULL_AFTER_S
        self._was_full = False

    def next(self, *, stuck: bool) -> int | None:
        """The generation to be collected, None for nothing. ``stuck``: nothing has moved since the last look."""
        if self._was_full:
            changed = self._full_after_s * (2.0 if stuck else 0.5)
            self._full_after_s = min(max(changed, _FULL_AFTER_S), _LONGEST_S)
        self._stood_s = self._stood_s + self.pause_s if stuck else 0.0
        self._was_full = stuck and self._stood_s >= self._full_after_s
        self.pause_s = min(2 * self.pause_s, _LONGEST_S) if stuck else _FIRST_S
        if not stuck:
            return None
        return _ALL if self._was_full else _YOUNG


class _Watch:
    """A thread that looks at the queues where somebody waits, and sleeps while nobody does."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may come in the middle of it
        self._queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, waited_in: Queue, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lock:
            if loop is not None:
                self._loops.add(loop)
            if waited_in in self._queues:
                return
            self._queues.add(waited_in)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="earmark-stalls", daemon=True
                )
                self._thread.start()
        self._bell.put(None)

    def _look(self) -> None:
        pace = _Pace()
        before: dict[int, int] = {}
        while True:
            if not before:
                self._bell.get()
            time.sleep(pace.pause_s)
            now = self._standing()
            stuck = any(before.get(key) == moves for key, moves in now.items())
            before = now
            generation = pace.next(stuck=stuck)
            if generation is not None:
                self._collect(generation, now)

    def _collect(self, generation: int, stood: dict[int, int]) -> None:
        """On the loop where somebody waits: what is found may be of that loop, and is closed there.

        A loop that was merely busy moves on before it comes to this.
        """
        with self._lock:
            loops = [loop for loop in self._loops if loop.is_running()]
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # closed just now
                loop.call_soon_threadsafe(self._collect_still, generation, stood)
                return
        gc.collect(generation)

    def _collect_still(self, generation: int, stood: dict[int, int]) -> None:
        if any(stood.get(key) == moves for key, moves in self._standing().items()):
            gc.collect(generation)

    def _standing(self) -> dict[int, int]:
        found: dict[int, int] = {}
        with self._lock:
            for one in list(self._queues):
                moves = one.standing()
                if moves is None:
                    self._queues.discard(one)
                else:
                    found[id(one)] = moves
            if not found:
                self._loops.clear()
        return found


_watch = _Watch()


def look_after(waited_in: Queue, loop: asyncio.AbstractEventLoop | None) -> None:
    """Somebody begins to wait in this queue, where nobody waited.

    Args:
        waited_in: the queue.
        loop: the event loop of whoever waits; None for a thread that is blocked.
    """
    _watch.add(waited_in, loop)


def _in_child() -> None:
    global _watch  # noqa: PLW0603 - its thread is not here, and its lock may have been held
    _watch = _Watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

__all__ = ["Queue", "look_after"]
