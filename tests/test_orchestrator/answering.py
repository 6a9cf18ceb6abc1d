"""A server that answers every message with one JSON body of the test's own, however wrong it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.retry import Retry
from orchestrator.run import Run

from .running import KEY, MODEL, QUICK

USAGE = {"input_tokens": 10, "output_tokens": 5}


def message(**fields: Any) -> dict[str, Any]:
    """A message as the API would send it, with these fields in place of its own."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }


@asynccontextmanager
async def answered(body: Any, **fields: Any) -> AsyncIterator[tuple[Run, list[Any]]]:
    """A run in front of such a server, and the requests that have arrived there."""
    arrived: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        arrived.append(await request.json())
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    options = {"cap": "5", "kill_switch": False, "retry": Retry(**QUICK), **fields}
    try:
        with Ledger(caps=[Cap("100", owner="the test")]) as ledger:
            run = Run("work", ledger=ledger, client={"base_url": url, "api_key": KEY}, **options)
            async with run:
                yield run, arrived
    finally:
        await runner.cleanup()
