"""Spent: refuses what costs nothing itself, but belongs to work whose money is gone."""

from __future__ import annotations

import secrets
from decimal import Decimal

from budgets.errors import BudgetExceeded
from budgets.money import format_usd
from budgets.reserves import reserve_here
from orchestrator.run import Run
from orchestrator.swallowed import remember_decline


def refuse_if_spent(run: Run, note: str) -> None:
    """Refuse if the run is stopped, or nothing can be spent any more here and now.

    Money that is only held may come back, and a call that draws on a reserve has money of its own.

    Args:
        run: whose caps count.
        note: what the caller, a model as a rule, must know.

    Raises:
        RunStopped, SpendLimit: the run is stopped.
        BudgetExceeded: the money is gone, or its scope is shut (rule 13). A loop that takes it for the result of
            a tool is ended at its next call, as by any decline.
    """
    run.check()
    least = run.room().unheld
    if least is None or least.nanos > 0 or reserve_here(run.ledger.number):
        return
    balance = run.ledger.balance(least.cap.scope)
    where = least.cap.scope or "everything"
    identity = f"decline-{secrets.token_hex(6)}"
    error = BudgetExceeded(
        f"the money of {where} is used up ({format_usd(balance.posted_nanos)} of {least.cap}): "
        f"finish now with what you have; {note} [{identity}]",
        cap=least.cap,
        window=least.window,
        posted=balance.posted,
        held=balance.held,
        in_doubt=balance.in_doubt,
        asked=Decimal(0),
        asked_by=run.here,
        latched=True,
        reserved=Decimal(0),
        id=identity,
    )
    remember_decline(error)
    raise error
