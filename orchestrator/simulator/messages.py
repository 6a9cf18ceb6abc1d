"""Serving one request of ``POST /v1/messages``: faults, limits, cache, answer, bill, reply."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .accounting import Account, account_for, message_json, usage_json
from .api_errors import ApiError
from .cache import CachePlan, PromptCache
from .catalog import find
from .faults import Fault
from .model import Answer, answer
from .request import MessageRequest, read_json, read_request
from .sse import Event, error_event, events
from .tokens import estimate, split_prompt, tail_tokens

if TYPE_CHECKING:
    from .bill import RowKind
    from .world import World

MAX_BODY = 32 * 1024 * 1024
PACED_DELTAS = 200
_JSON = "application/json"
_HTML = b"<html><body>Simulated page: this is not the API.</body></html>"


@dataclass(slots=True)
class Work:
    """One admitted request with all that belongs to it."""

    number: int
    body: dict[str, Any]
    request: MessageRequest
    plan: CachePlan
    answer: Answer
    account: Account
    fault: Fault | None

    def suffers(self, kind: str) -> bool:
        """Whether this request has this fault."""
        return self.fault is not None and self.fault.kind == kind


class GoneError(Exception):
    """The connection was closed on purpose; nothing more can be written."""


async def serve_message(
    world: World, http: web.BaseRequest, raw: bytes, number: int
) -> web.StreamResponse:
    """Serve one message.

    Raises:
        ApiError: an error reply; nothing was billed.
        GoneError: the connection was closed by a fault.
    """
    world.note_arrival()
    work = _admit(world, http, raw, number)
    world.stats.in_progress += 1
    world.stats.peak = max(world.stats.peak, world.stats.in_progress)
    try:
        await _wait_for_first_byte(world, http, work)
        if work.suffers("html"):
            return web.Response(body=_HTML, content_type="text/html")
        if work.request.stream:
            return await _stream(world, http, work)
        return _reply(world, work)
    finally:
        world.stats.in_progress -= 1


def _admit(world: World, http: web.BaseRequest, raw: bytes, number: int) -> Work:
    body = read_json(raw)
    fault = world.faults.draw("messages", raw, stream=body.get("stream") is True)
    raise_error(fault)
    now = world.now()
    body = world.threads.expand(body, http.headers.get("anthropic-beta", ""), now)
    request = read_request(
        body,
        version=http.headers.get("anthropic-version", ""),
        header=http.headers.get("x-sim", "") + world.cues.draw(raw),
        default_geo=world.settings.default_geo,
    )
    if fault is None and request.directives.fault is not None:
        fault = fault_of(request.directives.fault)
        raise_error(fault)
    plan, prompt_tokens = plan_prompt(world, request)
    world.limiter.admit(
        plan.input + plan.write_5m + plan.write_1h, in_progress=world.stats.in_progress, now=now
    )
    said = answer(request, number=number, prompt_tokens=prompt_tokens)
    other = fault.model if fault is not None and fault.kind == "other_model" else None
    account = account_for(request, plan, said, other_model=other)
    return Work(number, body, request, plan, said, account, fault)


def raise_error(fault: Fault | None) -> None:
    """Raise the error reply that a fault is, if it is one."""
    error = None if fault is None else fault.error()
    if error is not None:
        raise error


def fault_of(kind: str) -> Fault:
    """The fault of this kind, from a directive."""
    try:
        return Fault(kind=kind)
    except ValueError as error:
        raise ApiError(400, f"simulator: {error}") from None


def plan_prompt(
    world: World, request: MessageRequest, cache: PromptCache | None = None
) -> tuple[CachePlan, int]:
    """What the prompt reads and writes of the cache (the workspace's), and its length in tokens.

    Raises:
        ApiError: 400 if it is longer than the model's context.
    """
    blocks = split_prompt(request)
    tail = tail_tokens(request)
    total = sum(block.tokens for block in blocks) + tail
    if total > request.spec.context:
        raise ApiError(400, f"prompt is too long: {total} tokens > {request.spec.context} maximum")
    return (cache or world.cache).plan(request, blocks, tail, world.now()), total


def count_tokens(world: World, http: web.BaseRequest, raw: bytes) -> web.Response:
    """Serve ``POST /v1/messages/count_tokens``: an estimate close to the billed count."""
    body = read_json(raw)
    raise_error(world.faults.draw("count_tokens", raw, stream=False))
    version = http.headers.get("anthropic-version", "")
    request = read_request(body, version=version, counting=True)
    world.limiter.admit_count(world.now())
    total = sum(block.tokens for block in split_prompt(request)) + tail_tokens(request)
    return web.Response(
        body=json.dumps({"input_tokens": estimate(total)}).encode(), content_type=_JSON
    )


def charge(
    world: World, work_number: int, account: Account, kind: RowKind, *, complete: bool = True
) -> None:
    """Put a request on the bill."""
    world.bill.add(
        number=work_number,
        model=account.spec.id,
        kind=kind,
        nanos=account.nanos,
        counts=account.total,
        web_searches=account.web_searches,
        complete=complete,
    )
    world.limiter.produced(account.counts.output, world.now())


def _kind(work: Work) -> RowKind:
    return "stream" if work.request.stream else "message"


async def _wait_for_first_byte(world: World, http: web.BaseRequest, work: Work) -> None:
    fault = work.fault
    seconds = world.settings.latency_s + work.request.directives.delay_ms / 1000
    pace = _pace(world, work)
    if pace and not work.request.stream:
        seconds += work.account.counts.output / pace
    try:
        if seconds > 0:
            await asyncio.sleep(seconds)
        if fault is not None and fault.kind == "hang":
            await world.hang(fault.seconds)
    except asyncio.CancelledError:
        # The client is gone. Without a fault that says otherwise the work is done and billed.
        if fault is None or fault.kind != "hang" or fault.billed:
            generated = 0 if work.request.stream else work.account.counts.output
            charge(
                world, work.number, work.account.with_output(generated), _kind(work), complete=False
            )
        raise
    if fault is None:
        return
    if fault.kind in {"reset", "html"} and fault.billed:
        charge(world, work.number, work.account, _kind(work), complete=False)
    if fault.kind == "reset" or (fault.kind == "hang" and world.closing):
        close(http, abruptly=True)


def _pace(world: World, work: Work) -> float | None:
    own = work.request.directives.pace
    return own if own is not None else world.settings.pace


def close(http: web.BaseRequest, *, abruptly: bool) -> None:
    """Close the connection under the reply: reset it, or send what is buffered and FIN.

    Raises:
        GoneError: always.
    """
    transport = http.transport
    if transport is not None:
        if abruptly and isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        else:
            transport.close()
    raise GoneError


def reply_headers(world: World, number: int) -> dict[str, str]:
    """The headers of every reply of the simulated API."""
    return {
        "request-id": world.request_id(number),
        "anthropic-organization-id": "org-simulated",
        "x-simulated": "true",
        **world.limiter.headers(world.now()),
    }


def _reply(world: World, work: Work) -> web.Response:
    now = world.now()
    world.cache.begin(work.plan, now)
    charge(world, work.number, work.account, "message")
    message_id = world.message_id(work.number)
    world.threads.store(work.body, message_id, work.answer.content, now)
    usage = usage_json(work.account, split=not work.suffers("no_split"))
    message = message_json(
        message_id, work.answer, work.account, None if work.suffers("no_usage") else usage
    )
    data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if work.suffers("invalid_json"):
        data = data[: len(data) // 2]
    headers = reply_headers(world, work.number)
    return web.Response(body=data, headers=headers, content_type=_JSON)


async def _stream(world: World, http: web.BaseRequest, work: Work) -> web.StreamResponse:
    response = web.StreamResponse(headers=reply_headers(world, work.number))
    response.content_type = "text/event-stream"
    response.headers["cache-control"] = "no-cache"
    response.enable_chunked_encoding()
    pace = _pace(world, work)
    made = events(
        world.message_id(work.number),
        work.answer,
        work.account,
        usage=not work.suffers("no_usage"),
        split=not work.suffers("no_split"),
        **({"max_deltas": PACED_DELTAS} if pace else {}),
    )
    world.cache.begin(work.plan, world.now())
    compressed = work.suffers("gzip") and "gzip" in http.headers.get("accept-encoding", "")
    if compressed:
        response.headers["content-encoding"] = "gzip"
    whole = pace is None and (work.fault is None or not _breaks(work.fault))
    if whole or compressed:
        _finish(world, work)
        data = b"".join([event.data for event in made])
        await response.prepare(http)
        await response.write(gzip.compress(data) if compressed else data)
    else:
        await response.prepare(http)
        await _send_events(world, http, work, response, made=made, pace=pace)
    await response.write_eof()
    return response


def _breaks(fault: Fault) -> bool:
    return fault.kind in {"sse_error", "cut", "no_stop", "hang_stream", "invalid_json"}


def _finish(world: World, work: Work) -> None:
    charge(world, work.number, work.account, "stream")
    message_id = world.message_id(work.number)
    world.threads.store(work.body, message_id, work.answer.content, world.now())


async def _send_events(
    world: World,
    http: web.BaseRequest,
    work: Work,
    response: web.StreamResponse,
    *,
    made: list[Event],
    pace: float | None,
) -> None:
    """Send event by event, and charge what was generated when it ends, however it ends."""
    breaks_at = _break_at(work.fault, made)
    generated = 0
    complete = False
    try:
        for index, event in enumerate(made):
            if index == breaks_at and not await _goes_on(world, http, work, response, event):
                return
            fresh = event.output_tokens - generated
            # Generation runs ahead of sending: what was being made is charged as well.
            generated = event.output_tokens
            if pace and fresh:
                await asyncio.sleep(fresh / pace)
            await response.write(event.data)
        complete = True
    finally:
        if complete:
            _finish(world, work)
        else:
            cut = work.account.with_output(max(generated, min(1, work.account.counts.output)))
            charge(world, work.number, cut, "stream", complete=False)


def _break_at(fault: Fault | None, made: list[Event]) -> int:
    if fault is None or not _breaks(fault):
        return -1
    if fault.kind == "no_stop":
        return len(made) - 2
    return min(fault.after_events, len(made) - 1)


async def _goes_on(
    world: World, http: web.BaseRequest, work: Work, response: web.StreamResponse, event: Event
) -> bool:
    """Let the fault happen in front of this event; False if the stream ends with it."""
    fault = work.fault
    if fault is None or fault.kind == "no_stop":
        return False
    if fault.kind == "hang_stream":
        await world.hang(fault.seconds)
        if world.closing:
            close(http, abruptly=True)
        return True
    if fault.kind == "sse_error":
        request_id = world.request_id(work.number)
        message = fault.message or "Overloaded"
        await response.write(error_event("overloaded_error", message, request_id))
    elif fault.kind == "invalid_json":
        await response.write(event.data[: len(event.data) // 2] + b"\n\n")
    else:
        close(http, abruptly=False)
    return False


def model_json(model: str) -> dict[str, Any]:
    """One model, as ``GET /v1/models/{id}`` gives it.

    Raises:
        ApiError: 404 if there is none of this name.
    """
    spec = find(model)
    if spec is None:
        raise ApiError(404, f"model: {model}")
    return {
        "type": "model",
        "id": spec.id,
        "display_name": f"{spec.name} (simulated)",
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": spec.id.split("-")[1],
        "max_input_tokens": spec.context,
        "max_tokens": spec.max_output,
        "capabilities": None,
    }
