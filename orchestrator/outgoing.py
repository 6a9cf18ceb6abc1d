"""Outgoing: the SDK's request as it will leave, made from the one that the caller asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic
from anthropic import APIRequest
from anthropic.types import MessageTokensCount

from budgets.shape import Shape

from .metered_stream import ENCODINGS
from .wire import Reading
from .wire.counts import read_count


def prepared(request: APIRequest, reading: Reading, headers: Mapping[str, str]) -> APIRequest:
    """The request with the limits that make its hold bind.

    Args:
        request: as the caller asked for it; left as it is.
        reading: says what to change.
        headers: to be added.
    """
    added = dict(headers)
    if reading.stream and not _has_header(request, "accept-encoding"):
        added["accept-encoding"] = ENCODINGS
    if not reading.changes and not added:
        return request
    changed = with_fields(request, reading.changes)
    if added:
        changed.options.headers = {**request.headers, **added}
    return changed


def with_fields(request: APIRequest, changes: Mapping[str, Any]) -> APIRequest:
    """A copy of the request with some fields of its body replaced."""
    options = request.options.model_copy()
    if changes:
        options.json_data = {**request.json, **changes}  # type: ignore[dict-item]
    return APIRequest(
        options=options,
        cast_to=request.cast_to,
        stream=request.stream,
        stream_cls=request.stream_cls,
        retries_taken=request.retries_taken,
    )


def count_request(request: APIRequest, reading: Reading) -> APIRequest:
    """The same conversation for the token counter, which is free."""
    options = request.options.model_copy()
    options.url = "/v1/messages/count_tokens"
    options.json_data = reading.countable
    options.post_parser = anthropic.NOT_GIVEN
    return APIRequest(options=options, cast_to=MessageTokensCount)


def tightened(reading: Reading, status: int, body: bytes) -> Shape:
    """The shape by the counter's figure; the shape by bytes if the counter did not answer."""
    count = read_count(status, body)
    return reading.shape if count is None else reading.tighten(count)


def betas_of(request: APIRequest) -> tuple[str, ...]:
    """Values of the ``anthropic-beta`` header."""
    value = _header(request, "anthropic-beta")
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()


def model_of(request: APIRequest) -> str:
    """The model that the body names, ``""`` if it names none."""
    body = request.json
    return str(body.get("model", "")) if isinstance(body, Mapping) else ""


def _has_header(request: APIRequest, name: str) -> bool:
    return _header(request, name) is not None


def _header(request: APIRequest, name: str) -> Any:
    headers = request.headers
    if name in headers:
        return headers[name]
    # ``extra_headers`` may spell it in any case.
    return next((value for key, value in headers.items() if key.lower() == name), None)
