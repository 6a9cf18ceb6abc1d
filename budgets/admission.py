"""The rules of admission and of ending: what a transaction does to lines, accounts and the queue.

Pure decisions over a store's transaction; no clock, no threads, no SQL. Design rules 1, 2, 8 to 13.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from .caps import CALENDAR, Cap
from .errors import AlreadyEnded, BudgetExceeded, LedgerError, UnknownHold
from .money import format_usd, to_decimal
from .owners import Owner, is_dead
from .records import Account, CapEntry, Ending, Hold, HoldRequest, Line, Waiting, from_us, to_us
from .scopes import Place, ancestors, is_within
from .stores.protocol import AccountKey, Transaction
from .windows import Window, window_of

EVER = Window(per="ever", tz="UTC", key="ever", starts=None, ends=None)


@dataclass(frozen=True, slots=True)
class MustWait:
    """Only held money is in the way; these accounts are short of it."""

    blocked: tuple[AccountKey, ...]


class Match(NamedTuple):
    """A cap that may apply to a place.

    ``named`` is False for a path above an agent's or a run's own: the cap per agent or per run applies to
    it only if that path was itself used as an agent or a run before (its account exists then).
    """

    entry: CapEntry
    subject: str
    named: bool


@dataclass(frozen=True, slots=True)
class _Binding:
    """A cap that applies to a call, the account it is counted in, and the window."""

    cap: Cap
    window: Window
    account: Account
    fallback: bool


class Rules:
    """Admission for one process: remembers which caps bind where, until the caps change."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._epoch = -1
        self._matches: dict[
            tuple[tuple[str, ...], tuple[tuple[str, str], ...]], tuple[Match, ...]
        ] = {}
        self._windows: dict[tuple[str, str], tuple[int, int, Window]] = {}
        self._declared: dict[tuple[str, str, str], int] = {}
        self._owner_known = False

    def forget(self) -> None:
        """After a failed transaction: whatever it declared was undone."""
        self._epoch = -1
        self._matches.clear()
        self._declared.clear()
        self._owner_known = False

    # ---- caps -----------------------------------------------------------------------------------

    def declare(
        self, txn: Transaction, caps: Iterable[Cap], at_us: int, *, fallback: bool = False
    ) -> None:
        """Set caps. The latest word wins, but a default never replaces what somebody said."""
        for cap in caps:
            known = txn.caps()
            entry = known.get(cap.key)
            said = [
                e
                for e in known.values()
                if e.cap.scope == cap.scope and e.cap.per == cap.per and not e.fallback
            ]
            is_default = cap.owner == "default"
            if is_default and any(e.cap.owner != "default" for e in said):
                continue
            for old in said:
                if old.cap.owner == "default" and not is_default and old.cap.key != cap.key:
                    txn.drop_cap(old.cap.key, at_us)
            if entry is None or entry.cap != cap or entry.fallback != fallback:
                txn.put_cap(CapEntry(cap=cap, since_us=at_us, fallback=fallback))

    def _declare_context(self, txn: Transaction, caps: Iterable[Cap], at_us: int) -> None:
        """A cap that travels by context is set once per process; from then on the ledger's word counts."""
        for cap in caps:
            if self._declared.get(cap.key) != cap.nanos:
                self.declare(txn, (cap,), at_us)
                self._declared[cap.key] = cap.nanos

    # ---- which caps bind ------------------------------------------------------------------------

    def _match(self, txn: Transaction, place: Place) -> tuple[Match, ...]:
        """Caps that apply to a place, outermost first, each with the subject that it counts."""
        if txn.caps_epoch != self._epoch:
            self._matches.clear()
            self._epoch = txn.caps_epoch
        key = (place.scopes, place.kinds)
        found = self._matches.get(key)
        if found is None:
            found = tuple(matching(txn.caps().values(), place))
            if len(self._matches) > 50_000:
                self._matches.clear()
            self._matches[key] = found
        return found

    def _window(self, cap: Cap, at_us: int) -> Window:
        if cap.per not in CALENDAR:
            return EVER
        key = (cap.per, cap.tz)
        cached = self._windows.get(key)
        if cached is None or not cached[0] <= at_us < cached[1]:
            window = window_of(cap.per, cap.tz, from_us(at_us))
            assert window.starts is not None
            assert window.ends is not None
            cached = (to_us(window.starts), to_us(window.ends), window)
            self._windows[key] = cached
        return cached[2]

    def bindings(self, txn: Transaction, place: Place, at_us: int) -> list[_Binding]:
        """The accounts of every cap that applies to a hold made at this time; missing ones are summed."""
        found = []
        for entry, subject, named in self._match(txn, place):
            if entry.cap.per == "call":
                continue
            window = self._window(entry.cap, at_us)
            key = (entry.cap.key, subject, window.key)
            account = txn.account(key)
            if account is None:
                if not named:
                    continue
                account = _summed(txn, key, window)
                txn.add_account(account)
            found.append(_Binding(entry.cap, window, account, entry.fallback))
        return found

    # ---- hold -----------------------------------------------------------------------------------

    def hold(
        self, txn: Transaction, request: HoldRequest, at_us: int, *, ticket: int | None = None
    ) -> Hold | MustWait:
        """Admit and hold in one step, or say that the call must wait.

        Args:
            txn: the transaction that all of this is part of.
            request: what is asked.
            at_us: now.
            ticket: the place in the queue of a call that has waited.

        Raises:
            BudgetExceeded: declined.
            AlreadyEnded: this id was used before.
        """
        if request.nanos < 0:
            raise LedgerError(f"hold {request.id}: a bound can't be negative")
        if ticket is None and not request.fresh_id and txn.ended_as(request.id) is not None:
            raise AlreadyEnded(
                f"hold {request.id}: this id was used before", hold=request.id, ended_as="hold"
            )
        if request.place.caps:
            self._declare_context(txn, request.place.caps, at_us)
        self._check_per_call(txn, request)
        bindings = self.bindings(txn, request.place, at_us)
        if request.nanos:
            blocked = self._judge(txn, request, bindings)
            if blocked or self._is_behind(txn, bindings, ticket):
                return MustWait(tuple(b.account.key for b in (blocked or bindings)))
        if not self._owner_known:
            txn.put_owner(self.owner)
            self._owner_known = True
        return _write_hold(txn, request, bindings, at_us, self.owner.id)

    def _check_per_call(self, txn: Transaction, request: HoldRequest) -> None:
        matches = self._match(txn, request.place)
        has_amount_cap = any(
            m.named and m.entry.cap.per != "call" and not m.entry.fallback for m in matches
        )
        for entry, _, _ in matches:
            if entry.cap.per == "call" and request.nanos > entry.cap.nanos:
                if entry.fallback and has_amount_cap:
                    continue
                account = Account(entry.cap.key, request.place.scopes[0], EVER.key)
                _decline(request, _Binding(entry.cap, EVER, account, entry.fallback), latched=False)

    def _judge(
        self, txn: Transaction, request: HoldRequest, bindings: list[_Binding]
    ) -> list[_Binding]:
        """Decline for good reasons, outermost cap first; else list what is short of held money only."""
        said = [b for b in bindings if not b.fallback]
        blocked = []
        for binding in said or bindings:
            account, limit = binding.account, binding.cap.nanos
            if account.latched and limit > account.latched:
                account.latched = 0
                txn.touch(account)
            if account.latched:
                _decline(request, binding, latched=True)
            if request.nanos <= limit and account.posted + request.nanos > limit:
                if request.latch:
                    account.latched = max(limit, 1)
                    txn.touch(account)
                _decline(request, binding, latched=False)
            stuck = account.posted + account.in_doubt + min(request.tied, account.held)
            if stuck + request.nanos > limit:
                _decline(request, binding, latched=False)
            if account.posted + account.in_doubt + account.held + request.nanos > limit:
                if not request.wait:
                    _decline(request, binding, latched=False)
                blocked.append(binding)
        return blocked

    def _is_behind(self, txn: Transaction, bindings: list[_Binding], ticket: int | None) -> bool:
        """Someone who came earlier waits for one of the same accounts: no overtaking."""
        queue = txn.waiting()
        if not queue:
            return False
        keys = {b.account.key for b in bindings}
        return any(
            (ticket is None or other.ticket < ticket) and not keys.isdisjoint(other.blocked)
            for other in queue
        )

    # ---- the end of a hold ----------------------------------------------------------------------

    def end(self, txn: Transaction, ending: Ending, at_us: int) -> Line:
        """End a hold, exactly once: ``settle``, ``void``, ``doubt``, or ``resolve`` what is in doubt.

        A hold that was set in doubt meanwhile (its owner was thought dead, say) may still be settled or
        voided by its holder: the line is then a ``resolve``.

        Raises:
            AlreadyEnded, UnknownHold.
        """
        hold = txn.open_hold(ending.hold)
        if hold is None:
            _refuse_ending(txn, ending)
        kind = ending.kind
        if hold.state == "doubt":
            if kind == "doubt":
                raise AlreadyEnded(
                    f"hold {hold.id}: it is in doubt already", hold=hold.id, ended_as="doubt"
                )
            kind = "resolve"
        elif kind == "resolve":
            raise LedgerError(f"hold {hold.id}: it is not in doubt, its call is still under way")
        posted, in_doubt = _deltas(hold, kind, ending)
        note = {**hold.note, **ending.note}
        if posted > hold.nanos:
            note["overrun_nanos"] = posted - hold.nanos
        line = Line(
            hold=hold.id,
            kind=kind,
            at_us=at_us,
            held_at_us=hold.held_at_us,
            scope=hold.scope,
            nanos=hold.nanos if kind in {"void", "doubt"} else posted,
            posted=posted,
            held=-hold.nanos if hold.state == "held" else 0,
            in_doubt=in_doubt,
            model=hold.model,
            owner=self.owner.id,
            usage=ending.usage,
            note=note,
        )
        place = Place(scopes=hold.scopes, kinds=hold.kinds)  # type: ignore[arg-type]
        bindings = self.bindings(txn, place, hold.held_at_us)
        if kind == "doubt":
            txn.put_hold(replace(hold, state="doubt"))
        else:
            txn.end_hold(hold.id)
        self._post(txn, line, bindings)
        return line

    def adjust(
        self,
        txn: Transaction,
        original: Hold,
        delta_nanos: int,
        note: dict[str, object],
        at_us: int,
    ) -> Line:
        """Correct a posted charge by a new line; the window stays that of the hold."""
        line = Line(
            hold=original.id,
            kind="adjust",
            at_us=at_us,
            held_at_us=original.held_at_us,
            scope=original.scope,
            nanos=delta_nanos,
            posted=delta_nanos,
            model=original.model,
            owner=self.owner.id,
            note=note,
        )
        place = Place(scopes=original.scopes, kinds=original.kinds)  # type: ignore[arg-type]
        self._post(txn, line, self.bindings(txn, place, original.held_at_us))
        return line

    def _post(self, txn: Transaction, line: Line, bindings: Sequence[_Binding]) -> None:
        for binding in bindings:
            account = binding.account
            account.posted += line.posted
            account.held += line.held
            account.in_doubt += line.in_doubt
            txn.touch(account)
        txn.append(line)

    # ---- owners ---------------------------------------------------------------------------------

    def sweep(self, txn: Transaction, at_us: int) -> int:
        """Put the holds of dead owners in doubt and drop their places in the queue; how many holds."""
        count = 0
        for owner in txn.open_owners():
            if owner.id == self.owner.id or not is_dead(owner):
                continue
            for hold in txn.holds_of(owner.id):
                self.end(
                    txn,
                    Ending(
                        hold=hold.id, kind="doubt", note={"reason": f"owner died (pid {owner.pid})"}
                    ),
                    at_us,
                )
                count += 1
            for waiting in txn.waiting():
                if waiting.owner == owner.id:
                    txn.drop_waiting(waiting.ticket)
        return count

    def decline_behind(self, txn: Transaction, request: HoldRequest, at_us: int) -> BudgetExceeded:
        """The decline of a call that would fit but that others wait in front of, and that doesn't wait."""
        bindings = self.bindings(txn, request.place, at_us)
        try:
            _decline(request, bindings[0], latched=False)
        except BudgetExceeded as error:
            return error

    def queue_up(self, txn: Transaction, request: HoldRequest, wait: MustWait) -> Waiting:
        """A place at the end of the queue."""
        if not self._owner_known:
            txn.put_owner(self.owner)
            self._owner_known = True
        waiting = Waiting(
            ticket=txn.next_ticket(), owner=self.owner.id, nanos=request.nanos, blocked=wait.blocked
        )
        txn.put_waiting(waiting)
        return waiting


def matching(entries: Iterable[CapEntry], place: Place) -> list[Match]:
    """Caps that apply to a place, outermost first, each with the subject whose sums count against it."""
    chain = list(dict.fromkeys(a for path in place.scopes for a in ancestors(path)))
    rank = {path: n for n, path in enumerate(chain)}
    found: list[tuple[int, Match]] = []
    for entry in entries:
        cap = entry.cap
        if cap.per in {"agent", "run"}:
            own = {path for path, kind in place.kinds if kind == cap.per}
            found.extend(
                (rank[path], Match(entry, path, named=path in own))
                for path in chain
                if path and is_within(path, cap.scope)
            )
        elif cap.scope in rank:
            found.append((rank[cap.scope], Match(entry, cap.scope, named=True)))
    found.sort(key=lambda item: (item[0], item[1].entry.cap.key))
    return [match for _, match in found]


def _summed(txn: Transaction, key: AccountKey, window: Window) -> Account:
    sums = txn.sums(
        key[1],
        None if window.starts is None else to_us(window.starts),
        None if window.ends is None else to_us(window.ends),
    )
    return Account(*key, posted=sums.posted, held=sums.held, in_doubt=sums.in_doubt)


def _write_hold(
    txn: Transaction, request: HoldRequest, bindings: list[_Binding], at_us: int, owner: str
) -> Hold:
    hold = Hold(
        id=request.id,
        nanos=request.nanos,
        scopes=request.place.scopes,
        kinds=request.place.kinds,
        held_at_us=at_us,
        model=request.model,
        owner=owner,
        note=request.note,
    )
    for binding in bindings:
        account = binding.account
        account.held += request.nanos
        txn.touch(account)
    txn.put_hold(hold)
    txn.append(
        Line(
            hold=hold.id,
            kind="hold",
            at_us=at_us,
            held_at_us=at_us,
            scope=hold.scope,
            nanos=hold.nanos,
            held=hold.nanos,
            model=hold.model,
            owner=owner,
            # The checker replays caps per run and per agent from the lines alone.
            note={**hold.note, "kinds": hold.kinds} if hold.kinds else hold.note,
        )
    )
    return hold


def _deltas(hold: Hold, kind: str, ending: Ending) -> tuple[int, int]:
    """What the end of a hold changes of posted and of in doubt."""
    if ending.nanos < 0:
        raise LedgerError(f"hold {hold.id}: a cost can't be negative")
    in_doubt = -hold.nanos if hold.state == "doubt" else 0
    if kind == "doubt":
        return 0, hold.nanos
    if ending.kind == "void":
        return 0, in_doubt
    return ending.nanos, in_doubt


def _refuse_ending(txn: Transaction, ending: Ending) -> NoReturn:
    before = txn.ended_as(ending.hold)
    if before is None:
        raise UnknownHold(f"hold {ending.hold}: no such hold in this ledger")
    raise AlreadyEnded(
        f"hold {ending.hold}: can't {ending.kind} it, it ended before as {before}",
        hold=ending.hold,
        ended_as=before,
    )


def _decline(request: HoldRequest, binding: _Binding, *, latched: bool) -> NoReturn:
    cap, window, account = binding.cap, binding.window, binding.account
    subject = account.subject
    named = cap if subject == cap.scope else cap.at_scope(subject)
    held = account.held + account.in_doubt
    owner = f", set by {cap.owner}" if cap.owner != "code" else ""
    msg = (
        f"declined: the cap of {named}{owner} is in the way"
        f"{'' if window is EVER else f' in {window}'}: posted {format_usd(account.posted)}, "
        f"held {format_usd(held)}"
        f"{f' ({format_usd(account.in_doubt)} of it in doubt)' if account.in_doubt else ''}, "
        f"asked {format_usd(request.nanos)}"
        f"{_why(request, binding, latched=latched)}"
        f"{'' if window.ends is None else f'; opens again at {window.ends.isoformat()}'}"
    )
    decline_id = f"decline-{secrets.token_hex(6)}"
    raise BudgetExceeded(
        f"{msg} [{decline_id}]",
        cap=named,
        window=window,
        posted=to_decimal(account.posted),
        held=to_decimal(held),
        in_doubt=to_decimal(account.in_doubt),
        asked=to_decimal(request.nanos),
        asked_by=request.place.scopes[0],
        latched=latched,
        id=decline_id,
    )


def _why(request: HoldRequest, binding: _Binding, *, latched: bool) -> str:
    account, limit = binding.account, binding.cap.nanos
    if latched:
        return "; this scope was declined before and stays so until the cap is raised"
    if request.nanos > limit:
        return "; one call's bound is more than the whole cap: ask for fewer output tokens or raise the cap"
    if account.posted + request.nanos > limit:
        return ""
    if account.posted + account.in_doubt + request.nanos > limit:
        return "; what is in doubt counts until it is resolved (earmark ledger holds)"
    if request.wait:
        return "; the held money is the caller's own open stream, so waiting can't free it"
    return "; only held money is in the way, and this call does not wait"
