"""Retries: one policy, one owner. The SDK's own are off where this one is used.

Driven by tenacity, guided by what kind of error it is (``wire.classify``) and by ``retry-after``. Each try
is an attempt of its own with its own hold. Rate limits are waited for in the gate, which pauses everyone
who shares them; spend limits, declines and the caller's mistakes are never tried again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anthropic import APIConnectionError
from tenacity import AsyncRetrying, RetryCallState, Retrying

from .wire import ErrorKind


class Answer(NamedTuple):
    """A response, and what kind of error it is, if it is one."""

    response: Any
    error: ErrorKind | None


@dataclass(slots=True)
class RetryBudget:
    """How many retries a whole run may still make, so that a bad hour does not become a storm.

    Args:
        most: retries over all calls together.
    """

    most: int = 1000
    _used: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        """Use one; False if none is left."""
        with self._lock:
            if self._used >= self.most:
                return False
            self._used += 1
            return True

    @property
    def used(self) -> int:
        """Retries made so far."""
        return self._used


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When and how often to try again.

    Attributes:
        attempts: tries of one call that may end in overload, a time-out or a fault of the network or
            the server; 1 repeats none of them.
        rate_limited: tries that may end in 429, counted apart; the gate has waited before each.
        first_s, longest_s: the wait doubles from the first to the longest; a ``retry-after`` above it
            is honoured in full. Jitter is added on top.
        budget: shared by all calls of a run.
        sleep: waits so many seconds, in place of the real thing; for tests.
    """

    attempts: int = 5
    rate_limited: int = 20
    first_s: float = 0.5
    longest_s: float = 60.0
    budget: RetryBudget = field(default_factory=RetryBudget)
    sleep: Callable[[float], Any] | None = None

    def asynchronous(
        self, deadline: float | None, on_retry: Callable[[RetryCallState], None]
    ) -> Callable[..., Awaitable[Answer]]:
        """Drive one call of an async client; ``deadline`` is in ``time.monotonic`` seconds."""

        async def drive(once: Callable[..., Awaitable[Answer]], *given: Any) -> Answer:
            try:
                answer = await once(*given)
            except APIConnectionError as error:
                first: Answer | APIConnectionError = error
            else:
                if answer.error is None or not answer.error.retryable:
                    return answer
                first = answer

            # Tenacity takes over where something has failed; most calls need no driver.
            made = [first]

            async def again(*_: Any) -> Answer:
                return _said(made.pop()) if made else await once(*given)

            tries = _Tries(self, deadline)
            driver = AsyncRetrying(**tries.options(on_retry))
            last: Answer = await driver(again)
            return last

        return drive

    def blocking(
        self, deadline: float | None, on_retry: Callable[[RetryCallState], None]
    ) -> Callable[..., Answer]:
        """Drive one call of a sync client."""

        def drive(once: Callable[..., Answer], *given: Any) -> Answer:
            try:
                answer = once(*given)
            except APIConnectionError as error:
                first: Answer | APIConnectionError = error
            else:
                if answer.error is None or not answer.error.retryable:
                    return answer
                first = answer
            made = [first]

            def again(*_: Any) -> Answer:
                return _said(made.pop()) if made else once(*given)

            tries = _Tries(self, deadline)
            last: Answer = Retrying(**tries.options(on_retry))(again)
            return last

        return drive


def _said(first: Answer | APIConnectionError) -> Answer:
    """What the first try came to, once more."""
    if isinstance(first, APIConnectionError):
        raise first
    return first


class _Tries:
    """The tries of one call. Rate limits and faults are counted apart: neither uses up the other's."""

    def __init__(self, policy: Retry, deadline: float | None) -> None:
        self._policy = policy
        self._deadline = deadline
        self._limited = 0
        self._failed = 0

    def options(self, on_retry: Callable[[RetryCallState], None]) -> dict[str, Any]:
        """For tenacity."""
        sleep = self._policy.sleep
        return {
            **({} if sleep is None else {"sleep": sleep}),
            "retry": self.again,
            "wait": self.wait,
            "stop": self.stop,
            "before_sleep": on_retry,
            "retry_error_callback": _last,
        }

    def again(self, state: RetryCallState) -> bool:
        """Called after each try, first of all."""
        word = is_retryable(state)
        if word == "rate_limited":
            self._limited += 1
        elif word is not None:
            self._failed += 1
        return word is not None

    def wait(self, state: RetryCallState) -> float:
        """Seconds until the next try. A rate limit is waited for in the gate."""
        if is_retryable(state) == "rate_limited":
            return 0.0
        policy = self._policy
        asked = _kind_of(state)
        floor = asked.retry_after_s if asked is not None and asked.retry_after_s else 0.0
        wait = max(min(policy.first_s * 2 ** (self._failed - 1), policy.longest_s), floor)
        return float(wait * (1 + 0.25 * random.random()))

    def stop(self, state: RetryCallState) -> bool:
        """Whether the last try was the last."""
        policy = self._policy
        if self._limited >= policy.rate_limited or self._failed >= policy.attempts:
            return True
        if self._deadline is not None and time.monotonic() + state.upcoming_sleep > self._deadline:
            return True
        return not policy.budget.take()


def is_retryable(state: RetryCallState) -> str | None:
    """Why the last try may be repeated: a word of ``wire.errors``; None if it may not."""
    outcome = state.outcome
    assert outcome is not None
    if outcome.failed:
        # Anything else that is raised is a decline, a mistake or a cancellation.
        return "infra" if isinstance(outcome.exception(), APIConnectionError) else None
    kind = _kind_of(state)
    return kind.word if kind is not None and kind.retryable else None


def _kind_of(state: RetryCallState) -> ErrorKind | None:
    outcome = state.outcome
    if outcome is None or outcome.failed:
        return None
    answer = outcome.result()
    return answer.error if isinstance(answer, Answer) else None


def _last(state: RetryCallState) -> Any:
    """Out of tries: the last answer or error is the caller's."""
    assert state.outcome is not None
    return state.outcome.result()
