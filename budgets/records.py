"""The records of the ledger: what a hold is, what a line is, what a balance is.

``admission`` decides with them, stores keep them, ``report`` adds them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from .caps import Cap
from .money import to_decimal
from .scopes import Place

LineKind = Literal["hold", "settle", "void", "doubt", "resolve", "adjust"]
HoldState = Literal["held", "doubt"]

#: In the note of a hold that nothing is sent on: the name of the reserve that it is (part of).
RESERVE = "reserve"


def to_us(at: datetime) -> int:
    """An aware datetime as integer microseconds since 1970 (UTC)."""
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_us(at_us: int) -> datetime:
    """The inverse of ``to_us``."""
    return _EPOCH + timedelta(microseconds=at_us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOf:
    """What a hold for a batch stands for: so many requests, the dearest of which can cost ``largest_nanos``."""

    items: int
    largest_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """What is asked of the ledger before one HTTP attempt.

    Attributes:
        id: made by the caller, unique for ever.
        nanos: the bound: the most that the attempt can cost.
        place: scopes, context caps and kinds.
        model: the model, for reports.
        note: further facts for reports and checks (agent, caller's words, shape); JSON values.
        wait: wait while only held money is in the way; False declines instead.
        tied: nano-dollars of held money that this caller itself can't free while it waits (its own
            open streams).
        fresh_id: the id was just drawn at random, so that looking for it is needless.
        latch: a decline for posted money shuts the scope (rule 13). False only asks: the caller has a
            tighter bound to try next.
        batch: the hold is for a batch that goes on at the provider though this process may end: it never
            goes in doubt with its maker, and caps on a single call look at its dearest item.
        reserve: nothing is sent on this hold; a later call draws on it (``budgets.reserves``).
        replaces: id of a reserve to draw on: it is given back and this hold is made in one step, or neither.
            Of a reserve that is not there any more nothing is drawn.
    """

    id: str
    nanos: int
    place: Place
    model: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)
    wait: bool = True
    tied: int = 0
    fresh_id: bool = False
    latch: bool = True
    batch: BatchOf | None = None
    reserve: bool = False
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An amount set aside for one HTTP attempt. ``state`` is ``held`` or ``doubt`` while it is open."""

    id: str
    nanos: int
    scopes: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]
    held_at_us: int
    model: str
    owner: str
    state: HoldState = "held"
    note: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The scope that the charge is reported under."""
        return self.scopes[0]

    @property
    def reserve(self) -> str | None:
        """The name of the reserve that this hold is, or is a part of; None for a call's hold."""
        return self.note.get(RESERVE)

    @property
    def held_at(self) -> datetime:
        """When it was made; its charge belongs to this moment's windows for ever."""
        return from_us(self.held_at_us)

    @property
    def amount(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.nanos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the ledger; never changed once written.

    Attributes:
        id: position in the ledger; 0 before it is written.
        hold: id of the hold that it is about.
        kind: ``hold``, ``settle``, ``void``, ``doubt``, ``resolve`` or ``adjust``.
        at_us: when it was written; ``held_at_us``: when its hold was made (its window).
        scope: the scope it is reported under.
        nanos: the amount it speaks of: asked, charged, given back, doubted or corrected by.
        posted, held, in_doubt: what it changes of the three sums, nano-dollars, signed.
        model, owner: as in the hold.
        usage: the counts that the cost was derived from, or None.
        note: further facts.
    """

    id: int = 0
    hold: str
    kind: LineKind
    at_us: int
    held_at_us: int
    scope: str
    nanos: int
    posted: int = 0
    held: int = 0
    in_doubt: int = 0
    model: str = ""
    owner: str = ""
    usage: Mapping[str, Any] | None = None
    note: Mapping[str, Any] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        """When it was written (UTC)."""
        return from_us(self.at_us)

    @property
    def held_at(self) -> datetime:
        """When its hold was made (UTC)."""
        return from_us(self.held_at_us)

    @property
    def amount(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.nanos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a hold ends, as its holder says it.

    Attributes:
        hold: id of the hold.
        kind: ``settle``, ``void``, ``doubt`` or ``resolve``.
        nanos: the real cost, for ``settle`` and ``resolve``.
        usage: the counts the cost was derived from.
        note: further facts; merged over the hold's own in the line.
    """

    hold: str
    kind: Literal["settle", "void", "doubt", "resolve"]
    nanos: int = 0
    usage: Mapping[str, Any] | None = None
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Posted, held and in doubt, in nano-dollars; disjoint."""

    posted: int = 0
    held: int = 0
    in_doubt: int = 0

    @property
    def total(self) -> int:
        """What counts against a cap."""
        return self.posted + self.held + self.in_doubt


@dataclass(slots=True)
class Account:
    """The running sums of one cap in one window (or of one agent's, one run's), kept beside the lines.

    ``latched`` is the cap's amount when a call was declined here for posted money; 0 if none was. The
    account stays shut until the cap is raised above it.

    ``begun`` says that a line was written for the subject itself (as the agent or run that it is). A call that
    merely lies within the subject is limited by the account only then.
    """

    cap: tuple[str, str, str]
    subject: str
    window: str
    posted: int = 0
    held: int = 0
    in_doubt: int = 0
    latched: int = 0
    begun: bool = False

    @property
    def key(self) -> tuple[tuple[str, str, str], str, str]:
        """Cap, subject and window."""
        return (self.cap, self.subject, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapEntry:
    """A cap as the ledger has it. ``fallback`` caps bind only calls that no other cap covers."""

    cap: Cap
    since_us: int
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """One word about a cap: set, or lifted (``dropped``), after the line ``after`` was written.

    The order of lines and caps is kept by line number, since clocks may be set back.
    """

    entry: CapEntry
    dropped: bool
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A call that waits for held money: its ticket, and the accounts that are in its way.

    ``tied`` is money that is not freed while it waits: that of the streams it is nested in.
    """

    ticket: int
    owner: str
    nanos: int
    blocked: tuple[tuple[tuple[str, str, str], str, str], ...]
    tied: int = 0


class DollarSums:
    """Three sums in dollars, for records that hold them in nano-dollars."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def posted_nanos(self) -> int: ...
        @property
        def held_nanos(self) -> int: ...
        @property
        def in_doubt_nanos(self) -> int: ...

    @property
    def posted(self) -> Decimal:
        """Dollars charged."""
        return to_decimal(self.posted_nanos)

    @property
    def held(self) -> Decimal:
        """Dollars set aside by calls under way."""
        return to_decimal(self.held_nanos)

    @property
    def in_doubt(self) -> Decimal:
        """Dollars of calls that may or may not have been billed."""
        return to_decimal(self.in_doubt_nanos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance(DollarSums):
    """The sums of a scope, all that is below it included.

    Attributes:
        scope: the path.
        posted_nanos, held_nanos, in_doubt_nanos: disjoint sums.
        remaining_nanos: what a call in this scope could still take: the least over all caps that apply,
            its ancestors' included; None if no cap applies.
        cap: the cap that leaves the least, or None.
    """

    scope: str
    posted_nanos: int
    held_nanos: int
    in_doubt_nanos: int
    remaining_nanos: int | None = None
    cap: Cap | None = None

    @property
    def remaining(self) -> Decimal | None:
        """Dollars that a call in this scope could still take; None if no cap applies."""
        return None if self.remaining_nanos is None else to_decimal(self.remaining_nanos)
