"""Outcomes: the closed set of words in which every unit of work ends, each exactly once."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The one word in which a call, an agent, a document or a worker ends.

    ``retry_helps`` says whether doing the same again can end better.
    """

    OK = "ok"
    INVALID = "invalid"
    REFUSAL = "refusal"
    TRUNCATED = "truncated"
    BUDGET = "budget"
    SPEND_LIMIT = "spend_limit"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    AUTH = "auth"
    BAD_REQUEST = "bad_request"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    SPAWN_FAILURE = "spawn_failure"
    INFRA = "infra"
    CANCELLED = "cancelled"
    IN_DOUBT = "in_doubt"
    # Of documents; too_large also of any prompt that exceeds what the model or the API takes.
    UNREADABLE = "unreadable"
    BINARY = "binary"
    EMPTY = "empty"
    TOO_LARGE = "too_large"
    EXPIRED = "expired"

    @property
    def retry_helps(self) -> bool:
        """True if the same work, done again later, can end otherwise."""
        return self in _RETRY_HELPS

    @property
    def is_final(self) -> bool:
        """True if a resumed run should keep this end rather than try again."""
        return not self.retry_helps


#: A cap may have been raised, a limit lifted, a key corrected, the network mended.
_RETRY_HELPS = frozenset(
    {
        Outcome.BUDGET,
        Outcome.SPEND_LIMIT,
        Outcome.RATE_LIMITED,
        Outcome.OVERLOADED,
        Outcome.AUTH,
        Outcome.TIMEOUT,
        Outcome.STALLED,
        Outcome.SPAWN_FAILURE,
        Outcome.INFRA,
        Outcome.CANCELLED,
        Outcome.IN_DOUBT,
        Outcome.UNREADABLE,
        Outcome.EXPIRED,
    }
)
