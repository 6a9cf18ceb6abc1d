"""The counter where a ledger's work is done, one batch at a time: group commit and the waiting queue.

Many operations share one transaction, and so one sync to disk. ``Counter`` runs batches; ``ThreadedCounter``
does so on a thread of its own, for stores that touch a disk. Who is admitted is ``admission``'s matter.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .admission import MustWait, Rules
from .errors import BudgetError, LedgerError, LedgerUnavailable
from .records import Hold, HoldRequest, Waiting
from .stores.protocol import Store, Transaction

logger = logging.getLogger("earmark")

#: While calls wait, look this often whether another process has freed money ...
_POLL_S = 0.02
#: ... and this often whether a window turned or an owner died.
_RETRY_S = 0.5
#: A settlement that can't be written is tried again for this long before its hold is left in place.
_SETTLE_PATIENCE_S = 5.0
_BATCH_MAX = 1000


class Operation:
    """One step to be done in a transaction.

    Args:
        work: called with the transaction and the time; its result or its BudgetError is delivered.
        deliver: called once with the result or the error, after the commit, on the counter's thread.
        must: the money is spent already: try again if the store fails.
    """

    __slots__ = ("deliver", "must", "request", "since", "waiting", "withdrawn", "work")

    def __init__(
        self,
        work: Callable[[Transaction, int], Any] | None,
        deliver: Callable[[Any], None],
        *,
        must: bool = False,
        request: HoldRequest | None = None,
    ) -> None:
        self.work = work
        self.deliver = deliver
        self.must = must
        self.request = request
        self.waiting: Waiting | None = None
        self.withdrawn = False
        self.since = 0.0


class Counter:
    """Runs operations at once, in the caller's thread, behind a lock."""

    def __init__(self, store: Store, rules: Rules, now_us: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._now_us = now_us
        self._lock = threading.RLock()
        self._waiters: list[Operation] = []
        self._stranded: list[int] = []
        self._swept = -_RETRY_S

    def submit(self, operation: Operation) -> None:
        """Do it; waiting calls that this frees money for are done too."""
        with self._lock:
            done = self._run([operation])
        for finished, result in done:
            finished.deliver(result)

    def withdraw(self, operation: Operation) -> None:
        """A waiting call is given up: take it from the queue."""
        operation.withdrawn = True
        self.submit(Operation(lambda txn, _: self._leave_queue(txn, operation), _nothing))

    @property
    def waiting_count(self) -> int:
        """Calls of this process that wait for held money."""
        return len(self._waiters)

    def close(self) -> None:
        """Nothing to stop."""

    # ---- a batch --------------------------------------------------------------------------------

    def _run(self, batch: Sequence[Operation]) -> list[tuple[Operation, Any]]:
        """One transaction: every operation of the batch, then the queue in its order."""
        done: list[tuple[Operation, Any]] = []
        try:
            with self._store.transaction() as txn:
                at_us = self._now_us()
                for ticket in self._stranded:
                    txn.drop_waiting(ticket)
                for operation in batch:
                    result = self._step(txn, operation, at_us)
                    if result is not _WAITS:
                        done.append((operation, result))
                if self._waiters:
                    done.extend(self._serve_queue(txn, at_us))
        except (BudgetError, OSError) as error:
            self._rules.forget()
            return self._failed(batch, error)
        self._stranded.clear()
        if self._waiters:
            finished = {id(operation) for operation, _ in done}
            self._waiters = [w for w in self._waiters if id(w) not in finished]
        return done

    def _step(self, txn: Transaction, operation: Operation, at_us: int) -> Any:
        try:
            if operation.request is None:
                assert operation.work is not None
                return operation.work(txn, at_us)
            return self._try_hold(txn, operation, at_us)
        except BudgetError as error:
            if isinstance(error, LedgerUnavailable):
                raise
            return error

    def _try_hold(self, txn: Transaction, operation: Operation, at_us: int) -> Any:
        if operation.withdrawn:
            self._leave_queue(txn, operation)
            return None
        request = operation.request
        assert request is not None
        ticket = operation.waiting.ticket if operation.waiting else None
        try:
            result = self._rules.hold(txn, request, at_us, ticket=ticket)
        except BudgetError:
            if operation.waiting:
                txn.drop_waiting(operation.waiting.ticket)
            raise
        if not isinstance(result, MustWait):
            if operation.waiting:
                txn.drop_waiting(operation.waiting.ticket)
            return result
        if operation.waiting is None:
            if not request.wait:
                # Others wait for the same money; this one may neither overtake nor wait.
                result_error = self._rules.decline_behind(txn, request, at_us)
                raise result_error
            # Before the first wait: maybe what is held belongs to a process that died.
            if self._sweep_now_and_then(txn, at_us):
                return self._try_hold(txn, operation, at_us)
            operation.waiting = self._rules.queue_up(txn, request, result)
            self._waiters.append(operation)
        elif operation.waiting.blocked != result.blocked:
            operation.waiting = Waiting(
                ticket=operation.waiting.ticket,
                owner=operation.waiting.owner,
                nanos=request.nanos,
                blocked=result.blocked,
            )
            txn.put_waiting(operation.waiting)
        return _WAITS

    def _sweep_now_and_then(self, txn: Transaction, at_us: int) -> int:
        now = time.monotonic()
        if now - self._swept < _RETRY_S:
            return 0
        self._swept = now
        return self._rules.sweep(txn, at_us)

    def _serve_queue(self, txn: Transaction, at_us: int) -> list[tuple[Operation, Any]]:
        """Try waiting calls in their order; behind one that still waits, none for the same money is tried."""
        done = []
        shut: set[object] = set()
        for operation in list(self._waiters):
            if operation.waiting is None:
                continue
            if not operation.withdrawn and not shut.isdisjoint(operation.waiting.blocked):
                continue
            result = self._step(txn, operation, at_us)
            if result is _WAITS:
                shut.update(operation.waiting.blocked)
            else:
                done.append((operation, result))
        return done

    def _leave_queue(self, txn: Transaction, operation: Operation) -> None:
        if operation.waiting is not None:
            txn.drop_waiting(operation.waiting.ticket)
        self._waiters = [w for w in self._waiters if w is not operation]

    def _failed(
        self, batch: Sequence[Operation], error: BaseException
    ) -> list[tuple[Operation, Any]]:
        """The store failed: nothing was written. Holds are declined; settlements are kept for another try."""
        if not isinstance(error, LedgerError):
            error = LedgerUnavailable(f"ledger {self._store.name}: {error}")
        # Whoever waits for this ledger can't be served by it; places in its queue are taken back later.
        waiters, self._waiters = self._waiters, []
        self._stranded.extend(w.waiting.ticket for w in waiters if w.waiting)
        failed = [operation for operation in batch if not self._keep(operation)]
        return [(operation, error) for operation in dict.fromkeys([*failed, *waiters])]

    def _keep(self, operation: Operation) -> bool:
        """Without a thread there is no later."""
        return False


class ThreadedCounter(Counter):
    """Runs operations on its own thread, as many as have gathered in one transaction."""

    def __init__(self, store: Store, rules: Rules, now_us: Callable[[], int]) -> None:
        super().__init__(store, rules, now_us)
        self._inbox: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._again: list[Operation] = []
        self._thread = threading.Thread(target=self._serve, name="earmark-ledger", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Hand it over; its result is delivered from the counter's thread."""
        if self._closed:
            operation.deliver(LedgerUnavailable(f"ledger {self._store.name}: it was closed"))
            return
        self._inbox.put(operation)

    def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            self._thread.join()

    def _serve(self) -> None:
        last_try = time.monotonic()
        while True:  # ends with the None that close() hands over
            batch, closing = self._gather()
            now = time.monotonic()
            if not batch and self._waiters and not closing:
                due = now - last_try > _RETRY_S
                if due:
                    batch = [Operation(self._rules.sweep, _nothing)]
                elif not self._changed_elsewhere():
                    continue
                last_try = now
            if batch or self._waiters:
                for finished, result in self._run(batch):
                    self._deliver(finished, result)
            if closing:
                self._abandon()
                return

    def _gather(self) -> tuple[list[Operation], bool]:
        """Everything that has been handed over, waiting for the first if there is nothing else to do."""
        batch, self._again = self._again, []
        timeout = _POLL_S if self._waiters else None
        try:
            if batch:
                time.sleep(_POLL_S)
            else:
                first = self._inbox.get(timeout=timeout)
                if first is None:
                    return batch, True
                batch.append(first)
            while len(batch) < _BATCH_MAX:
                following = self._inbox.get_nowait()
                if following is None:
                    return batch, True
                batch.append(following)
        except queue.Empty:
            pass
        return batch, False

    def _changed_elsewhere(self) -> bool:
        try:
            return self._store.changed_elsewhere()
        except BudgetError:
            return True

    def _keep(self, operation: Operation) -> bool:
        if not operation.must or self._closed:
            return False
        now = time.monotonic()
        operation.since = operation.since or now
        if now - operation.since > _SETTLE_PATIENCE_S:
            return False
        self._again.append(operation)
        return True

    def _abandon(self) -> None:
        error = LedgerUnavailable(f"ledger {self._store.name}: it was closed")
        for operation in [*self._waiters, *self._again]:
            self._deliver(operation, error)
        self._waiters.clear()

    def _deliver(self, operation: Operation, result: Any) -> None:
        try:
            operation.deliver(result)
        except Exception:  # a receiver's fault must not stop the ledger of everybody else
            logger.exception("a result of the ledger could not be delivered")


class _Waits:
    """Marks a call that stays in the queue."""


_WAITS = _Waits()


def _nothing(_: Any) -> None:
    pass


__all__ = ["Counter", "Hold", "Operation", "ThreadedCounter"]
