"""Who waits in the gate: a task of any loop, or a thread; and how each is woken from anywhere.

No primitive of asyncio is shared between loops; a wake-up goes to the waiter's own loop.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from asyncio import events
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lease import Lease
    from .rate import Charge
    from .state import GroupState


class Turn(enum.Enum):
    """What became of a waiter."""

    WAITING = 0
    GRANTED = 1
    FAILED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a caller asks for.

    Attributes:
        group: whose limits apply.
        deadline: when it gives up, in monotonic seconds; None for never.
        held: open slots that the caller holds already, outermost first.
        lease: the slot that wants to leave; None when a slot is what is asked for.
        estimate: what the caller thinks that leaving takes from the rate; None for a slot.
    """

    group: GroupState
    deadline: float | None
    held: tuple[Lease, ...] = ()
    lease: Lease | None = None
    estimate: Charge | None = None


class Waiter:
    """One caller in a queue. Changed only under the gate's lock.

    Attributes:
        seq: order of arrival over the whole gate.
        request: what it asks for.
        lease: the slot that it was given, or has.
        turn: see ``Turn``.
        error: why it failed.
        poked: its loop stood still when its turn came; it was told to ask again.
    """

    __slots__ = ("error", "lease", "poked", "request", "seq", "turn")

    def __init__(self, seq: int, request: Request) -> None:
        self.seq = seq
        self.request = request
        self.lease = request.lease
        self.turn = Turn.WAITING
        self.error: Exception | None = None
        self.poked = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of a task; None for a thread."""
        return None

    def is_awake(self) -> bool:
        """Can it run soon? One that can't is passed over and keeps its place."""
        raise NotImplementedError

    def is_dead(self) -> bool:
        """Will it never run again?"""
        raise NotImplementedError

    def wake(self) -> None:
        """Make it look at its turn."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread, blocked on a lock that is released to wake it.

    A bare lock and not an Event: a finalizer may wake somebody while this very thread is inside
        its own.
    """

    __slots__ = ("_lock",)

    def __init__(self, seq: int, request: Request) -> None:
        super().__init__(seq, request)
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_awake(self) -> bool:
        """A thread always is."""
        return True

    def is_dead(self) -> bool:
        """A blocked thread can't be."""
        return False

    def wake(self) -> None:
        """Release it; at most once, since a turn is decided once."""
        self._lock.release()

    def block(self) -> None:
        """Wait for ``wake``; interruptible by signals."""
        self._lock.acquire()


class TaskWaiter(Waiter):
    """A task, awaiting a future of its own loop."""

    __slots__ = ("_loop", "future")

    def __init__(self, seq: int, request: Request) -> None:
        super().__init__(seq, request)
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where the task runs."""
        return self._loop

    def is_awake(self) -> bool:
        """Its loop runs."""
        return self._loop.is_running()

    def is_dead(self) -> bool:
        """Its loop was closed."""
        return self._loop.is_closed()

    def wake(self) -> None:
        """Resolve the future, through its loop if that is another one."""
        if events._get_running_loop() is self._loop:
            _resolve(self.future)
            return
        try:
            self._loop.call_soon_threadsafe(_resolve, self.future)
        except (
            RuntimeError
        ):  # closed since we looked: the task's end gives back what it was granted
            return

    def rearm(self) -> None:
        """Wait once more, after a wake-up that was no turn."""
        self.poked = False
        self.future = self._loop.create_future()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
