"""Error replies are told apart by what they mean for a run, not by their status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from anthropic._error_classes import ERROR_CLASSES

from orchestrator.wire import ErrorKind, classify

NOW = datetime(2026, 11, 29, 17, 0, tzinfo=UTC)


def _error(kind: str = "", message: str = "", code: str | None = None) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": kind, "message": message}
    if code is not None:
        inner["details"] = {"error_code": code}
    return {"type": "error", "error": inner, "request_id": "req_body"}


def _classify(
    status: int, error: dict[str, Any] | None, headers: dict[str, str] | None = None
) -> ErrorKind:
    return classify(status, error, headers, now=NOW)


OWN_ORG = "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
OWN_WORKSPACE = "You have reached your specified workspace API usage limits."
RATE = "rate_limit_error"
INVALID = "invalid_request_error"

# (status, error, word, reason, retryable)
TABLE: list[tuple[int, dict[str, Any] | None, str, str, bool]] = [
    (429, _error(RATE, "slow down"), "rate_limited", RATE, True),
    (429, None, "rate_limited", "", True),
    (429, _error(RATE, code="ramp_limit_exceeded"), "rate_limited", "ramp_limit_exceeded", True),
    (
        429,
        _error(RATE, code="enforced_spend_limit_reached"),
        "spend_limit",
        "enforced_spend_limit_reached",
        False,
    ),
    (
        429,
        _error(RATE, code="contract_spend_limit_reached"),
        "spend_limit",
        "contract_spend_limit_reached",
        False,
    ),
    (402, _error("billing_error", "no funds"), "spend_limit", "billing", False),
    (402, None, "spend_limit", "billing", False),
    (
        402,
        _error("billing_error", code="linked_organization_spend_limit_reached"),
        "spend_limit",
        "linked_organization_spend_limit_reached",
        False,
    ),
    (
        402,
        _error("billing_error", code="linked_organization_billing_unavailable"),
        "spend_limit",
        "linked_organization_billing_unavailable",
        False,
    ),
    (400, _error(INVALID, OWN_ORG), "spend_limit", "own_limit", False),
    (400, _error(INVALID, OWN_WORKSPACE), "spend_limit", "own_limit", False),
    (
        400,
        _error(INVALID, "Your credit balance is too low to access the API."),
        "spend_limit",
        "no_credit",
        False,
    ),
    (
        400,
        _error(INVALID, code="organization_on_hold"),
        "spend_limit",
        "organization_on_hold",
        False,
    ),
    (400, _error(INVALID, "max_tokens: required"), "bad_request", INVALID, False),
    (
        400,
        _error(INVALID, "prompt is too long: 1000001 tokens > 1000000 maximum"),
        "bad_request",
        "prompt_too_long",
        False,
    ),
    (
        400,
        _error(INVALID, code="thread_fingerprint_mismatch"),
        "bad_request",
        "thread_fingerprint_mismatch",
        False,
    ),
    (400, _error(INVALID, code="request_body_timeout"), "timeout", "request_body_timeout", True),
    (401, _error("authentication_error"), "auth", "authentication_error", False),
    (403, _error("permission_error"), "auth", "permission_error", False),
    (404, _error("not_found_error"), "bad_request", "not_found_error", False),
    (412, None, "bad_request", "", False),
    (413, _error("request_too_large"), "bad_request", "too_large", False),
    (413, None, "bad_request", "too_large", False),
    (422, None, "bad_request", "", False),
    (431, None, "bad_request", "", False),
    (408, None, "timeout", "", True),
    (409, _error("conflict_error"), "infra", "conflict_error", True),
    (499, None, "infra", "", True),
    (500, _error("api_error"), "infra", "api_error", True),
    (500, _error("overloaded_error"), "overloaded", "overloaded_error", True),
    (501, None, "infra", "", False),
    (502, None, "infra", "", True),
    (503, None, "infra", "", True),
    (
        503,
        _error("api_error", code="change_outcome_unknown"),
        "infra",
        "change_outcome_unknown",
        False,
    ),
    (504, _error("timeout_error"), "timeout", "timeout_error", True),
    (529, _error("overloaded_error"), "overloaded", "overloaded_error", True),
    (
        529,
        _error("overloaded_error", code="compaction_unavailable"),
        "overloaded",
        "compaction_unavailable",
        True,
    ),
    (302, None, "infra", "", False),
    # Errors inside a stream have status 200; only their body tells.
    (200, _error("overloaded_error"), "overloaded", "overloaded_error", True),
    (200, _error("rate_limit_error"), "rate_limited", RATE, True),
    (200, _error("api_error"), "infra", "api_error", True),
    (200, _error("timeout_error"), "timeout", "timeout_error", True),
    (200, _error("authentication_error"), "auth", "authentication_error", False),
    (200, _error(INVALID, "nonsense"), "bad_request", INVALID, False),
    (200, _error(INVALID, OWN_ORG), "spend_limit", "own_limit", False),
    (
        200,
        _error(RATE, code="enforced_spend_limit_reached"),
        "spend_limit",
        "enforced_spend_limit_reached",
        False,
    ),
    (200, None, "infra", "", True),
]


@pytest.mark.parametrize(("status", "error", "word", "reason", "retryable"), TABLE)
def test_every_reply_has_one_meaning(
    status: int, error: dict[str, Any] | None, word: str, reason: str, retryable: bool
) -> None:
    """R-08: a reply that means 'no money' is never taken for 'slow down', whatever its status."""
    kind = _classify(status, error)
    assert (kind.word, kind.reason, kind.retryable) == (word, reason, retryable)
    assert kind.status == status


@pytest.mark.parametrize("inner", [True, False])
def test_the_whole_body_or_its_error_object_will_do(inner: bool) -> None:
    """A stream hands over the inner object, a reply the whole body."""
    body = _error(RATE, code="enforced_spend_limit_reached")
    assert _classify(429, body["error"] if inner else body).word == "spend_limit"


def test_every_code_of_the_sdk_about_spending_is_a_spend_limit() -> None:
    """A new code of the provider that says the money is out must not be retried."""
    for status, code in ERROR_CLASSES:
        if code is None:
            continue
        kind = _classify(status, _error("x", code=code))
        about_money = "spend_limit_reached" in code or status == 402
        assert (kind.word == "spend_limit") == (about_money or code == "organization_on_hold")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Sun, 29 Nov 2026 17:01:30 GMT"}, 90.0),
        ({"retry-after": "Sun, 29 Nov 2026 16:00:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_the_time_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    """R-01, R-03: milliseconds, seconds and dates are understood, long waits too."""
    assert _classify(429, None, headers).retry_after_s == seconds


@pytest.mark.parametrize(
    ("status", "error", "asked", "retryable"),
    [
        (429, None, "false", False),
        (529, None, "false", False),
        (400, _error(INVALID, "x"), "true", True),
        (429, _error(RATE, code="enforced_spend_limit_reached"), "true", False),
        (402, None, "true", False),
    ],
)
def test_the_provider_can_say_whether_to_retry(
    status: int, error: dict[str, Any] | None, asked: str, retryable: bool
) -> None:
    """``x-should-retry`` decides, except that no header makes an empty account worth a retry."""
    assert _classify(status, error, {"X-Should-Retry": asked}).retryable is retryable


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        (NOW, datetime(2026, 12, 1, tzinfo=UTC)),
        (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        (datetime.fromisoformat("2026-11-30T20:00:00-05:00"), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_tier_cap_opens_on_the_first(now: datetime, opens: datetime) -> None:
    """The provider's own cap turns at 00:00 UTC on the first of the month."""
    error = _error(RATE, code="enforced_spend_limit_reached")
    assert classify(429, error, now=now).reopens_at == opens


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (_error(INVALID, OWN_ORG), datetime(2026, 12, 1, tzinfo=UTC)),
        (_error(INVALID, OWN_WORKSPACE), None),
        (_error(INVALID, OWN_WORKSPACE + " until 2026-13-45 at 00:00 UTC"), None),
    ],
)
def test_a_limit_of_ones_own_opens_when_it_says(
    error: dict[str, Any], opens: datetime | None
) -> None:
    """The date in the message is read, and no date is made up."""
    assert _classify(400, error).reopens_at == opens


def test_a_rate_limit_names_no_opening() -> None:
    """Only spend limits have a time at which they open."""
    message = "wait until 2026-12-01 at 00:00 UTC"
    assert _classify(429, _error(RATE, message)).reopens_at is None


def test_a_message_is_short_and_holds_no_key() -> None:
    """What is shown and journalled can be pasted into a ticket."""
    secret = "sk-ant-api03-abc_DEF-123"
    kind = _classify(
        401, _error("x", f"bad key {secret}\n Authorization: Bearer {'t' * 40} " + "y" * 900)
    )
    assert secret not in kind.message
    assert "t" * 40 not in kind.message
    assert "\n" not in kind.message
    assert len(kind.message) == 300


def test_the_request_id_is_kept() -> None:
    """The provider's support asks for it: from the header, else from the body."""
    assert _classify(500, _error("x"), {"Request-Id": "req_1"}).request_id == "req_1"
    assert _classify(500, _error("x")).request_id == "req_body"
    assert _classify(500, None).request_id == ""


@pytest.mark.parametrize(
    "error",
    [{"error": None}, {"error": []}, {"error": {"details": 3, "message": 4, "type": []}}, {}],
)
def test_a_mangled_body_is_judged_by_its_status(error: dict[str, Any]) -> None:
    """A proxy's own error page does not break the reading."""
    assert _classify(429, error).word == "rate_limited"
