"""The adaptive width of one group: slow start, a cut for each episode of 429, and the way back.

Pure arithmetic on the time that it is given; who waits in which order is decided in ``gate``.
"""

from __future__ import annotations

#: Slow start begins with this many calls at once.
START_WIDTH = 8
#: After a 5xx or 529 the width does not grow for this long.
HOLD_GROWTH_S = 5.0
#: Without a further 429, what was lost doubles this often: the threshold when busy, the width when
#: idle.
RECOVERY_S = 15.0
_CUT = 0.5


class AdaptiveWidth:
    """How many calls a group may have on the way now.

    Below ``threshold`` each success that used the full width adds one, which doubles it in a
    round; above, a round adds a twentieth, at least one. A cut halves. The maximum is never lost.
    """

    __slots__ = ("_cut_at", "_goal", "_held_until", "_limit", "_threshold", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._limit = float(min(START_WIDTH, maximum))
        self._threshold = float(maximum)
        self._goal = self._limit
        self._cut_at: float | None = None
        self._held_until = 0.0

    @property
    def now(self) -> int:
        """The width at present."""
        return int(self._limit)

    def succeed(self, now: float, *, fully_used: bool) -> None:
        """A call was answered; grow if all of the width was in use and no hold is on."""
        if not fully_used or now < self._held_until or self._limit >= self.maximum:
            return
        step = (
            1.0
            if self._limit < self._threshold_now(now)
            else max(1.0, self._limit / 20) / self._limit
        )
        self._limit = min(float(self.maximum), self._limit + step)
        self._goal = max(self._limit, self._goal)

    def cut(self, now: float) -> None:
        """An episode of 429 began: halve, and remember the width to come back to."""
        self._goal = max(self._goal, self._limit)
        self._threshold = max(1.0, self._limit * 0.75)
        self._limit = max(1.0, self._limit * _CUT)
        self._cut_at = now

    def pause_until(self, when: float) -> None:
        """Nothing is sent before then: a pause is no recovery."""
        if self._cut_at is not None:
            self._cut_at = max(self._cut_at, when)

    def hold(self, now: float) -> None:
        """The server is unwell: stay as wide as now for a while."""
        self._held_until = max(self._held_until, now + HOLD_GROWTH_S)

    def rest(self, now: float) -> None:
        """The group is idle: time brings the width back to what it was before the cuts."""
        if self._cut_at is None or self._limit >= self._goal:
            return
        doublings = int((now - self._cut_at) / RECOVERY_S)
        if doublings >= 1:
            self._limit = min(self._goal, self._limit * 2.0 ** min(doublings, 32))
            self._threshold = self._threshold_now(now)
            # Counted on from here, so that resting in many small steps equals one long rest.
            self._cut_at += doublings * RECOVERY_S

    def _threshold_now(self, now: float) -> float:
        if self._cut_at is None:
            return self._threshold
        doublings = min(int((now - self._cut_at) / RECOVERY_S), 32)
        return min(float(self.maximum), self._threshold * 2.0 ** max(0, doublings))
