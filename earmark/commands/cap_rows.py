"""How full each cap of a ledger is now: the rows of ``earmark budget show``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from budgets.caps import CALENDAR, Cap
from budgets.ledger import Ledger
from budgets.nest import RANKS
from budgets.records import Account, CapEntry, Sums, from_us
from budgets.report import cap_sums
from budgets.scopes import SIMULATED, is_within
from budgets.stores.protocol import Reader
from budgets.windows import Window, window_of
from earmark.output import instant, money


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """A cap in force and what counts against it.

    Attributes:
        entry: the cap as the ledger has it.
        sums: what counts against it; for a cap per agent or run, those of its fullest one.
        window: the calendar window the sums belong to; None where the cap has none.
        subject: whose sums they are: the cap's scope, or the fullest agent or run.
        subjects: how many agents or runs are counted; 1 for every other cap.
        latched: declined for posted money, and shut until it is raised or its window turns.
    """

    entry: CapEntry
    sums: Sums
    window: Window | None
    subject: str
    subjects: int
    latched: bool

    @property
    def cap(self) -> Cap:
        """The cap."""
        return self.entry.cap

    @property
    def remaining(self) -> int:
        """Nano-dollars that are left, never below zero."""
        return max(self.cap.nanos - self.sums.total, 0)

    @property
    def simulated(self) -> bool:
        """Whether it is play money."""
        return is_within(self.cap.scope, SIMULATED)

    def as_json(self) -> dict[str, Any]:
        """The row as a part of a document."""
        window = self.window
        return {
            **cap_json(self.cap),
            "window": window.key if window else None,
            "window_starts": instant(window.starts) if window else None,
            "opens_at": instant(window.ends) if window else None,
            "subject": self.subject,
            "subjects": self.subjects,
            **money("posted", self.sums.posted),
            **money("held", self.sums.held),
            **money("in_doubt", self.sums.in_doubt),
            **money("remaining", self.remaining),
            "latched": self.latched,
            "fallback": self.entry.fallback,
            "since": instant(from_us(self.entry.since_us)),
            "simulated": self.simulated,
        }


def cap_json(cap: Cap) -> dict[str, Any]:
    """A cap as a part of a document."""
    return {
        "scope": cap.scope,
        "per": cap.per or "ever",
        "tz": cap.tz if cap.per in CALENDAR else None,
        **money("cap", cap.nanos),
        "owner": cap.owner,
    }


def cap_rows(ledger: Ledger, scope: str, now: datetime) -> list[CapRow]:
    """Every cap that a call in a scope falls under, and every cap below it.

    Args:
        ledger: the ledger.
        scope: a scope; ``""`` gives all caps.
        now: decides which windows are open.
    """
    reader: Reader
    entries = sorted(ledger.caps(), key=_order)
    with ledger.reader() as reader:
        accounts = _accounts_of(reader, entries)
        return [
            _row(reader, entry, accounts.get(entry.cap.key, []), now)
            for entry in entries
            if not scope or is_within(scope, entry.cap.scope) or is_within(entry.cap.scope, scope)
        ]


def _order(entry: CapEntry) -> tuple[bool, str, int, str]:
    return (entry.fallback, entry.cap.scope, RANKS[entry.cap.per], entry.cap.tz)


def _accounts_of(
    reader: Reader, entries: Iterable[CapEntry]
) -> dict[tuple[str, str, str], list[Account]]:
    wanted = {entry.cap.key for entry in entries}
    found: defaultdict[tuple[str, str, str], list[Account]] = defaultdict(list)
    for account in reader.accounts():
        if account.cap in wanted:
            found[account.cap].append(account)
    return found


def _row(reader: Reader, entry: CapEntry, accounts: list[Account], now: datetime) -> CapRow:
    cap = entry.cap
    window = window_of(cap.per, cap.tz, now) if cap.per in CALENDAR else None
    subject, subjects = cap.scope, 1
    if cap.per in {"call", "agent", "run"}:
        subjects = len(accounts)
        fullest = max(accounts, key=_total, default=None)
        sums = Sums() if fullest is None else _sums(fullest)
        subject = cap.scope if fullest is None else fullest.subject
    else:
        sums = cap_sums(reader, cap, now)
        key = "ever" if window is None else window.key
        accounts = [account for account in accounts if account.window == key]
    return CapRow(
        entry=entry,
        sums=sums,
        window=window,
        subject=subject,
        subjects=subjects,
        # A cap that was raised since is open again, though its account will say so at the next call.
        latched=any(account.latched >= cap.nanos and account.latched > 0 for account in accounts),
    )


def _total(account: Account) -> int:
    return account.posted + account.held + account.in_doubt


def _sums(account: Account) -> Sums:
    return Sums(posted=account.posted, held=account.held, in_doubt=account.in_doubt)
