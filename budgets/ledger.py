"""The ledger: hold, settle, void, doubt, resolve; each exactly once, under caps that are never passed.

This file is the door, with ``ledger_reading`` and ``ledger_reserving`` beside it. The rules are in ``admission``,
batching and the queue in ``counter``, storage in ``stores``, questions about the past in ``report`` and ``check``.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .admission import Rules
from .answer import Answer, Landing
from .caps import Cap
from .counter import Counter, Deliver, Operation
from .defaults import fallback_caps
from .errors import BudgetError, BudgetExceeded, LedgerError, LedgerUnavailable, UnknownHold
from .ledger_reading import Reading
from .ledger_reserving import Reserving
from .owners import this_process
from .records import Ending, Hold, HoldRequest, Line, to_us
from .reserves import reserve_here
from .scopes import Place, normal_scope, place_of_call
from .stores.memory import MemoryStore
from .stores.protocol import Store, Transaction
from .threaded_counter import ThreadedCounter

logger = logging.getLogger("earmark")

_numbers = itertools.count(1)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _system_us() -> int:
    """The same clock, without a detour over the calendar."""
    return time.time_ns() // 1_000


class Ledger(Reading, Reserving):
    """A ledger in a file, or in memory.

    Args:
        path: the file (made if it doesn't exist); None keeps the ledger in memory.
        caps: caps to set. Of the same scope, period and zone the latest word counts, for every process.
        fallback: caps for calls that no other cap covers, so that nothing runs without one; None takes
            the documented defaults (``budgets.defaults``).
        clock: returns the time as an aware datetime; for tests.
        store: another store, instead of ``path``.

    Raises:
        LedgerUnavailable, LedgerCorrupt, LedgerTooNew: the file can't be used; it was left as it is.

    May be used from any thread and any event loop. Methods ending in ``_async`` don't block the loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        caps: Iterable[Cap] = (),
        *,
        fallback: Iterable[Cap] | None = None,
        clock: Callable[[], datetime] = _utc_now,
        store: Store | None = None,
    ) -> None:
        self.number = next(_numbers)
        self._path = None if path is None else Path(path)
        self._given_store = store
        self._clock = clock
        self._now_us = _system_us if clock is _utc_now else lambda: to_us(clock())
        self._caps = tuple(caps)
        for cap in self._caps:
            if not isinstance(cap, Cap):
                raise LedgerError(f"caps: {cap!r} is not a Cap; write Cap('5', scope='app')")
        self._fallback = tuple(fallback_caps() if fallback is None else fallback)
        self._reopening = threading.Lock()
        self._closed = False
        self._open()
        atexit.register(_close_at_exit, weakref.ref(self))

    def _open(self) -> None:
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._rules = Rules(this_process())
        self._store = self._given_store or self._make_store()
        kind = ThreadedCounter if self._store.durable else Counter
        try:
            self._self_check()
            self._counter: Counter = kind(self._store, self._rules, self._now_us)
        except BaseException:
            self._store.close()
            raise
        self._run(self._first_entries)

    def _make_store(self) -> Store:
        if self._path is None:
            return MemoryStore()
        from .stores.sqlite import SqliteStore  # keeps apsw out of ledgers in memory

        return SqliteStore(self._path)

    def _first_entries(self, txn: Transaction, at_us: int) -> None:
        self._rules.declare(txn, self._fallback, at_us, fallback=True)
        self._rules.declare(txn, self._caps, at_us)
        self._rules.sweep(txn, at_us)

    def _self_check(self) -> None:
        """A $0 cap must refuse a call, in this very store, or the ledger does not open."""
        probe = HoldRequest(
            id=uuid.uuid4().hex, nanos=1, place=Place(scopes=("earmark-self-check",)), wait=False
        )
        rules = Rules(self._rules.owner)
        refused = False
        try:
            with self._store.transaction() as txn:
                rules.declare(txn, (Cap("0", scope="earmark-self-check"),), self._now_us())
                try:
                    rules.hold(txn, probe, self._now_us())
                except BudgetExceeded:
                    refused = True
                raise _UndoSelfCheck
        except _UndoSelfCheck:
            pass
        if not refused:
            raise LedgerError(
                f"ledger {self.name}: the self-check failed, a cap of $0 did not refuse a call"
            )

    def now(self) -> datetime:
        """The time by this ledger's clock (aware), which windows go by."""
        return self._clock()

    @property
    def name(self) -> str:
        """The file, or ``memory``."""
        return self._store.name

    @property
    def path(self) -> Path | None:
        """The file, or None."""
        return self._path

    # ---- holding ----------------------------------------------------------------------------------

    def request(
        self,
        nanos: int,
        *,
        scope: str = "",
        model: str = "",
        note: Mapping[str, Any] | None = None,
        wait: bool = True,
        tied: int = 0,
        latch: bool = True,
        reserve: bool = False,
    ) -> HoldRequest:
        """A hold request for a call made here and now: below ``scope``, in the surrounding context.

        Inside ``drawing_on`` it draws on that reserve. ``reserve`` asks for a reserve instead of a call.
        """
        return HoldRequest(
            id=self._new_id(),
            nanos=nanos,
            place=place_of_call(normal_scope(scope), self.number),
            model=model,
            note=note or {},
            wait=wait,
            tied=tied,
            fresh_id=True,
            latch=latch,
            reserve=reserve,
            replaces=None if reserve else reserve_here(self.number),
        )

    def _new_id(self) -> str:
        # Time first: ids that are drawn together lie together in the file's index. The owner's id was drawn
        # at random for this process and ledger; drawing anew for each hold would cost a system call.
        self._stay_in_process()
        return f"{self._now_us():014x}{self._rules.owner.id}{next(self._ids):06x}"

    def hold(self, request: HoldRequest, *, timeout_s: float | None = None) -> Hold:
        """Set the bound of one HTTP attempt aside; waits its turn while only held money is in the way.

        Returns:
            The hold. It is durable: whatever happens now, its amount counts until the hold is ended.

        Raises:
            BudgetExceeded: declined by a cap.
            LedgerUnavailable: it could not be written.
            TimeoutError: it had to wait longer than ``timeout_s``; nothing is held.
        """
        answer = Answer()
        operation = Operation(None, answer.set, request=request)
        try:
            self._submit(operation)
            result = answer.get(timeout_s)
        except BaseException:
            self._give_up(operation, answer)
            raise
        assert isinstance(result, Hold)
        return result

    def _give_up(self, operation: Operation, answer: Answer) -> None:
        """The caller is gone. If the hold was made all the same, it is void: nothing was sent."""
        self._counter.withdraw(operation)
        answer.then(self._void_unused)

    def _void_unused(self, result: Any) -> None:
        if isinstance(result, Hold):
            self.end_soon(
                Ending(
                    hold=result.id,
                    kind="void",
                    note={"reason": "the call was given up before it was sent"},
                )
            )

    async def hold_async(self, request: HoldRequest) -> Hold:
        """As ``hold``; cancelling it leaves nothing held."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        unused = self._void_unused
        landing = Landing(future, unused)
        operation = Operation(None, landing, request=request, loop=loop, orphaned=unused)
        self._submit(operation)
        try:
            result = await future
        except BaseException:
            # Cancelled, or the coroutine was closed: nobody will send the call.
            if future.done() and not future.cancelled():
                self._void_unused(future.exception() or future.result())
            else:
                landing.leave()
                self._counter.withdraw(operation)
            raise
        assert isinstance(result, Hold)
        return result

    # ---- ending -----------------------------------------------------------------------------------

    def end(self, ending: Ending) -> Line:
        """End a hold, exactly once.

        Raises:
            AlreadyEnded, UnknownHold: nothing was changed.
            LedgerUnavailable: it could not be written for several seconds; the hold still counts in full.
        """
        answer = Answer()
        self._submit_end(ending, answer.set)
        line: Line = answer.get(None)
        return line

    async def end_async(self, ending: Ending) -> Line:
        """As ``end``. Once begun it is done, even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submit_end(ending, Landing(future, _log_fault), loop=loop)
        line: Line = await future
        return line

    def end_soon(self, ending: Ending, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """End a hold without waiting until it is written; faults are logged.

        Until it is written, a few milliseconds later, its money counts as held. Every question to this
        ledger writes it first.

        Args:
            ending: how it ends.
            loop: the running loop, where the end may be written together with the holds of the same turn;
                None in a finalizer, which may have interrupted that very turn.
        """
        self._submit_end(ending, _log_fault, loop=loop, urgent=False)

    def _submit_end(
        self,
        ending: Ending,
        deliver: Deliver,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        urgent: bool = True,
    ) -> None:
        self._submit(
            Operation(
                None,
                deliver,
                ending=ending,
                must=True,
                loop=loop,
                orphaned=_log_fault,
                urgent=urgent,
            )
        )

    def settle(
        self, hold: Hold | str, nanos: int, *, usage: Mapping[str, Any] | None = None, **note: Any
    ) -> Line:
        """Post the real cost; the rest of the hold is released."""
        return self.end(Ending(hold=_id(hold), kind="settle", nanos=nanos, usage=usage, note=note))

    def void(self, hold: Hold | str, **note: Any) -> Line:
        """Give a hold back: it is certain that nothing was billed."""
        return self.end(Ending(hold=_id(hold), kind="void", note=note))

    def doubt(self, hold: Hold | str, **note: Any) -> Line:
        """Sent, and not known whether it was billed: it stays charged in full until resolved."""
        return self.end(Ending(hold=_id(hold), kind="doubt", note=note))

    def resolve(self, hold: Hold | str, nanos: int, **note: Any) -> Line:
        """Say what a call in doubt really cost; 0 if it was not billed."""
        return self.end(Ending(hold=_id(hold), kind="resolve", nanos=nanos, note=note))

    def adjust(self, hold: Hold | str, nanos: int, *, reason: str) -> Line:
        """Correct what was posted for a hold to ``nanos``, by a further line; the old one stays.

        Raises:
            UnknownHold: nothing was posted for it.
            LedgerError: not an amount.
        """
        hold_id = _id(hold)
        with self.reader() as reader:
            lines = list(reader.lines(hold=hold_id))
            extra = reader.extra_scopes().get(hold_id, ())
        if not lines:
            raise UnknownHold(f"hold {hold_id}: no such hold in this ledger")
        first = lines[0]
        original = Hold(
            id=hold_id,
            nanos=first.nanos,
            scopes=(first.scope, *extra),
            kinds=tuple((str(p), str(k)) for p, k in first.note.get("kinds", ())),
            held_at_us=first.held_at_us,
            model=first.model,
            owner=first.owner,
        )
        line: Line = self._run(
            lambda txn, at_us: self._rules.adjust(txn, original, nanos, {"reason": reason}, at_us)
        )
        return line

    # ---- caps -------------------------------------------------------------------------------------

    def set_cap(self, cap: Cap) -> None:
        """Set or change a cap, for every process on this ledger. Raising one reopens what it had latched."""
        self._run(lambda txn, at_us: self._rules.declare(txn, (cap,), at_us))

    def drop_cap(self, cap: Cap) -> None:
        """Lift a cap; a no-op if there is none of this scope, period and zone."""

        def drop(txn: Transaction, at_us: int) -> None:
            entry = txn.caps().get(cap.key)
            if entry is not None:
                txn.drop_cap(cap.key, at_us)
                if not entry.fallback:  # what it stood in front of counts again
                    self._rules.declare(txn, self._fallback, at_us, fallback=True)

        self._run(drop)

    # ---- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it. Holds that this process still has open go in doubt: their calls were sent. Reserves are void."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        result = self._counter.close(self._rules.leave)
        if isinstance(result, BudgetError):
            logger.error("%s", result)
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    # ---- plumbing ---------------------------------------------------------------------------------

    def _submit(self, operation: Operation) -> None:
        self._stay_in_process()
        self._counter.submit(operation)

    def _stay_in_process(self) -> None:
        """A forked child must not use its parent's connections, nor spend a copy of money in memory."""
        if self._pid == os.getpid():
            return
        with self._reopening:
            if self._pid == os.getpid():
                return
            if not self._store.durable or self._given_store is not None:
                raise LedgerUnavailable(
                    "ledger memory: it was copied by a fork, and copied caps don't hold; give the ledger a file"
                )
            # The parent's thread and connections are not here any more; see ``stores.forks``.
            self._caps = ()
            self._open()

    def _run(self, work: Callable[[Transaction, int], Any], *, must: bool = False) -> Any:
        answer = Answer()
        self._submit(Operation(work, answer.set, must=must))
        return answer.get(None)


class _UndoSelfCheck(Exception):
    pass


def _log_fault(result: Any) -> None:
    if isinstance(result, BaseException):
        logger.error("%s", result)


def _id(hold: Hold | str) -> str:
    return hold if isinstance(hold, str) else hold.id


def _close_at_exit(reference: weakref.ref[Ledger]) -> None:
    ledger = reference()
    if ledger is not None:
        ledger.close()
