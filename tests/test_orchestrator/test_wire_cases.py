"""Exact wire cases by respx: what the official client sends under a meter, and what each reply does to the hold."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import httpcore2
import httpx
import httpx2
import pytest
import respx
from anthropic import APIConnectionError, APITimeoutError, AsyncAnthropic
from respx.mocks import HTTPCoreMocker

from budgets import Cap, Ledger
from orchestrator import Meter


class HTTPCore2Mocker(HTTPCoreMocker):
    """respx for the SDK's HTTP library: it knows httpcore, and the SDK speaks through httpcore2."""

    name = "httpcore2"
    targets: ClassVar[list[str]] = [
        target.replace("httpcore.", "httpcore2.") for target in HTTPCoreMocker.targets
    ]

    @classmethod
    def from_sync_httpx_response(cls, httpx_response: Any, target: Any, **kwargs: Any) -> Any:
        return httpcore2.Response(
            status=httpx_response.status_code,
            headers=httpx_response.headers.raw,
            content=httpx_response.stream,
            extensions=httpx_response.extensions,
        )


REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-haiku-5-5",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1000, "output_tokens": 100},
}
#: 1,000 x $0.10 + 100 x $0.50 a million tokens, in nano-dollars.
COST = 150_000


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(caps=[Cap("5", scope="app")])


async def call(ledger: Ledger) -> None:
    async with AsyncAnthropic(
        api_key="key", base_url="http://api.test", max_retries=0, middleware=[Meter(ledger, "app")]
    ) as client:
        await client.messages.create(
            model="claude-haiku-5-5",
            max_tokens=100,
            messages=[{"role": "user", "content": "Hello"}],
        )


@respx.mock(using="httpcore2")
async def test_what_leaves_is_the_callers_body_with_its_tier_fixed(
    respx_mock: respx.MockRouter, ledger: Ledger
) -> None:
    """Nothing is added to the request but the tier, and nothing of Earmark's goes on the wire."""
    route = respx_mock.post("http://api.test/v1/messages").mock(httpx.Response(200, json=REPLY))

    await call(ledger)

    request = route.calls.last.request
    assert json.loads(request.content) == {
        "model": "claude-haiku-5-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hello"}],
        "service_tier": "standard_only",
    }
    assert not [name for name in request.headers if "earmark" in name]


@respx.mock(using="httpcore2")
async def test_a_reply_is_posted_at_its_price(respx_mock: respx.MockRouter, ledger: Ledger) -> None:
    """The real cost is posted and the rest of the hold is free again when the call returns."""
    respx_mock.post("http://api.test/v1/messages").mock(httpx.Response(200, json=REPLY))

    await call(ledger)

    balance = ledger.balance("app")
    assert (balance.posted_nanos, balance.held_nanos, balance.in_doubt_nanos) == (COST, 0, 0)


@pytest.mark.parametrize(
    ("error", "raised", "ends_as"),
    [
        pytest.param(httpx2.ConnectError("refused"), APIConnectionError, "void", id="refused"),
        pytest.param(httpx2.ConnectTimeout("slow"), APITimeoutError, "void", id="connect-timeout"),
        pytest.param(httpx2.ReadTimeout("slow"), APITimeoutError, "doubt", id="read-timeout"),
        pytest.param(httpx2.WriteError("cut"), APIConnectionError, "doubt", id="cut-while-sending"),
        pytest.param(httpx2.ReadError("cut"), APIConnectionError, "doubt", id="cut-while-reading"),
        pytest.param(
            httpx2.RemoteProtocolError("closed"),
            APIConnectionError,
            "doubt",
            id="closed-unanswered",
        ),
    ],
)
@respx.mock(using="httpcore2")
async def test_a_failure_is_void_only_if_nothing_can_have_been_billed(
    respx_mock: respx.MockRouter,
    ledger: Ledger,
    error: Exception,
    raised: type[Exception],
    ends_as: str,
) -> None:
    """Rule 8: no connection, no bill; anything after that is in doubt."""
    respx_mock.post("http://api.test/v1/messages").mock(side_effect=error)

    with pytest.raises(raised):
        await call(ledger)

    assert [line.kind for line in ledger.lines()] == ["hold", ends_as]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422, 429, 500, 503, 504, 529])
@respx.mock(using="httpcore2")
async def test_an_error_status_before_any_output_is_void(
    respx_mock: respx.MockRouter, ledger: Ledger, status: int
) -> None:
    """The hold is given back at once, whatever the error."""
    body = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    respx_mock.post("http://api.test/v1/messages").mock(httpx.Response(status, json=body))

    with pytest.raises(Exception, match="no"):
        await call(ledger)

    assert [line.kind for line in ledger.lines()] == ["hold", "void"]
    assert ledger.balance("app").remaining_nanos == 5_000_000_000
