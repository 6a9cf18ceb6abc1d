"""The gate as callers see it: tickets for tasks and for threads, from any number of loops.

The life of a ticket: enter (a slot), pace (the rate), send, observe and usage, close. The
decisions are made in ``desk``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from orchestrator.clock import SYSTEM_CLOCK, Clock

from .desk import Desk
from .headers import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, read_headers
from .lease import Lease, held, hold
from .statistics import GateStatistics
from .waiters import TaskWaiter, ThreadWaiter, Turn


class Gate:
    """Limits how many calls are on the way at once and how many leave a minute.

    One gate serves any number of threads, event loops and clients of a process at once. It starts
    narrow and widens with success; limits a minute are learned from response headers. Whoever
    waits goes in order of arrival.

    Args:
        width: the most calls on the way at once, over all models.
        requests_per_minute, input_tokens_per_minute, output_tokens_per_minute: limits for each
            group of models; a header that names a lower one lowers it, never higher. None leaves
            it to headers.
        pool: connections of the HTTP client; the gate is never wider, nested calls included.
        clock: where time comes from.
        jitter: a number from 0 to 1 that stretches each pause, so that processes do not return
            together.

    Raises:
        ValueError: a width, pool or limit below 1.
    """

    def __init__(
        self,
        width: int = 64,
        *,
        requests_per_minute: int | None = None,
        input_tokens_per_minute: int | None = None,
        output_tokens_per_minute: int | None = None,
        pool: int = 1000,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        limits = {
            REQUESTS: requests_per_minute,
            INPUT_TOKENS: input_tokens_per_minute,
            OUTPUT_TOKENS: output_tokens_per_minute,
        }
        checked = {f"{kind}_per_minute": limit for kind, limit in limits.items()}
        for name, value in {"width": width, "pool": pool, **checked}.items():
            if value is not None and value < 1:
                msg = f"Gate: {name} is {value}; it must be 1 or more"
                raise ValueError(msg)
        self._desk = Desk(
            width=min(width, pool),
            pool=pool,
            configured={kind: limit for kind, limit in limits.items() if limit is not None},
            clock=clock,
            jitter=jitter,
        )

    @property
    def clock(self) -> Clock:
        """The clock that deadlines are counted on."""
        return self._desk.clock

    async def enter(self, model: str, deadline: float | None = None, *, lane: str = "") -> Ticket:
        """Wait for a slot. Does not switch tasks when one is free.

        Args:
            model: the model of the call, in any spelling.
            deadline: when to give up, in seconds of ``clock.monotonic()``; None waits as long as
                it takes.
            lane: limits apart from ordinary messages: ``fast``, ``count_tokens``, ``batches``.

        Returns:
            A ticket that must be closed.

        Raises:
            RateDeadline: no slot before the deadline; raised at once when a pause outlasts it.
            NestedTooDeep: the caller's own open calls hold the whole pool.
        """
        desk = self._desk
        got = desk.actions.run(desk.enter, model, lane, deadline, held(desk.id), TaskWaiter)
        if isinstance(got, TaskWaiter):
            await _wait(desk, got)
            assert got.lease is not None
            got = got.lease
        assert isinstance(got, Lease)
        hold(got)
        return Ticket(desk, got)

    def enter_sync(self, model: str, deadline: float | None = None, *, lane: str = "") -> Ticket:
        """``enter`` for a thread: blocks it."""
        desk = self._desk
        got = desk.actions.run(desk.enter, model, lane, deadline, held(desk.id), ThreadWaiter)
        if isinstance(got, ThreadWaiter):
            _wait_sync(desk, got)
            assert got.lease is not None
            got = got.lease
        assert isinstance(got, Lease)
        hold(got)
        return Ticket(desk, got)

    def statistics(self) -> GateStatistics:
        """A snapshot of everything that the gate knows."""
        return self._desk.actions.run(self._desk.statistics)


class Ticket:
    """One call's slot. Close it when the response (the stream) has ended; ``with ticket:`` does.

    All methods but ``pace`` are safe from any thread, any loop and any finalizer, and never block.
    """

    __slots__ = ("_desk", "_lease")

    def __init__(self, desk: Desk, lease: Lease) -> None:
        self._desk = desk
        self._lease = lease

    @property
    def group(self) -> str:
        """The group of models whose limits apply."""
        return self._lease.group.name

    @property
    def is_open(self) -> bool:
        """It still holds its slot."""
        return self._lease.is_open

    @property
    def is_overflow(self) -> bool:
        """It was let in beyond the width, since it is nested in an open call."""
        return self._lease.lender is not None

    async def pace(
        self, *, input_tokens: float, output_tokens: float, deadline: float | None = None
    ) -> None:
        """Wait until the rate allows this call to leave; send right after.

        Args:
            input_tokens: estimate of the input. A bound will do: the gate learns how it compares.
            output_tokens: the most output that it may produce (``max_tokens``).
            deadline: as in ``Gate.enter``.

        Raises:
            RateDeadline: it can't leave before the deadline. Nothing was taken; the ticket stays
                open.
            RuntimeError: this ticket is closed or has left before.
        """
        desk = self._desk
        waiter = desk.actions.run(
            desk.pace, self._lease, (input_tokens, output_tokens), deadline, TaskWaiter
        )
        if waiter is not None:
            assert isinstance(waiter, TaskWaiter)
            await _wait(desk, waiter)

    def pace_sync(
        self, *, input_tokens: float, output_tokens: float, deadline: float | None = None
    ) -> None:
        """``pace`` for a thread: blocks it."""
        desk = self._desk
        waiter = desk.actions.run(
            desk.pace, self._lease, (input_tokens, output_tokens), deadline, ThreadWaiter
        )
        if waiter is not None:
            assert isinstance(waiter, ThreadWaiter)
            _wait_sync(desk, waiter)

    def observe(self, status: int, headers: Mapping[str, str]) -> None:
        """Tell what came back: answers of the provider only, never our own declines.

        Args:
            status: of the response. 429 pauses the whole group, 5xx and 529 stop its growth for a
                while.
            headers: of the response; limits, remainders and ``retry-after`` are read, bad ones
                ignored.
        """
        desk, lease = self._desk, self._lease
        said = read_headers(headers, wall_s=desk.clock.time(), lane=lease.group.lane)
        desk.actions.post(desk.observe, lease, status, said)

    def usage(
        self, *, input_tokens: float | None = None, output_tokens: float | None = None
    ) -> None:
        """Tell the tokens that count for limits: totals so far, as often as they become known.

        Args:
            input_tokens: uncached input and cache writes; cached reads do not count.
            output_tokens: output really produced.
        """
        self._desk.actions.post(self._desk.count, self._lease, input_tokens, output_tokens)

    def close(self) -> None:
        """Release the slot; more than once is the same as once."""
        self._desk.actions.post(self._desk.close, self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._lease.is_open and not sys.is_finalizing():
            self._desk.actions.post(self._desk.drop, self._lease)


async def _wait(desk: Desk, waiter: TaskWaiter) -> None:
    try:
        while (
            waiter.turn is Turn.WAITING
        ):  # ends with its turn; more rounds only after its loop stood still
            await waiter.future
            desk.actions.run(desk.look_again, waiter, waiter.rearm)
    except BaseException:  # cancelled, or the coroutine is thrown away
        desk.actions.post(desk.abandon, waiter)
        raise
    _raise_error(desk, waiter)


def _wait_sync(desk: Desk, waiter: ThreadWaiter) -> None:
    try:
        waiter.block()
    except BaseException:  # a signal's exception
        desk.actions.post(desk.abandon, waiter)
        raise
    _raise_error(desk, waiter)


def _raise_error(desk: Desk, waiter: TaskWaiter | ThreadWaiter) -> None:
    if waiter.error is not None:
        desk.actions.post(desk.abandon, waiter)
        raise waiter.error
