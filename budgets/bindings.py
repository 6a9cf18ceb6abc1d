"""Which accounts a call draws on: every cap that applies to its place, in the window of its hold.

What was found for a place is remembered until caps, accounts or the window change. Whether the accounts
have room is ``admission``'s question.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cap_table import matching
from .caps import CALENDAR, Cap
from .records import Account, CapEntry, from_us, to_us
from .scopes import Kind, Place
from .stores.protocol import AccountKey, Transaction
from .windows import Window, window_of

EVER = Window(per="ever", tz="UTC", key="ever", starts=None, ends=None)
_ALWAYS = (-(2**63), 2**63)
_PLACES_MAX = 20_000

PlaceKey = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Binding:
    """A cap that applies to a call, the account it is counted in, and the window.

    ``named`` is False if the call merely lies within the agent or run that the account is of.
    """

    cap: Cap
    window: Window
    account: Account
    fallback: bool
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Everything that a call in one place draws on.

    Attributes:
        counted: all accounts that its lines are added to, outermost scope first.
        judged: those whose caps may decline it: of agents and runs that have begun (or begin with it), and
            fallback caps only where nothing else covers the call.
        per_call: caps on a single call that apply.
        starts_us, ends_us: holds made in this time have these accounts.
    """

    counted: tuple[Binding, ...]
    judged: tuple[Binding, ...]
    per_call: tuple[CapEntry, ...]
    starts_us: int
    ends_us: int


class Binder:
    """Finds accounts; one per process and ledger."""

    def __init__(self) -> None:
        self._epochs = (-1, -1)
        self._bounds: dict[PlaceKey, Bound] = {}
        self._windows: dict[tuple[str, str], tuple[int, int, Window]] = {}

    def forget(self) -> None:
        """After a failed transaction, or when an agent or run begins: find everything anew."""
        self._epochs = (-1, -1)
        self._bounds.clear()

    def bind(
        self,
        txn: Transaction,
        scopes: tuple[str, ...],
        kinds: tuple[tuple[str, str], ...],
        at_us: int,
    ) -> Bound:
        """The accounts of a call in this place whose hold is made at this time; missing ones are summed."""
        epochs = (txn.caps_epoch, txn.accounts_epoch)
        if epochs != self._epochs:
            self._bounds.clear()
            self._epochs = epochs
        bound = self._bounds.get((scopes, kinds))
        if bound is None or not bound.starts_us <= at_us < bound.ends_us:
            bound = self._find(txn, scopes, kinds, at_us)
            if len(self._bounds) >= _PLACES_MAX:
                self._bounds.clear()
            self._bounds[scopes, kinds] = bound
            # Accounts that were made just now belong to this very answer.
            self._epochs = (txn.caps_epoch, txn.accounts_epoch)
        return bound

    def _find(
        self,
        txn: Transaction,
        scopes: tuple[str, ...],
        kinds: tuple[tuple[str, str], ...],
        at_us: int,
    ) -> Bound:
        counted = []
        per_call = []
        starts_us, ends_us = _ALWAYS
        place = Place(scopes=scopes, kinds=_kinds(kinds))
        for match in matching(txn.caps(), place):
            cap = match.entry.cap
            if cap.per == "call":
                per_call.append(match.entry)
                continue
            first_us, end_us, window = self._window(cap, at_us)
            key = (cap.key, match.subject, window.key)
            account = txn.account(key)
            if account is None:
                if not match.named:
                    continue
                account = _summed(txn, key, window)
                self._bounds.clear()  # other places may lie within this new account
                txn.add_account(account)
            starts_us, ends_us = max(starts_us, first_us), min(ends_us, end_us)
            fallback = match.entry.fallback
            counted.append(Binding(cap, window, account, fallback, match.named))
        judged = tuple(b for b in counted if b.named or b.account.begun)
        said = tuple(b for b in judged if not b.fallback)
        said_per_call = tuple(entry for entry in per_call if not entry.fallback)
        return Bound(
            counted=tuple(counted),
            judged=said or judged,
            per_call=said_per_call if said_per_call or said else tuple(per_call),
            starts_us=starts_us,
            ends_us=ends_us,
        )

    def _window(self, cap: Cap, at_us: int) -> tuple[int, int, Window]:
        if cap.per not in CALENDAR:
            return (*_ALWAYS, EVER)
        key = (cap.per, cap.tz)
        cached = self._windows.get(key)
        if cached is None or not cached[0] <= at_us < cached[1]:
            window = window_of(cap.per, cap.tz, from_us(at_us))
            assert window.starts is not None
            assert window.ends is not None
            cached = (to_us(window.starts), to_us(window.ends), window)
            self._windows[key] = cached
        return cached


def _kinds(kinds: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Kind], ...]:
    return kinds  # type: ignore[return-value]  # as read from a file; an unknown kind matches nothing


def _summed(txn: Transaction, key: AccountKey, window: Window) -> Account:
    sums = txn.sums(
        key[1],
        None if window.starts is None else to_us(window.starts),
        None if window.ends is None else to_us(window.ends),
    )
    return Account(*key, posted=sums.posted, held=sums.held, in_doubt=sums.in_doubt)


__all__ = ["EVER", "Binder", "Binding", "Bound"]
