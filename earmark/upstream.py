"""Where a command's calls go: the API with the user's key, or the built-in stand-in; and which models may be asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anthropic

from budgets.prices import PriceBook

from .failures import Mistake

if TYPE_CHECKING:
    from orchestrator.gateway.upstream import Upstream


def check_model(model: str, prices: PriceBook) -> None:
    """A model that is known and not retired.

    Raises:
        Mistake: it is retired.
        UnknownPrice: it is not known.
    """
    known = prices.resolve(model)
    retired = prices.retired_on(known)
    if retired is not None and retired <= datetime.now(UTC).date():
        raise Mistake(
            f"model {model}: it was retired by {retired.isoformat()}; choose another (earmark prices)"
        )


def run_upstream(
    work: Callable[[dict[str, Any]], Coroutine[Any, Any, int]], *, simulate: bool
) -> int:
    """Do a command's work on an event loop of its own; its exit code.

    Args:
        work: takes the arguments for a ``Run``'s client.
        simulate: see ``upstream``.

    Raises:
        KeyboardInterrupt: the second Ctrl-C, which leaves at once.
        Mistake: see ``upstream``.
    """
    with upstream(simulate=simulate) as client:
        try:
            return asyncio.run(work(client))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def upstream(*, simulate: bool) -> Iterator[dict[str, Any]]:
    """Arguments for a ``Run``'s client.

    Raises:
        Mistake: there is no key, and nothing is to be simulated.
    """
    if not simulate:
        if not _has_key():
            raise Mistake(
                "there is no API key: set ANTHROPIC_API_KEY, or add --simulate to try it without one"
            )
        yield {}
        return
    from orchestrator.simulator import SimulatorThread  # a web server, only when it is needed

    with SimulatorThread() as simulator:
        yield {"base_url": simulator.url, "api_key": "simulated"}


@contextlib.contextmanager
def gateway_upstream(*, simulate: bool, url: str | None) -> Iterator[Upstream]:
    """Where a gateway passes requests on to, with the key from the environment, in the form that it has there.

    Args:
        simulate: to a stand-in of its own.
        url: what ``--upstream`` says.

    Raises:
        Mistake: there is no key, and nothing is to be simulated.
        ConfigError: not an address.
    """
    from orchestrator.gateway.upstream import Upstream

    if simulate:
        from orchestrator.simulator import SimulatorThread  # a web server, only when it is needed

        with SimulatorThread() as simulator:
            yield Upstream(url=simulator.url, api_key="simulated")
        return
    try:
        client = anthropic.Anthropic()
    except anthropic.AnthropicError:
        client = None
    key = client.api_key if client else None
    token = client.auth_token if client and not key else None
    if client is None or not (key or token):
        raise Mistake(
            "there is no API key: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN), or add --simulate"
        )
    with client:
        yield Upstream(url=url or str(client.base_url).rstrip("/"), api_key=key, auth_token=token)


def _has_key() -> bool:
    """Whether the SDK finds credentials: in the environment, or in a profile of its own."""
    try:
        client = anthropic.Anthropic()
    except anthropic.AnthropicError:
        return False
    with client:
        return bool(client.api_key or client.auth_token or getattr(client, "credentials", None))
