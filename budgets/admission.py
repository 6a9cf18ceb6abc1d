"""The rules of admission and of ending: what a transaction does to lines, accounts and the queue.

Pure decisions over a store's transaction; no clock, no threads, no SQL. Which accounts a call draws on is
found in ``bindings``. Design rules 1, 2, 8 to 13.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from .bindings import EVER, Binder, Binding, Bound
from .caps import Cap
from .declines import decline
from .errors import AlreadyEnded, LedgerError, UnknownHold
from .money import MAX_NANOS
from .owners import Owner, is_dead
from .records import Account, CapEntry, Ending, Hold, HoldRequest, Line, Waiting
from .stores.protocol import AccountKey, Transaction

#: Sums are looked at only for amounts that could carry them past what 64 bits hold (a million dollars).
_HUGE_NANOS = 10**15


@dataclass(frozen=True, slots=True)
class MustWait:
    """Only held money is in the way, or those who wait for it; these accounts are short of it."""

    blocked: tuple[AccountKey, ...]


class Rules:
    """Admission for one process: remembers which caps bind where, until the caps change."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._binder = Binder()
        self._declared: dict[tuple[str, str, str], int] = {}
        self._declared_now: list[tuple[str, str, str]] = []
        self._owner_known = False
        self._owner_known_now = False

    def begin(self) -> None:
        """A transaction begins; what the one before did is kept."""
        self._declared_now.clear()
        self._owner_known_now = False

    def forget(self) -> None:
        """The transaction failed: whatever it did was undone."""
        self._binder.forget()
        for key in self._declared_now:
            self._declared.pop(key, None)
        self._owner_known = self._owner_known and not self._owner_known_now
        self.begin()

    # ---- caps -----------------------------------------------------------------------------------

    def declare(
        self, txn: Transaction, caps: Iterable[Cap], at_us: int, *, fallback: bool = False
    ) -> None:
        """Set caps. The latest word wins, but a default or fallback never replaces what somebody said."""
        for cap in caps:
            entry = txn.caps().get(cap.key)
            said = [e for e in txn.caps().on(cap.scope) if e.cap.per == cap.per and not e.fallback]
            if fallback and entry is not None and not entry.fallback:
                continue
            if cap.owner == "default" and any(e.cap.owner != "default" for e in said):
                continue
            if cap.owner != "default" and not fallback:
                for old in said:
                    if old.cap.owner == "default" and old.cap.key != cap.key:
                        txn.drop_cap(old.cap.key, at_us)
            if entry is None or entry.cap != cap or entry.fallback != fallback:
                txn.put_cap(CapEntry(cap=cap, since_us=at_us, fallback=fallback))

    def _declare_context(self, txn: Transaction, caps: Iterable[Cap], at_us: int) -> None:
        """A cap that travels by context is set once per process; from then on the ledger's word counts."""
        for cap in caps:
            if self._declared.get(cap.key) != cap.nanos:
                self.declare(txn, (cap,), at_us)
                self._declared[cap.key] = cap.nanos
                self._declared_now.append(cap.key)

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
            LedgerError: the amount is negative, or more than a ledger can hold.
        """
        nanos = request.nanos
        if not 0 <= nanos <= MAX_NANOS:
            raise LedgerError(
                f"hold {request.id}: a bound of {nanos} nano-dollars is not an amount"
            )
        if ticket is None and not request.fresh_id and txn.ended_as(request.id) is not None:
            raise _used_before(request.id)
        if request.place.caps:
            self._declare_context(txn, request.place.caps, at_us)
        place = request.place
        bound = self._binder.bind(txn, place.scopes, place.kinds, at_us)
        if nanos:
            for entry in bound.per_call:
                if nanos > entry.cap.nanos:
                    raise decline(request, _single_call(entry))
            blocked = _judge(txn, request, bound, ticket)
            # A call nested in an open stream stands in no line: those in front may wait for its stream.
            blocked = blocked or ([] if request.tied else _behind(txn, bound, ticket))
            if blocked:
                if not request.wait:
                    raise decline(request, blocked[0])
                return MustWait(tuple(binding.account.key for binding in blocked))
        self._introduce(txn)
        hold, line = _write_hold(txn, request, bound, at_us, self.owner.id)
        self._count(txn, line, bound)
        txn.append(line)
        return hold

    def _introduce(self, txn: Transaction) -> None:
        if not self._owner_known:
            txn.put_owner(self.owner)
            self._owner_known = self._owner_known_now = True

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
        self._post(txn, line, hold)
        if kind == "doubt":
            txn.put_hold(replace(hold, state="doubt"))
        else:
            txn.end_hold(hold.id)
        return line

    def adjust(
        self, txn: Transaction, original: Hold, nanos: int, note: dict[str, object], at_us: int
    ) -> Line:
        """Correct what was posted for a hold to ``nanos`` by a new line; the window stays that of the hold.

        Raises:
            UnknownHold: nothing was posted for it.
            LedgerError: not an amount.
        """
        if not 0 <= nanos <= MAX_NANOS:
            raise LedgerError(f"hold {original.id}: {nanos} nano-dollars is not an amount")
        posted = txn.posted_for(original.id)
        if posted is None:
            raise UnknownHold(
                f"hold {original.id}: nothing was posted for it, so there is nothing to correct"
            )
        line = Line(
            hold=original.id,
            kind="adjust",
            at_us=at_us,
            held_at_us=original.held_at_us,
            scope=original.scope,
            nanos=nanos - posted,
            posted=nanos - posted,
            model=original.model,
            owner=self.owner.id,
            note=note,
        )
        self._post(txn, line, original)
        return line

    def _post(self, txn: Transaction, line: Line, hold: Hold) -> None:
        bound = self._binder.bind(txn, hold.scopes, hold.kinds, hold.held_at_us)
        if line.posted >= _HUGE_NANOS:
            _check_room(bound, line.posted + line.held + line.in_doubt, hold.id)
        self._count(txn, line, bound)
        txn.append(line)

    def _count(self, txn: Transaction, line: Line, bound: Bound) -> None:
        began = False
        for binding in bound.counted:
            account = binding.account
            txn.touch(account)
            account.posted += line.posted
            account.held += line.held
            account.in_doubt += line.in_doubt
            if binding.named and not account.begun:
                account.begun = began = True
        if began:
            self._binder.forget()  # calls that lie within it are limited by it from now on

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
            for waiting in list(txn.waiting()):
                if waiting.owner == owner.id:
                    txn.drop_waiting(waiting.ticket)
        return count

    def leave(self, txn: Transaction, at_us: int) -> None:
        """This process uses the ledger no more: its open holds go in doubt, its places in the queue are free."""
        for hold in txn.holds_of(self.owner.id):
            reason = "the ledger was closed while the call was under way"
            self.end(txn, Ending(hold=hold.id, kind="doubt", note={"reason": reason}), at_us)
        for waiting in list(txn.waiting()):
            if waiting.owner == self.owner.id:
                txn.drop_waiting(waiting.ticket)

    def queue_up(self, txn: Transaction, request: HoldRequest, wait: MustWait) -> Waiting:
        """A place at the end of the queue."""
        self._introduce(txn)
        waiting = Waiting(
            ticket=txn.next_ticket(),
            owner=self.owner.id,
            nanos=request.nanos,
            blocked=wait.blocked,
            tied=request.tied,
        )
        txn.put_waiting(waiting)
        return waiting


def _judge(
    txn: Transaction, request: HoldRequest, bound: Bound, ticket: int | None
) -> list[Binding]:
    """Decline for good reasons, outermost cap first; else list what is short of held money only."""
    nanos = request.nanos
    blocked = []
    for binding in bound.judged:
        account, limit = binding.account, binding.cap.nanos
        if account.latched:
            if limit <= account.latched:
                raise decline(request, binding, latched=True)
            txn.touch(account)
            account.latched = 0
        settled = account.posted + account.in_doubt
        if settled + account.held + nanos <= limit:
            continue
        if nanos <= limit and account.posted + nanos > limit:
            if request.latch:
                txn.touch(account)
                account.latched = max(limit, 1)
            raise decline(request, binding)
        tied = _tied(txn, request, account, ticket) if request.tied else 0
        if settled + min(tied, account.held) + nanos > limit:
            raise decline(request, binding)
        blocked.append(binding)
    return blocked


def _tied(txn: Transaction, request: HoldRequest, account: Account, ticket: int | None) -> int:
    """Held money that nothing frees while calls nested in open streams wait, this one among them."""
    others = (
        w.tied for w in txn.waiting() if w.tied and w.ticket != ticket and account.key in w.blocked
    )
    return request.tied + sum(others)


def _behind(txn: Transaction, bound: Bound, ticket: int | None) -> list[Binding]:
    """Accounts that someone who came earlier waits for: no overtaking."""
    queue = txn.waiting()
    if not queue:
        return []
    wanted: set[AccountKey] = set()
    for other in queue:
        if ticket is not None and other.ticket >= ticket:
            break
        wanted.update(other.blocked)
    return [binding for binding in bound.counted if binding.account.key in wanted]


def _single_call(entry: CapEntry) -> Binding:
    """A cap per call counts nothing; this stands for it in messages."""
    account = Account(entry.cap.key, entry.cap.scope, EVER.key)
    return Binding(entry.cap, EVER, account, entry.fallback, named=True)


def _check_room(bound: Bound, nanos: int, hold_id: str) -> None:
    for binding in bound.counted:
        account = binding.account
        if account.posted + account.held + account.in_doubt + nanos > MAX_NANOS:
            raise LedgerError(
                f"hold {hold_id}: the sums of {binding.cap} would pass what a ledger can hold (about $9.2 billion)"
            )


def _write_hold(
    txn: Transaction, request: HoldRequest, bound: Bound, at_us: int, owner: str
) -> tuple[Hold, Line]:
    """The open hold, and the line that begins it (not yet written)."""
    if request.nanos >= _HUGE_NANOS:
        _check_room(bound, request.nanos, request.id)
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
    txn.put_hold(hold)
    line = Line(
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
    return hold, line


def _deltas(hold: Hold, kind: str, ending: Ending) -> tuple[int, int]:
    """What the end of a hold changes of posted and of in doubt."""
    if not 0 <= ending.nanos <= MAX_NANOS:
        raise LedgerError(f"hold {hold.id}: a cost of {ending.nanos} nano-dollars is not an amount")
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


def _used_before(hold_id: str) -> AlreadyEnded:
    return AlreadyEnded(f"hold {hold_id}: this id was used before", hold=hold_id, ended_as="hold")
