"""What the gate raises. Nothing was sent when one of these comes out."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST_DATE_S = 253402300799.0  # the end of the year 9999


class RateDeadline(Exception):
    """The caller's deadline comes before the gate could let the call through; nothing was sent.

    Attributes:
        group: the model group whose limit is in the way.
        retry_at: when the gate expects to open (UTC); None when it waited for a free slot and
            nobody can tell.
        retry_in_s: the same, in seconds from now.
    """

    def __init__(
        self, message: str, *, group: str, retry_at: datetime | None, retry_in_s: float | None
    ) -> None:
        super().__init__(message)
        self.group = group
        self.retry_at = retry_at
        self.retry_in_s = retry_in_s


class NestedTooDeep(Exception):
    """A task's open streams, one inside the other, hold the whole pool; nothing was sent.

    Waiting would never end, since only the waiting task itself could free a connection.
    """


def too_late(group: str, what: str) -> RateDeadline:
    """A call's deadline passed while it waited; ``what`` it did, in a few words."""
    return RateDeadline(
        f"gate: a call {what}; nothing was sent; allow a later deadline or fewer calls at once",
        group=group,
        retry_at=None,
        retry_in_s=None,
    )


def too_early(group: str, *, wait_s: float, left_s: float, wall_s: float) -> RateDeadline:
    """A call's deadline (in ``left_s``) comes before its limit opens (in ``wait_s``)."""
    retry_at = datetime.fromtimestamp(min(wall_s + wait_s, _LAST_DATE_S), UTC)
    return RateDeadline(
        f"gate: the rate limit of {group} opens in {wait_s:,.0f} s "
        f"({retry_at:%Y-%m-%d %H:%M:%S} UTC), "
        f"but the deadline is in {left_s:,.0f} s; nothing was sent; "
        "try again after that time or allow a later deadline",
        group=group,
        retry_at=retry_at,
        retry_in_s=wait_s,
    )
