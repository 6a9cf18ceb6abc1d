"""The meter: prices, holds, sends and settles every billable request of an official client.

A middleware of ``AsyncAnthropic`` and ``Anthropic``; it goes last in the list (innermost), where it runs
once per HTTP attempt. The order of a call's life is here; its money's way is in ``metering``, its arithmetic
in ``attempt``, what a request can cost in ``wire``, and who may go now in the gate and the ledger.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import httpx2
from anthropic import APIConnectionError, APIError, APIRequest, Middleware
from sniffio import current_async_library_cvar

from budgets.errors import BudgetError, BudgetExceeded
from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.shape import Shape

from .attempt import Attempt
from .context import current_call
from .errors import Unmetered
from .gate import Gate
from .incoming import do_not_repeat, plain_of
from .lingering import Lingering
from .listener import Listener
from .metered_stream import watch
from .metering import Metering
from .outgoing import betas_of, count_request, model_of, prepared, tightened
from .retry import Answer, Retry
from .swallowed import raise_swallowed, remember_decline
from .transport import HOLD_HEADER, Passes
from .wire import Allowances, classify_path

logger = logging.getLogger("earmark")

_GIVEN_UP_MAX = 1_000


class Meter(Metering, Middleware):
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
        super().__init__(
            ledger,
            scope,
            gate=gate,
            prices=prices,
            allow=allow,
            deadline=deadline,
            listener=listener,
        )
        self.retry = retry
        self._passes = passes
        self._lingering = Lingering(off=passes is not None)
        self._given_up: OrderedDict[str, str] = OrderedDict()

    # ---- the async client -------------------------------------------------------------------------

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client, once per HTTP attempt."""
        kind = self._admit(request)
        if current_async_library_cvar.get() is None:
            # Said once, it spares the HTTP library some thirty looks at the current task for each call.
            current_async_library_cvar.set("asyncio")
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
            await self.hold_async(attempt, lambda: self._counted_async(attempt, request, call_next))
            await attempt.ticket.pace(
                input_tokens=attempt.reading.estimate_input,
                output_tokens=attempt.reading.max_tokens,
                deadline=self.deadline,
            )
            await self._lingering.make_room()
            sent = self._prepare(
                attempt, request, self._lingering.headers(request, attempt.reading)
            )
        except BaseException as error:
            self.not_sent(attempt, error)
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
                await self.end_async(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if ending is not None:
            await self.end_async(attempt, ending)
        if failure is not None and not failure.retryable:
            do_not_repeat(plain)
        return Answer(response, failure)

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
        with await self.count_ticket_async(model_of(request)) as ticket:
            await self._lingering.make_room()
            response = await call_next(request)
            plain = plain_of(response)
            ticket.observe(plain.status_code, plain.headers)
            return response

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
            self.hold(attempt, lambda: self._counted(attempt, request, call_next))
            attempt.ticket.pace_sync(
                input_tokens=attempt.reading.estimate_input,
                output_tokens=attempt.reading.max_tokens,
                deadline=self.deadline,
            )
            sent = self._prepare(attempt, request, {})
        except BaseException as error:
            self.not_sent(attempt, error)
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
                self.end(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if ending is not None:
            self.end(attempt, ending)
        if failure is not None and not failure.retryable:
            do_not_repeat(plain)
        return Answer(response, failure)

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
        with self.count_ticket(model_of(request)) as ticket:
            response = call_next(request)
            plain = plain_of(response)
            ticket.observe(plain.status_code, plain.headers)
            return response

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
        return self.attempt(body, betas_of(request), current_call())

    def hear_decline(self, error: BudgetError) -> None:
        """A call was declined; a tool loop may swallow that."""
        if isinstance(error, BudgetExceeded):
            remember_decline(error)
        super().hear_decline(error)

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
        self.mark(attempt, "doubt", attempt.held_nanos)
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


def _last_word(answer: Answer) -> Any:
    """Whoever retries here is the only one: the client's own retries are not to multiply it."""
    if answer.error is not None:
        do_not_repeat(plain_of(answer.response))
    return answer.response
