"""The desk inside the gate: what each thing that a caller does changes.

Who goes next is decided in ``order``; the lock that guards both is in ``actions``.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping

from orchestrator.clock import Clock

from .actions import Actions
from .directory import Directory
from .errors import NestedTooDeep
from .headers import RateHeaders
from .lease import Lease
from .order import Order
from .rate import Charge
from .statistics import GateStatistics
from .waiters import Request, Turn, Waiter

MakeWaiter = Callable[[int, Request], Waiter]

_ids = itertools.count(1)


class Desk:
    """Public methods are actions: call them through ``actions.run`` or ``.post`` only."""

    def __init__(
        self,
        *,
        width: int,
        pool: int,
        configured: Mapping[str, int],
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self.id = next(_ids)
        self.clock = clock
        self.actions = Actions()
        self._jitter = jitter
        self._seq = itertools.count()
        self._dropped = 0
        self._groups = Directory(width=width, configured=configured, clock=clock)
        # Weak: an alarm in an hour does not keep a gate that nobody uses any more.
        me = weakref.ref(self)
        self._order = Order(
            gate_id=self.id,
            width=width,
            pool=pool,
            groups=self._groups.by_name,
            clock=clock,
            alarm=lambda when: _Alarm(me, when),
        )

    def ring(self, when: float) -> None:
        """The alarm that was set for this time."""
        self._order.ring(when)

    def enter(
        self,
        model: str,
        lane: str,
        deadline: float | None,
        held: tuple[Lease, ...],
        make: MakeWaiter,
    ) -> Lease | Waiter:
        """Ask for a slot: a lease at once, or the waiter that will get one.

        Raises:
            RateDeadline: the deadline is over, or ends before the group's pause does.
            NestedTooDeep: only the caller's own open calls hold the whole pool.
        """
        now = self.clock.monotonic()
        group = self._groups.find(model, lane, now)
        if deadline is not None:
            self._order.check_deadline(group, deadline, max(now, group.paused_until), now)
        if not group.for_slot and self._order.in_use < self._order.width and group.has_room(now):
            return self._order.open(group, now)
        waiter = make(next(self._seq), Request(group=group, deadline=deadline, held=held))
        self._order.enqueue(group.for_slot, waiter)
        if held:
            self._order.nested[waiter.seq] = waiter
        self._order.pump()
        if waiter.turn is Turn.GRANTED and waiter.lease is not None:
            return waiter.lease
        pool = self._order.pool
        if sum(lease.is_open for lease in held) >= pool:
            self.abandon(waiter)
            msg = (
                f"gate: {pool} calls of this task, each opened inside the one before, hold the "
                "whole connection pool, so one more would wait for ever; close a stream before "
                "calling again, or make the pool larger"
            )
            raise NestedTooDeep(msg)
        return waiter

    def pace(
        self, lease: Lease, tokens: tuple[float, float], deadline: float | None, make: MakeWaiter
    ) -> Waiter | None:
        """Ask to leave: None at once, or the waiter that will be told.

        Raises:
            RateDeadline: it can't leave before the deadline.
            RuntimeError: the ticket is closed, or has left already.
        """
        if not lease.is_open or lease.is_paced:
            fault = "left already" if lease.is_open else "is closed"
            msg = f"gate: this ticket {fault}; each HTTP call takes a ticket of its own"
            raise RuntimeError(msg)
        now = self.clock.monotonic()
        group = lease.group
        estimate = Charge(input_tokens=tokens[0], output_tokens=tokens[1])
        charge = group.rate.expect(estimate)
        opens = max(group.paused_until, group.rate.ready_at(now, charge))
        if deadline is not None:
            self._order.check_deadline(group, deadline, opens, now)
        lease.is_paced = True
        lease.estimated_input = tokens[0]
        if not group.for_rate and opens <= now:
            self._order.leave(lease, charge, now)
            return None
        request = Request(group=group, deadline=deadline, lease=lease, estimate=estimate)
        waiter = make(next(self._seq), request)
        lease.waiter = waiter
        self._order.enqueue(group.for_rate, waiter)
        self._order.pump()
        return None if waiter.turn is Turn.GRANTED else waiter

    def abandon(self, waiter: Waiter) -> None:
        """A waiter was cancelled: leave the queue, or give back what it was granted meanwhile."""
        request, lease = waiter.request, waiter.lease
        if waiter.turn is Turn.WAITING:
            self._order.dequeue(waiter)
            waiter.turn = Turn.FAILED
        elif waiter.turn is Turn.GRANTED and lease is not None:
            waiter.turn = Turn.FAILED
            if request.estimate is None:
                self.close(lease)
            elif lease.charge is not None:
                lease.group.rate.give_back(lease.charge, request=True)
                lease.charge = None
        if request.lease is not None:
            request.lease.is_paced = False
        self._order.pump()

    def look_again(self, waiter: Waiter, rearm: Callable[[], None]) -> None:
        """A waiter whose loop had stood still is back, in its old place."""
        if waiter.turn is Turn.WAITING:
            rearm()
            self._order.pump()

    def observe(self, lease: Lease, status: int, said: RateHeaders) -> None:
        """A response came: learn its limits, and what its status means for the group."""
        now, wall_s = self.clock.monotonic(), self.clock.time()
        group = lease.group
        lease.status = status
        group.learn(said, now, wall_s, sent_at=lease.sent_at, taken=lease.taken)
        if status == 429:
            group.throttle(
                now,
                wall_s,
                sent_at=lease.sent_at,
                retry_after_s=said.retry_after_s,
                short=group.rate.is_short(lease.charge, said.remaining),
                jitter=self._jitter(),
            )
            self._order.fail_hopeless(group, now)
        elif status >= 500:
            group.width.hold(now)
        elif status < 400:
            group.succeed(now, entered_at=lease.entered_at, sent_at=lease.sent_at)
        self._order.pump()

    def count(self, lease: Lease, input_tokens: float | None, output_tokens: float | None) -> None:
        """The real tokens so far, each replacing what was said before; corrects the buckets."""
        if input_tokens is not None:
            lease.input_tokens = input_tokens
        if output_tokens is not None:
            lease.output_tokens = output_tokens
        before = lease.charge
        if before is not None:
            lease.charge = before.corrected(lease.input_tokens, lease.output_tokens)
            lease.group.rate.give_back(before.minus(lease.charge))
        if not lease.is_open:
            self._learn(lease)
        self._order.pump()

    def close(self, lease: Lease) -> None:
        """Release the slot; more than once is the same as once."""
        if not lease.is_open:
            return
        lease.is_open = False
        self._order.in_use -= 1
        lease.group.in_use -= 1
        if lease.lender is not None:
            lease.lender.loan = None
            lease.lender = None
            self._order.overflow -= 1
        if lease.waiter is not None:
            self._order.fail(
                lease.waiter,
                RuntimeError("gate: the ticket was closed while it waited for the rate"),
            )
        uncounted = lease.input_tokens is None and lease.output_tokens is None
        if lease.status >= 400 and uncounted and lease.charge is not None:
            lease.group.rate.give_back(lease.charge, refused=True)  # an error counts no tokens
            lease.charge = None
        self._learn(lease)
        self._order.pump()

    def drop(self, lease: Lease) -> None:
        """A ticket was garbage-collected; close it if nobody did."""
        if lease.is_open:
            self._dropped += 1
            self.close(lease)

    def statistics(self) -> GateStatistics:
        """A snapshot."""
        now = self.clock.monotonic()
        return GateStatistics(
            width=self._order.width,
            in_use=self._order.in_use,
            overflow=self._order.overflow,
            waiting=self._order.waiting,
            dropped=self._dropped,
            groups={name: group.statistics(now) for name, group in self._groups.by_name.items()},
        )

    def _learn(self, lease: Lease) -> None:
        if lease.is_learned or (lease.input_tokens is None and lease.output_tokens is None):
            return
        lease.is_learned = True
        if lease.input_tokens is not None and lease.estimated_input > 0:
            lease.group.rate.learn_input(
                estimated=lease.estimated_input, counted=lease.input_tokens
            )
        if lease.output_tokens is not None:
            lease.group.rate.learn_output(lease.output_tokens)


class _Alarm:
    """Calls a desk back, unless it is gone."""

    __slots__ = ("_desk", "_when")

    def __init__(self, desk: weakref.ref[Desk], when: float) -> None:
        self._desk = desk
        self._when = when

    def __call__(self) -> None:
        desk = self._desk()
        if desk is not None:
            desk.actions.run(desk.ring, self._when)
