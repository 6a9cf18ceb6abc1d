"""The words of a decline: which cap is in the way, what is posted and held, and when it opens again."""

from __future__ import annotations

import secrets

from .bindings import EVER, Binding
from .caps import Cap
from .defaults import DEFAULT_AMOUNTS
from .errors import BudgetExceeded
from .money import format_usd, parse_usd, to_decimal
from .records import HoldRequest


def decline(
    request: HoldRequest, binding: Binding, *, latched: bool = False, kept: int = 0
) -> BudgetExceeded:
    """The error for a call that a cap does not admit.

    Args:
        request: what was asked.
        binding: the cap in the way, with its sums.
        latched: it was declined here before, and that holds.
        kept: nano-dollars of the account that are held in reserves, if those are in the way.
    """
    cap, window, account = binding.cap, binding.window, binding.account
    named = cap if account.subject == cap.scope else cap.at_scope(account.subject)
    held = account.held + account.in_doubt
    decline_id = f"decline-{secrets.token_hex(6)}"
    message = (
        f"declined: the cap of {named}{_set_by(cap)} is in the way"
        f"{'' if window is EVER else f' in {window}'}: posted {format_usd(account.posted)}, "
        f"held {format_usd(held)}"
        f"{f' ({format_usd(account.in_doubt)} of it in doubt)' if account.in_doubt else ''}, "
        f"asked {format_usd(request.nanos)}"
        f"{_why(request, binding, latched=latched, kept=kept)}"
        f"{'' if window.ends is None else f'; opens again at {window.ends.isoformat()}'} [{decline_id}]"
    )
    return BudgetExceeded(
        message,
        cap=named,
        window=window,
        posted=to_decimal(account.posted),
        held=to_decimal(held),
        in_doubt=to_decimal(account.in_doubt),
        asked=to_decimal(request.nanos),
        asked_by=request.place.scopes[0],
        latched=latched,
        reserved=to_decimal(kept),
        id=decline_id,
    )


def _set_by(cap: Cap) -> str:
    """Who set a cap; empty for code. A default may have made room for what somebody said (``settings``)."""
    if cap.owner != "default":
        return "" if cap.owner == "code" else f", set by {cap.owner}"
    documented = DEFAULT_AMOUNTS.get(str(cap.per))
    nanos = cap.nanos if documented is None else parse_usd(documented)
    if cap.nanos < nanos:
        return ", the default lowered to fit in a cap that was set (--cap, say),"
    if cap.nanos > nanos:
        return ", the default lifted to make room for a cap that was set (--cap, say),"
    return ", set by default"


def _why(request: HoldRequest, binding: Binding, *, latched: bool, kept: int) -> str:
    account, limit = binding.account, binding.cap.nanos
    if latched:
        return "; this scope was declined before and stays so until the cap is raised"
    if request.nanos > limit:
        return "; one call's bound is more than the whole cap: ask for fewer output tokens or raise the cap"
    if account.posted + request.nanos > limit:
        return ""
    if account.posted + account.in_doubt + request.nanos > limit:
        return "; what is in doubt counts until it is resolved (earmark ledger holds)"
    if kept:
        held = f"{format_usd(kept)} of what is held is reserved for closing calls (earmark ledger holds)"
    elif request.wait:
        held = "the held money is the caller's own open stream, so waiting can't free it"
    else:
        held = "only held money is in the way, and this call does not wait"
    return f"; {held}"
