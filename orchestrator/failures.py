"""What an exception means for a unit of work: its outcome, and one sentence why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2
from anthropic import APIConnectionError, APIStatusError, APITimeoutError

from budgets.errors import BudgetExceeded, Declined, InvalidInput, LedgerUnavailable

from .attempt import never_connected
from .errors import (
    Finished,
    OrchestratorError,
    OutOfTime,
    RunStopped,
    SpendLimit,
    UnreadableAnswer,
)
from .gate import NestedTooDeep, RateDeadline
from .outcomes import Outcome
from .wire import classify


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome that an exception stands for, and the reason in one sentence.

    Errors that are nobody's outcome (a bug in the caller's own code) come back as ``infra`` with the name of
    the exception.
    """
    text = "" if isinstance(error, Finished) else str(error) or type(error).__name__
    for kinds, outcome in _BY_TYPE:
        if isinstance(error, kinds):
            return outcome, text
    if isinstance(error, APIStatusError):
        body = error.body if isinstance(error.body, Mapping) else None
        kind = classify(error.status_code, body, error.response.headers)
        if kind.reason in _TOO_LARGE:
            return Outcome.TOO_LARGE, kind.message or f"HTTP {error.status_code}"
        return Outcome(kind.word), kind.message or f"HTTP {error.status_code}"
    if isinstance(error, APIConnectionError):
        if never_connected(error):
            return Outcome.INFRA, f"no connection to the API: {error.__cause__ or error}"
        return (
            Outcome.IN_DOUBT,
            f"the connection was lost after the request was sent: {error.__cause__ or error}",
        )
    return Outcome.INFRA, f"{type(error).__name__}: {text}"


#: What ``wire`` calls a prompt that the model, or the API, does not take at any time.
_TOO_LARGE = frozenset({"too_large", "prompt_too_long"})
_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], Outcome], ...] = (
    ((Finished,), Outcome.OK),
    ((BudgetExceeded,), Outcome.BUDGET),
    ((LedgerUnavailable,), Outcome.INFRA),
    ((Declined,), Outcome.BAD_REQUEST),
    ((RunStopped, asyncio.CancelledError, KeyboardInterrupt), Outcome.CANCELLED),
    ((SpendLimit,), Outcome.SPEND_LIMIT),
    ((UnreadableAnswer,), Outcome.IN_DOUBT),
    ((OutOfTime,), Outcome.TIMEOUT),
    ((RateDeadline,), Outcome.RATE_LIMITED),
    ((NestedTooDeep, OrchestratorError, InvalidInput), Outcome.BAD_REQUEST),
    ((APITimeoutError, httpx2.TimeoutException, TimeoutError), Outcome.TIMEOUT),
    ((httpx2.TransportError,), Outcome.IN_DOUBT),
)
