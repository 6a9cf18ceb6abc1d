"""One HTTP attempt as money sees it: from its request to the one way in which its hold ends.

Pure steps, shared by the async and the sync meter; nothing here waits or sends.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from anthropic import APIConnectionError

from budgets.errors import BudgetError, UnknownPrice
from budgets.money import format_usd
from budgets.pricing import CacheEffect, cache_effect, cost
from budgets.records import Ending, Hold
from budgets.usage import Usage

from .context import TOKENS, CallContext
from .gate import Ticket
from .wire import ErrorKind, Reading, StreamReader, classify, counted_for_limits, read_usage
from .wire.json_body import json_of
from .wire.usages import said_once

if TYPE_CHECKING:
    from .metering import Metering

logger = logging.getLogger("earmark")

Fate = Literal["settle", "void", "doubt"]

#: The status that an error would have had, had it not come inside a stream.
_LATE_STATUS = {"rate_limited": 429, "overloaded": 529}

#: The connection was never made, so nothing can have been billed.
_NEVER_CONNECTED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)

#: Steps of the SDK that come before a request is sent.
_BEFORE_SENDING = frozenset({"_prepare_options", "_build_request", "_prepare_request"})

#: Streams that this context holds open: their money is not freed while it waits for more. Weak: a
#: stream that was dropped must be collected, and so end, though its context lives on.
_open_streams: ContextVar[tuple[weakref.ref[Attempt], ...]] = ContextVar(
    "earmark_open_streams", default=()
)


def _streams_open_here() -> list[Attempt]:
    found = [reference() for reference in _open_streams.get()]
    return [attempt for attempt in found if attempt is not None and attempt.is_open]


def tied_nanos() -> int:
    """Held money of the streams that the caller itself has open."""
    return sum(one.held_nanos for one in _streams_open_here())


class Attempt:
    """State of one attempt; ends its hold exactly once, at the latest when it is collected."""

    __slots__ = (
        "__weakref__",
        "begun_at",
        "call",
        "effect",
        "ended",
        "failure",
        "hold",
        "meter",
        "reader",
        "reading",
        "request_id",
        "span",
        "status",
        "threaded",
        "ticket",
        "was_sent",
    )

    def __init__(
        self, meter: Metering, reading: Reading, call: CallContext, span: Any, *, threaded: bool
    ) -> None:
        self.meter = meter
        self.reading = reading
        self.call = call
        self.effect: CacheEffect | None = None
        self.span = span
        self.threaded = threaded
        self.request_id = ""
        self.failure: ErrorKind | None = None
        self.hold: Hold | None = None
        self.ticket: Ticket | None = None
        self.reader: StreamReader | None = None
        self.ended = False
        self.status = 0
        self.begun_at = time.monotonic()
        #: Set by the transport guard: whether its first byte can have left; None where nobody can tell.
        self.was_sent: bool | None = None

    @property
    def held_nanos(self) -> int:
        """What is held for it."""
        return 0 if self.hold is None else self.hold.nanos

    @property
    def is_batch(self) -> bool:
        """An attempt is of a single call."""
        return False

    @property
    def is_open(self) -> bool:
        """Its hold counts still."""
        return not self.ended

    def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        """The response is a stream: from here on its events decide."""
        self.status = status
        self.request_id = headers.get("request-id", "")
        self.reader = StreamReader(self.reading.shape)
        if self.ticket is not None:
            self.ticket.observe(status, headers)
        live = (weakref.ref(one) for one in _streams_open_here())
        _open_streams.set((*live, weakref.ref(self)))

    # ---- how it ends ------------------------------------------------------------------------------

    def of_answer(
        self, status: int, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[Ending, ErrorKind | None]:
        """How a complete (not streamed) response ends the hold."""
        self.status = status
        self.request_id = headers.get("request-id", "")
        kind = classify(status, _json(body), headers) if status >= 400 else None
        self.failure = kind
        if self.ticket is not None:
            # Being out of money is no sign of going too fast, though it may come as 429.
            spent = kind is not None and kind.word == "spend_limit"
            self.ticket.observe(402 if spent else status, headers)
        if kind is not None:
            note = {"reason": f"{status} {kind.word}", "error": kind.reason}
            return self._ending("void", note=note), kind
        message = _json(None if body is None else said_once(body))
        if not 200 <= status < 300 or message is None or "content" not in message:
            unread = {"reason": f"{status} without a message that can be read"}
            return self._ending("doubt", note=unread), None
        usage = read_usage(message, requested=self.reading.shape)
        facts = {"stop_reason": message.get("stop_reason"), "message": message.get("id")}
        if self.call.keep is not None:
            facts["kept"] = self.call.keep(message)
        return self.of_usage(usage, facts), None

    def of_usage(self, usage: Usage | None, note: dict[str, Any]) -> Ending:
        """How a final usage ends the hold. Without one, or without a price, the whole hold is posted."""
        hold = self.hold
        assert hold is not None
        if usage is None:
            self.meter.warn_once(
                f"an answer of {self.reading.model} came without a usage that can be believed, so its whole hold is "
                "posted; such lines are marked 'unpriced' (this is said once)"
            )
            return self._ending("settle", nanos=hold.nanos, note={**note, "unpriced": "no usage"})
        if self.threaded and note.get("message"):
            self.meter.remember_thread(str(note["message"]), self.reading, usage)
        if self.ticket is not None:
            counted = counted_for_limits(usage)
            self.ticket.usage(
                input_tokens=counted.input_tokens, output_tokens=counted.output_tokens
            )
        try:
            nanos = cost(usage, self.meter.prices, hold.held_at)
            if usage.touches_cache:
                self.effect = cache_effect(usage, self.meter.prices, hold.held_at)
        except BudgetError as error:
            why = str(error)
            if isinstance(error, UnknownPrice):
                near = ", ".join(error.nearest)
                why = (
                    f"no price is known for {error.model!r}, the model that answered"
                    f"{f' (the nearest known names are {near})' if near else ''}; add it to a price file"
                )
            logger.error(  # noqa: TRY400
                "a call was sent and answered, and its cost can't be worked out: %s. The whole hold %s of %s is posted",
                why,
                hold.id,
                format_usd(hold.nanos),
            )
            nanos, note = hold.nanos, {**note, "unpriced": why}
        return self._ending("settle", nanos=nanos, usage=usage, note=note)

    def of_failure(self, error: BaseException) -> Ending:
        """How an exception in place of a response ends the hold."""
        name = type(error).__name__
        if self.status >= 400:
            # Its body could not be read, but an error status was there before any output.
            return self._ending("void", note={"reason": f"{self.status}, then {name}"})
        if self.was_sent is False or _was_being_prepared(error):
            return self._ending("void", note={"reason": f"{name} before it was sent"})
        if never_connected(error):
            return self._ending(
                "void", note={"reason": f"{type(error.__cause__).__name__}: no connection"}
            )
        cause = error.__cause__
        inner = f" ({type(cause).__name__})" if isinstance(cause, Exception) else ""
        return self._ending("doubt", note={"reason": f"{name}{inner} after it was sent"})

    def of_events(self) -> Ending | None:
        """How the events of a stream end the hold, once they decide it; None before."""
        reader = self.reader
        assert reader is not None
        return self.of_stream(None) if reader.finished or reader.error is not None else None

    def of_stream(self, error: BaseException | None) -> Ending:
        """How the end of a stream, proper or not, ends the hold."""
        reader = self.reader
        assert reader is not None
        note: dict[str, Any] = {
            "stop_reason": reader.stop_reason,
            "message": reader.message_id,
            "stream": True,
        }
        if reader.finished:
            return self.of_usage(reader.usage, note)
        if reader.error is not None:
            kind = classify(200, reader.error)
            note["error"] = kind.reason
            if self.ticket is not None and kind.word in _LATE_STATUS:
                self.ticket.observe(_LATE_STATUS[kind.word], {})
            if not reader.begun:
                return self._ending(
                    "void", note={**note, "reason": f"{kind.word} before any output"}
                )
            return self._ending("doubt", note={**note, "reason": f"stream cut: {kind.word}"})
        why = type(error).__name__ if error is not None else "it ended without its final usage"
        return self._ending("doubt", note={**note, "reason": f"stream cut: {why}"})

    def _ending(
        self,
        kind: Fate,
        *,
        nanos: int = 0,
        usage: Usage | None = None,
        note: dict[str, Any],
    ) -> Ending:
        assert self.hold is not None
        facts = {name: value for name, value in note.items() if value is not None}
        if self.request_id:
            facts["request_id"] = self.request_id
        return Ending(
            hold=self.hold.id,
            kind=kind,
            nanos=nanos,
            usage=None if usage is None else usage_record(usage),
            note=facts,
        )

    # ---- the last word ----------------------------------------------------------------------------

    def finish(self, ending: Ending) -> None:
        """Everything that follows the end of a hold, but for writing it down."""
        self.ended = True
        if self.ticket is not None:
            self.ticket.close()
        if self.hold is not None:
            for tally in self.call.tallies:
                tally.add(self.hold, ending, self.effect)
        self.meter.tell(self, ending)

    def abandon(self, error: BaseException | None) -> None:
        """End it without waiting: from a finalizer, or while being cancelled. Does nothing if it has ended."""
        if self.ended or self.hold is None:
            if not self.ended and self.ticket is not None:
                self.ticket.close()
            return
        ending = (
            self.of_stream(error)
            if self.reader is not None
            else self.of_failure(error or _Dropped())
        )
        self.finish(ending)
        self.meter.ledger.end_soon(ending)

    def __del__(self) -> None:
        if not self.ended and self.hold is not None:
            self.abandon(None)


def never_connected(error: BaseException) -> bool:
    """True if an error of the SDK says that no connection was made, so that nothing can have been billed."""
    return isinstance(error, APIConnectionError) and isinstance(error.__cause__, _NEVER_CONNECTED)


_RECORDED = tuple(
    field.name for field in fields(Usage) if field.name not in {"parts", "unsplit_ttl"}
)
_recorded = attrgetter(*_RECORDED)


class _Dropped(Exception):
    """A reason, never raised."""


def usage_record(usage: Usage) -> dict[str, Any]:
    """A usage as it is written down: everything that its cost is derived from, zeros left out."""
    record: dict[str, Any] = {
        name: value
        for name, value in zip(_RECORDED, _recorded(usage), strict=True)
        if value and value != "standard"
    }
    unsplit = usage.cache_write_unsplit
    record["input_tokens"] = usage.input_tokens
    record["output_tokens"] = usage.output_tokens
    record["cache_read_tokens"] = usage.cache_read
    record["cache_write_tokens"] = usage.cache_write_5m + usage.cache_write_1h + unsplit
    if usage.parts:
        # Where iterations are listed they are the bill, and the totals must say so.
        record["parts"] = parts = [usage_record(part) for part in usage.parts]
        for name in TOKENS:
            record[name] = sum(part[name] for part in parts)
        unsplit += sum(part.cache_write_unsplit for part in usage.parts)
    if unsplit:
        record["unsplit_ttl"] = usage.unsplit_ttl
    return record


def _json(body: bytes | None) -> dict[str, Any] | None:
    try:
        value = json_of(body or b"")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _was_being_prepared(error: BaseException) -> bool:
    """Whether the SDK was still building the request (no key, say), so that nothing can have left."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name in _BEFORE_SENDING:
            module = str(trace.tb_frame.f_globals.get("__name__", ""))
            return module.partition(".")[0] == "anthropic"
        trace = trace.tb_next
    return False
