"""Stopping a run by Ctrl-C: once, nothing new starts and what is in flight settles; twice, leave at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class KillSwitch:
    """Listens for SIGINT and SIGTERM while it is entered, in the main thread; elsewhere it does nothing.

    Args:
        stop: called at the first signal: nothing new may start.
        leave: called at the second: cancel what is in flight; its holds go in doubt.
        abandon: called at the third, before the process ends with exit code 130.
    """

    def __init__(
        self, stop: Callable[[], None], leave: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._steps = [stop, leave]
        self._abandon = abandon
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                before = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._press)
                self._before[number] = before
        return self

    def _press(self) -> None:
        if self._steps:
            self._steps.pop(0)()
            return
        self._abandon()
        os._exit(130)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            assert self._loop is not None
            with contextlib.suppress(RuntimeError, ValueError, TypeError):
                self._loop.remove_signal_handler(number)
                signal.signal(number, before)  # type: ignore[arg-type]
        self._before.clear()
