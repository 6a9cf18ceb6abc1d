"""What a program says that it has cost: a total that grows, starts again, or goes on from an earlier process.

Never used as money. It is set beside the gateway's figure, and the difference is shown.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from budgets.money import NANOS_PER_DOLLAR


class CliCost:
    """The cost of one attempt, from totals as they come.

    Args:
        before_nanos: the total that an earlier process of the same session had reached: a resumed session goes on
            from there.
    """

    def __init__(self, before_nanos: int = 0) -> None:
        self._last = before_nanos
        self._nanos: int | None = None

    def hear(self, total_usd: object) -> None:
        """The next total, in dollars. One below the last one means that the counter began again, no refund."""
        try:
            # It counts in binary fractions of a dollar.
            total = round(Decimal(str(total_usd)) * NANOS_PER_DOLLAR)
        except (InvalidOperation, ValueError, OverflowError):
            return
        if total < 0:
            return
        grown = total - self._last if total >= self._last else total
        self._nanos = (self._nanos or 0) + grown
        self._last = total

    @property
    def nanos(self) -> int | None:
        """Nano-dollars of this attempt; None if no total has come."""
        return self._nanos

    @property
    def total_nanos(self) -> int:
        """The last total, from which a resumed session goes on."""
        return self._last
