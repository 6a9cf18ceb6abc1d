"""Replies of the gateway's own, in the API's form: what went wrong, which cap, and when it opens again."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from budgets.errors import BudgetError, BudgetExceeded, InvalidInput, LedgerError, Unbounded
from orchestrator.errors import OrchestratorError, SpendLimit
from orchestrator.gate import RateDeadline

_JSON = "application/json"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
#: Words of ``wire`` to who imports it, and in whose place they are for the client of a gateway.
_AT_A_GATEWAY = {
    ", or pass Allowances(web_max_uses=...)": "",  # would change requests, which a gateway never does
    "pass Allowances(web_fetch_tokens=...)": "have whoever runs this gateway give it --fetch-tokens",
    "pass Allowances(": "have whoever runs this gateway vouch for it, in Python, by Allowances(",
}
#: Seconds after which a client may ask again where nobody knows better.
_SOON_S = 10
#: The CLI does not retry at all above this.
_LONGEST_RETRY_S = 3600


class Refusal(Exception):
    """A reply of ours in place of the upstream's.

    Attributes:
        status: the HTTP status.
        message: for people.
        headers: further headers.
        details: facts for programs.
        reason: a word for the metrics.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        details: Mapping[str, Any] | None = None,
        reason: str = "refused",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}
        self.details = details or {}
        self.reason = reason

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON object of the reply, in the API's form."""
        error: dict[str, Any] = {"type": _KINDS[self.status], "message": self.message}
        if self.details:
            error["details"] = dict(self.details)
        return {"type": "error", "error": error, "request_id": request_id}

    def response(self) -> web.Response:
        """The reply."""
        request_id = new_request_id()
        return web.Response(
            status=self.status,
            body=json.dumps(self.body(request_id)).encode(),
            content_type=_JSON,
            headers={**self.headers, "request-id": request_id, "x-earmark": self.reason},
        )

    def event(self) -> bytes:
        """The same inside a stream that has begun already."""
        return b"event: error\ndata: " + json.dumps(self.body(new_request_id())).encode() + b"\n\n"


def new_request_id() -> str:
    """An id for a reply of ours, in the form of the API's."""
    return f"req_earmark_{secrets.token_hex(8)}"


def out_of_money(error: BudgetExceeded, *, is_subagent: bool) -> Refusal:
    """A cap is in the way: 402, or for a subagent 429 that is not to be retried.

    Claude Code makes one call for either. After the 429 a subagent's parent gets what the subagent had
    written so far, after a 402 it does not.
    """
    details = {
        "error_code": "earmark_cap",
        "cap": str(error.cap),
        "scope": error.scope,
        "posted_usd": f"{error.posted:f}",
        "held_usd": f"{error.held:f}",
        "asked_usd": f"{error.asked:f}",
        "reopens_at": None if error.reopens_at is None else error.reopens_at.isoformat(),
    }
    if is_subagent:
        return Refusal(429, str(error), {"x-should-retry": "false"}, details=details, reason="cap")
    return Refusal(402, str(error), {"x-should-retry": "false"}, details=details, reason="cap")


def not_allowed(error: OrchestratorError, *, is_subagent: bool) -> Refusal:
    """The work that this request belongs to may not go on: one call, which is not tried again."""
    status = 429 if is_subagent else 402 if isinstance(error, SpendLimit) else 403
    message = f"{error}; nothing was sent"
    return Refusal(status, message, {"x-should-retry": "false"}, reason="stopped")


def still_held(error: BudgetExceeded, waited_s: float) -> Refusal:
    """Only held money was in the way, and it did not come free in time: worth another try."""
    message = f"{error}; it waited {waited_s:.0f} s for its turn, try again"
    return Refusal(429, message, {"retry-after": str(_SOON_S)}, reason="held")


def too_slow(error: RateDeadline) -> Refusal:
    """The gate could not let it through in time."""
    wait_s = _SOON_S if error.retry_in_s is None else math.ceil(error.retry_in_s)
    return Refusal(
        429, str(error), {"retry-after": str(min(max(wait_s, 1), _LONGEST_RETRY_S))}, reason="rate"
    )


def of_error(error: BudgetError, *, is_subagent: bool) -> Refusal:
    """The reply for whatever the money layer says no with."""
    if isinstance(error, BudgetExceeded):
        return out_of_money(error, is_subagent=is_subagent)
    if isinstance(error, LedgerError):
        return Refusal(503, f"{error}; nothing was sent", {"retry-after": "5"}, reason="ledger")
    reason = "invalid" if isinstance(error, InvalidInput) else "unbounded"
    said = _for_a_client(error) if isinstance(error, Unbounded) else str(error)
    return Refusal(400, f"{said} (said by the Earmark gateway; nothing was sent)", reason=reason)


def _for_a_client(error: Unbounded) -> str:
    """What has no bound, with what a client can do about it: it gives no allowances, whoever runs the gateway does."""
    said = str(error)
    for there, here in _AT_A_GATEWAY.items():
        said = said.replace(there, here)
    return said


def unknown_client() -> Refusal:
    """Nobody here knows the client's key."""
    return Refusal(
        401,
        "this gateway does not know the key: use a token of `earmark gateway token new`, or the key of a live lease, "
        "as x-api-key or as Authorization: Bearer",
        reason="unknown_client",
    )


def lease_ended() -> Refusal:
    """The key was of a lease that has ended. Claude Code tries a 401 eleven times, and a 403 once."""
    return Refusal(
        403,
        "this lease has ended; nothing was sent",
        {"x-should-retry": "false"},
        reason="lease_ended",
    )


def stopping() -> Refusal:
    """The gateway is about to end."""
    return Refusal(
        503, "the gateway is stopping; nothing was sent", {"retry-after": "5"}, reason="stopping"
    )


def stopped() -> Refusal:
    """The gateway ended before the answer was in."""
    return Refusal(
        503,
        "the gateway stopped before the answer was in; it may have been billed, so its hold is in doubt",
        {"x-should-retry": "false"},
        reason="stopping",
    )


def not_http() -> Refusal:
    """Bytes that are no request; nothing of them is said again."""
    return Refusal(
        400,
        "this is no HTTP request that can be read in one way; nothing was sent. The gateway speaks plain HTTP/1.1: "
        "one Host, either Content-Length or chunks, at most 128 headers in lines of at most 8,190 bytes",
        reason="bad_http",
    )


def no_batches() -> Refusal:
    """Batches cost hours later."""
    return Refusal(
        403,
        "message batches don't pass through this gateway, since their cost is known hours later: run them with "
        "orchestrator.batches.run_batches under the same caps, or send the requests one by one",
        reason="batches",
    )


def no_files() -> Refusal:
    """Files belong to the account, not to a client."""
    return Refusal(
        403,
        "files don't pass through this gateway: all of its clients would share them; its operator can allow it "
        "(earmark gateway --files)",
        reason="files",
    )


def not_known(method: str, path: str) -> Refusal:
    """A path that this gateway does not pass on."""
    return Refusal(
        404,
        f"{method} {path[:200]}: this gateway passes on only what it knows the cost of; this path is not among it",
        reason="unknown_path",
    )
