"""Warmth: which prefixes are in the cache, and who goes first for one that is not.

An entry can be read once the answer that wrote it has begun. So of many calls with a cold prefix the first one
goes alone; the others wait, without a slot or a hold, and go together. A warmer that fails, or takes too long,
is followed by the next in line. Who has little time waits for a share of it only: then the next in line goes ahead,
and at last it goes on with a cold prefix. Callers may be tasks of any loop, or threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from budgets.lifetimes import LIFETIME_S
from budgets.shape import Ttl
from orchestrator.clock import Clock

_KEYS_MAX = 10_000
#: The lifetime counts from the start of a request and is known here from its answer: so much of it is relied on.
_RELIED_ON = 0.8
#: Of the time that a caller has left, the share after which somebody else goes ahead, and that it waits at most.
_NEXT_AT, _WAITS_MOST = 1 / 6, 1 / 3


class Warmer:
    """One call that may warm prefixes; compared by identity."""

    __slots__ = ("is_alone", "keys")

    def __init__(self) -> None:
        #: Prefixes that it is the first to send.
        self.keys: list[bytes] = []
        #: Whether it is the first with all of its prefixes.
        self.is_alone = False


@dataclass(slots=True)
class _Prefix:
    warm_until: float = 0.0
    warmer: Warmer | None = None
    is_settling: bool = False
    is_asked_for: bool = False
    is_inert: bool = False
    #: True to whom it falls to be the warmer, False to those who may go.
    line: deque[tuple[Warmer, Future[bool]]] = field(default_factory=deque)


class Warmth:
    """All prefixes of one run.

    Args:
        clock: where time comes from.
        settle_s: seconds from the begin of an answer until what it wrote can surely be read.
        patience_s: seconds after which somebody else is sent ahead.
        deadline: ``clock.monotonic`` seconds after which nobody waits.
    """

    def __init__(
        self, clock: Clock, *, settle_s: float, patience_s: float, deadline: float | None = None
    ) -> None:
        self._clock = clock
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._deadline = deadline
        self._lock = threading.Lock()
        self._prefixes: OrderedDict[bytes, _Prefix] = OrderedDict()

    # ---- going first, or waiting ------------------------------------------------------------------

    async def ready_async(self, key: bytes, warmer: Warmer, *, left_s: float | None = None) -> None:
        """Return when the prefix is warm, when it falls to this call to warm it, or when it has waited enough.

        Args:
            key: the prefix.
            warmer: the call.
            left_s: seconds that the call has left for everything; None if nothing limits it.
        """
        future = self._enter(key, warmer, left_s)
        if future is None:
            return
        try:
            await asyncio.wrap_future(future)
        except BaseException:
            self._leave(key, warmer, future)
            raise

    def ready(self, key: bytes, warmer: Warmer, *, left_s: float | None = None) -> None:
        """As ``ready_async``, blocking."""
        future = self._enter(key, warmer, left_s)
        if future is None:
            return
        try:
            future.result()
        except BaseException:
            self._leave(key, warmer, future)
            raise

    def claim_if_free(self, key: bytes, warmer: Warmer) -> None:
        """For a call that can't wait: warm the prefix if nobody does."""
        with self._lock:
            prefix = self._of(key)
            if prefix.warmer is None and not self._is_warm(prefix):
                self._claim(key, prefix, warmer)

    def began(self, key: bytes, warmer: Warmer, ttl: Ttl) -> None:
        """An answer to a call with this prefix has begun."""
        with self._lock:
            prefix = self._of(key)
            now = self._clock.monotonic()
            was_warm = self._is_warm(prefix)
            prefix.warm_until = max(prefix.warm_until, now + LIFETIME_S[ttl] * _RELIED_ON)
            if was_warm and prefix.warmer is not warmer:
                return
            prefix.warmer = None
            prefix.is_asked_for = False
            if self._settle_s > 0:
                prefix.is_settling = True
                self._clock.call_at(now + self._settle_s, partial(self._settled, key))
            else:
                self._release(prefix)

    def failed(self, key: bytes, warmer: Warmer) -> None:
        """A call ended before its answer began: the next in line goes first."""
        with self._lock:
            prefix = self._prefixes.get(key)
            if prefix is not None and prefix.warmer is warmer:
                self._pass_on(key, prefix)

    # ---- what is known ----------------------------------------------------------------------------

    def ask_to_begin(self, key: bytes) -> bool:
        """Whether the caller is the first to ask while nobody has begun to warm the prefix."""
        with self._lock:
            prefix = self._of(key)
            if prefix.is_asked_for or prefix.warmer is not None or self._is_warm(prefix):
                return False
            prefix.is_asked_for = True
            return True

    def is_inert(self, key: bytes) -> bool:
        """Whether a marker at its end was seen to do nothing."""
        prefix = self._prefixes.get(key)
        return prefix is not None and prefix.is_inert

    def note_inert(self, key: bytes) -> None:
        """A marked prefix was neither written nor read: it is too short for the model after all."""
        with self._lock:
            prefix = self._of(key)
            prefix.is_inert = True
            prefix.warmer = None
            self._release(prefix)

    # ---- inside the lock --------------------------------------------------------------------------

    def _enter(self, key: bytes, warmer: Warmer, left_s: float | None) -> Future[bool] | None:
        with self._lock:
            prefix = self._of(key)
            if prefix.is_inert or self._is_past_deadline():
                return None
            if prefix.warmer is None and not prefix.is_settling:
                if not self._is_warm(prefix):
                    self._claim(key, prefix, warmer)
                return None
            future: Future[bool] = Future()
            future.set_running_or_notify_cancel()  # who waits may leave, but not cancel it
            prefix.line.append((warmer, future))
            if left_s is not None:
                self._limit(key, prefix, (warmer, future), left_s)
            return future

    def _limit(
        self, key: bytes, prefix: _Prefix, one: tuple[Warmer, Future[bool]], left_s: float
    ) -> None:
        """Set the alarms of a caller whose time is limited."""
        now = self._clock.monotonic()
        if prefix.warmer is not None:
            again = partial(self._lose_patience, key, prefix.warmer)
            self._clock.call_at(now + left_s * _NEXT_AT, again)
        self._clock.call_at(now + left_s * _WAITS_MOST, partial(self._go_on, key, one))

    def _leave(self, key: bytes, warmer: Warmer, future: Future[bool]) -> None:
        """A waiter was cancelled; the turn that it may just have been given is passed on."""
        with self._lock:
            prefix = self._of(key)
            if not future.done():
                prefix.line.remove((warmer, future))
            elif prefix.warmer is warmer:
                warmer.keys.remove(key)
                self._pass_on(key, prefix)

    def _claim(self, key: bytes, prefix: _Prefix, warmer: Warmer) -> None:
        prefix.warmer = warmer
        warmer.keys.append(key)
        until = self._clock.monotonic() + self._patience_s
        if self._deadline is not None:
            until = min(until, self._deadline)
        self._clock.call_at(until, partial(self._lose_patience, key, warmer))

    def _pass_on(self, key: bytes, prefix: _Prefix) -> None:
        prefix.warmer = None
        prefix.is_asked_for = False
        if self._is_past_deadline():
            self._release(prefix)
        elif prefix.line:
            warmer, future = prefix.line.popleft()
            self._claim(key, prefix, warmer)
            future.set_result(True)

    def _release(self, prefix: _Prefix) -> None:
        while prefix.line:
            _, future = prefix.line.popleft()
            future.set_result(False)

    def _is_warm(self, prefix: _Prefix) -> bool:
        return prefix.warm_until > self._clock.monotonic()

    def _is_past_deadline(self) -> bool:
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    def _of(self, key: bytes) -> _Prefix:
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = _Prefix()
            self._forget_idle()
        return prefix

    def _forget_idle(self) -> None:
        """Drop the oldest while there are many; one that is in use is kept, and looked at again later."""
        for _ in range(min(2, len(self._prefixes) - _KEYS_MAX)):
            key, oldest = next(iter(self._prefixes.items()))
            del self._prefixes[key]
            if oldest.warmer is not None or oldest.is_settling or oldest.line:
                self._prefixes[key] = oldest

    # ---- alarms -----------------------------------------------------------------------------------

    def _settled(self, key: bytes) -> None:
        with self._lock:
            prefix = self._of(key)
            prefix.is_settling = False
            self._release(prefix)

    def _lose_patience(self, key: bytes, warmer: Warmer) -> None:
        with self._lock:
            prefix = self._of(key)
            if prefix.warmer is warmer:
                self._pass_on(key, prefix)

    def _go_on(self, key: bytes, one: tuple[Warmer, Future[bool]]) -> None:
        """A caller has waited as long as it can: it goes, warm or not."""
        with self._lock:
            _, future = one
            if not future.done():
                self._of(key).line.remove(one)
                future.set_result(False)
