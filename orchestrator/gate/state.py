"""The state of one group of models that share limits: width, rate, queues and pauses.

``gate`` decides who goes next and guards all of this with its lock; nothing here locks or waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from .concurrency import AdaptiveWidth
from .headers import RateHeaders
from .rate import Rate
from .statistics import GroupStatistics, LimitChange
from .waiters import Waiter

#: Callers that hold a slot while they wait for the rate; the rest wait without one, so that a
#: group at its
#: limit neither takes the slots of others nor keeps money on hold.
RATE_QUEUE = 16
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_HISTORY = 64


class GroupState:
    """One group.

    Args:
        name: see ``groups.group_of``.
        lane: the part of the name after the model.
        width: the most calls on the way at once.
        configured: per kind, limits a minute that the caller set; headers can only lower them.
    """

    def __init__(
        self,
        *,
        name: str,
        lane: str,
        width: int,
        configured: dict[str, int],
        now: float,
        wall_s: float,
    ) -> None:
        self.name = name
        self.lane = lane
        self.width = AdaptiveWidth(width)
        self.rate = Rate(now)
        self.in_use = 0
        self.admitted = 0
        self.throttled = 0
        self.paused_until = 0.0
        self.for_slot: OrderedDict[int, Waiter] = OrderedDict()
        self.for_rate: OrderedDict[int, Waiter] = OrderedDict()
        self._configured = configured
        self._cut_at = -1.0
        self._known_at: float | None = None
        self._full_at = -1.0
        self._strikes = 0
        self._history: deque[LimitChange] = deque(maxlen=_HISTORY)
        for kind, per_minute in configured.items():
            self._set_limit(kind, per_minute, now, wall_s, "configured")

    def has_room(self, now: float) -> bool:
        """May one more call have a slot, as far as this group is concerned?"""
        if self.in_use == 0:
            self.width.rest(now)
        return (
            self.paused_until <= now
            and self.in_use < self.width.now
            and len(self.for_rate) < RATE_QUEUE
        )

    def enter(self, now: float) -> None:
        """One more call has a slot."""
        self.in_use += 1
        self.admitted += 1
        if self.in_use >= self.width.now:
            self._full_at = now

    def succeed(self, now: float, *, entered_at: float, sent_at: float) -> None:
        """A call was answered well."""
        full = self._full_at >= entered_at or bool(self.for_slot)
        self.rate.answered()
        # Where calls wait for the rate, more width would only lengthen that queue.
        self.width.succeed(now, fully_used=full and not self.for_rate)
        if sent_at > self._cut_at:
            self._strikes = 0

    def throttle(
        self,
        now: float,
        wall_s: float,
        *,
        sent_at: float,
        retry_after_s: float | None,
        short: bool | None,
        jitter: float,
    ) -> None:
        """A call was answered 429: pause everyone here; cut once for all calls sent before the cut.

        Args:
            sent_at: when that call left.
            retry_after_s: what the server said; the pause lasts at least that long.
            short: whether the rate was what it lacked, see ``Rate.is_short``.
            jitter: from 0 to 1; stretches the pause, so that processes do not return together.
        """
        self.throttled += 1
        episode = sent_at > self._cut_at
        if episode:
            self._cut_at = now
            # A call that left before this limit was known says nothing about our share of it.
            within = self._known_at is not None and sent_at >= self._known_at
            self._cut(now, wall_s, share=within and short is not False, width=short is not True)
        if retry_after_s is not None:
            pause = retry_after_s
        elif episode:
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._strikes, 16))
        else:
            return
        if episode:
            self._strikes += 1
        pause += jitter * min(5.0, 0.1 + pause * 0.1)
        self.paused_until = max(self.paused_until, now + pause)
        self.rate.empty_until(self.paused_until)
        self.width.pause_until(self.paused_until)

    def learn(
        self,
        said: RateHeaders,
        now: float,
        wall_s: float,
        *,
        sent_at: float,
        taken: Mapping[str, float],
    ) -> None:
        """Take over the limits that a response names, and its remainders as a hint.

        Args:
            sent_at: when that call left.
            taken: what had been taken from the rate by then, see ``Rate.take``.
        """
        for kind, per_minute in said.limits.items():
            configured = self._configured.get(kind)
            effective = per_minute if configured is None else min(per_minute, configured)
            if self.rate.limits.get(kind) != effective:
                self._set_limit(kind, effective, now, wall_s, "response header")
        self.rate.hint(said.remaining, now, taken=taken, age_s=now - sent_at)

    def statistics(self, now: float) -> GroupStatistics:
        """A snapshot."""
        if self.in_use == 0:
            self.width.rest(now)
        return GroupStatistics(
            group=self.name,
            width=self.width.now,
            width_max=self.width.maximum,
            in_use=self.in_use,
            waiting_for_slot=len(self.for_slot),
            waiting_for_rate=len(self.for_rate),
            paused_s=max(0.0, self.paused_until - now),
            limits=dict(self.rate.limits),
            share=self.rate.share(now),
            admitted=self.admitted,
            throttled=self.throttled,
            history=tuple(self._history),
        )

    def _cut(self, now: float, wall_s: float, *, share: bool, width: bool) -> None:
        old_width, old_share = self.width.now, self.rate.share(now)
        if width:
            self.width.cut(now)
        if share:
            self.rate.cut_share(now)
        for kind, before, after in (
            ("width", old_width, self.width.now),
            ("share", old_share, self.rate.share(now)),
        ):
            if before != after:
                self._note(kind, before, after, wall_s, "status 429")

    def _set_limit(
        self, kind: str, per_minute: int, now: float, wall_s: float, reason: str
    ) -> None:
        self._note(kind, self.rate.limits.get(kind), per_minute, wall_s, reason)
        self._known_at = now
        self.rate.limit(kind, per_minute, now)

    def _note(
        self, kind: str, before: float | None, after: float | None, wall_s: float, reason: str
    ) -> None:
        self._history.append(
            LimitChange(at_s=wall_s, kind=kind, before=before, after=after, reason=reason)
        )
