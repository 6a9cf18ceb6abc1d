"""Failures: every exception is one outcome and one sentence."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from anthropic import APIConnectionError, APIStatusError, APITimeoutError

from budgets.errors import InvalidCap, LedgerUnavailable, UnknownPrice
from orchestrator.errors import ConfigError, RunStopped, SpendLimit, Unmetered, UnreadableAnswer
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome

_REQUEST = httpx2.Request("POST", "http://localhost/v1/messages")


def status(code: int, message: str = "no", kind: str = "error") -> APIStatusError:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return APIStatusError(message, response=httpx2.Response(code, request=_REQUEST), body=body)


def unconnected(cause: Exception) -> APIConnectionError:
    error = APIConnectionError(request=_REQUEST)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (status(400), Outcome.BAD_REQUEST),
        (status(400, "prompt is too long: 300 tokens > 200 maximum"), Outcome.TOO_LARGE),
        (status(413, "Request exceeds the maximum size", "request_too_large"), Outcome.TOO_LARGE),
        (status(400, "You have reached your specified API usage limits."), Outcome.SPEND_LIMIT),
        (status(400, "Your credit balance is too low"), Outcome.SPEND_LIMIT),
        (status(402), Outcome.SPEND_LIMIT),
        (status(401), Outcome.AUTH),
        (status(403), Outcome.AUTH),
        (status(404), Outcome.BAD_REQUEST),
        (status(429), Outcome.RATE_LIMITED),
        (status(500), Outcome.INFRA),
        (status(504), Outcome.TIMEOUT),
        (status(529), Outcome.OVERLOADED),
        (unconnected(httpx2.ConnectError("refused")), Outcome.INFRA),
        (unconnected(httpx2.ReadError("cut")), Outcome.IN_DOUBT),
        (APITimeoutError(request=_REQUEST), Outcome.TIMEOUT),
        (httpx2.ReadError("cut"), Outcome.IN_DOUBT),
        (LedgerUnavailable("no disk"), Outcome.INFRA),
        (UnknownPrice("which model?"), Outcome.BAD_REQUEST),
        (Unmetered("no price"), Outcome.BAD_REQUEST),
        (ConfigError("no"), Outcome.BAD_REQUEST),
        (UnreadableAnswer("what?"), Outcome.IN_DOUBT),
        (InvalidCap("no"), Outcome.BAD_REQUEST),
        (RunStopped("enough"), Outcome.CANCELLED),
        (SpendLimit("out"), Outcome.SPEND_LIMIT),
        (asyncio.CancelledError(), Outcome.CANCELLED),
        (TimeoutError("late"), Outcome.TIMEOUT),
        (ValueError("a bug"), Outcome.INFRA),
        (ZeroDivisionError(), Outcome.INFRA),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_every_exception_has_its_outcome(error: BaseException, outcome: Outcome) -> None:
    """And a sentence that is never empty."""
    found, reason = outcome_of(error)
    assert found is outcome
    assert reason


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_outcome_is_final_or_can_be_tried_again(outcome: Outcome) -> None:
    """Answers are final; what money, limits and networks did is not."""
    final = {"ok", "invalid", "refusal", "truncated", "bad_request", "binary", "empty", "too_large"}
    assert outcome.is_final == (outcome.value in final)
    assert outcome.retry_helps != outcome.is_final
