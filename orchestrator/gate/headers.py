"""Reads what response headers say about rate limits; never raises on what a server sends.

The plain ``anthropic-ratelimit-tokens-*`` family is left out: it repeats whichever of the two
token limits is the tightest, without saying which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

REQUESTS: Final = "requests"
INPUT_TOKENS: Final = "input_tokens"
OUTPUT_TOKENS: Final = "output_tokens"
KINDS: Final = (REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS)

_STANDARD = {kind: f"anthropic-ratelimit-{kind.replace('_', '-')}" for kind in KINDS}
_FAST = {
    **_STANDARD,
    INPUT_TOKENS: "anthropic-fast-input-tokens",
    OUTPUT_TOKENS: "anthropic-fast-output-tokens",
}
#: Whatever is of interest begins so; most servers in between send none of it.
_PREFIXES = (b"anthropic-", b"retry-after")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateHeaders:
    """What one response said.

    Attributes:
        limits: per kind, how many a minute are allowed.
        remaining: per kind, how many were left when the server answered (tokens rounded to 1,000).
        retry_after_s: seconds to stay away, counted from now; None if it did not say.
    """

    limits: Mapping[str, int]
    remaining: Mapping[str, int]
    retry_after_s: float | None


_SILENT: Final = RateHeaders(limits={}, remaining={}, retry_after_s=None)


def read_headers(headers: Mapping[str, str], *, wall_s: float, lane: str = "") -> RateHeaders:
    """Read the rate-limit headers of one response.

    Args:
        headers: any mapping, whatever the case of its names.
        wall_s: the time now, in seconds since 1970, for dates in ``retry-after``.
        lane: ``fast`` reads the token limits of fast mode.
    """
    lower = _about_rates(headers)
    if not lower:
        return _SILENT
    names = _FAST if lane == "fast" else _STANDARD
    return RateHeaders(
        limits=_counts(lower, names, "limit", least=1),
        remaining=_counts(lower, names, "remaining", least=0),
        retry_after_s=_retry_after_s(lower, wall_s),
    )


def _about_rates(headers: Mapping[str, str]) -> dict[str, str]:
    # The HTTP client's own headers decode every name and value each time they are looked through.
    raw = getattr(headers, "raw", None)
    if raw is None:
        return {name.lower(): value for name, value in headers.items()}
    return {
        lower.decode("latin-1"): value.decode("latin-1")
        for name, value in raw
        if (lower := name.lower()).startswith(_PREFIXES)
    }


def _counts(
    headers: Mapping[str, str], names: Mapping[str, str], field: str, *, least: int
) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, name in names.items():
        value = _number(headers.get(f"{name}-{field}"))
        if value is not None and value >= least:
            found[kind] = int(value)
    return found


def _retry_after_s(headers: Mapping[str, str], wall_s: float) -> float | None:
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None and millis >= 0:
        return millis / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return seconds if seconds >= 0 else None
    if text is None:
        return None
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except (ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None
