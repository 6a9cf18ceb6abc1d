"""One metered request from its arrival to the end of its hold, whether its client stays or not.

The way of its money is ``metering``'s, the same as in process. It runs in the server's task for this request,
in the context of its lease: a client that leaves before anything was sent gives up its place; one that leaves later is
forgotten, and the answer is read to its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from budgets.errors import BudgetError, BudgetExceeded
from budgets.scopes import scope
from budgets.shape import Shape
from orchestrator.attempt import Attempt
from orchestrator.context import current_call
from orchestrator.encodings import Unreadable, decoder_of
from orchestrator.errors import OrchestratorError
from orchestrator.gate import NestedTooDeep, RateDeadline
from orchestrator.wire import Reading
from orchestrator.wire.counts import read_count

from .attribution import NOBODY, Caller
from .blotting import Passage
from .body import LARGE, read_json
from .passing import BadHeader, betas_of, to_client, to_upstream
from .patience import Patience
from .relay import relay
from .replies import (
    Refusal,
    lease_ended,
    not_allowed,
    of_error,
    out_of_money,
    still_held,
    stopping,
    too_slow,
)
from .upstream import UpstreamFault, why_none

if TYPE_CHECKING:
    from .gateway import Gateway
    from .lease import Account, Lease

logger = logging.getLogger("earmark")

#: Of the time that a client says it has patience for, the part that may be spent waiting.
_SHARE_OF_TIMEOUT = 0.8
#: Seconds for a call to get through the gate where nothing is in its way, however little it may wait for money.
_LEAST_S = 1.0
_COUNTER = "/v1/messages/count_tokens"


class Exchange:
    """One request to ``/v1/messages`` and its answer.

    Attributes:
        http: the client's request.
        task: does it; the server's own for this request.
        is_sent: its first byte can have left.
        is_alone: nobody listens any more.
        writing_since: when a write to the client began that has not ended, in seconds of the loop; 0 for none.
        waits_until: when it gives up waiting for held money, in seconds of the loop; 0 while it does not wait.
    """

    __slots__ = (
        "_accounts",
        "_attempt",
        "_begun",
        "_body",
        "_gateway",
        "_headers",
        "_is_late",
        "_lease",
        "_patience",
        "_raw",
        "_target",
        "http",
        "is_alone",
        "is_sent",
        "task",
        "waits_until",
        "writing_since",
    )

    def __init__(
        self, gateway: Gateway, lease: Lease, http: web.BaseRequest, target: str, raw: bytes
    ) -> None:
        self._gateway = gateway
        self._lease = lease
        self.http = http
        self._target = target
        self._raw = raw
        self._body: dict[str, Any] = {}
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._accounts: tuple[Account, ...] = lease.accounts_of(NOBODY)
        self._patience: Patience | None = None
        self._attempt: Attempt | None = None
        #: The response, if the client got its headers while it waited.
        self._begun: web.StreamResponse | None = None
        self._is_late = False
        self.task = asyncio.current_task()
        self.is_sent = False
        self.is_alone = False
        self.writing_since = 0.0
        self.waits_until = 0.0

    # ---- the client may leave ---------------------------------------------------------------------

    def client_left(self) -> None:
        """Nobody listens any more. What was not sent is given up, what was sent is read to its end."""
        if self.is_alone or self.task is None:
            return
        self.is_alone = True
        if self.is_sent:
            # Its slot is for those who wait for an answer; ``drains`` bounds what goes on without one.
            if self._attempt is not None and self._attempt.ticket is not None:
                self._attempt.ticket.close()
            self._gateway.drains.adopt(self.task)
        else:
            self.task.cancel()

    def drop_client(self) -> None:
        """Its lease has ended, or it takes nothing: close its connection."""
        transport = self.http.transport
        if transport is not None:
            transport.abort()
        self.client_left()

    def give_up(self) -> None:
        """Neither its client nor the ledger waits for its answer any more."""
        self.drop_client()
        if self.task is not None:
            self.task.cancel()

    def wait_no_longer(self) -> None:
        """It has waited long enough for held money."""
        if self.task is not None and self.waits_until:
            self.waits_until = 0.0
            self._is_late = True
            self.task.cancel()

    # ---- its way ----------------------------------------------------------------------------------

    async def run(self) -> web.StreamResponse:
        """Do it. Returns the response to the client, or, where nobody listens, one that goes nowhere."""
        self._lease.begin(self)
        for variable, value in self._lease.context.items():
            variable.set(value)  # the task, and so its context, is this request's own
        try:
            return await self._answer()
        except Refusal as refusal:
            return await self._refuse(refusal)
        finally:
            if self._patience is not None:
                await self._patience.end()
            self._lease.end(self)

    async def _answer(self) -> web.StreamResponse:
        self._body = await self._read()
        caller = self._lease.family.place(self.http.headers, self._body)
        self._accounts = self._lease.accounts_of(caller)
        try:
            self._headers = to_upstream(self.http.raw_headers, self._gateway.upstream.credentials)
            with _places(self._lease, caller):
                attempt = await self._admitted(caller)
        except BadHeader as error:
            raise Refusal(400, f"{error}; nothing was sent", reason="invalid") from None
        except BudgetError as error:
            raise self._declined(of_error(error, is_subagent=caller.is_subagent)) from None
        except RateDeadline as error:
            raise self._declined(too_slow(error)) from None
        except NestedTooDeep as error:
            raise self._declined(Refusal(503, str(error), reason="rate")) from None
        except OrchestratorError as error:  # whoever lends says no: its run is stopped, say
            raise self._declined(not_allowed(error, is_subagent=caller.is_subagent)) from None
        return await self._exchange(attempt)

    async def _read(self) -> dict[str, Any]:
        if len(self._raw) < LARGE:
            return read_json(self._raw)
        return await asyncio.to_thread(read_json, self._raw)

    async def _admitted(self, caller: Caller) -> Attempt:
        """The attempt, with its slot, its hold and its turn.

        Raises:
            BudgetError, RateDeadline, NestedTooDeep, Refusal: nothing was sent and nothing is held.
        """
        metering, lease = self._lease.metering, self._lease
        call = current_call()
        call = replace(
            call,
            agent=caller.agent or call.agent,
            parent=caller.parent or call.parent,
            tallies=(*call.tallies, *(one.tally for one in self._accounts)),
        )
        betas = betas_of(self.http.headers)
        if len(self._raw) < LARGE:
            attempt = metering.attempt(self._body, betas, call)
        else:
            attempt = await asyncio.to_thread(metering.attempt, self._body, betas, call)
        _check_unchanged(attempt.reading)
        wait_s = self._longest_wait(stream=attempt.reading.stream)
        deadline = metering.gate.clock.monotonic() + max(wait_s, _LEAST_S)
        attempt.ticket = await metering.gate.enter(attempt.reading.model, deadline)
        try:
            await self._hold(attempt, caller, wait_s)
            await attempt.ticket.pace(
                input_tokens=attempt.reading.estimate_input,
                output_tokens=attempt.reading.max_tokens,
                deadline=deadline,
            )
            self._check_open()
            self._begun = await self._patience.end() if self._patience is not None else None
        except BaseException as error:
            metering.not_sent(attempt, error)
            raise
        assert attempt.hold is not None
        lease.held(attempt.hold, self._accounts)
        return attempt

    def _longest_wait(self, *, stream: bool) -> float:
        limits = self._gateway.limits
        if stream:
            self._patience = Patience(self.http, after_s=limits.patient_s, every_s=limits.ping_s)
            return limits.wait_s
        said = self.http.headers.get("x-stainless-timeout", "")
        own = float(said) * _SHARE_OF_TIMEOUT if said.isascii() and said.isdigit() else 0
        return min(limits.wait_s, own) if own > 0 else limits.wait_s

    async def _hold(self, attempt: Attempt, caller: Caller, wait_s: float) -> None:
        metering = self._lease.metering
        self.waits_until = asyncio.get_running_loop().time() + wait_s
        try:
            await metering.hold_async(attempt, lambda: self._counted(attempt.reading))
            return
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._is_late or here is None or here.uncancel():
                raise
        finally:
            self.waits_until = 0.0
        # The ledger's own words about what is in the way, or the hold after all.
        asked = metering.request(attempt, attempt.reading.shape, latch=False)
        try:
            metering.held(attempt, await metering.ledger.hold_async(replace(asked, wait=False)))
        except BudgetExceeded as error:
            if error.posted + error.in_doubt + error.asked > error.cap.amount:
                raise self._declined(out_of_money(error, is_subagent=caller.is_subagent)) from None
            raise self._declined(still_held(error, wait_s)) from None

    def _check_open(self) -> None:
        """It may have waited long."""
        if not self._lease.is_live:
            raise lease_ended()
        if self._gateway.is_stopping:
            raise stopping()

    async def _counted(self, reading: Reading) -> Shape:
        """The shape by the token counter, or by bytes if it can't be reached."""
        body = json.dumps(reading.countable, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers = self._headers.copy()
        headers["accept-encoding"] = "identity"
        with await self._lease.metering.count_ticket_async(reading.model) as ticket:
            try:
                response = await self._gateway.line.send("POST", _COUNTER, headers, body)
                async with response:
                    said = await response.read()
            except (UpstreamFault, aiohttp.ClientError, TimeoutError) as error:
                logger.warning("the token counter could not be reached: %s", why_none(error))
                return reading.shape
            ticket.observe(response.status, response.headers)
        count = read_count(response.status, said)
        return reading.shape if count is None else reading.tighten(count)

    # ---- what comes back --------------------------------------------------------------------------

    async def _exchange(self, attempt: Attempt) -> web.StreamResponse:
        metering = self._lease.metering
        self.is_sent = True
        self._attempt = attempt
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._gateway.line.send("POST", self._target, self._headers, self._raw)
            attempt.status = response.status
            headers = to_client(response.raw_headers, self._gateway.blot)
            if attempt.reading.stream and 200 <= response.status < 300:
                attempt.start_stream(response.status, headers)
                metering.mark(attempt, "doubt", attempt.held_nanos)
                passage = Passage(self._gateway.blot, headers.get("content-encoding", ""))
                begun = self._begun or web.StreamResponse(status=response.status, headers=headers)
                return await relay(self, attempt, response, begun, passage)
            return await self._whole(attempt, response, headers)
        except (UpstreamFault, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failed(attempt, error) from None
        except BaseException as error:
            attempt.abandon(error)
            raise
        finally:
            if response is not None:
                response.close()

    def _failed(self, attempt: Attempt, error: BaseException) -> Refusal:
        """No answer, or no whole one: how its hold ends, and what the client hears."""
        sent = True
        cause: BaseException = error
        if isinstance(error, UpstreamFault):
            sent = attempt.was_sent = error.sent
            cause = error.__cause__ or error
        if not attempt.ended:
            self._lease.metering.end_soon(attempt, attempt.of_failure(cause))
        said = "it may have been billed, so its hold is in doubt" if sent else "nothing was sent"
        return Refusal(502, f"{why_none(error)}; {said}", reason="upstream")

    async def _whole(
        self, attempt: Attempt, response: aiohttp.ClientResponse, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        """An answer that comes as a whole: its hold ends, and its bytes go on as they are."""
        blot = self._gateway.blot
        body = blot.blotted(await response.read())
        unpacked = _unpacked(body, headers)
        said = blot.blotted(unpacked)
        ending, _ = attempt.of_answer(response.status, said, headers)
        self._lease.metering.end_soon(attempt, ending)
        # Nothing of it is needed again: the connection may serve the next request.
        response.release()
        if self._begun is not None:
            return await _into_stream(self._begun, said)
        if said is not unpacked:  # the key was in packed bytes
            body = said
            headers.popall("content-encoding", None)
        headers.popall("content-length", None)
        return web.Response(status=response.status, body=body, headers=headers)

    async def _refuse(self, refusal: Refusal) -> web.StreamResponse:
        self._gateway.counters.refused(refusal.reason)
        begun = await self._patience.end() if self._patience is not None else None
        if begun is None:
            return refusal.response()
        return await _write_last(begun, refusal.event())

    def _declined(self, refusal: Refusal) -> Refusal:
        for one in self._accounts:
            one.declined += 1
        return refusal


def _places(lease: Lease, caller: Caller) -> AbstractContextManager[Any]:
    """The scopes of a caller below its lease, entered for the time in which its hold is made."""
    if not caller.path:
        return nullcontext()
    return _Nested(lease, caller)


class _Nested:
    """A session's scope and, in it, an agent's."""

    __slots__ = ("_blocks",)

    def __init__(self, lease: Lease, caller: Caller) -> None:
        session, _, agent = caller.path.partition("/")
        self._blocks = [scope(session, kind=lease.session_kind)]
        if agent:
            self._blocks.append(scope(agent, kind="agent"))

    def __enter__(self) -> None:
        for block in self._blocks:
            block.__enter__()

    def __exit__(self, *exception: object) -> None:
        for block in reversed(self._blocks):
            block.__exit__(None, None, None)


def _check_unchanged(reading: Reading) -> None:
    """A gateway changes nothing in a request; one that binds only when changed is refused."""
    if reading.changes:
        names = ", ".join(sorted(reading.changes))
        raise Refusal(
            400,
            f"{names}: without it the cost of this request has no bound, and the gateway changes no request; "
            "set it in yours (nothing was sent)",
            reason="unbounded",
        )


def _unpacked(body: bytes, headers: Mapping[str, str]) -> bytes:
    """What an answer says; nothing if it can't be read, which leaves its hold in doubt."""
    try:
        return decoder_of(headers.get("content-encoding", "")).feed(body)
    except Unreadable:
        return b""


async def _into_stream(begun: web.StreamResponse, said: bytes) -> web.StreamResponse:
    """An error of the upstream's for a client that has its headers already."""
    return await _write_last(
        begun, b"event: error\ndata: " + b" ".join(said.split(b"\n")) + b"\n\n"
    )


async def _write_last(begun: web.StreamResponse, data: bytes) -> web.StreamResponse:
    try:
        await begun.write(data)
        await begun.write_eof()
    except ConnectionError:
        pass
    return begun
