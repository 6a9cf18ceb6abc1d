"""Judging a call by the accounts it draws on: it may go, it must wait for held money, or it is declined.

Nothing is held here; a decline for posted money shuts its account (rule 13). Rules 12 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from .bindings import EVER, Binding, Bound
from .declines import decline
from .records import Account, CapEntry, HoldRequest
from .reserves import Draw, kept
from .stores.protocol import AccountKey, Transaction


@dataclass(frozen=True, slots=True)
class MustWait:
    """Only held money is in the way, or those who wait for it; these accounts are short of it."""

    blocked: tuple[AccountKey, ...]


def judge(
    txn: Transaction, request: HoldRequest, bound: Bound, ticket: int | None, draw: Draw | None
) -> list[Binding]:
    """Decline for good reasons, outermost cap first; else list what is short of held money only."""
    nanos = request.nanos
    blocked = []
    for binding in bound.judged:
        account, limit = binding.account, binding.cap.nanos
        spared = 0 if draw is None else draw.credits.get(account.key, 0)
        if account.latched:
            if limit > account.latched:
                txn.touch(account)
                account.latched = 0
            elif spared < nanos:  # what was set aside before is not shut
                raise decline(request, binding, latched=True)
        settled = account.posted + account.in_doubt
        held = account.held - spared
        if settled + held + nanos <= limit:
            continue
        if nanos <= limit and account.posted + nanos > limit:
            if request.latch:
                txn.touch(account)
                account.latched = max(limit, 1)
            raise decline(request, binding)
        tied = _tied(txn, request, account, ticket) if request.tied else 0
        if settled + min(tied, held) + nanos > limit:
            raise decline(request, binding)
        reserved = kept(txn, binding, draw)
        if settled + min(tied + reserved, held) + nanos > limit:
            raise decline(request, binding, kept=reserved)
        blocked.append(binding)
    return blocked


def _tied(txn: Transaction, request: HoldRequest, account: Account, ticket: int | None) -> int:
    """Held money that nothing frees while calls nested in open streams wait, this one among them."""
    others = (
        w.tied for w in txn.waiting() if w.tied and w.ticket != ticket and account.key in w.blocked
    )
    return request.tied + sum(others)


def behind(
    txn: Transaction, bound: Bound, ticket: int | None, nanos: int, draw: Draw | None
) -> list[Binding]:
    """Accounts that someone who came earlier waits for: no overtaking, but with money that is one's own."""
    queue = txn.waiting()
    if not queue:
        return []
    wanted: set[AccountKey] = set()
    for other in queue:
        if ticket is not None and other.ticket >= ticket:
            break
        wanted.update(other.blocked)
    own = {} if draw is None else draw.credits
    return [
        binding
        for binding in bound.counted
        if binding.account.key in wanted and own.get(binding.account.key, 0) < nanos
    ]


def single_call(entry: CapEntry) -> Binding:
    """A cap per call counts nothing; this stands for it in messages."""
    account = Account(entry.cap.key, entry.cap.scope, EVER.key)
    return Binding(entry.cap, EVER, account, entry.fallback, named=True)


__all__ = ["MustWait", "behind", "judge", "single_call"]
