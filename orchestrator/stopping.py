"""Stopping a run by Ctrl-C: once, nothing new starts and what is in flight settles; twice, leave at once.

SIGTERM is the same, but the second step follows by itself after some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: After a SIGTERM the next step follows by itself: 5 s for calls in flight to settle.
_GRACE_S = 5.0


class KillSwitch:
    """Listens for SIGINT and SIGTERM while it is entered, in the main thread; elsewhere it does nothing.

    Several may be entered at once (runs side by side, or one in another): each hears every signal.

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
        self._board: _Board | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._board = _board_of(asyncio.get_running_loop())
            self._board.add(self)
        return self

    def press(self) -> bool:
        """Take the next step; True if none was left, so that the process must end."""
        if self._steps:
            self._steps.pop(0)()
            return False
        self._abandon()
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board is not None:
            self._board.remove(self)
            self._board = None


@contextlib.contextmanager
def signals_to(press: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM go to ``press`` while this is entered; afterwards to whom they went before.

    Switches that are entered don't hear them meanwhile. In the main thread only; elsewhere it does nothing, and
    nor does it where a loop can't handle signals (Windows).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    board = _board_of(asyncio.get_running_loop())
    board.divert(press)
    try:
        yield
    finally:
        board.undivert()


class _Board:
    """The switches of one loop, who hears in their place, and the signal handlers that were there before them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._switches: list[KillSwitch] = []
        self._instead: list[Callable[[], None]] = []
        self._before: dict[int, object] = {}

    def divert(self, press: Callable[[], None]) -> None:
        self._instead.append(press)
        self._listen()

    def undivert(self) -> None:
        self._instead.pop()
        self._let_go()

    def add(self, switch: KillSwitch) -> None:
        self._switches.append(switch)
        self._listen()

    def remove(self, switch: KillSwitch) -> None:
        self._switches.remove(switch)
        self._let_go()

    def _listen(self) -> None:
        loop = self._loop()
        if self._before or loop is None:
            return
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                before = signal.getsignal(number)
                loop.add_signal_handler(number, self._press, number)
                self._before[number] = before

    def _let_go(self) -> None:
        loop = self._loop()
        if self._switches or self._instead or loop is None:
            return
        for number, before in self._before.items():
            with contextlib.suppress(RuntimeError, ValueError, TypeError):
                loop.remove_signal_handler(number)
                signal.signal(number, before)  # type: ignore[arg-type]
        self._before.clear()

    def _press(self, number: int) -> None:
        if self._instead:
            self._instead[-1]()
            return
        pressed = [switch.press() for switch in list(self._switches)]
        if any(pressed):
            os._exit(130)
        loop = self._loop()
        if number == signal.SIGTERM and self._switches and loop is not None:
            # Nobody is there to press a second time, and what sent it will soon kill.
            loop.call_later(_GRACE_S, self._press, number)


_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Board] = weakref.WeakKeyDictionary()


def _board_of(loop: asyncio.AbstractEventLoop) -> _Board:
    return _boards.setdefault(loop, _Board(loop))
