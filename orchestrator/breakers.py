"""Circuit breakers: a tool that keeps failing is out for a while, for all agents of a run.

Its definition stays in the requests (taking it out would break the cached prefix): calls meanwhile are
answered at once with a sentence that says so. Then one call tries it, and all depends on that.
"""

from __future__ import annotations

import threading
import weakref
from types import MethodType
from typing import Any

from .clock import SYSTEM_CLOCK, Clock
from .errors import ConfigError


class Breaker:
    """The state of one tool in one run."""

    def __init__(self, failures: int, rest_s: float, clock: Clock) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opens_at: float | None = None
        self._is_tried = False

    def out_s(self) -> float:
        """Seconds that the tool is still out; 0 lets the call through.

        Whoever is let through says how it went (``succeeded``, ``failed``, or ``gave_up``).
        """
        with self._lock:
            if self._opens_at is None:
                return 0.0
            left_s = self._opens_at - self._clock.monotonic()
            if left_s > 0:
                return left_s
            if self._is_tried:
                return 1.0
            self._is_tried = True
            return 0.0

    def succeeded(self) -> None:
        """The tool works (again)."""
        with self._lock:
            self._failures, self._opens_at, self._is_tried = 0, None, False

    def failed(self) -> None:
        """A call failed; so many in a row, or the one that tries it again, take the tool away."""
        with self._lock:
            self._failures += 1
            if self._failures >= self._most and (self._opens_at is None or self._is_tried):
                self._opens_at = self._clock.monotonic() + self._rest_s
            self._is_tried = False

    def gave_up(self) -> None:
        """A call ended without a word about the tool: cancelled, declined, or its arguments were wrong."""
        with self._lock:
            self._is_tried = False


class Breakers:
    """The breakers of one run, one for each tool.

    Args:
        failures: so many failures in a row take a tool away.
        rest_s: for so many seconds.
        clock: for tests.

    Raises:
        ConfigError: no failure, or a negative rest.
    """

    def __init__(
        self, *, failures: int = 3, rest_s: float = 60.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        if failures < 1 or rest_s < 0:
            raise ConfigError("Breakers: failures must be 1 or more, rest_s 0 or more")
        self._failures = failures
        self._rest_s = rest_s
        self._clock = clock
        # With what it belongs to, so that it goes with it, and its id is not given to another one before.
        self._breakers: dict[tuple[str, int, int], tuple[Any, Breaker]] = {}

    @property
    def count(self) -> int:
        """How many there are: of tools that may still be called."""
        return len(self._breakers)

    def of(self, name: str, function: Any) -> Breaker:
        """The breaker of a tool: of one function (or method of one object) under one name, whichever agents use it.

        It lives as long as that function: one that was made for a single call leaves nothing behind.
        """
        # A bound method is made anew each time that it is looked up: its object is what lasts.
        is_method = isinstance(function, MethodType)
        owner = function.__self__ if is_method else function
        key = (name, id(owner), id(function.__func__) if is_method else 0)
        known = self._breakers.get(key)
        if known is None:
            made = (self._held(key, owner), Breaker(self._failures, self._rest_s, self._clock))
            known = self._breakers.setdefault(key, made)
        return known[1]

    def _held(self, key: tuple[str, int, int], owner: Any) -> Any:
        """A reference to the owner of a breaker which drops the breaker with it."""
        breakers = self._breakers
        try:
            return weakref.ref(owner, lambda _: breakers.pop(key, None))
        except TypeError:  # it can't be referred to weakly
            return owner
