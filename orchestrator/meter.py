"""The meter: prices, holds, sends and settles every billable request of an official client.

A middleware of ``AsyncAnthropic`` and ``Anthropic``; it goes last in the list (innermost), where it runs
once per HTTP attempt. The order of a call's life is here; its arithmetic is in ``attempt``, what a request
can cost in ``wire``, and who may go now in the gate and the ledger.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx2
from anthropic import APIConnectionError, APIError, APIRequest, Middleware
from opentelemetry import trace

from budgets.errors import BudgetError, BudgetExceeded
from budgets.ledger import Ledger
from budgets.prices import PriceBook, default_book
from budgets.pricing import bound
from budgets.records import Ending, Hold, HoldRequest
from budgets.scopes import normal_scope
from budgets.shape import Shape
from budgets.usage import Usage

from .attempt import Attempt, tied_nanos
from .context import current_call, may_latch
from .errors import Unmetered
from .gate import Gate
from .incoming import do_not_repeat, plain_of
from .lingering import Lingering
from .listener import Listener
from .metered_stream import watch
from .outgoing import betas_of, count_request, model_of, prepared, tightened
from .retry import Answer, Retry
from .spans import mark_span
from .swallowed import raise_swallowed, remember_decline
from .transport import HOLD_HEADER, Passes
from .vouching import words_here
from .wire import Allowances, History, Reading, classify_path, read_request

logger = logging.getLogger("earmark")

_THREADS_MAX = 10_000
_GIVEN_UP_MAX = 1_000

#: Meters on one ledger share a gate unless they are given one: they share the key's limits, too.
_default_gates: weakref.WeakKeyDictionary[Ledger, Gate] = weakref.WeakKeyDictionary()


class Meter(Middleware):
    """Meters a client: ``AsyncAnthropic(middleware=[Meter(ledger, scope="app/run-1")])``.

    Args:
        ledger: where money is set aside and charged.
        scope: the scope of every call; ``with scope(...)`` blocks nest below it. It counts as one run for
            caps per run.
        gate: limits of concurrency and rate; meters on one ledger share one by default.
        prices: a price book; the pinned list prices by default.
        allow: the caller's words about costs that have no bound of their own.
        retry: a policy, for clients whose own retries are off (``max_retries=0``, as ``Run`` builds
            them); None leaves retries to the client.
        deadline: ``time.monotonic`` seconds after which no call waits any longer.
        listener: hears of holds, ends, declines and retries.
        passes: shared with the guard in the client's transport, if it has one.

    Calls raise, before anything is sent: ``BudgetExceeded``, ``UnknownPrice``, ``Unbounded`` or
    ``LedgerUnavailable`` (all ``budgets.Declined``), ``Unmetered`` for paths that can bill and that
    nothing here can price, and ``RateDeadline`` if the deadline comes before the call's turn.
    """

    def __init__(
        self,
        ledger: Ledger,
        scope: str = "",
        *,
        gate: Gate | None = None,
        prices: PriceBook | None = None,
        allow: Allowances | None = None,
        retry: Retry | None = None,
        deadline: float | None = None,
        listener: Listener | None = None,
        passes: Passes | None = None,
    ) -> None:
        self.ledger = ledger
        self.scope = normal_scope(scope)
        self.gate = gate if gate is not None else _default_gates.setdefault(ledger, Gate())
        self.prices = prices or default_book()
        self.allow = allow or Allowances()
        self.retry = retry
        self.deadline = deadline
        self._listener = listener
        self._passes = passes
        self._lingering = Lingering(off=passes is not None)
        self._threads: OrderedDict[str, History] = OrderedDict()
        self._given_up: OrderedDict[str, str] = OrderedDict()

    # ---- the async client -------------------------------------------------------------------------

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client, once per HTTP attempt."""
        kind = self._admit(request)
        if kind == "free":
            await self._lingering.make_room()
            return await call_next(request)
        if kind == "count_tokens":
            return await self._count_gated_async(request, call_next)
        if self.retry is None:
            return (await self._once_async(request, call_next)).response
        self._raise_given_up(request)
        retrying = self.retry.asynchronous(self.deadline, self._retrying)
        try:
            answer: Answer = await retrying(self._once_async, request, call_next)
        except APIConnectionError as error:
            self._give_up(request, error)
            raise
        return _last_word(answer)

    async def _once_async(self, request: APIRequest, call_next: Any) -> Answer:
        attempt = self._read(request)
        attempt.ticket = await self.gate.enter(attempt.reading.model, self.deadline)
        try:
            await self._hold_async(attempt, request, call_next)
            await attempt.ticket.pace(**attempt.rate(self.deadline))
            await self._lingering.make_room()
            sent = self._prepare(
                attempt, request, self._lingering.headers(request, attempt.reading)
            )
        except BaseException as error:
            self._not_sent(attempt, error)
            raise
        try:
            sent_at = time.perf_counter()
            response = await call_next(sent)
            plain = plain_of(response)
            attempt.status = plain.status_code
            if self._is_stream(attempt, plain):
                ending, failure = watch(attempt, plain), None
            else:
                body = await self._lingering.read(plain, sent_at)
                ending, failure = attempt.of_answer(plain.status_code, body, plain.headers)
        except Exception as error:
            if not attempt.ended:
                await self._end_async(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if ending is not None:
            await self._end_async(attempt, ending)
        if failure is not None and not failure.retryable:
            do_not_repeat(plain)
        return Answer(response, failure)

    async def _hold_async(self, attempt: Attempt, request: APIRequest, call_next: Any) -> None:
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = await self._counted_async(attempt, request, call_next)
        elif reading.countable is not None:
            # By bytes first, without a latch: what they decline, the counter may let through.
            probe = self._request(attempt, shape, latch=False)
            try:
                self._held(attempt, await self.ledger.hold_async(probe))
                return
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = await self._counted_async(attempt, request, call_next)
        self._held(attempt, await self.ledger.hold_async(self._request(attempt, shape)))

    async def _counted_async(self, attempt: Attempt, request: APIRequest, call_next: Any) -> Shape:
        """The shape by the token counter, or by bytes if it can't be reached."""
        reading = attempt.reading
        try:
            answer = await self._count_gated_async(count_request(request, reading), call_next)
            body = bytes(await answer.http_response.aread())
        except (APIError, httpx2.HTTPError) as error:
            logger.warning("the token counter could not be reached (%s)", type(error).__name__)
            return reading.shape
        return tightened(reading, answer.status_code, body)

    async def _count_gated_async(self, request: APIRequest, call_next: Any) -> Any:
        ticket = await self.gate.enter(model_of(request), self.deadline, lane="count_tokens")
        with ticket:
            await ticket.pace(input_tokens=0, output_tokens=0, deadline=self.deadline)
            await self._lingering.make_room()
            response = await call_next(request)
            plain = plain_of(response)
            ticket.observe(plain.status_code, plain.headers)
            return response

    async def _end_async(self, attempt: Attempt, ending: Ending) -> None:
        attempt.finish(ending)
        await self.write_async(ending)

    async def write_async(self, ending: Ending) -> None:
        """Write an ending; it is written even if the caller is cancelled meanwhile.

        The answer is paid for, so a fault of the ledger is logged and the hold stays.
        """
        try:
            await self.ledger.end_async(ending)
        except BudgetError as error:
            logger.error("%s", error)  # noqa: TRY400 - one sentence, no traceback

    # ---- the sync client: the same steps, blocking ------------------------------------------------

    def handle(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client, once per HTTP attempt."""
        kind = self._admit(request)
        if kind == "free":
            return call_next(request)
        if kind == "count_tokens":
            return self._count_gated(request, call_next)
        if self.retry is None:
            return self._once(request, call_next).response
        self._raise_given_up(request)
        retrying = self.retry.blocking(self.deadline, self._retrying)
        try:
            answer: Answer = retrying(self._once, request, call_next)
        except APIConnectionError as error:
            self._give_up(request, error)
            raise
        return _last_word(answer)

    def _once(self, request: APIRequest, call_next: Any) -> Answer:
        attempt = self._read(request)
        attempt.ticket = self.gate.enter_sync(attempt.reading.model, self.deadline)
        try:
            self._hold(attempt, request, call_next)
            attempt.ticket.pace_sync(**attempt.rate(self.deadline))
            sent = self._prepare(attempt, request, {})
        except BaseException as error:
            self._not_sent(attempt, error)
            raise
        try:
            response = call_next(sent)
            plain = plain_of(response)
            attempt.status = plain.status_code
            if self._is_stream(attempt, plain):
                ending, failure = watch(attempt, plain), None
            else:
                body = plain.read()
                ending, failure = attempt.of_answer(plain.status_code, body, plain.headers)
        except Exception as error:
            if not attempt.ended:
                self._end(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if ending is not None:
            self._end(attempt, ending)
        if failure is not None and not failure.retryable:
            do_not_repeat(plain)
        return Answer(response, failure)

    def _hold(self, attempt: Attempt, request: APIRequest, call_next: Any) -> None:
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = self._counted(attempt, request, call_next)
        elif reading.countable is not None:
            # By bytes first, without a latch: what they decline, the counter may let through.
            probe = self._request(attempt, shape, latch=False)
            try:
                self._held(attempt, self.ledger.hold(probe))
                return
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = self._counted(attempt, request, call_next)
        self._held(attempt, self.ledger.hold(self._request(attempt, shape)))

    def _counted(self, attempt: Attempt, request: APIRequest, call_next: Any) -> Shape:
        """The shape by the token counter, or by bytes if it can't be reached."""
        reading = attempt.reading
        try:
            answer = self._count_gated(count_request(request, reading), call_next)
            body = answer.http_response.read()
        except (APIError, httpx2.HTTPError) as error:
            logger.warning("the token counter could not be reached (%s)", type(error).__name__)
            return reading.shape
        return tightened(reading, answer.status_code, body)

    def _count_gated(self, request: APIRequest, call_next: Any) -> Any:
        ticket = self.gate.enter_sync(model_of(request), self.deadline, lane="count_tokens")
        with ticket:
            ticket.pace_sync(input_tokens=0, output_tokens=0, deadline=self.deadline)
            response = call_next(request)
            plain = plain_of(response)
            ticket.observe(plain.status_code, plain.headers)
            return response

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        attempt.finish(ending)
        self.write(ending)

    def write(self, ending: Ending) -> None:
        """As ``write_async``, blocking."""
        try:
            self.ledger.end(ending)
        except BudgetError as error:
            logger.error("%s", error)  # noqa: TRY400

    # ---- steps without waiting --------------------------------------------------------------------

    def _admit(self, request: APIRequest) -> str:
        """What kind of request this is.

        Raises:
            Unmetered: it can bill, and nothing here can price it.
        """
        kind = classify_path(request.method, request.url)
        if kind in {"free", "count_tokens"}:
            return kind
        if self._listener is not None:
            self._listener.before_call()
        if kind == "batches_create":
            if self._passes is not None and self._passes.lets_batch_through(
                request.headers.get(HOLD_HEADER)
            ):
                return "free"  # its hold is there: orchestrator.batches made it and ends it
            raise Unmetered(
                "message batches run for hours, so their hold needs a job that outlives this client: use "
                "orchestrator.batches.run_batches(run, items), or send the requests one by one "
                "(client.messages.create); nothing was sent"
            )
        if kind == "unmetered":
            raise Unmetered(
                f"{request.method.upper()} {request.url}: this request can bill and no price is known for it, "
                "so it was not sent; use a client without a meter and watch its spend yourself"
            )
        return kind

    def _read(self, request: APIRequest) -> Attempt:
        body = request.json
        if not isinstance(body, Mapping):
            raise Unmetered(
                f"{request.method.upper()} {request.url}: its body is not JSON, so it can't be priced"
            )
        raise_swallowed(body)
        try:
            reading = read_request(
                body,
                betas=betas_of(request),
                allow=words_here(self.allow),
                context_window=self.prices.context_window(str(body.get("model"))),
                history=self._thread_of(body),
            )
        except BudgetError as error:
            self._hear_decline(error)
            raise
        return Attempt(
            self, reading, current_call(), trace.get_current_span(), threaded="thread" in body
        )

    def _request(self, attempt: Attempt, shape: Shape, *, latch: bool = True) -> HoldRequest:
        try:
            nanos = bound(shape, self.prices, datetime.now(UTC))
        except BudgetError as error:
            self._hear_decline(error)
            raise
        note: dict[str, Any] = {}
        if attempt.call.agent:
            note["agent"] = attempt.call.agent
        if attempt.call.unit:
            note["unit"] = attempt.call.unit
        if shape.word:
            note["caller_word"] = list(shape.word)
        return self.ledger.request(
            nanos,
            scope=self.scope,
            model=attempt.reading.model,
            note=note,
            latch=latch and may_latch(),
            tied=tied_nanos(),
        )

    def _count_could_help(self, reading: Reading, declined: BudgetExceeded) -> bool:
        """Whether the bound would fit if the input counted for almost nothing."""
        if declined.latched and not self.ledger.draws_here:
            return False
        room = declined.cap.amount - declined.posted - declined.in_doubt
        least = bound(reading.tighten(0), self.prices, datetime.now(UTC))
        return least <= room * 1_000_000_000

    def _held(self, attempt: Attempt, hold: Hold) -> None:
        attempt.hold = hold
        if self._listener is not None:
            self._listener.held(attempt)

    def _not_sent(self, attempt: Attempt, error: BaseException) -> None:
        """Nothing was sent: give the hold back, free the slot, remember a decline."""
        attempt.was_sent = False
        if attempt.hold is not None:
            attempt.abandon(error)
        else:
            attempt.ended = True
            if attempt.ticket is not None:
                attempt.ticket.close()
        if isinstance(error, BudgetError):
            self._hear_decline(error)

    def _hear_decline(self, error: BudgetError) -> None:
        if isinstance(error, BudgetExceeded):
            remember_decline(error)
        if self._listener is not None:
            self._listener.declined(error)

    def _prepare(
        self, attempt: Attempt, request: APIRequest, headers: dict[str, str]
    ) -> APIRequest:
        if self._listener is not None:
            self._listener.before_call()  # it may have been stopped while the call waited
        if self._passes is not None:
            headers[HOLD_HEADER] = self._passes.issue(attempt)
        return prepared(request, attempt.reading, headers)

    def _is_stream(self, attempt: Attempt, response: httpx2.Response) -> bool:
        """A successful stream is settled when it ends; everything else now."""
        if not attempt.reading.stream or not 200 <= response.status_code < 300:
            return False
        attempt.start_stream(response.status_code, response.headers)
        self._mark_span(attempt, "doubt", attempt.held_nanos)
        return True

    # ---- retries ----------------------------------------------------------------------------------

    def _give_up(self, request: APIRequest, error: APIConnectionError) -> None:
        """Our tries are used up: should the client repeat the call all the same, it gets this again."""
        self._given_up[str(request.options.idempotency_key)] = str(error)
        if len(self._given_up) > _GIVEN_UP_MAX:
            self._given_up.popitem(last=False)

    def _raise_given_up(self, request: APIRequest) -> None:
        message = self._given_up.get(str(request.options.idempotency_key))
        if request.retries_taken and message is not None:
            plain = httpx2.Request(request.method, request.url)
            raise APIConnectionError(message=message, request=plain)

    def _retrying(self, state: Any) -> None:
        if self._listener is not None:
            answer = None if state.outcome.failed else state.outcome.result()
            self._listener.retrying(
                answer and answer.error, state.attempt_number, state.upcoming_sleep
            )

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
        self._mark_span(attempt, ending.kind, charged)
        if self._listener is not None:
            try:
                self._listener.ended(attempt, ending)
            except Exception:
                logger.exception("a listener failed")

    def _mark_span(self, attempt: Attempt, outcome: str, nanos: int) -> None:
        """A stream is marked in doubt as it opens: its span may end before its hold does."""
        scope = attempt.hold.scope if attempt.hold else self.scope
        mark_span(attempt.span, scope=scope, outcome=outcome, nanos=nanos)


def _last_word(answer: Answer) -> Any:
    """Whoever retries here is the only one: the client's own retries are not to multiply it."""
    if answer.error is not None:
        do_not_repeat(plain_of(answer.response))
    return answer.response
