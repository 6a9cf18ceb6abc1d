"""The order of going: who gets the next slot, who leaves next, whose time is over.

Called under the gate's lock only (see ``actions``). Nobody sleeps here: waiters are woken by an
action or by the clock's alarm.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from budgets.stalls import look_after
from orchestrator.clock import Clock

from .errors import RateDeadline, too_early, too_late
from .lease import Lease
from .rate import Charge
from .state import GroupState
from .waiters import Turn, Waiter


class Order:
    """The queues of all groups.

    Args:
        gate_id: marks the leases.
        width, pool: slots over all groups; with nested calls.
        groups: the directory's groups, by name.
        alarm: gives the callback for the clock at a time; the callback ends in ``ring``.
    """

    def __init__(
        self,
        *,
        gate_id: int,
        width: int,
        pool: int,
        groups: Mapping[str, GroupState],
        clock: Clock,
        alarm: Callable[[float], Callable[[], None]],
    ) -> None:
        self.gate_id = gate_id
        self.width = width
        self.pool = pool
        self.groups = groups
        self.clock = clock
        self.in_use = 0
        self.overflow = 0
        self.waiting = 0
        self._moves = 0
        self.nested: OrderedDict[int, Waiter] = OrderedDict()
        self._alarm = alarm
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._alarm_at: float | None = None

    def standing(self) -> int | None:
        """See ``budgets.stalls.Queue``."""
        return self._moves if self.waiting else None

    def pump(self) -> None:
        """Let everybody go who may, fail whose time is over, and set the alarm for the next."""
        if not self.waiting:
            return
        now = self.clock.monotonic()
        self._expire(now)
        for group in self.groups.values():
            if group.for_rate:
                self._let_leave(group, now)
        self._admit(now)
        if self.nested:
            self._lend(now)
        if self.waiting:
            self._set_alarm(now)

    def _let_leave(self, group: GroupState, now: float) -> None:
        while group.paused_until <= now:
            waiter = self._first_awake(group.for_rate)
            if waiter is None or waiter.lease is None or waiter.request.estimate is None:
                return
            # Not when it came: what the answers since have taught counts for those who wait too.
            charge = group.rate.expect(waiter.request.estimate)
            if group.rate.ready_at(now, charge) > now:
                return
            self.leave(waiter.lease, charge, now)
            self._grant(waiter, waiter.lease)

    def _admit(self, now: float) -> None:
        """Slots in the order of arrival over all groups that have room."""
        while self.in_use < self.width:
            heads = (
                self._first_awake(g.for_slot)
                for g in self.groups.values()
                if g.for_slot and g.has_room(now)
            )
            first = min((w for w in heads if w is not None), key=lambda w: w.seq, default=None)
            if first is None:
                return
            self._grant(first, self.open(first.request.group, now))

    def _lend(self, now: float) -> None:
        """Calls made inside an open call that holds a slot: waiting for it could last for ever.

        Each open slot lets one such call in beyond the width at a time, up to the connection pool.
        """
        for waiter in list(self.nested.values()):
            if self.in_use >= self.pool:
                return
            if waiter.request.group.paused_until > now or not waiter.is_awake():
                continue
            lender = next(
                (x for x in reversed(waiter.request.held) if x.is_open and x.loan is None), None
            )
            if lender is not None:
                lease = self.open(waiter.request.group, now)
                lease.lender, lender.loan = lender, lease
                self.overflow += 1
                self._grant(waiter, lease)

    def _first_awake(self, queue: OrderedDict[int, Waiter]) -> Waiter | None:
        # A loop that is closed loses its place; one that stands still keeps it and is passed over.
        for waiter in list(itertools.takewhile(lambda w: not w.is_awake(), queue.values())):
            if waiter.is_dead():
                self.dequeue(waiter)
                waiter.turn = Turn.FAILED
            elif not waiter.poked:
                waiter.poked = True
                waiter.wake()
        return next((waiter for waiter in queue.values() if waiter.is_awake()), None)

    def open(self, group: GroupState, now: float) -> Lease:
        """Count one more call on the way."""
        self.in_use += 1
        group.enter(now)
        return Lease(gate_id=self.gate_id, group=group, now=now)

    def leave(self, lease: Lease, charge: Charge, now: float) -> None:
        """Take from the rate; the call goes now."""
        lease.taken = lease.group.rate.take(charge)
        lease.charge = charge
        lease.sent_at = now

    def _grant(self, waiter: Waiter, lease: Lease) -> None:
        self.dequeue(waiter)
        waiter.lease = lease
        waiter.turn = Turn.GRANTED
        waiter.wake()

    def fail(self, waiter: Waiter, error: Exception) -> None:
        """End a wait with an error."""
        self.dequeue(waiter)
        waiter.error = error
        waiter.turn = Turn.FAILED
        waiter.wake()

    def enqueue(self, queue: OrderedDict[int, Waiter], waiter: Waiter) -> None:
        """Add at the end of a queue."""
        queue[waiter.seq] = waiter
        self.waiting += 1
        if self.waiting == 1:
            look_after(self, waiter.loop)
        if waiter.request.deadline is not None:
            heapq.heappush(self._deadlines, (waiter.request.deadline, waiter.seq, waiter))
            if len(self._deadlines) > 64 + 2 * self.waiting:  # mostly of waiters long gone
                self._deadlines = [d for d in self._deadlines if d[2].turn is Turn.WAITING]
                heapq.heapify(self._deadlines)

    def dequeue(self, waiter: Waiter) -> None:
        """Take out of its queue, whatever becomes of it."""
        request = waiter.request
        queue = request.group.for_slot if request.lease is None else request.group.for_rate
        del queue[waiter.seq]
        self.nested.pop(waiter.seq, None)
        self.waiting -= 1
        self._moves += 1
        if request.lease is not None:
            request.lease.waiter = None
        if not self.waiting:
            self._deadlines.clear()

    def _expire(self, now: float) -> None:
        for waiter in self._late(now):
            group = waiter.request.group
            what = "the rate of" if waiter.request.lease is not None else "a free slot for"
            self.fail(
                waiter, too_late(group.name, f"waited for {what} {group.name} until its deadline")
            )

    def _late(self, now: float) -> Iterator[Waiter]:
        while self._deadlines:
            deadline, _, waiter = self._deadlines[0]
            if waiter.turn is Turn.WAITING and deadline > now:
                return
            heapq.heappop(self._deadlines)
            if waiter.turn is Turn.WAITING:
                yield waiter

    def fail_hopeless(self, group: GroupState, now: float) -> None:
        """End the waits of those whose deadline comes before the group's pause ends."""
        for waiter in [*group.for_slot.values(), *group.for_rate.values()]:
            deadline = waiter.request.deadline
            if deadline is not None and group.paused_until > deadline:
                self.fail(waiter, self._too_early(group, deadline, group.paused_until, now))

    def check_deadline(self, group: GroupState, deadline: float, opens: float, now: float) -> None:
        """Raise RateDeadline if it can be told now that the call comes too late."""
        if deadline <= now:
            raise too_late(group.name, "came after its deadline")
        if opens > deadline:
            raise self._too_early(group, deadline, opens, now)

    def _too_early(
        self, group: GroupState, deadline: float, opens: float, now: float
    ) -> RateDeadline:
        return too_early(
            group.name, wait_s=opens - now, left_s=deadline - now, wall_s=self.clock.time()
        )

    def _set_alarm(self, now: float) -> None:
        times = [self._deadlines[0][0]] if self._deadlines else []
        for group in self.groups.values():
            if group.for_slot and group.paused_until > now:
                times.append(group.paused_until)
            if (
                group.for_rate
                and (waiter := self._first_awake(group.for_rate))
                and waiter.request.estimate
            ):
                ready = group.rate.ready_at(now, group.rate.expect(waiter.request.estimate))
                times.append(max(ready, group.paused_until))
        when = min(times, default=None)
        if when is None or (self._alarm_at is not None and self._alarm_at <= when):
            return
        self._alarm_at = when
        self.clock.call_at(when, self._alarm(when))

    def ring(self, when: float) -> None:
        """The alarm that was set for this time."""
        if self._alarm_at == when:
            self._alarm_at = None
        self.pump()
