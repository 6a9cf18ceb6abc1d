"""Errors in the API's own form: status, type, message, code and headers."""

from __future__ import annotations

import json

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class ApiError(Exception):
    """An error reply. Raised by whatever finds the fault, written by the server.

    Attributes:
        status: the HTTP status.
        message: for people.
        kind: the API's error type; by default the usual one of the status.
        code: goes out as ``error.details.error_code``; None for no details.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _TYPES.get(status, "api_error")
        self.code = code
        self.headers = headers or {}

    def body(self, request_id: str) -> dict[str, object]:
        """The reply's JSON object."""
        error: dict[str, object] = {"type": self.kind, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code, "error_visibility": "user_facing"}
        return {"type": "error", "error": error, "request_id": request_id}

    def encode(self, request_id: str) -> bytes:
        """The reply's body."""
        return json.dumps(self.body(request_id)).encode()
