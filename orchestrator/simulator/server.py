"""The HTTP server of the simulator: routes, authentication, error replies, start and stop."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from .api_errors import ApiError
from .batches import MAX_BODY as MAX_BATCH_BODY
from .batches import Batches
from .catalog import MODELS
from .faults import Fault, Faults
from .messages import (
    MAX_BODY,
    GoneError,
    close,
    count_tokens,
    model_json,
    raise_error,
    reply_headers,
    serve_message,
)
from .request import read_json
from .world import Call, Settings, World

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader
    from aiohttp.web_protocol import RequestHandler

    from .bill import Bill
    from .world import Stats

_LOGGER = logging.getLogger(__name__)
_JSON = "application/json"
_ABOUT = (
    "This is Earmark's simulator of the Anthropic API. Everything here is simulated: nothing is "
    "spent. Point ANTHROPIC_BASE_URL at this address; any key will do. The bill: GET /sim/bill"
)
#: Results are sent this many lines at a time.
_LINES = 500


class Simulator:
    """A stand-in for the Anthropic API on loopback. Use as ``async with Simulator() as sim``.

    Args:
        host, port: where to listen; port 0 takes a free one.
        faults: the plan of faults; none by default.
        settings: everything else, or single fields of ``Settings`` by keyword.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Faults | None = None,
        settings: Settings | None = None,
        **fields: Any,
    ) -> None:
        if settings is not None and fields:
            msg = "give Simulator either settings or single fields, not both"
            raise TypeError(msg)
        self._host = host
        self._port = port
        self.world = World(settings or Settings(**fields), faults or Faults())
        self._batches = Batches(self.world)
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        server = web.Server(
            self._handle,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close every connection and stop listening. Whatever hangs is reset."""
        self.world.closing = True
        self.world.release()
        await self._batches.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://{self._host}:{self._port}"

    @property
    def bill(self) -> Bill:
        """What was charged."""
        return self.world.bill

    @property
    def stats(self) -> Stats:
        """Counters of messages."""
        return self.world.stats

    @property
    def faults(self) -> Faults:
        """The plan of faults; may be changed at any time."""
        return self.world.faults

    @property
    def calls(self) -> list[Call]:
        """The latest requests, if ``keep_calls`` says to keep any."""
        return list(self.world.calls)

    async def arrived(self, count: int) -> None:
        """Wait until this many messages have arrived since the start or the last reset."""
        await self.world.arrived(count)

    def release(self) -> None:
        """Let everything go on that hangs now."""
        self.world.release()

    async def finish_batches(self, *, expire: bool = False) -> None:
        """Let every batch end now; with ``expire`` what isn't processed yet ends as expired."""
        await self._batches.finish(expire=expire)

    def finish_first_batch(self) -> None:
        """Let the oldest batch that is under way end; the others go on."""
        self._batches.finish_first()

    def process_batches(self, count: int) -> None:
        """Do so many further requests of every batch that is under way; none ends by it."""
        self._batches.process(count)

    def reset(self) -> None:
        """Forget bill, cache, threads, faults, limits in use and counters."""
        self.world.reset()

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        number = self.world.next_number()
        try:
            response = await self._route(http, number)
        except ApiError as error:
            response = self._refusal(number, error)
        except (GoneError, ConnectionError):
            # The connection is closed already, by us or by a client that left; this response goes nowhere.
            return web.Response()
        except Exception as error:
            # Whatever a client sends, it gets an answer in the API's form.
            _LOGGER.exception("simulator: request %d failed", number)
            response = self._refusal(number, ApiError(500, f"simulator: {error!r}"))
        by_status = self.world.stats.by_status
        by_status[response.status] = by_status.get(response.status, 0) + 1
        return response

    def _refusal(self, number: int, error: ApiError) -> web.Response:
        headers = {**reply_headers(self.world, number), **error.headers}
        body = error.encode(headers["request-id"])
        return web.Response(status=error.status, body=body, headers=headers, content_type=_JSON)

    async def _route(self, http: web.BaseRequest, number: int) -> web.StreamResponse:
        path = http.path.rstrip("/")
        if not path.startswith("/v1/"):
            return await self._own_route(http, path)
        _check_key(http)
        raw = await _read_body(http, path)
        if self.world.settings.keep_calls:
            self._keep_call(http, raw, number)
        if path == "/v1/messages":
            _only(http, "POST")
            return await serve_message(self.world, http, raw, number)
        if path == "/v1/messages/count_tokens":
            _only(http, "POST")
            response: web.StreamResponse = count_tokens(self.world, http, raw)
        elif path.startswith("/v1/messages/batches"):
            response = await self._batch_route(http, path, raw)
        elif path.startswith("/v1/models"):
            _only(http, "GET")
            response = _json(_models(path.removeprefix("/v1/models").lstrip("/")))
        else:
            raise ApiError(404, f"Not found: {path}")
        if not response.prepared:
            response.headers.update(reply_headers(self.world, number))
        return response

    async def _own_route(self, http: web.BaseRequest, path: str) -> web.StreamResponse:
        world = self.world
        if path == "/sim/bill":
            return _json(world.bill.to_json(rows=_whole(http, "rows", 100)))
        if path == "/sim/stats":
            stats = world.stats
            counters = {"arrived": stats.arrived, "in_progress": stats.in_progress}
            by_status = {str(status): count for status, count in stats.by_status.items()}
            return _json({**counters, "peak": stats.peak, "by_status": by_status})
        if path in {"", "/api/hello"}:
            return web.Response(text=f"{_ABOUT}\n")
        if not path.startswith("/sim/") or http.method != "POST":
            raise ApiError(404, f"Not found: {path}")
        raw = await http.read()
        body = read_json(raw) if raw else {}
        if path == "/sim/reset":
            self.reset()
        elif path == "/sim/release":
            self.release()
        elif path == "/sim/batches/finish":
            await self.finish_batches(expire=bool(body.get("expire")))
        elif path == "/sim/batches/process":
            self.process_batches(int(body.get("items", 1)))
        elif path == "/sim/faults":
            try:
                world.faults.load_json(body)
            except (ValueError, TypeError) as error:
                raise ApiError(400, f"simulator: {error}") from None
        else:
            raise ApiError(404, f"Not found: {path}")
        return _json({"simulated": True, "ok": True})

    async def _batch_route(
        self, http: web.BaseRequest, path: str, raw: bytes
    ) -> web.StreamResponse:
        ask = raw or path.encode()
        fault = self.world.faults.draw("batches", ask, stream=path.endswith("/results"))
        raise_error(fault)
        if fault is not None and fault.kind == "reset" and not fault.billed:
            close(http, abruptly=True)
        response = await self._serve_batches(http, path, raw, fault)
        if fault is not None and fault.kind == "reset":
            close(http, abruptly=True)
        if (
            fault is not None
            and fault.kind == "invalid_json"
            and isinstance(response, web.Response)
        ):
            whole = response.body
            assert isinstance(whole, bytes)
            response.body = whole[: len(whole) // 2]
        return response

    async def _serve_batches(
        self, http: web.BaseRequest, path: str, raw: bytes, fault: Fault | None
    ) -> web.StreamResponse:
        base_url, key = f"http://{http.headers.get('host', '')}", _key_of(http)
        batch_id, _, action = path.removeprefix("/v1/messages/batches").lstrip("/").partition("/")
        if not batch_id:
            if http.method == "POST":
                version = http.headers.get("anthropic-version", "")
                body = read_json(raw)
                return _json(
                    self._batches.create(body, key=key, version=version, base_url=base_url)
                )
            _only(http, "GET")
            return _json(
                self._batches.page(
                    limit=_whole(http, "limit", 20),
                    after=http.query.get("after_id"),
                    before=http.query.get("before_id"),
                    key=key,
                    base_url=base_url,
                )
            )
        batches = self._batches
        routes: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
            ("GET", ""): lambda: batches.retrieve(batch_id, key=key, base_url=base_url),
            ("DELETE", ""): lambda: batches.delete(batch_id, key=key),
            ("POST", "cancel"): lambda: batches.cancel(batch_id, key=key, base_url=base_url),
        }
        if (http.method, action) == ("GET", "results"):
            cut = fault.after_events if fault is not None and fault.kind == "cut" else None
            return await _send_lines(http, batches.results(batch_id, key=key), cut)
        route = routes.get((http.method, action))
        if route is None:
            raise ApiError(404, f"Not found: {http.method} {path}")
        return _json(route())

    def _keep_call(self, http: web.BaseRequest, raw: bytes, number: int) -> None:
        headers = {name.lower(): value for name, value in http.headers.items()}
        self.world.calls.append(
            Call(number=number, method=http.method, path=http.path_qs, headers=headers, body=raw)
        )


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: Any,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = task.get_loop()
    # The limits of the API are checked by the routes; this one only has to be above them.
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=MAX_BATCH_BODY + 1
    )


def _check_key(http: web.BaseRequest) -> None:
    if not _key_of(http):
        raise ApiError(401, "x-api-key header is required")


def _key_of(http: web.BaseRequest) -> str:
    """The key of a request, whichever way it came; ``""`` if there is none."""
    kind, _, bearer = http.headers.get("authorization", "").partition(" ")
    return http.headers.get("x-api-key") or (bearer if kind.lower() == "bearer" else "")


async def _read_body(http: web.BaseRequest, path: str) -> bytes:
    if http.method in {"GET", "DELETE", "HEAD"}:
        return b""
    limit = MAX_BATCH_BODY if path == "/v1/messages/batches" else MAX_BODY
    too_large = ApiError(413, f"Request exceeds the maximum size of {limit >> 20} MB")
    if (http.content_length or 0) > limit:
        raise too_large
    try:
        raw = await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    if len(raw) > limit:
        raise too_large
    return raw


def _whole(http: web.BaseRequest, name: str, default: int) -> int:
    value = http.query.get(name, str(default))
    if not value.isascii() or not value.isdigit():
        raise ApiError(400, f"{name}: Input should be a whole number")
    return int(value)


def _only(http: web.BaseRequest, method: str) -> None:
    if http.method != method:
        raise ApiError(405, f"Method {http.method} is not allowed here")


def _models(model: str) -> dict[str, Any]:
    if model:
        return model_json(model)
    data = [model_json(each) for each in MODELS]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), content_type=_JSON)


async def _send_lines(
    http: web.BaseRequest, lines: list[bytes], cut: int | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"x-simulated": "true"})
    response.content_type = "application/x-jsonl"
    await response.prepare(http)
    if cut is not None:
        await response.write(b"".join(lines[:cut]))
        close(http, abruptly=False)
    for start in range(0, len(lines), _LINES):
        await response.write(b"".join(lines[start : start + _LINES]))
    await response.write_eof()
    return response
