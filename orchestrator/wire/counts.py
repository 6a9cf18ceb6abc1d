"""Counts: the answer of the token counter."""

from __future__ import annotations

import json


def read_count(status: int, body: bytes) -> int | None:
    """Input tokens by an answer of ``POST /v1/messages/count_tokens``; None if it gives none."""
    if status != 200:
        return None
    try:
        count = json.loads(body).get("input_tokens")
    except (ValueError, AttributeError):
        return None
    return count if type(count) is int and count >= 0 else None
