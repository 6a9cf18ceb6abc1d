"""Reserves: money set aside before for a call that must be possible at the end, and the calls that draw on it.

A reserve is an open hold that nothing was sent on. It bears its name in its note, and so does what is left of it
after a call has drawn on it, or is back after such a call was void. ``admission`` changes holds; what a reserve
means for them is worked out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .bindings import Binder, Binding
from .caps import CALENDAR
from .errors import LedgerError
from .money import to_decimal
from .records import RESERVE, Hold, Line, from_us
from .scopes import is_within
from .stores.protocol import AccountKey, Transaction
from .windows import window_of

#: Notes of a hold that drew on a reserve: which, how much of it, and where what comes back belongs.
DRAWS = "draws"
#: Note of the void of a reserve: id of the hold that drew on it.
DRAWN_BY = "drawn_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Money that was set aside.

    Attributes:
        id: names it as long as any of it is there.
        nanos: what was set aside, nano-dollars.
        scope: where; calls in this scope or below it can count on it.
        ledger: number of the ledger (``Ledger.number``) that has it.
    """

    id: str
    nanos: int
    scope: str
    ledger: int

    @property
    def amount(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.nanos)


_current: ContextVar[Reserve | None] = ContextVar("earmark_reserve", default=None)


@contextmanager
def drawing_on(reserve: Reserve) -> Iterator[Reserve]:
    """Metered calls made inside, by this task or thread and those it starts, draw on this reserve.

    What is left of it stays a reserve afterwards; ``Ledger.release`` gives it back.
    """
    token = _current.set(reserve)
    try:
        yield reserve
    finally:
        _current.reset(token)


def reserve_here(ledger: int) -> str | None:
    """Id of the reserve that calls on this ledger draw on here and now."""
    reserve = _current.get()
    return reserve.id if reserve is not None and reserve.ledger == ledger else None


# ---- drawing --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a call that draws on a reserve finds.

    Attributes:
        name: the reserve's id.
        pieces: the open holds that it consists of.
        nanos: their sum.
        credits: what of it each account counts as held.
    """

    name: str
    pieces: tuple[Hold, ...]
    nanos: int
    credits: Mapping[AccountKey, int]

    def note(self, nanos: int) -> dict[str, Any]:
        """What the line of a hold of this amount says about the reserve."""
        first = self.pieces[0]
        taken = min(nanos, self.nanos)
        return {
            DRAWS: {
                RESERVE: self.name,
                "nanos": taken,
                "scopes": list(first.scopes),
                "kinds": [list(kind) for kind in first.kinds],
            }
        }


def find_draw(txn: Transaction, binder: Binder, owner: str, name: str) -> Draw | None:
    """What is left of a reserve of this owner; None if nothing is.

    Raises:
        LedgerError: this is the id of a call's hold.
    """
    pieces = pieces_of(txn, owner, name)
    if not pieces:
        other = txn.open_hold(name)
        if other is not None and other.reserve is None:
            raise LedgerError(f"hold {name}: it is a call's, not a reserve that can be drawn on")
        return None
    counted: dict[AccountKey, int] = {}
    for piece in pieces:
        for binding in binder.bind(txn, piece.scopes, piece.kinds, piece.held_at_us).counted:
            key = binding.account.key
            counted[key] = counted.get(key, 0) + piece.nanos
    total = sum(piece.nanos for piece in pieces)
    return Draw(name=name, pieces=pieces, nanos=total, credits=counted)


def pieces_of(txn: Transaction, owner: str, name: str) -> tuple[Hold, ...]:
    """The open holds that a reserve of this owner consists of."""
    return tuple(h for h in txn.reserves() if h.reserve == name and h.owner == owner)


def kept(txn: Transaction, binding: Binding, draw: Draw | None) -> int:
    """Nano-dollars of an account that reserves hold, other than the one that is drawn on.

    They come back when somebody says so, or not at all: a call that waited for them might wait for ever.
    """
    found = 0
    for hold in txn.reserves():
        cap, account = binding.cap, binding.account
        if draw is not None and hold.reserve == draw.name:
            continue
        if not any(is_within(path, account.subject) for path in hold.scopes):
            continue
        if cap.per in CALENDAR:
            window = window_of(cap.per, cap.tz, from_us(hold.held_at_us))
            if window.key != account.window:
                continue
        found += hold.nanos
    return found


# ---- proving --------------------------------------------------------------------------------------------


class Purses:
    """Follows reserves through the lines of a ledger: none may come from nothing, and none may be spent."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        #: What was taken out of reserves and has not gone anywhere yet.
        self._loose: dict[str, int] = {}

    def begin(self, line: Line) -> str | None:
        """A hold begins. What is wrong with it as a reserve, or as a call that draws on one."""
        name = line.note.get(RESERVE)
        if name is not None:
            if name == line.hold:
                self._names.add(line.hold)
                return None
            return self._take(str(name), line.nanos)
        draws = line.note.get(DRAWS)
        if draws is None:
            return None
        taken = int(draws["nanos"])
        if taken > line.nanos:
            return "draws more on a reserve than it holds"
        return self._take(str(draws[RESERVE]), taken)

    def end(self, line: Line, first: Line) -> str | None:
        """A hold ends. What is wrong about it, as above."""
        name = first.note.get(RESERVE)
        if name is not None:
            if line.kind != "void":
                return f"is a reserve, nothing was sent on it, so it can't {line.kind}"
            if line.note.get(DRAWN_BY):
                self._put(str(name), first.nanos)
        draws = first.note.get(DRAWS)
        if draws is not None and line.kind == "void":
            self._put(str(draws[RESERVE]), int(draws["nanos"]))
        return None

    def _put(self, name: str, nanos: int) -> None:
        self._loose[name] = self._loose.get(name, 0) + nanos

    def _take(self, name: str, nanos: int) -> str | None:
        left = self._loose.get(name, 0) - nanos
        if name not in self._names or left < 0:
            return f"takes more from reserve {name} than is there"
        self._loose[name] = left
        return None


__all__ = [
    "DRAWN_BY", "DRAWS", "Draw", "Purses", "Reserve", "drawing_on", "find_draw", "kept", "pieces_of",
    "reserve_here",
]  # fmt: skip
