"""Status: what a gateway says about itself, at once, however much is under way."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from budgets.caps import Cap
from budgets.money import to_decimal
from budgets.room import Room
from budgets.scopes import normal_scope

from .counters import CONTENT_TYPE
from .lease import Figures, Lease
from .replies import Refusal

if TYPE_CHECKING:
    from budgets.ledger import Ledger

    from .gateway import Gateway


def health(gateway: Gateway) -> web.Response:
    """It lives, and how much is under way."""
    return _json(
        {
            "status": "stopping" if gateway.is_stopping else "ok",
            "under_way": len(gateway.exchanges),
            "waiting_for_money": gateway.ledger.waiting,
            "draining": len(gateway.drains),
        }
    )


def metrics(gateway: Gateway) -> web.Response:
    """Its counters, for Prometheus."""
    return web.Response(body=gateway.counters.page(), headers={"content-type": CONTENT_TYPE})


async def budget(gateway: Gateway, lease: Lease | None) -> web.Response:
    """What was spent and what is left: of one lease, or (None) of the ledger and every lease."""
    if lease is not None:
        return _json(await asyncio.to_thread(_of_lease, gateway.ledger, lease))
    leases = gateway.clients.all()
    if gateway.clients.anonymous is not None:
        leases.append(gateway.clients.anonymous)
    return _json(await asyncio.to_thread(_of_all, gateway.ledger, leases))


def check_local(http: web.BaseRequest) -> None:
    """Without a token only this machine may ask.

    Raises:
        Refusal: it comes from elsewhere, or through something that stands in between.
    """
    peer = (http.transport.get_extra_info("peername") if http.transport else None) or ("",)
    try:
        is_near = ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        is_near = False
    if not is_near or "x-forwarded-for" in http.headers or "forwarded" in http.headers:
        raise Refusal(401, "show a token to see figures from another machine", reason="not_local")


def _of_all(ledger: Ledger, leases: list[Lease]) -> dict[str, Any]:
    return {**_of_scope(ledger, ""), "clients": [_of_lease(ledger, one) for one in leases]}


def _of_lease(ledger: Ledger, lease: Lease) -> dict[str, Any]:
    figures = lease.figures()
    return {
        "lease": lease.id,
        "ends": None if lease.ends is None else lease.ends.isoformat(),
        **_of_scope(ledger, lease.scope),
        "here": {
            **_sums(figures),
            "agents": {path: _sums(one) for path, one in figures.agents.items()},
        },
    }


def _of_scope(ledger: Ledger, path: str) -> dict[str, Any]:
    balance = ledger.balance(path)
    room: Room = _room(ledger, path)
    now = room.now
    return {
        "scope": path,
        "posted_usd": f"{balance.posted:f}",
        "held_usd": f"{balance.held:f}",
        "in_doubt_usd": f"{balance.in_doubt:f}",
        "remaining_usd": None if now is None else f"{now.amount:f}",
        "cap": None if now is None else _cap(now.cap),
        "reopens_at": None if now is None or now.reopens_at is None else now.reopens_at.isoformat(),
        "per_call_usd": None if room.per_call is None else f"{room.per_call.amount:f}",
    }


def _room(ledger: Ledger, path: str) -> Room:
    return ledger.room(normal_scope(path))


def _cap(cap: Cap) -> dict[str, Any]:
    return {"usd": f"{cap.amount:f}", "per": cap.per, "scope": cap.scope, "tz": cap.tz}


def _sums(figures: Figures) -> dict[str, Any]:
    return {
        "calls": figures.calls,
        "declined": figures.declined,
        "posted_usd": f"{figures.posted:f}",
        "held_usd": f"{to_decimal(figures.held_nanos):f}",
        "in_doubt_usd": f"{figures.in_doubt:f}",
        "tokens": dict(figures.tokens),
    }


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(document).encode(), content_type="application/json")
