"""The counter where a ledger's work is done, one batch at a time: group commit and the waiting queue.

Many operations share one transaction, and so one sync to disk. This one runs batches in the caller's thread;
``threaded_counter`` has a thread of its own, for stores that touch a disk. Who is admitted is ``admission``'s
matter.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .admission import Rules
from .errors import BudgetError, BudgetExceeded, LedgerError, LedgerUnavailable
from .judging import MustWait
from .records import Ending, HoldRequest, Line, Waiting
from .stalls import look_after
from .stores.protocol import Store, Transaction

logger = logging.getLogger("earmark")

#: While calls wait, look this often whether a window turned or an owner died.
_RETRY_S = 0.5

Work = Callable[[Transaction, int], Any]
Deliver = Callable[[Any], None]


class Operation:
    """One step to be done in a transaction.

    Args:
        work: called with the transaction and the time; its result or its BudgetError is delivered.
        deliver: called once with the result or the error after the commit: on the loop if there is one,
            else on the counter's thread.
        must: the money is spent already: try again if the store fails.
        request: a hold is asked for, instead of ``work``.
        ending: a hold is to be ended, instead of ``work``.
        loop: where ``deliver`` must be called.
        orphaned: called instead of ``deliver`` if the loop is closed.
        urgent: somebody waits for the result.
    """

    __slots__ = (
        "deliver", "ending", "home", "loop", "must", "orphaned", "request", "since", "urgent", "waiting", "withdrawn",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        work: Work | None,
        deliver: Deliver,
        *,
        must: bool = False,
        request: HoldRequest | None = None,
        ending: Ending | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        orphaned: Deliver | None = None,
        urgent: bool = True,
    ) -> None:
        self.work = work
        self.deliver = deliver
        self.must = must
        self.request = request
        self.ending = ending
        self.loop = loop
        self.home = threading.get_ident()
        self.orphaned = orphaned
        self.urgent = urgent
        self.waiting: Waiting | None = None
        self.withdrawn = False
        self.since = 0.0


Done = list[tuple[Operation, Any]]


class Counter:
    """Runs operations at once, in the caller's thread, behind a lock."""

    def __init__(self, store: Store, rules: Rules, now_us: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._now_us = now_us
        self._lock = threading.RLock()
        self._handed: deque[Operation] = deque()
        self._busy = False
        self._closed = False
        self._waiters: list[Operation] = []
        self._newcomers: list[Operation] = []
        self._left: list[Operation] = []
        self._stranded: set[int] = set()
        self._swept = 0.0
        self._moves = 0

    def submit(self, operation: Operation) -> None:
        """Do it; waiting calls that this frees money for are done too."""
        with self._lock:
            if self._closed:
                done: Done = [(operation, self._closed_error())]
            else:
                self._handed.append(operation)
                if self._busy:  # by a finalizer, in the middle of another step of this very thread
                    return
                done = self._do_handed()
        deliver_all(done)

    def _do_handed(self) -> Done:
        done: Done = []
        self._busy = True
        try:
            while self._handed:
                done += self._run([self._handed.popleft()])
        finally:
            self._busy = False
        return done

    def withdraw(self, operation: Operation) -> None:
        """A waiting call is given up: take it from the queue."""
        operation.withdrawn = True
        self.submit(Operation(lambda txn, _: self._leave_queue(txn, operation), nothing))

    @property
    def waiting_count(self) -> int:
        """Calls of this process that wait for held money."""
        return len(self._waiters)

    def standing(self) -> int | None:
        """See ``stalls.Queue``."""
        return self._moves if self._waiters else None

    def flush(self) -> None:
        """Everything handed over is written already."""

    def close(self, last: Work) -> Any:
        """Do one last piece of work and nothing after it; waiting calls are declined.

        Returns:
            The result of the work, or its error.
        """
        with self._lock:
            self._closed = True
            done = self._finish(last)
        deliver_all(done[:-1])
        return done[-1][1]

    def _finish(self, last: Work) -> Done:
        waiters, self._waiters = self._waiters, []
        done: Done = [(waiter, self._closed_error()) for waiter in waiters]
        return done + self._run([Operation(last, nothing)])

    def _closed_error(self) -> LedgerUnavailable:
        return LedgerUnavailable(f"ledger {self._store.name}: it was closed")

    # ---- a batch --------------------------------------------------------------------------------

    def _run(self, batch: Sequence[Operation]) -> Done:
        """One transaction: every operation of the batch, then the queue in its order."""
        try:
            return self._attempt(batch)
        except (BudgetError, OSError) as error:
            self._undo()
            return self._failed(batch, error)
        except Exception:  # one entry is at fault, not the others: find it  # noqa: BLE001
            self._undo()
        return self._one_by_one([*batch, *self._waiters])

    def _one_by_one(self, operations: Sequence[Operation]) -> Done:
        done: Done = []
        for number, operation in enumerate(operations):
            try:
                done += self._attempt([operation], serve=False)
            except (BudgetError, OSError) as error:
                self._undo()
                return done + self._failed(operations[number:], error)
            except Exception as error:  # this is the one  # noqa: BLE001
                self._undo()
                done.append((operation, self._refused(error)))
                self._give_up_place(operation)
        return done

    def _give_up_place(self, operation: Operation) -> None:
        if operation.waiting is not None:
            self._stranded.add(operation.waiting.ticket)
        self._remove([operation])

    def _attempt(
        self, batch: Sequence[Operation], *, serve: bool = True, wait: bool = True
    ) -> Done:
        done: Done = []
        self._rules.begin()
        with self._store.transaction(wait=wait) as txn:
            at_us = self._now_us()
            self._take_back_places(txn)
            for operation in batch:
                result = self._step(txn, operation, at_us)
                if result is not _WAITS:
                    done.append((operation, result))
            if serve and (self._waiters or self._newcomers):
                done.extend(self._serve_queue(txn, at_us))
        self._stranded.clear()
        if self._newcomers:
            is_first = not self._waiters
            self._waiters += self._newcomers
            if is_first:
                look_after(self, self._newcomers[0].loop)
            self._newcomers = []
        if self._waiters:
            self._remove([operation for operation, _ in done] + self._left)
        self._left.clear()
        return done

    def _undo(self) -> None:
        """The transaction failed: calls that queued up in it are not in the queue."""
        self._rules.forget()
        for operation in self._newcomers:
            operation.waiting = None
        self._newcomers = []
        self._left.clear()

    def _refused(self, error: BaseException) -> LedgerError:
        refused = LedgerError(
            f"ledger {self._store.name}: this entry can't be written ({error}); nothing was changed"
        )
        refused.__cause__ = error
        return refused

    def _remove(self, operations: list[Operation]) -> None:
        gone = {id(operation) for operation in operations}
        left = [w for w in self._waiters if id(w) not in gone]
        self._moves += len(self._waiters) - len(left)
        self._waiters = left

    def _step(self, txn: Transaction, operation: Operation, at_us: int) -> Any:
        try:
            if operation.request is not None:
                return self._try_hold(txn, operation, operation.request, at_us)
            if operation.ending is not None:
                return self._rules.end(txn, operation.ending, at_us)
            assert operation.work is not None
            return operation.work(txn, at_us)
        except LedgerUnavailable:
            raise
        except BudgetError as error:
            return error

    # ---- the queue ------------------------------------------------------------------------------

    def _try_hold(
        self, txn: Transaction, operation: Operation, request: HoldRequest, at_us: int
    ) -> Any:
        place = operation.waiting
        if operation.withdrawn:
            self._leave_queue(txn, operation)
            return None
        try:
            result = self._rules.hold(txn, request, at_us, ticket=place.ticket if place else None)
        except BudgetError as error:
            # Maybe the reserve in the way is that of a process that died.
            reserved = isinstance(error, BudgetExceeded) and error.reserved
            if reserved and self._rules.sweep(txn, at_us):
                return self._try_hold(txn, operation, request, at_us)
            if place:
                txn.drop_waiting(place.ticket)
            raise
        if not isinstance(result, MustWait):
            if place:
                txn.drop_waiting(place.ticket)
            return result
        if place is None:
            # Before the first wait: maybe what is held belongs to a process that died.
            if self._sweep_is_due() and self._rules.sweep(txn, at_us):
                return self._try_hold(txn, operation, request, at_us)
            operation.waiting = self._rules.queue_up(txn, request, result)
            self._newcomers.append(operation)
        elif place.blocked != result.blocked:
            operation.waiting = replace(place, blocked=result.blocked)
            txn.put_waiting(operation.waiting)
        return _WAITS

    def _sweep_is_due(self) -> bool:
        now = time.monotonic()
        if now - self._swept < _RETRY_S:
            return False
        self._swept = now
        return True

    def _serve_queue(self, txn: Transaction, at_us: int) -> Done:
        """Try waiting calls in their order; behind one that still waits, none for the same money is tried."""
        done: Done = []
        shut: set[object] = set()
        left = {id(operation) for operation in self._left}
        for operation in [*self._waiters, *self._newcomers]:
            place = operation.waiting
            if place is None or id(operation) in left:
                continue
            stands_in_line = not operation.withdrawn and not place.tied
            if stands_in_line and not shut.isdisjoint(place.blocked):
                continue
            result = self._step(txn, operation, at_us)
            if result is _WAITS:
                shut.update(operation.waiting.blocked if operation.waiting else ())
            else:
                done.append((operation, result))
        return done

    def _leave_queue(self, txn: Transaction, operation: Operation) -> None:
        if operation.waiting is not None:
            txn.drop_waiting(operation.waiting.ticket)
        self._left.append(operation)

    def _take_back_places(self, txn: Transaction) -> None:
        """Places in the queue that were lost to a fault of the store are given up."""
        if self._stranded:
            for waiting in list(txn.waiting()):
                if waiting.ticket in self._stranded and waiting.owner == self._rules.owner.id:
                    txn.drop_waiting(waiting.ticket)

    def _failed(self, batch: Sequence[Operation], error: BaseException) -> Done:
        """The store failed: nothing was written. Holds are declined; settlements are kept for another try."""
        if not isinstance(error, LedgerError):
            error = LedgerUnavailable(f"ledger {self._store.name}: {error}")
        # Whoever waits for this ledger can't be served by it; places in its queue are taken back later.
        waiters, self._waiters = self._waiters, []
        self._stranded.update(w.waiting.ticket for w in waiters if w.waiting)
        failed = [operation for operation in batch if not self._keep(operation)]
        return [(operation, error) for operation in dict.fromkeys([*failed, *waiters])]

    def _keep(self, operation: Operation) -> bool:  # noqa: ARG002 - for the threaded one
        """Without a thread there is no later."""
        return False


def deliver_all(done: Done) -> None:
    """Hand results to those who wait for them; one wake-up for all that belong to the same event loop."""
    here = threading.get_ident()
    by_loop: defaultdict[asyncio.AbstractEventLoop, Done] = defaultdict(list)
    direct: Done = []
    for operation, result in done:
        if operation.loop is None or operation.home == here or not operation.urgent:
            direct.append((operation, result))
        else:
            by_loop[operation.loop].append((operation, result))
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_each, group)
        except RuntimeError:  # the loop is closed: nobody is there to use it
            for operation, result in group:
                if operation.orphaned is not None:
                    operation.orphaned(result)
    _deliver_each(direct)


def _deliver_each(done: Done) -> None:
    for operation, result in done:
        ended = operation.ending is not None and isinstance(result, Line)
        if ended and "overrun_nanos" in result.note:
            _raise_alarm(result)
        try:
            operation.deliver(result)
        except Exception:  # a receiver's fault must not stop the ledger of everybody else
            logger.exception("a result of the ledger could not be delivered")


def _raise_alarm(line: Line) -> None:
    logger.error(
        "overrun: hold %s (%s, scope %r) cost %d nano-dollars more than its bound; it is posted in full: "
        "see 'earmark ledger check'",
        line.hold,
        line.model,
        line.scope,
        line.note["overrun_nanos"],
    )


class _Waits:
    """Marks a call that stays in the queue."""


_WAITS = _Waits()


def nothing(_: Any) -> None:
    """A receiver for results that nobody waits for."""


__all__ = ["Counter", "Deliver", "Done", "Operation", "Work", "deliver_all", "nothing"]
