"""Questions to a person or a policy: one at a time, and each of them once for all who wait for its answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from .halting import Halt

T = TypeVar("T")
_DROPPED: Any = object()


class Questions:
    """Who asks what just now, over all tasks, loops and threads of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, Future[Any]] = {}
        self._last: Future[Any] | None = None

    def ask(self, key: Hashable, put: Callable[[], T]) -> T:
        """Put the question, or wait for the answer of whoever is putting it.

        Args:
            key: what it is about; calls with the same one share the answer.
            put: asks and returns the answer. If it raises, the others ask anew.
        """
        while True:  # ends with an answer: whoever is next puts the question that was dropped
            answer, mine, before = self._join(key)
            if not mine:
                shared: T = answer.result()
                if shared is _DROPPED:
                    continue
                return shared
            given: Any = _DROPPED
            try:
                if before is not None:
                    before.result()
                given = put()
                return given  # type: ignore[no-any-return]
            finally:
                self._close(key, answer, given)

    async def ask_async(self, key: Hashable, put: Callable[[], Awaitable[T]]) -> T:
        """As ``ask``, without blocking the loop."""
        while True:
            answer, mine, before = self._join(key)
            if not mine:
                shared: T = await _answered(answer)
                if shared is _DROPPED:
                    continue
                return shared
            given: Any = _DROPPED
            try:
                if before is not None:
                    await _answered(before)
                given = await put()
                return given  # type: ignore[no-any-return]
            finally:
                self._close(key, answer, given)

    def _join(self, key: Hashable) -> tuple[Future[Any], bool, Future[Any] | None]:
        """The answer to wait for, whether the caller puts the question, and the question before it."""
        with self._lock:
            if key in self._open:
                return self._open[key], False, None
            before, self._last = self._last, Future()
            self._open[key] = self._last
            return self._last, True, before

    def _close(self, key: Hashable, answer: Future[Any], given: Any) -> None:
        with self._lock:
            self._open.pop(key, None)
        answer.set_result(given)


async def _answered(answer: Future[T]) -> T:
    # Shielded: giving up waiting must not cancel what others wait for, too.
    return await asyncio.shield(asyncio.wrap_future(answer))


async def in_thread(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """``asyncio.to_thread`` for functions of the user's.

    A ``StopIteration`` (of a ``next`` without a default) can't pass through a future: whoever awaited it would wait
    for ever.

    Raises:
        RuntimeError: in place of a ``StopIteration``. Else what the function raises.
    """

    def call_it() -> Any:
        try:
            return function(*args, **given)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return await asyncio.to_thread(call_it)


async def call_async(callback: Callable[..., Any], *given: Any) -> Any:
    """Call a callback of the user's, sync (in a thread, since it may wait for a person) or async."""
    if inspect.iscoroutinefunction(callback):
        return await callback(*given)
    result = await in_thread(callback, *given)
    return await result if inspect.isawaitable(result) else result


def call(callback: Callable[..., Any], *given: Any) -> Any:
    """The same for a caller that has no loop; what is async runs in a loop of its own, in a thread."""
    result = callback(*given)
    if not inspect.isawaitable(result):
        return result
    done: Future[Any] = Future()

    async def finish() -> Any:
        return await result

    def work() -> None:
        try:
            done.set_result(asyncio.run(finish()))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
            done.set_exception(error)

    threading.Thread(target=work, name="earmark-question", daemon=True).start()
    return done.result()


async def unless_halted(halt: Halt, asking: Coroutine[Any, Any, T]) -> T | None:
    """Await an answer; None if the run stops first.

    Raises:
        RuntimeError: who was asked has cancelled itself; nobody has cancelled the caller. Else what is raised there.
    """
    task = asyncio.ensure_future(asking)
    stopped = asyncio.ensure_future(halt.wait_async(None))
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            raise RuntimeError("it was cancelled")
        return task.result() if task.done() else None
    finally:
        for one in (task, stopped):
            one.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(task, stopped, return_exceptions=True)
