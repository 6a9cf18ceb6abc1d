"""A clock that stands still until it is moved, forward or back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Give it to ``Ledger(clock=...)``.

    Args:
        start: an aware datetime, or text such as ``2026-11-29T12:00:00+00:00``.
    """

    def __init__(self, start: datetime | str = datetime(2026, 11, 29, 12, tzinfo=UTC)) -> None:
        self.now = datetime.fromisoformat(start) if isinstance(start, str) else start

    def __call__(self) -> datetime:
        """The time it shows."""
        return self.now

    def move(self, *, seconds: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move by an amount; negative amounts set it back."""
        self.now += timedelta(seconds=seconds, hours=hours, days=days)

    def set(self, at: datetime | str) -> None:
        """Show this time from now on."""
        self.now = datetime.fromisoformat(at) if isinstance(at, str) else at
