"""Serving: each request of a client goes where its route says, and whatever it is, it gets an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from orchestrator.gate import NestedTooDeep, RateDeadline

from . import status
from .blotting import Blot, Passage
from .body import LARGE, read_body, read_json
from .clients import check_no_browser
from .exchange import Exchange
from .passing import BadHeader, to_client, to_upstream
from .replies import (
    Refusal,
    no_batches,
    no_files,
    not_known,
    stopped,
    stopping,
    too_slow,
)
from .routes import Route, route_of
from .upstream import UpstreamFault, why_none

if TYPE_CHECKING:
    from .gateway import Gateway
    from .lease import Lease

logger = logging.getLogger("earmark")

_OWN = frozenset({"health", "metrics", "budget"})


class Serving:
    """The handler of a gateway's server."""

    def __init__(self, gateway: Gateway, *, files: bool) -> None:
        self._gateway = gateway
        self._files = files

    async def __call__(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        route = route_of(http.method, http.raw_path)
        self._gateway.counters.came(route.kind)
        try:
            return await self._serve(http, route)
        except Refusal as refusal:
            self._gateway.counters.refused(refusal.reason)
            return refusal.response()
        except BadHeader as error:
            return Refusal(400, f"{error}; nothing was sent").response()
        except ConnectionError:
            raise
        except Exception:
            # Whatever a client sends, it gets an answer in the API's form, and no word of the inside.
            logger.exception("gateway: a request failed")
            return Refusal(500, "the gateway failed; its log says why").response()

    async def _serve(self, http: web.BaseRequest, route: Route) -> web.StreamResponse:
        gateway, kind = self._gateway, route.kind
        if kind == "hello":
            return web.Response(text="Earmark gateway\n")
        if kind in _OWN:
            return await self._own(http, route)
        if kind == "unknown":
            raise not_known(http.method, route.path)
        if kind == "batches":
            raise no_batches()
        if kind == "files" and not self._files:
            raise no_files()
        lease = gateway.clients.lease_of(http, route.lease)
        if gateway.is_stopping:
            raise stopping()
        if kind == "messages":
            return await self._message(http, route, lease)
        if kind == "count_tokens":
            return await self._count(http, route, lease)
        return await self._pass(http, route)

    async def _own(self, http: web.BaseRequest, route: Route) -> web.StreamResponse:
        gateway = self._gateway
        if route.kind == "health":
            return status.health(gateway)
        seen = gateway.clients.knows(http)
        if seen is None:
            status.check_local(http)
            check_no_browser(http)
        if route.kind == "metrics":
            if seen is not None and not seen.is_admin:
                raise Refusal(403, "this token may see its own figures only", reason="not_admin")
            return status.metrics(gateway)
        return await status.budget(gateway, None if seen is None or seen.is_admin else seen)

    async def _message(
        self, http: web.BaseRequest, route: Route, lease: Lease
    ) -> web.StreamResponse:
        gateway, limits = self._gateway, self._gateway.limits
        raw = await read_body(http, limit=limits.body_bytes, within_s=limits.body_s)
        exchange = Exchange(gateway, lease, http, route.target, raw)
        with gateway.under_way(exchange, http.protocol):
            try:
                return await exchange.run()
            except asyncio.CancelledError:
                here = asyncio.current_task()
                if exchange.is_alone or not gateway.is_stopping or here is None or here.uncancel():
                    raise
                # The request was given up, not its client.
                raise (stopped() if exchange.is_sent else stopping()) from None

    async def _count(self, http: web.BaseRequest, route: Route, lease: Lease) -> web.StreamResponse:
        limits = self._gateway.limits
        raw = await read_body(http, limit=limits.body_bytes, within_s=limits.body_s)
        body = await asyncio.to_thread(read_json, raw) if len(raw) >= LARGE else read_json(raw)
        try:
            async with asyncio.timeout(limits.wait_s):
                ticket = await lease.metering.count_ticket_async(str(body.get("model", "")))
        except (RateDeadline, NestedTooDeep) as error:
            late = error if isinstance(error, RateDeadline) else None
            raise (Refusal(503, str(error)) if late is None else too_slow(late)) from None
        except TimeoutError:
            raise Refusal(
                429,
                "the token counter is busy; nothing was sent",
                {"retry-after": "5"},
                reason="rate",
            ) from None
        with ticket:
            response = await self._ask(http, route, raw)
            async with response:
                ticket.observe(response.status, response.headers)
                return await _copy(http, response, self._gateway.blot)

    async def _pass(self, http: web.BaseRequest, route: Route) -> web.StreamResponse:
        body = _upload(http, self._gateway.limits.file_bytes) if http.method == "POST" else None
        response = await self._ask(http, route, body)
        async with response:
            return await _copy(http, response, self._gateway.blot)

    async def _ask(
        self, http: web.BaseRequest, route: Route, body: bytes | AsyncIterator[bytes] | None
    ) -> aiohttp.ClientResponse:
        headers = to_upstream(http.raw_headers, self._gateway.upstream.credentials)
        length = http.content_length
        if body is not None and not isinstance(body, bytes) and length is not None:
            headers["content-length"] = str(length)
        try:
            return await self._gateway.line.send(http.method, route.target, headers, body)
        except UpstreamFault as error:
            raise Refusal(502, why_none(error), reason="upstream") from None


async def _copy(
    http: web.BaseRequest, upstream: aiohttp.ClientResponse, blot: Blot
) -> web.StreamResponse:
    """Pass on an answer that costs nothing."""
    headers = to_client(upstream.raw_headers, blot)
    passage = Passage(blot, headers.get("content-encoding", ""))
    response = web.StreamResponse(status=upstream.status, headers=headers)
    await response.prepare(http)
    try:
        async for chunk in upstream.content.iter_any():
            passed = passage.take(chunk)
            if passed.shows and http.transport is not None:
                http.transport.abort()
            await response.write(passed.client)
    except (aiohttp.ClientError, TimeoutError):
        if http.transport is not None:  # what broke off there breaks off here
            http.transport.close()
        return response
    await response.write(passage.rest().client)
    await response.write_eof()
    return response


async def _upload(http: web.BaseRequest, limit: int) -> AsyncIterator[bytes]:
    taken = 0
    async for chunk in http.content.iter_any():
        taken += len(chunk)
        if taken > limit:
            raise Refusal(413, f"the file is larger than {limit >> 20} MB", reason="body")
        yield chunk
