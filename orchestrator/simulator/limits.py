"""Rate limits as token buckets, with the API's headers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .api_errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of the simulated organisation; None means none.

    Attributes:
        requests_per_minute: of messages.
        input_tokens_per_minute: uncached input and cache writes; cache reads don't count.
        output_tokens_per_minute: tokens really produced; ``max_tokens`` doesn't count.
        counts_per_minute: of token counts, which have a bucket of their own.
        concurrent: messages in progress at once.
        burst_s: how many seconds' worth a full bucket holds.
        whole_seconds: whether ``retry-after`` is rounded up to a second, as the API does.
    """

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    counts_per_minute: int | None = None
    concurrent: int | None = None
    burst_s: float = 60.0
    whole_seconds: bool = True


class _Bucket:
    """Refills continuously; may be overdrawn, and then admits nothing until it is above zero."""

    def __init__(self, per_minute: int, burst_s: float) -> None:
        self.limit = per_minute
        self.capacity = max(1.0, per_minute * burst_s / 60)
        self.per_second = per_minute / 60
        self.level = self.capacity
        self.at: float | None = None

    def refill(self, now: float) -> None:
        if self.at is not None:
            self.level = min(self.capacity, self.level + (now - self.at) * self.per_second)
        self.at = now

    def wait_s(self, amount: float) -> float:
        """Seconds until this amount is there; an amount above the capacity needs a full bucket."""
        lacking = min(amount, self.capacity) - self.level
        # Below a millionth of a token is the rounding of the refill, not a debt.
        return 0.0 if lacking <= 1e-6 else lacking / self.per_second


class RateLimiter:
    """Applies ``Limits``; time comes in from outside, in seconds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._requests = self._bucket(limits.requests_per_minute)
        self._input = self._bucket(limits.input_tokens_per_minute)
        self._output = self._bucket(limits.output_tokens_per_minute)
        self._counts = self._bucket(limits.counts_per_minute)

    def _bucket(self, per_minute: int | None) -> _Bucket | None:
        return None if per_minute is None else _Bucket(per_minute, self.limits.burst_s)

    def admit(self, input_tokens: int, *, in_progress: int, now: float) -> None:
        """Let one message in, or not.

        Args:
            input_tokens: uncached input and cache writes.
            in_progress: messages in progress besides this one.
            now: seconds.

        Raises:
            ApiError: 429, with ``retry-after`` and the limits' headers.
        """
        concurrent = self.limits.concurrent
        if concurrent is not None and in_progress >= concurrent:
            message = "Number of concurrent connections has exceeded your rate limit."
            raise self._refusal(message, 1.0 if self.limits.whole_seconds else 0.01, now)
        wanted = (
            (self._requests, 1, "requests"),
            (self._input, input_tokens, "input tokens"),
            (self._output, 1, "output tokens"),
        )
        for bucket, amount, what in wanted:
            if bucket is None:
                continue
            bucket.refill(now)
            wait_s = bucket.wait_s(amount)
            if wait_s > 0:
                message = (
                    "This request would exceed your organization's rate limit of "
                    f"{bucket.limit:,} {what} per minute."
                )
                raise self._refusal(message, wait_s, now)
        if self._requests is not None:
            self._requests.level -= 1
        if self._input is not None:
            self._input.level -= input_tokens

    def admit_count(self, now: float) -> None:
        """Let one token count in, or not (429)."""
        if self._counts is None:
            return
        self._counts.refill(now)
        wait_s = self._counts.wait_s(1)
        if wait_s > 0:
            message = "This request would exceed the limit of token counts."
            raise self._refusal(message, wait_s, now)
        self._counts.level -= 1

    def produced(self, output_tokens: int, now: float) -> None:
        """Take generated tokens from the output bucket."""
        if self._output is not None:
            self._output.refill(now)
            self._output.level -= output_tokens

    def headers(self, now: float) -> dict[str, str]:
        """The ``anthropic-ratelimit-*`` headers of a response."""
        headers: dict[str, str] = {}
        tightest: tuple[float, _Bucket] | None = None
        families = (
            ("requests", self._requests),
            ("input-tokens", self._input),
            ("output-tokens", self._output),
        )
        for family, bucket in families:
            if bucket is None:
                continue
            bucket.refill(now)
            _describe(headers, family, bucket)
            share = bucket.level / bucket.capacity
            if family != "requests" and (tightest is None or share < tightest[0]):
                tightest = (share, bucket)
        if tightest is not None:
            _describe(headers, "tokens", tightest[1])
        return headers

    def _refusal(self, message: str, wait_s: float, now: float) -> ApiError:
        shown = f"{math.ceil(wait_s)}" if self.limits.whole_seconds else f"{wait_s + 0.0005:.3f}"
        return ApiError(429, message, headers={**self.headers(now), "retry-after": shown})


def _describe(headers: dict[str, str], family: str, bucket: _Bucket) -> None:
    left = max(0, int(bucket.level + 1e-6))
    if family != "requests":
        # The API rounds what is left of tokens to thousands.
        left = left // 1000 * 1000
    full_at = datetime.now(UTC) + timedelta(seconds=bucket.wait_s(bucket.capacity))
    prefix = f"anthropic-ratelimit-{family}"
    headers[f"{prefix}-limit"] = str(bucket.limit)
    headers[f"{prefix}-remaining"] = str(left)
    headers[f"{prefix}-reset"] = full_at.strftime("%Y-%m-%dT%H:%M:%SZ")
