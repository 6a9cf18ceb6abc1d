"""The meter: prices, holds, sends and settles every billable request of an official client.

A middleware of ``AsyncAnthropic`` and ``Anthropic``; it goes last in the list (innermost), where it runs
once per HTTP attempt. The order of a call's life is here; its arithmetic is in ``attempt``, what a request
can cost in ``wire``, and who may go now in the gate and the ledger.
"""

from __future__ import annotations

import contextlib
import logging
import re
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import anthropic
from anthropic import APIRequest, Middleware
from anthropic.types import MessageTokensCount
from opentelemetry import trace

from budgets.errors import BudgetError, BudgetExceeded
from budgets.ledger import Ledger
from budgets.prices import PriceBook, default_book
from budgets.pricing import bound
from budgets.records import Ending, Hold
from budgets.scopes import normal_scope
from budgets.shape import Shape
from budgets.usage import Usage

from .attempt import Attempt, open_streams, tied_nanos
from .context import current_call
from .errors import Unmetered
from .gate import Gate
from .metered_stream import ATTEMPT, MeteredAsyncStream, MeteredStream
from .retry import Answer, Retry
from .transport import HOLD_HEADER, Passes
from .wire import Allowances, ErrorKind, History, Reading, classify_path, read_request
from .wire.counts import read_count

logger = logging.getLogger("earmark")

_DECLINE_ID = re.compile(r"decline-[0-9a-f]{12}")
_THREADS_MAX = 10_000
_DECLINES_MAX = 1_000

#: Meters on one ledger share a gate unless they are given one: they share the key's limits, too.
_default_gates: weakref.WeakKeyDictionary[Ledger, Gate] = weakref.WeakKeyDictionary()


class Listener(Protocol):
    """Hears what a meter does; ``Run`` journals it."""

    def before_call(self) -> None:
        """Called before anything else; raise to keep the call from being made."""

    def held(self, attempt: Attempt) -> None:
        """A hold was made."""

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        """A hold ends so; it is being written."""

    def declined(self, error: BudgetError) -> None:
        """A call was declined."""

    def retrying(self, error: ErrorKind | None, tries: int, wait_s: float) -> None:
        """A try failed and will be repeated."""


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
        self._threads: OrderedDict[str, History] = OrderedDict()
        self._declines: OrderedDict[str, BudgetExceeded] = OrderedDict()

    # ---- the async client -------------------------------------------------------------------------

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client, once per HTTP attempt."""
        kind = self._admit(request)
        if kind == "free":
            return await call_next(request)
        if kind == "count_tokens":
            return await self._count_gated_async(request, call_next)
        if self.retry is None:
            return (await self._once_async(request, call_next)).response
        retrying = self.retry.asynchronous(self.deadline, self._retrying)
        return (await retrying(self._once_async, request, call_next)).response

    async def _once_async(self, request: APIRequest, call_next: Any) -> Answer:
        attempt = self._read(request)
        attempt.ticket = await self.gate.enter(attempt.reading.model, self.deadline)
        try:
            await self._hold_async(attempt, request, call_next)
            await attempt.ticket.pace(**_pace(attempt, self.deadline))
        except BaseException as error:
            self._not_sent(attempt, error)
            raise
        sent = self._prepare(attempt, request, MeteredAsyncStream)
        try:
            response = await call_next(sent)
            body = (
                None
                if self._is_stream(attempt, response)
                else await _read_async(response.http_response)
            )
        except Exception as error:
            if not attempt.ended:
                await self._end_async(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if body is None:
            return Answer(response, None)
        ending, failure = attempt.of_answer(response.status_code, body, response.headers)
        await self._end_async(attempt, ending)
        return Answer(response, self._final(response, failure))

    async def _hold_async(self, attempt: Attempt, request: APIRequest, call_next: Any) -> None:
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = await self._counted_async(attempt, request, call_next)
        elif reading.countable is not None:
            try:
                self._held(
                    attempt, await self.ledger.hold_async(self._request(attempt, shape, probe=True))
                )
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = await self._counted_async(attempt, request, call_next)
            else:
                return
        self._held(attempt, await self.ledger.hold_async(self._request(attempt, shape)))

    async def _counted_async(self, attempt: Attempt, request: APIRequest, call_next: Any) -> Shape:
        counting = _count_request(request, attempt.reading)
        response = await self._count_gated_async(counting, call_next)
        return _tightened(
            attempt.reading, response.status_code, await _read_async(response.http_response)
        )

    async def _count_gated_async(self, request: APIRequest, call_next: Any) -> Any:
        ticket = await self.gate.enter(_model_of(request), self.deadline, lane="count_tokens")
        with ticket:
            await ticket.pace(input_tokens=0, output_tokens=0, deadline=self.deadline)
            response = await call_next(request)
            ticket.observe(response.status_code, response.headers)
            return response

    async def _end_async(self, attempt: Attempt, ending: Ending) -> None:
        attempt.finish(ending)
        await self.write_async(ending)

    async def write_async(self, ending: Ending) -> None:
        """Write an ending. The answer is paid for: a fault of the ledger is logged, its hold stays."""
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
        retrying = self.retry.blocking(self.deadline, self._retrying)
        return retrying(self._once, request, call_next).response

    def _once(self, request: APIRequest, call_next: Any) -> Answer:
        attempt = self._read(request)
        attempt.ticket = self.gate.enter_sync(attempt.reading.model, self.deadline)
        try:
            self._hold(attempt, request, call_next)
            attempt.ticket.pace_sync(**_pace(attempt, self.deadline))
        except BaseException as error:
            self._not_sent(attempt, error)
            raise
        sent = self._prepare(attempt, request, MeteredStream)
        try:
            response = call_next(sent)
            body = None if self._is_stream(attempt, response) else response.http_response.read()
        except Exception as error:
            if not attempt.ended:
                self._end(attempt, attempt.of_failure(error))
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if body is None:
            return Answer(response, None)
        ending, failure = attempt.of_answer(response.status_code, body, response.headers)
        self._end(attempt, ending)
        return Answer(response, self._final(response, failure))

    def _hold(self, attempt: Attempt, request: APIRequest, call_next: Any) -> None:
        reading = attempt.reading
        shape = reading.shape
        if reading.needs_count:
            shape = self._counted(attempt, request, call_next)
        elif reading.countable is not None:
            try:
                self._held(attempt, self.ledger.hold(self._request(attempt, shape, probe=True)))
            except BudgetExceeded as declined:
                if self._count_could_help(reading, declined):
                    shape = self._counted(attempt, request, call_next)
            else:
                return
        self._held(attempt, self.ledger.hold(self._request(attempt, shape)))

    def _counted(self, attempt: Attempt, request: APIRequest, call_next: Any) -> Shape:
        counting = _count_request(request, attempt.reading)
        response = self._count_gated(counting, call_next)
        return _tightened(attempt.reading, response.status_code, response.http_response.read())

    def _count_gated(self, request: APIRequest, call_next: Any) -> Any:
        ticket = self.gate.enter_sync(_model_of(request), self.deadline, lane="count_tokens")
        with ticket:
            ticket.pace_sync(input_tokens=0, output_tokens=0, deadline=self.deadline)
            response = call_next(request)
            ticket.observe(response.status_code, response.headers)
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
            raise Unmetered(
                "message batches are not metered yet, so this client does not send them; send the requests one by "
                "one (client.messages.create), or use a client without a meter and watch its spend yourself"
            )
        if kind == "unmetered":
            raise Unmetered(
                f"{request.method} {request.url}: this request can bill and no price is known for it, so it was not "
                "sent; use a client without a meter and watch its spend yourself"
            )
        return kind

    def _read(self, request: APIRequest) -> Attempt:
        body = request.json
        if not isinstance(body, Mapping):
            raise Unmetered(
                f"{request.method} {request.url}: its body is not JSON, so it can't be priced"
            )
        self._raise_swallowed(body)
        try:
            reading = read_request(
                body,
                betas=_betas(request.headers),
                allow=self.allow,
                context_window=self.prices.context_window(str(body.get("model"))),
                history=self._thread_of(body),
            )
        except BudgetError as error:
            self._hear_decline(error)
            raise
        return Attempt(
            self, reading, current_call(), trace.get_current_span(), threaded="thread" in body
        )

    def _raise_swallowed(self, body: Mapping[str, Any]) -> None:
        """End a tool loop that turned our decline into a tool result: raise it again."""
        if not self._declines:
            return
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        content = last.get("content") if isinstance(last, Mapping) else None
        if not isinstance(content, list):
            return
        for block in content:
            if (
                isinstance(block, Mapping)
                and block.get("type") == "tool_result"
                and block.get("is_error")
            ):
                for found in _DECLINE_ID.findall(str(block.get("content"))):
                    if found in self._declines:
                        raise self._declines[found]

    def _request(self, attempt: Attempt, shape: Shape, *, probe: bool = False) -> Any:
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
            wait=not probe,
            latch=not probe,
            tied=tied_nanos(),
        )

    def _count_could_help(self, reading: Reading, declined: BudgetExceeded) -> bool:
        """Whether the bound would fit if the input counted for almost nothing."""
        if declined.latched:
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
            self._declines[error.id] = error
            if len(self._declines) > _DECLINES_MAX:
                self._declines.popitem(last=False)
        if self._listener is not None:
            self._listener.declined(error)

    def _prepare(self, attempt: Attempt, request: APIRequest, stream_class: Any) -> APIRequest:
        """The request as it will be sent: with the limits that make the hold bind, and a stream that settles."""
        reading = attempt.reading
        options = request.options.model_copy()
        if reading.changes:
            options.json_data = {**request.json, **reading.changes}  # type: ignore[dict-item]
        if self._passes is not None:
            options.headers = {**request.headers, HOLD_HEADER: self._passes.issue(attempt)}
        stream_cls = request.stream_cls
        if request.stream:
            stream_cls = _metered(stream_class, stream_cls)
        return APIRequest(
            options=options,
            cast_to=request.cast_to,
            stream=request.stream,
            stream_cls=stream_cls,
            retries_taken=request.retries_taken,
        )

    def _is_stream(self, attempt: Attempt, response: Any) -> bool:
        """A successful stream is settled when it ends; everything else now."""
        plain = response.http_response
        if not attempt.reading.stream or not 200 <= plain.status_code < 300:
            return False
        attempt.start_stream(plain.status_code, plain.headers)
        plain.extensions[ATTEMPT] = attempt
        live = tuple(other for other in open_streams.get() if other.is_open)
        open_streams.set((*live, attempt))
        return True

    def _final(self, response: Any, failure: ErrorKind | None) -> ErrorKind | None:
        """Keep the client from repeating what repeating can't help."""
        if failure is not None and not failure.retryable:
            response.http_response.headers["x-should-retry"] = "false"
        return failure

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

    def tell(self, attempt: Attempt, ending: Ending) -> None:
        """Pass an end on to the listener and to the SDK's own span."""
        with contextlib.suppress(Exception):
            if attempt.span.is_recording():
                attempt.span.set_attribute(
                    "earmark.scope", attempt.hold.scope if attempt.hold else self.scope
                )
                attempt.span.set_attribute("earmark.outcome", ending.kind)
                attempt.span.set_attribute("earmark.cost_nanos", ending.nanos)
        if self._listener is not None:
            self._listener.ended(attempt, ending)


def _pace(attempt: Attempt, deadline: float | None) -> dict[str, Any]:
    return {
        "input_tokens": attempt.reading.estimate_input,
        "output_tokens": attempt.reading.max_tokens,
        "deadline": deadline,
    }


def _metered(stream_class: Any, asked: Any) -> Any:
    """The metered class for the events that the caller asked for."""
    arguments = getattr(asked, "__args__", None)
    return stream_class[arguments[0]] if arguments else stream_class


def _betas(headers: Mapping[str, Any]) -> tuple[str, ...]:
    value = headers.get("anthropic-beta")
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()


def _model_of(request: APIRequest) -> str:
    body = request.json
    return str(body.get("model", "")) if isinstance(body, Mapping) else ""


def _count_request(request: APIRequest, reading: Reading) -> APIRequest:
    """The same conversation for the token counter, which is free."""
    options = request.options.model_copy()
    options.url = "/v1/messages/count_tokens"
    options.json_data = reading.countable
    options.post_parser = anthropic.NOT_GIVEN
    return APIRequest(options=options, cast_to=MessageTokensCount)


def _tightened(reading: Reading, status: int, body: bytes) -> Shape:
    """The shape by the counter's figure; the shape by bytes if the counter did not answer."""
    count = read_count(status, body)
    return reading.shape if count is None else reading.tighten(count)


async def _read_async(response: Any) -> bytes:
    return bytes(await response.aread())
