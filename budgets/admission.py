"""The rules of admission and of ending: what a transaction does to lines, accounts and the queue.

Pure decisions over a store's transaction; no clock, no threads, no SQL. Which accounts a call draws on is
found in ``bindings``, whether they have room in ``judging``. Design rules 1, 2, 8 to 13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NoReturn

from .bindings import Binder, Bound
from .caps import Cap
from .declines import decline
from .errors import AlreadyEnded, LedgerError, UnknownHold
from .judging import MustWait, behind, judge, single_call
from .money import MAX_NANOS
from .owners import PROVIDER, Owner, is_dead
from .records import RESERVE, CapEntry, Ending, Hold, HoldRequest, Line, Waiting
from .reserves import DRAWN_BY, DRAWS, Draw, find_draw, pieces_of
from .scopes import Place
from .stores.protocol import Transaction

#: Sums are looked at only for amounts that could carry them past what 64 bits hold (a million dollars).
_HUGE_NANOS = 10**15
#: In the notes of holds these are the ledger's own words.
_OWN_NOTES = frozenset({RESERVE, DRAWS})


class Rules:
    """Admission for one process: remembers which caps bind where, until the caps change."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._binder = Binder()
        self._declared: dict[tuple[str, str, str], int] = {}
        self._declared_now: list[tuple[str, str, str]] = []
        self._owner_known = False
        self._owner_known_now = False
        #: Reserves that were not released: what was drawn on them comes back if the call was void.
        self._reserves: set[str] = set()

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
        for cap in self.undeclared(caps):
            self.declare(txn, (cap,), at_us)
            self._declared[cap.key] = cap.nanos
            self._declared_now.append(cap.key)

    def undeclared(self, caps: Iterable[Cap]) -> list[Cap]:
        """Those of a context's caps that the next call made there would set."""
        return [cap for cap in caps if self._declared.get(cap.key) != cap.nanos]

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
        if not _OWN_NOTES.isdisjoint(request.note):
            raise LedgerError(
                f"hold {request.id}: the names {sorted(_OWN_NOTES)} of notes are the ledger's own; take others"
            )
        if ticket is None and not request.fresh_id and txn.ended_as(request.id) is not None:
            raise _used_before(request.id)
        if request.place.caps:
            self._declare_context(txn, request.place.caps, at_us)
        place = request.place
        draw = None
        if request.replaces is not None and nanos:
            draw = find_draw(txn, self._binder, self.owner.id, request.replaces)
        bound = self._binder.bind(txn, place.scopes, place.kinds, at_us)
        if nanos:
            dearest = nanos if request.batch is None else request.batch.largest_nanos
            for entry in bound.per_call:
                if dearest > entry.cap.nanos:
                    raise decline(request, single_call(entry))
            blocked = judge(txn, request, bound, ticket, draw)
            # A call nested in an open stream stands in no line: those in front may wait for its stream.
            blocked = blocked or ([] if request.tied else behind(txn, bound, ticket, nanos, draw))
            if blocked:
                if not request.wait:
                    raise decline(request, blocked[0])
                return MustWait(tuple(binding.account.key for binding in blocked))
        if draw is not None:
            return self._swap(txn, draw, request, bound, at_us)
        return self._write(txn, request, bound, at_us)

    def _write(self, txn: Transaction, request: HoldRequest, bound: Bound, at_us: int) -> Hold:
        self._introduce(txn)
        owner = self.owner
        if request.batch is not None:
            owner = PROVIDER  # it goes on there, and is not in doubt when this process ends
            txn.put_owner(owner)
        if request.reserve:
            self._reserves.add(request.id)
        hold, line = _write_hold(txn, request, bound, at_us, owner.id)
        self._count(txn, line, bound)
        txn.append(line)
        return hold

    # ---- reserves -------------------------------------------------------------------------------

    def _swap(
        self, txn: Transaction, draw: Draw, request: HoldRequest, bound: Bound, at_us: int
    ) -> Hold:
        """The reserve for the hold of a call that draws on it; what is left of it stays a reserve."""
        for piece in draw.pieces:
            self.end(txn, Ending(hold=piece.id, kind="void", note={DRAWN_BY: request.id}), at_us)
        drawing = replace(request, note={**request.note, **draw.note(request.nanos)})
        hold = self._write(txn, drawing, bound, at_us)
        left = draw.nanos - request.nanos
        if left > 0:
            self._set_aside(txn, f"{hold.id}.rest", left, hold.note[DRAWS], at_us)
        return hold

    def _set_aside(
        self, txn: Transaction, hold_id: str, nanos: int, draws: Mapping[str, Any], at_us: int
    ) -> None:
        """Make (a part of) a reserve anew; not where a cap was lowered, or its window turned, meanwhile."""
        name = draws[RESERVE]
        if name not in self._reserves:
            return
        kinds = tuple((path, kind) for path, kind in draws["kinds"])
        place = Place(scopes=tuple(draws["scopes"]), kinds=kinds)
        bound = self._binder.bind(txn, place.scopes, place.kinds, at_us)
        fits = all(nanos <= entry.cap.nanos for entry in bound.per_call) and all(
            b.account.posted + b.account.held + b.account.in_doubt + nanos <= b.cap.nanos
            for b in bound.judged
        )
        if fits:
            part = HoldRequest(id=hold_id, nanos=nanos, place=place, note={RESERVE: name})
            self._write(txn, part, bound, at_us)

    def release(self, txn: Transaction, name: str, at_us: int) -> int:
        """Give back what is left of a reserve of this process; how many nano-dollars that was."""
        self._reserves.discard(name)
        released = 0
        for piece in pieces_of(txn, self.owner.id, name):
            self.end(txn, Ending(hold=piece.id, kind="void", note={"reason": "released"}), at_us)
            released += piece.nanos
        return released

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
        elif kind != "void" and RESERVE in hold.note:
            raise LedgerError(
                f"hold {hold.id}: it is a reserve and nothing was sent on it, so it can't {kind}; release it"
            )
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
        if kind == "void" and DRAWS in hold.note:
            # There for the next try, before anybody else can have it.
            draws = hold.note[DRAWS]
            self._set_aside(txn, f"{hold.id}.back", draws["nanos"], draws, at_us)
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
        """Put the holds of dead owners in doubt and drop their places in the queue; how many holds.

        Their reserves are void: nothing was sent on them.
        """
        count = 0
        for owner in txn.open_owners():
            if owner.id == self.owner.id or not is_dead(owner):
                continue
            for hold in txn.holds_of(owner.id):
                self.end(txn, _orphaned(hold, f"owner died (pid {owner.pid})"), at_us)
                count += 1
            for waiting in list(txn.waiting()):
                if waiting.owner == owner.id:
                    txn.drop_waiting(waiting.ticket)
        return count

    def leave(self, txn: Transaction, at_us: int) -> None:
        """This process uses the ledger no more: its open holds go in doubt, its reserves and places are free."""
        self._reserves.clear()
        for hold in txn.holds_of(self.owner.id):
            sent = "the ledger was closed while the call was under way"
            reason = sent if hold.reserve is None else "the ledger was closed"
            self.end(txn, _orphaned(hold, reason), at_us)
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


def _orphaned(hold: Hold, reason: str) -> Ending:
    """How a hold ends when its owner is gone. Nothing was ever sent on a reserve."""
    kind: Literal["void", "doubt"] = "doubt" if hold.reserve is None else "void"
    return Ending(hold=hold.id, kind=kind, note={"reason": reason})


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
    note = request.note
    if request.reserve:
        note = {**note, RESERVE: request.id}
    if request.batch is not None:
        # The checker replays caps on single calls from the lines alone.
        split = {"items": request.batch.items, "largest_nanos": request.batch.largest_nanos}
        note = {**note, "batch_of": split}
    hold = Hold(
        id=request.id,
        nanos=request.nanos,
        scopes=request.place.scopes,
        kinds=request.place.kinds,
        held_at_us=at_us,
        model=request.model,
        owner=owner,
        note=note,
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
