"""The counter with a thread of its own: for stores that touch a disk.

Holds that an event loop asks for are committed on that loop's own turn while that costs it next to nothing.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .admission import Rules
from .counter import Counter, Done, Operation, Work, deliver_all, nothing
from .errors import BudgetError, LedgerUnavailable
from .stores.protocol import Store, Transaction

#: While calls wait, look this often whether another process has freed money.
_POLL_S = 0.02
#: A settlement that can't be written is tried again for this long before its hold is left in place.
_SETTLE_PATIENCE_S = 5.0
_BATCH_MAX = 1000
#: A commit that waits up to this long for the disk may be made on an event loop's own thread ...
_QUICK_S = 0.002
#: ... one that waits longer says no more than this about the next,
_SLOW_S = 0.008
#: ... and an end that nobody waits for may wait this long for company.
_LINGER_S = 0.003


class ThreadedCounter(Counter):
    """Runs operations on its own thread, as many as have gathered in one transaction.

    Holds that an event loop asks for are done on that loop, all of one turn of it in one transaction, while
    that costs it next to nothing: the disk is fast and no other thread or process is writing. The thread does
    everything else, and everything once it is not so.
    """

    def __init__(self, store: Store, rules: Rules, now_us: Callable[[], int]) -> None:
        super().__init__(store, rules, now_us)
        self._inbox: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._turns: dict[asyncio.AbstractEventLoop, list[Operation]] = {}
        self._at_work = threading.Lock()
        self._waits_s = 0.0
        #: Ends that nobody waits for: handed over, and written.
        self._handed_over = self._written = 0
        self._again: list[Operation] = []
        self._last: Work = _no_work
        self._answer: Any = None
        self._thread = threading.Thread(target=self._serve, name="earmark-ledger", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Hand it over; its result is delivered when its batch is written."""
        if operation.urgent and self._is_own_thread() and not self._closed:
            self._do_here(operation)
            return
        with self._lock:
            if not self._closed:
                self._handed_over += not operation.urgent
                if operation.loop is None or self._waits_s > _QUICK_S:
                    self._inbox.put(operation)
                elif (turn := self._turns.get(operation.loop)) is not None:
                    turn.append(operation)
                else:
                    self._turns[operation.loop] = [operation]
                    operation.loop.call_soon(self._end_turn, operation.loop)
                return
        deliver_all([(operation, self._closed_error())])

    def flush(self) -> None:
        """Return when everything that was handed over before is written."""
        written = threading.Event()
        with self._lock:
            if self._closed or (self._handed_over == self._written and not self._turns):
                return
            self._empty_turns()
            if not self._is_own_thread():
                self._inbox.put(Operation(_no_work, lambda _: written.set()))
        if self._is_own_thread():
            self._do_here(Operation(_no_work, nothing))
        else:
            written.wait()

    def close(self, last: Work) -> Any:
        """Finish what was handed over, do one last piece of work, then stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._last = last
                self._empty_turns()
                self._inbox.put(None)
        self._thread.join()
        return self._answer

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _do_here(self, operation: Operation) -> None:
        """For whoever is told something on the ledger's thread and asks it something: it would wait for itself.

        A log handler that reads the balance when it hears of an overrun, say: no transaction is open there. One
        may be where a finalizer comes in the middle of it; it is told no.
        """
        if not self._at_work.acquire(timeout=_SETTLE_PATIENCE_S):
            deliver_all(
                [(operation, LedgerUnavailable(f"ledger {self._store.name}: it is at work"))]
            )
            return
        try:
            batch, closing = self._drain([])
            done = self._timed([*batch, operation], wait=True)
        finally:
            self._at_work.release()
        if closing:
            self._inbox.put(None)
        deliver_all(done)

    def _empty_turns(self) -> None:
        """What loops have gathered goes to the thread: somebody can't wait for the end of their turns."""
        for turn in self._turns.values():
            for operation in turn:
                self._inbox.put(operation)
        self._turns.clear()

    # ---- on an event loop -----------------------------------------------------------------------

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything of one turn of a loop, and whatever else has gathered, in one quick transaction."""
        with self._lock:
            batch = self._turns.pop(loop, [])
        if not batch:
            return
        batch, closing = self._drain(batch)
        nobody_waited = not self._waiters
        done = self._try_now(batch)
        if nobody_waited and self._waiters:
            # The thread may be asleep until something is handed over; now it has to look around for them.
            self._inbox.put(Operation(_no_work, nothing))
        if done is None:
            for operation in batch:
                self._inbox.put(operation)
        if closing:
            self._inbox.put(None)
        if done is not None:
            deliver_all(done)

    def _try_now(self, batch: list[Operation]) -> Done | None:
        """Do it without waiting for anybody; None if that can't be, and then nothing was done."""
        if not self._at_work.acquire(blocking=False):
            return None
        try:
            return self._timed(batch, wait=False)
        except Exception:  # whatever it is, the thread meets it again and deals with it  # noqa: BLE001
            self._undo()
            return None
        finally:
            self._at_work.release()

    def _timed(self, batch: Sequence[Operation], *, wait: bool) -> Done:
        began, worked = time.monotonic(), time.thread_time()
        done = self._run(batch) if wait else self._attempt(batch, wait=False)
        self._written += sum(not operation.urgent for operation, _ in done)
        # A moving average of what it waited, not of what it did: one slow sync is no reason, a slow disk is.
        waited = time.monotonic() - began - (time.thread_time() - worked)
        self._waits_s += (min(waited, _SLOW_S) - self._waits_s) / 16
        return done

    # ---- on the thread --------------------------------------------------------------------------

    def _serve(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._gather()
            if self._waiters and self._sweep_is_due():
                batch.append(Operation(self._rules.sweep, nothing))
            if batch or (self._waiters and self._changed_elsewhere()):
                with self._at_work:
                    done = self._timed(batch, wait=True)
                deliver_all(done)
        kept = [(operation, self._closed_error()) for operation in self._again]
        with self._at_work:  # a loop may be in the middle of its last turn
            done = self._finish(self._last)
        deliver_all([*kept, *done[:-1]])
        self._answer = done[-1][1]

    def _gather(self) -> tuple[list[Operation], bool]:
        """Everything that has been handed over, waiting for the first if there is nothing else to do."""
        batch, self._again = self._again, []
        if batch:
            time.sleep(_POLL_S)
        else:
            try:
                first = self._inbox.get(timeout=_POLL_S if self._waiters else None)
            except queue.Empty:
                return batch, False
            if first is None:
                return batch, True
            batch.append(first)
            if not first.urgent and not self._waiters:
                # Nobody waits for it: more will come, or a loop's next turn takes them along.
                self._linger(batch)
        return self._drain(batch)

    def _linger(self, batch: list[Operation]) -> None:
        """Wait a moment for company; not where holds come here too, once there is one."""
        if self._waits_s <= _QUICK_S:
            time.sleep(_LINGER_S)
            return
        until = time.monotonic() + _LINGER_S
        while (left := until - time.monotonic()) > 0:
            try:
                following = self._inbox.get(timeout=left)
            except queue.Empty:
                return
            if following is None:
                self._inbox.put(None)  # the last one: whoever drains the box next meets it again
                return
            batch.append(following)
            if following.urgent:
                return

    def _drain(self, batch: list[Operation]) -> tuple[list[Operation], bool]:
        """What is in the inbox, too; True if it is the end."""
        try:
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


def _no_work(_txn: Transaction, _at_us: int) -> None:
    pass
