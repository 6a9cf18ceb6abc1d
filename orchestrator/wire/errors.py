"""Errors: what an error reply of the provider means, in a closed set of words.

Three different replies mean that the money is out: they end a run and are never retried. They come
as 429, 402 and 400, so the status alone tells nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

#: What a reply means for a unit of work; the same words as its outcome.
Word = Literal[
    "rate_limited",
    "spend_limit",
    "overloaded",
    "auth",
    "bad_request",
    "timeout",
    "infra",
]

_SPEND_CODES = frozenset(
    {
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
    }
)
#: The limit that the customer set comes as a plain 400; only its words tell.
_OWN_LIMIT = re.compile(r"you have reached your specified (?:\w+ )?api usage limits", re.IGNORECASE)
_NO_CREDIT = re.compile(r"credit balance is too low", re.IGNORECASE)
#: Where words are looked at: 200 is an error inside a stream.
_WORDED_STATUSES = frozenset({200, 400, 403})
_REGAIN = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?: at |T)(\d{2}):(\d{2})")
_TOO_LONG = re.compile(r"prompt is too long|exceeds? (?:the )?(?:context|maximum) ", re.IGNORECASE)
_SECRET = re.compile(r"sk-ant-[\w-]+|(?i:bearer)\s+[\w.~+/-]{8,}=*")
_LONGEST_MESSAGE = 300

#: Meanings of the error types, for replies without a telling status (errors inside a 200 stream).
_BY_TYPE: dict[str, Word] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "authentication_error": "auth",
    "permission_error": "auth",
    "timeout_error": "timeout",
    "invalid_request_error": "bad_request",
    "not_found_error": "bad_request",
    "request_too_large": "bad_request",
    "memory_precondition_failed_error": "bad_request",
    "memory_path_conflict_error": "bad_request",
}
_BY_STATUS: dict[int, Word] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    409: "infra",
    425: "infra",
    429: "rate_limited",
    499: "infra",
    504: "timeout",
    529: "overloaded",
}
_RETRYABLE: frozenset[Word] = frozenset({"rate_limited", "overloaded", "timeout", "infra"})
#: Never helped by doing the same again: not built, or its outcome must be looked up first.
_FINAL_STATUSES = frozenset({501, 505, 511})
_FINAL_CODES = frozenset({"change_outcome_unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorKind:
    """What an error reply means.

    Attributes:
        word: the meaning, one of a closed set.
        reason: finer: the provider's ``error_code``, or ``billing``, ``own_limit``, ``no_credit``,
            ``too_large``, ``prompt_too_long``; else the error's type, or ``""``.
        retryable: the same request may succeed later.
        retry_after_s: seconds that the provider asks to wait, None if it does not say.
        reopens_at: when a spend limit ends (aware), None if it is not known.
        message: the provider's sentence, short, with keys blotted out.
        status: the HTTP status; 200 for an error inside a stream.
        request_id: for the provider's support, ``""`` if there is none.
    """

    word: Word
    reason: str
    retryable: bool
    retry_after_s: float | None
    reopens_at: datetime | None
    message: str
    status: int
    request_id: str


def classify(
    status: int,
    error: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None = None,
    *,
    now: datetime | None = None,
) -> ErrorKind:
    """Say what an error reply means.

    Args:
        status: its HTTP status; 200 for an ``error`` event inside a stream.
        error: its JSON body, or the ``error`` object in it; None if it was not JSON.
        headers: its headers, in any case.
        now: the time (aware), for dates in headers; None takes the clock.
    """
    body: Mapping[str, Any] = error or {}
    inner = body.get("error")
    detail: Mapping[str, Any] = inner if isinstance(inner, Mapping) else body
    kind = _text(detail.get("type"))
    details = detail.get("details")
    code = _text(details.get("error_code")) if isinstance(details, Mapping) else ""
    message = _text(detail.get("message"))
    found = {name.lower(): value for name, value in (headers or {}).items()}
    moment = now or datetime.now(UTC)
    word, reason = _meaning(status, kind, code, message)
    return ErrorKind(
        word=word,
        reason=reason,
        retryable=_retryable(word, status, code, found.get("x-should-retry")),
        retry_after_s=_retry_after(found, moment),
        reopens_at=_reopens_at(word, code, message, moment),
        message=_short(message),
        status=status,
        request_id=_text(found.get("request-id") or body.get("request_id")),
    )


def _meaning(status: int, kind: str, code: str, message: str) -> tuple[Word, str]:
    spent = _spent(status, kind, code, message)
    if spent:
        return "spend_limit", spent
    if code == "request_body_timeout":
        return "timeout", code
    word = _BY_STATUS.get(status) or (_BY_TYPE.get(kind) if status < 400 else None)
    if word is None:
        # An overload may also come as a plain 5xx with the telling type.
        word = "overloaded" if kind == "overloaded_error" else _by_class(status)
    if word == "bad_request":
        return word, _refused(status, kind, message) or code or kind
    return word, code or kind


def _spent(status: int, kind: str, code: str, message: str) -> str:
    """Why the money is out, ``""`` if this reply is about something else."""
    if code in _SPEND_CODES:
        return code
    if status == 402 or kind == "billing_error":
        return code or "billing"
    if status in _WORDED_STATUSES:
        if _OWN_LIMIT.search(message):
            return "own_limit"
        if _NO_CREDIT.search(message):
            return "no_credit"
    return ""


def _refused(status: int, kind: str, message: str) -> str:
    if status == 413 or kind == "request_too_large":
        return "too_large"
    return "prompt_too_long" if _TOO_LONG.search(message) else ""


def _by_class(status: int) -> Word:
    return "bad_request" if 400 <= status < 500 else "infra"


def _retryable(word: Word, status: int, code: str, asked: str | None) -> bool:
    if word == "spend_limit" or asked == "false" or code in _FINAL_CODES:
        return False
    if asked == "true":
        return True
    return word in _RETRYABLE and status not in _FINAL_STATUSES and not 300 <= status < 400


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    precise = _seconds(headers.get("retry-after-ms"))
    if precise is not None:
        return precise / 1000
    named = headers.get("retry-after")
    plain = _seconds(named)
    if plain is not None or named is None:
        return plain
    try:
        moment = parsedate_to_datetime(named)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _reopens_at(word: Word, code: str, message: str, now: datetime) -> datetime | None:
    """The provider's tier cap turns at 00:00 UTC on the 1st; other limits may name a date."""
    if word != "spend_limit":
        return None
    named = _REGAIN.search(message)
    if named is not None:
        year, month, day, hour, minute = map(int, named.groups())
        try:
            return datetime(year, month, day, hour, minute, tzinfo=UTC)
        except ValueError:
            return None
    if code != "enforced_spend_limit_reached":
        return None
    utc = now.astimezone(UTC)
    year, month = (utc.year + 1, 1) if utc.month == 12 else (utc.year, utc.month + 1)
    return datetime(year, month, 1, tzinfo=UTC)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _short(message: str) -> str:
    clean = _SECRET.sub("[key]", " ".join(message.split()))
    return clean if len(clean) <= _LONGEST_MESSAGE else clean[: _LONGEST_MESSAGE - 1] + "…"
