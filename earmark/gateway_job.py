"""One ``earmark gateway`` from its options to its end: caps, ledger, upstream, and what it says at start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import format_usd
from budgets.nest import Finding, contradictions
from budgets.scopes import SIMULATED, is_within, join_scope, normal_scope
from budgets.settings import Settings, ledger_path
from orchestrator.gateway import Gateway, Limits, Tokens
from orchestrator.gateway.door import Door, check_host
from orchestrator.server_tools import TOKENS_PER_SEARCH
from orchestrator.wire import Allowances

from . import output
from .doors import book_of, settings_of
from .failures import Mistake
from .session import gate_of
from .upstream import gateway_upstream

SCOPE = "gateway"
_WIDTH = 256
_OWNER = "earmark gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked on the command line."""

    amounts: Mapping[str | None, str | None]
    tz: str | None
    host: str
    port: int
    upstream: str | None
    width: int | None
    search_tokens: int | None
    fetch_tokens: int | None
    wait_s: int
    files: bool
    simulate: bool
    prices: Path | None
    ledger: Path | None
    config: Path | None
    as_json: bool


def caps_on(
    scope: str, amounts: Mapping[str | None, str | None], *, tz: str | None, owner: str
) -> list[Cap]:
    """The caps that options named, by period, on one scope.

    Raises:
        InvalidAmount, InvalidCap, InvalidScope: the user's mistake.
        Mistake: one of them is above another one that all of it must fit in.
    """
    path = normal_scope(scope)
    caps = [
        Cap(amount, per=per, scope=path, tz=tz or "UTC", owner=owner)
        for per, amount in amounts.items()
        if amount is not None
    ]
    for finding in _above(caps):
        raise Mistake(finding.message)
    return caps


def out_of_reach(caps: Iterable[Cap], around: Iterable[Cap]) -> list[str]:
    """A sentence for each of these caps that another one, set before, does not let anybody reach."""
    mine = list(caps)
    keys = {cap.key for cap in mine}
    found = _above([*mine, *(cap for cap in around if cap.key not in keys)])
    return [one.message for one in found if one.caps[0] in mine]


def check_not_all(scope: str, caps: list[Cap]) -> None:
    """A token's cap is its client's, not one on everybody who comes through.

    Raises:
        InvalidScope: not a scope path.
        Mistake: there are caps, on the gateway's own scope.
    """
    if caps and normal_scope(scope) == SCOPE:
        raise Mistake(
            f"--scope {SCOPE} is the gateway's own, so this cap would be one on all of its clients; name a scope "
            f"such as team/alice, or limit all of them: earmark budget set {caps[0].amount:f} --scope {SCOPE}"
        )


def _above(caps: Iterable[Cap]) -> list[Finding]:
    return [one for one in contradictions(caps) if one.kind == "above" and one.contradicts]


def serve_request(request: Request) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        Mistake, ConfigError, BudgetError, OSError: it can't start; one sentence says why.
    """
    settings = settings_of(request.config)
    top = SIMULATED if request.simulate else ""
    scope = join_scope(top, SCOPE)
    caps = _caps(request, settings, scope, top)
    path = ledger_path(request.ledger)
    tokens, prices = Tokens.beside(path), book_of(request.prices, settings)
    words = Allowances(
        web_search_tokens=request.search_tokens or TOKENS_PER_SEARCH,
        web_fetch_tokens=request.fetch_tokens,
    )
    check_host(request.host, tokens)
    with ExitStack() as opened:
        # The ledger comes last: a start that fails before has changed nothing in it.
        upstream = opened.enter_context(
            gateway_upstream(simulate=request.simulate, url=request.upstream)
        )
        door = opened.enter_context(Door(request.host, request.port))
        door.check_upstream(upstream.url)
        ledger = opened.enter_context(Ledger(path, caps=caps))
        gateway = Gateway(
            ledger=ledger,
            upstream=upstream,
            gate=gate_of(settings, width=request.width, default=_WIDTH),
            prices=prices,
            allow=words,
            door=door,
            tokens=tokens,
            anonymous=scope,
            also=scope,
            top=top,
            files=request.files,
            limits=Limits(wait_s=request.wait_s),
        )
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_fast()) as loop:
            loop.run(_serve(gateway, request))


def _fast() -> Any:
    """The quicker event loop where it is installed: a sixth less work for each request."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def _caps(request: Request, settings: Settings, scope: str, top: str) -> list[Cap]:
    """What the file says, and on top of it what the command line says of everything that comes through."""
    further = (cap for cap in settings.caps if is_within(cap.scope, SIMULATED) == request.simulate)
    own = caps_on(scope, request.amounts, tz=request.tz or settings.tz, owner=_OWNER)
    return [*(level.at_scope(top) for level in settings.levels), *further, *own]


async def _serve(gateway: Gateway, request: Request) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def press() -> None:
        if stop.is_set():  # the second time: at once
            gateway.give_up()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        # Windows has no handlers on the loop; there Ctrl-C raises KeyboardInterrupt.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, press)
    async with gateway:
        _announce(gateway, request)
        await stop.wait()
    figures = gateway.figures()
    if not request.as_json:
        doubt = f", {format_usd(figures.in_doubt_nanos)} in doubt" if figures.in_doubt_nanos else ""
        output.say(
            f"Ended: {figures.calls} calls, {format_usd(figures.posted_nanos)} posted{doubt}, "
            f"{figures.declined} declined."
        )


def _announce(gateway: Gateway, request: Request) -> None:
    ledger = gateway.ledger
    caps = [entry.cap for entry in ledger.caps() if not entry.fallback]
    needs_key = gateway.clients.needs_key
    if request.as_json:
        output.print_json(
            {
                "url": gateway.url,
                "upstream": gateway.upstream.url,
                "ledger": ledger.name,
                "needs_token": needs_key,
                "simulated": request.simulate,
                "caps": [str(cap) for cap in caps],
                "pid": os.getpid(),
            }
        )
    else:
        what = (
            "the built-in stand-in (nothing is spent)" if request.simulate else gateway.upstream.url
        )
        key = "<a client's token>" if needs_key else "any"
        output.say(f"Gateway at {gateway.url} in front of {what}")
        output.say(f"  export ANTHROPIC_BASE_URL={gateway.url} ANTHROPIC_API_KEY={key}")
        for cap in caps:
            output.say(f"  cap: {cap}")
        if not caps:
            output.say(
                "  no cap was set: the defaults apply, $2 a call among them (earmark budget show)"
            )
        output.say(f"  left: {gateway.url}/earmark/budget    stop: Ctrl-C")
    sys.stdout.flush()
