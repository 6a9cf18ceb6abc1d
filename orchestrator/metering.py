"""Metering: one request's way from its body to its hold, and its end written down; whatever carries it.

The SDK's middleware (``meter``) and the gateway both go this way, so that what a request can cost, when it
waits and how it ends is decided in one place.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from budgets.errors import BudgetError, BudgetExceeded
from budgets.ledger import Ledger
from budgets.prices import PriceBook, default_book
from budgets.pricing import bound
from budgets.records import Ending, Hold, HoldRequest
from budgets.scopes import is_within, normal_scope
from budgets.shape import Shape
from budgets.usage import Usage

from .attempt import Attempt, tied_nanos
from .collector import calm_collector
from .context import CallContext, may_latch
from .gate import Gate, Ticket
from .listener import Listener
from .spans import mark_span
from .vouching import words_here
from .wire import Allowances, History, Reading, read_request

logger = logging.getLogger("earmark")

_THREADS_MAX = 10_000

#: Meters on one ledger share a gate unless they are given one: they share the key's limits, too.
_default_gates: weakref.WeakKeyDictionary[Ledger, Gate] = weakref.WeakKeyDictionary()


class Metering:
    """What a request can cost, its hold and its end.

    Args:
        ledger: where money is set aside and charged.
        scope: the scope of every call; ``with scope(...)`` blocks nest below it.
        gate: limits of concurrency and rate; those on one ledger share one by default.
        prices: a price book; the pinned list prices by default.
        allow: the caller's words about costs that have no bound of their own.
        deadline: ``time.monotonic`` seconds after which no call waits any longer.
        listener: hears of holds, ends, declines and retries.
        also: further scopes whose caps every call must fit under.
    """

    def __init__(
        self,
        ledger: Ledger,
        scope: str = "",
        *,
        gate: Gate | None = None,
        prices: PriceBook | None = None,
        allow: Allowances | None = None,
        deadline: float | None = None,
        listener: Listener | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self.ledger = ledger
        self.scope = normal_scope(scope)
        self.gate = gate if gate is not None else _default_gates.setdefault(ledger, Gate())
        self.prices = prices or default_book()
        self.allow = allow or Allowances()
        self.deadline = deadline
        self._listener = listener
        self._also = tuple(normal_scope(one) for one in also)
        self._threads: OrderedDict[str, History] = OrderedDict()
        self._warned: set[str] = set()
        calm_collector()

    # ---- from a body to a hold --------------------------------------------------------------------

    def attempt(
        self, body: Mapping[str, Any], betas: tuple[str, ...], call: CallContext
    ) -> Attempt:
        """Read a request as one attempt, with everything that it can cost.

        Args:
            body: the JSON of ``POST /v1/messages``.
            betas: values of the ``anthropic-beta`` header.
            call: who makes it.

        Raises:
            BudgetError: it has no bound, no price, or is no request. Nothing was sent.
        """
        try:
            reading = read_request(
                body,
                betas=betas,
                allow=words_here(self.allow),
                context_window=self.prices.context_window(str(body.get("model"))),
                history=self._thread_of(body),
            )
        except BudgetError as error:
            self.hear_decline(error)
            raise
        return Attempt(self, reading, call, trace.get_current_span(), threaded="thread" in body)

    async def hold_async(self, attempt: Attempt, count: Callable[[], Awaitable[Shape]]) -> None:
        """Set the bound of an attempt aside; waits while only held money is in the way.

        Args:
            attempt: gets the hold.
            count: asks the token counter for a tighter shape.

        Raises:
            BudgetError: declined, or not written. Nothing is held.
        """
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = await count()
        elif reading.countable is not None:
            # By bytes first, without a latch: what they decline, the counter may let through.
            probe = self.request(attempt, shape, latch=False)
            try:
                self.held(attempt, await self.ledger.hold_async(probe))
                return
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = await count()
        self.held(attempt, await self.ledger.hold_async(self.request(attempt, shape)))

    def hold(self, attempt: Attempt, count: Callable[[], Shape]) -> None:
        """As ``hold_async``, blocking."""
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = count()
        elif reading.countable is not None:
            probe = self.request(attempt, shape, latch=False)
            try:
                self.held(attempt, self.ledger.hold(probe))
                return
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = count()
        self.held(attempt, self.ledger.hold(self.request(attempt, shape)))

    def request(self, attempt: Attempt, shape: Shape, *, latch: bool = True) -> HoldRequest:
        """What is asked of the ledger for an attempt of this shape, made here and now.

        Raises:
            BudgetError: no price is known.
        """
        try:
            nanos = bound(shape, self.prices, datetime.now(UTC))
        except BudgetError as error:
            self.hear_decline(error)
            raise
        note: dict[str, Any] = {}
        if attempt.call.agent:
            note["agent"] = attempt.call.agent
        if attempt.call.unit:
            note["unit"] = attempt.call.unit
        if shape.word:
            note["caller_word"] = list(shape.word)
        asked = self.ledger.request(
            nanos,
            scope=self.scope,
            model=attempt.reading.model,
            note=note,
            latch=latch and may_latch(),
            tied=tied_nanos(),
        )
        return self._drawing_on_more(asked) if self._also else asked

    def _drawing_on_more(self, asked: HoldRequest) -> HoldRequest:
        place = asked.place
        added = (one for one in self._also if not any(is_within(s, one) for s in place.scopes))
        return replace(asked, place=replace(place, scopes=(*place.scopes, *added)))

    def _count_could_help(self, reading: Reading, declined: BudgetExceeded) -> bool:
        """Whether the bound would fit if the input counted for almost nothing."""
        if declined.latched and not self.ledger.draws_here:
            return False
        room = declined.cap.amount - declined.posted - declined.in_doubt
        least = bound(reading.tighten(0), self.prices, datetime.now(UTC))
        return least <= room * 1_000_000_000

    def held(self, attempt: Attempt, hold: Hold) -> None:
        """An attempt has its hold."""
        attempt.hold = hold
        if self._listener is not None:
            self._listener.held(attempt)

    # ---- the free token counter, which has limits of its own --------------------------------------

    async def count_ticket_async(self, model: str) -> Ticket:
        """A ticket to ask the token counter with, its turn by the rate included; close it."""
        ticket = await self.gate.enter(model, self.deadline, lane="count_tokens")
        try:
            await ticket.pace(input_tokens=0, output_tokens=0, deadline=self.deadline)
        except BaseException:
            ticket.close()
            raise
        return ticket

    def count_ticket(self, model: str) -> Ticket:
        """As ``count_ticket_async``, blocking."""
        ticket = self.gate.enter_sync(model, self.deadline, lane="count_tokens")
        try:
            ticket.pace_sync(input_tokens=0, output_tokens=0, deadline=self.deadline)
        except BaseException:
            ticket.close()
            raise
        return ticket

    # ---- how it ends ------------------------------------------------------------------------------

    def not_sent(self, attempt: Attempt, error: BaseException) -> None:
        """Nothing was sent: give the hold back, free the slot, remember a decline."""
        attempt.was_sent = False
        if attempt.hold is not None:
            attempt.abandon(error)
        else:
            attempt.ended = True
            if attempt.ticket is not None:
                attempt.ticket.close()
        if isinstance(error, BudgetError):
            self.hear_decline(error)

    def hear_decline(self, error: BudgetError) -> None:
        """A call was declined."""
        if self._listener is not None:
            self._listener.declined(error)

    async def end_async(self, attempt: Attempt, ending: Ending) -> None:
        """End the hold of an attempt, and everything that goes with it.

        An answer that is kept in the ledger is there when this returns. Other ends follow ``end_soon``.
        """
        if attempt.call.keep is None:
            self.end_soon(attempt, ending)
        else:
            attempt.finish(ending)
            await self.write_async(ending)

    def end_soon(self, attempt: Attempt, ending: Ending) -> None:
        """As ``end_async``, without waiting until it is written: the next few milliseconds will do.

        Until then its money counts as held; killed in that time, it is in doubt. Call it on an event loop.
        """
        attempt.finish(ending)
        self.ledger.end_soon(ending, loop=asyncio.get_running_loop())

    async def write_async(self, ending: Ending) -> None:
        """Write an ending; it is written even if the caller is cancelled meanwhile.

        The answer is paid for, so a fault of the ledger is logged and the hold stays.
        """
        try:
            await self.ledger.end_async(ending)
        except BudgetError as error:
            logger.error("%s", error)  # noqa: TRY400 - one sentence, no traceback

    def end(self, attempt: Attempt, ending: Ending) -> None:
        """As ``end_async``, blocking."""
        attempt.finish(ending)
        self.write(ending)

    def write(self, ending: Ending) -> None:
        """As ``write_async``, blocking."""
        try:
            self.ledger.end(ending)
        except BudgetError as error:
            logger.error("%s", error)  # noqa: TRY400

    # ---- what the server remembers ----------------------------------------------------------------

    def _thread_of(self, body: Mapping[str, Any]) -> History | None:
        thread = body.get("thread")
        if not isinstance(thread, Mapping):
            return None
        return self._threads.get(str(thread.get("previous_message_id")))

    def remember_thread(self, message_id: str, reading: Reading, usage: Usage) -> None:
        """Keep what a message thread holds, so that its next turn has a bound."""
        self._threads[message_id] = reading.history(usage)
        if len(self._threads) > _THREADS_MAX:
            self._threads.popitem(last=False)

    # ---- telling ----------------------------------------------------------------------------------

    def tell(self, attempt: Attempt, ending: Ending) -> None:
        """Pass an end on to the SDK's own span and to the listener. Never raises."""
        charged = attempt.held_nanos if ending.kind == "doubt" else ending.nanos
        self.mark(attempt, ending.kind, charged)
        if self._listener is not None:
            try:
                self._listener.ended(attempt, ending)
            except Exception:
                logger.exception("a listener failed")

    def warn_once(self, sentence: str) -> None:
        """Log a sentence, the first time that it is to be said."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            logger.warning("%s", sentence)

    def mark(self, attempt: Attempt, outcome: str, nanos: int) -> None:
        """Say on the SDK's own span what an attempt costs."""
        scope = attempt.hold.scope if attempt.hold else self.scope
        mark_span(attempt.span, scope=scope, outcome=outcome, nanos=nanos)
