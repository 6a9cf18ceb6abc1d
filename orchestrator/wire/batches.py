"""Message batches on the wire: the list of requests as bytes, a batch's state, and one line of its results.

The parameters of one request are read by ``requests``, the usage of its answer by ``usages``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from .errors import ErrorKind, classify
from .prefixes import of_json

#: What the API takes as ``custom_id``.
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: Requests and bytes of one batch (documentation of 2026-08-22).
REQUESTS_MAX = 100_000
BYTES_MAX = 256_000_000
#: Around the requests, and around each of them.
OPENS, CLOSES = b'{"requests":[', b"]}"
_AROUND = len(b'{"custom_id":"","params":},')

#: Fields that a request of a batch can't have, and what it would have to be.
_NOT_IN_BATCHES = ("stream", "thread")

ResultKind = Literal["succeeded", "errored", "canceled", "expired"]

#: HTTP statuses that the types of errors come with; inside results they have none.
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """A batch as the provider describes it.

    Attributes:
        id: the provider's.
        ended: every request has a result.
        canceling: it was told to stop.
        archived: its results are gone.
        requests: how many it has in all.
        created_at: when it was made (aware).
        has_results: whether there is somewhere to fetch them from.
    """

    id: str
    ended: bool
    canceling: bool
    archived: bool
    requests: int
    created_at: datetime
    has_results: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLine:
    """One request's result: a message, or an error, or neither."""

    custom_id: str
    kind: ResultKind
    message: dict[str, Any] | None = None
    error: ErrorKind | None = None


def request_size(custom_id: str, params: int) -> int:
    """Bytes that a request with so many bytes of parameters takes in the list."""
    return _AROUND + len(custom_id) + params


def request_bytes(custom_id: str, params: bytes, *, first: bool) -> bytes:
    """A request as it stands in the list."""
    comma = b"" if first else b","
    return b'%s{"custom_id":"%s","params":%s}' % (comma, custom_id.encode(), params)


def not_in_batches(body: Mapping[str, Any]) -> str:
    """Why a request can't be one of a batch; ``""`` if it can."""
    for name in _NOT_IN_BATCHES:
        if body.get(name):
            return f"{name}: the API does not take it inside a batch; leave it out"
    if body.get("speed") == "fast":
        return "speed: the API does not take 'fast' inside a batch; leave it out"
    if body.get("max_tokens") == 0:
        return "max_tokens: the API does not take 0 inside a batch"
    return ""


def read_batch(body: Mapping[str, Any]) -> BatchState:
    """Read a batch.

    Raises:
        ValueError: it is not the description of one.
    """
    try:
        return BatchState(
            id=str(body["id"]),
            ended=body["processing_status"] == "ended",
            canceling=body["processing_status"] == "canceling",
            archived=body.get("archived_at") is not None,
            requests=sum(int(count) for count in body["request_counts"].values()),
            created_at=datetime.fromisoformat(str(body["created_at"])),
            has_results=body.get("results_url") is not None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"this is not the description of a batch ({error!r})"
        raise ValueError(msg) from error


def read_result(line: bytes) -> ResultLine:
    """Read one line of results.

    Raises:
        ValueError: it is not one.
    """
    body = of_json(line)
    try:
        custom_id, result = str(body["custom_id"]), body["result"]
        kind = str(result["type"])
    except (KeyError, TypeError) as error:
        msg = f"this is not a line of results ({error!r})"
        raise ValueError(msg) from error
    if kind == "succeeded" and isinstance(result.get("message"), dict):
        return ResultLine(custom_id=custom_id, kind="succeeded", message=result["message"])
    if kind == "errored":
        return ResultLine(custom_id=custom_id, kind="errored", error=_error(result.get("error")))
    if kind == "canceled":
        return ResultLine(custom_id=custom_id, kind="canceled")
    if kind == "expired":
        return ResultLine(custom_id=custom_id, kind="expired")
    msg = f"{custom_id}: {kind!r} is not known as a kind of result"
    raise ValueError(msg)


def _error(error: Any) -> ErrorKind:
    body = error if isinstance(error, Mapping) else {}
    inner = body.get("error")
    detail = inner if isinstance(inner, Mapping) else body
    return classify(_STATUS.get(str(detail.get("type")), 500), body)


__all__ = [
    "BYTES_MAX",
    "CLOSES",
    "CUSTOM_ID",
    "OPENS",
    "REQUESTS_MAX",
    "BatchState",
    "ResultLine",
    "not_in_batches",
    "read_batch",
    "read_result",
    "request_bytes",
    "request_size",
]
