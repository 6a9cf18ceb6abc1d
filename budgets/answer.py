"""Answers: a result of the ledger handed from the counter's thread to whoever waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


class Answer:
    """A result handed from the counter's thread to a waiting one."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._result: Any = None
        self._lock = threading.Lock()
        self._then: Callable[[Any], None] | None = None

    def set(self, result: Any) -> None:
        with self._lock:
            self._result = result
            self._there.set()
            late = self._then
        if late is not None:
            late(result)

    def then(self, use: Callable[[Any], None]) -> None:
        """Nobody waits any more: give the result, now or later, to ``use``."""
        with self._lock:
            if not self._there.is_set():
                self._then = use
                return
        use(self._result)

    def get(self, timeout_s: float | None) -> Any:
        if not self._there.wait(timeout_s):
            raise TimeoutError(
                f"the ledger did not answer within {timeout_s:g} s: held money was in the way"
            )
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def set_result(future: asyncio.Future[Any], result: Any) -> None:
    """Give a future its result, or its error."""
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class Landing:
    """Where a result for a task lands: in its future, or with ``unused`` if the task is gone.

    A plain object: a closure would make a ring of it and its operation, which only the garbage collector opens.
    """

    __slots__ = ("_future", "_gone", "_unused")

    def __init__(self, future: asyncio.Future[Any], unused: Callable[[Any], None]) -> None:
        self._future = future
        self._unused = unused
        self._gone = False

    def __call__(self, result: Any) -> None:
        if self._gone or self._future.done():
            self._unused(result)
        else:
            set_result(self._future, result)

    def leave(self) -> None:
        """The task is gone, though its future is not done."""
        self._gone = True
