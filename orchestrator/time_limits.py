"""Time limits: how long the work of here and now may still take, for whoever waits within it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import OutOfTime

#: No answer comes in less: a call with less time left would only be in doubt. Of a short limit, a twentieth.
_LEAST_S, _LEAST_SHARE = 0.05, 0.05

#: When the work must be over (``time.monotonic``), and the least that a call needs before.
_current: ContextVar[tuple[float, float] | None] = ContextVar("earmark_time_limit", default=None)


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """The work inside has so many seconds, or what is left of a limit around it; None sets no limit."""
    if seconds is None:
        yield
        return
    ends, least = time.monotonic() + seconds, min(_LEAST_S, seconds * _LEAST_SHARE)
    outer = _current.get()
    token = _current.set((ends, least) if outer is None or ends < outer[0] else outer)
    try:
        yield
    finally:
        _current.reset(token)


def left_s() -> float | None:
    """Seconds that are left for the work of here and now, 0 at least; None without a limit."""
    limit = _current.get()
    return None if limit is None else max(0.0, limit[0] - time.monotonic())


def check_time() -> None:
    """To be called before something is sent.

    Raises:
        OutOfTime: the time is as good as over; nothing was sent.
    """
    limit = _current.get()
    if limit is not None and limit[0] - time.monotonic() < limit[1]:
        raise OutOfTime("the time was over before the call could be made, so it was not sent")
