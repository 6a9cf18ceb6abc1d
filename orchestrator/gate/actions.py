"""Actions: one lock for all state of a gate, and a way to change it that never blocks.

Callers that may not block (finalizers, another loop's callbacks) post an action; whoever holds the
lock runs it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Actions:
    """Runs actions one at a time. An action must not call ``run`` itself; ``post`` is fine."""

    __slots__ = ("_lock", "_mail")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mail: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def run(self, action: Callable[..., Result], *args: object) -> Result:
        """Run an action now; blocks for the moment that another one takes."""
        try:
            with self._lock:
                return action(*args)
        finally:
            if self._mail:
                self._read_mail()

    def post(self, action: Callable[..., object], *args: object) -> None:
        """Run an action now if the lock is free, else have its holder run it. Never blocks.

        Safe in a finalizer, even one that interrupts this very desk.
        """
        if not self._mail and self._lock.acquire(blocking=False):
            try:
                _do(action, args)
            finally:
                self._lock.release()
        else:
            self._mail.append((action, args))
        if self._mail:
            self._read_mail()

    def _read_mail(self) -> None:
        # Whoever fails to get the lock leaves its mail to the holder, who looks again after
        # letting go.
        while self._mail and self._lock.acquire(blocking=False):
            try:
                while self._mail:
                    _do(*self._mail.popleft())
            finally:
                self._lock.release()


def _do(action: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        action(*args)
    except Exception:  # noqa: BLE001 - it is not the fault of whoever reads the mail
        _log.exception("an action posted to the gate failed")
