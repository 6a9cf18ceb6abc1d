"""Stores and counters that misbehave on demand, and always in the same way: for replayable simulations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from budgets.counter import Counter, Operation, deliver_all
from budgets.errors import LedgerUnavailable
from budgets.stores.protocol import Reader, Store, Transaction


class Trouble:
    """Raises at the n-th step from when it was armed; a step is a call on a transaction, its begin or its commit."""

    def __init__(self) -> None:
        self.steps = 0
        self._due: int | None = None
        self._make: Callable[[], BaseException] = lambda: LedgerUnavailable("ledger test: broken")
        self._lasting = False
        self.hits = 0

    def arm(
        self,
        n: int,
        make: Callable[[], BaseException] | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        self._due = self.steps + n
        self._make = make or (lambda: LedgerUnavailable("ledger test: broken"))
        self._lasting = lasting

    def disarm(self) -> None:
        self._due = None

    def step(self) -> None:
        self.steps += 1
        if self._due is not None and self.steps >= self._due:
            if not self._lasting:
                self._due = None
            self.hits += 1
            raise self._make()


class _Stumbling:
    """A transaction that passes everything on and counts."""

    def __init__(self, txn: Transaction, trouble: Trouble) -> None:
        self._txn = txn
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._txn, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._trouble.step()
            return found(*args, **named)

        return call


class FaultyStore:
    """Another store, with trouble in front of it."""

    def __init__(self, inner: Store, trouble: Trouble) -> None:
        self.inner = inner
        self.trouble = trouble
        self.name = inner.name
        self.durable = inner.durable

    @contextmanager
    def transaction(self, *, wait: bool = True) -> Iterator[Transaction]:
        self.trouble.step()
        with self.inner.transaction(wait=wait) as txn:
            yield _Stumbling(txn, self.trouble)  # type: ignore[misc]
            self.trouble.step()  # at the commit: nothing is kept

    def changed_elsewhere(self) -> bool:
        return self.inner.changed_elsewhere()

    def reader(self) -> AbstractContextManager[Reader]:
        return self.inner.reader()

    def close(self) -> None:
        self.inner.close()


class SteppedCounter(Counter):
    """A counter that runs a batch only when it is told to: the scheduler of a simulation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.inbox: deque[Operation] = deque()

    def submit(self, operation: Operation) -> None:
        if self._closed:
            deliver_all([(operation, self._closed_error())])
        else:
            self.inbox.append(operation)

    def run_batch(self, most: int) -> int:
        """Run up to this many operations in one transaction; how many there were."""
        batch = [self.inbox.popleft() for _ in range(min(most, len(self.inbox)))]
        if batch or self._waiters:
            deliver_all(self._run(batch))
        return len(batch)

    def _keep(self, operation: Operation) -> bool:
        if operation.must:
            self.inbox.append(operation)
        return operation.must
