"""Everything that the money layer can say no with, as one tree.

BudgetError
    Declined                 the ledger's no: nothing was sent
        BudgetExceeded       a cap would be passed; carries cap, scope, window and the sums
        UnknownPrice         no price for this model (or feature of it)
        Unbounded            the request has no upper bound on its cost
        LedgerUnavailable    the hold can't be written (also a LedgerError)
    LedgerError
        LedgerUnavailable    disk full, locked, read-only, gone
        LedgerCorrupt        the file fails its checks
        LedgerTooNew         written by a later version of Earmark
        AlreadyEnded         this hold was settled, voided or resolved before
        UnknownHold          no such hold
    InvalidInput             the caller's mistake (also a ValueError)
        InvalidAmount        not an amount of money
        InvalidCap           not a cap
        InvalidScope         not a scope path
        InvalidPriceFile     a price file that can't be used
        InvalidSettings      an earmark.toml that can't be used
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

    from .caps import Cap
    from .windows import Window


class BudgetError(Exception):
    """Root of everything raised by ``budgets``."""


class Declined(BudgetError):
    """The ledger's no, as a card is declined: nothing was sent and nothing was billed."""


class LedgerError(BudgetError):
    """The ledger itself is in trouble, or was asked for something that can't be."""


class InvalidInput(BudgetError, ValueError):
    """The caller's mistake; the message says what, where and what to do."""


class InvalidAmount(InvalidInput):
    """Not an amount of money: a float, a negative, nonsense, or finer than a nano-dollar."""


class InvalidCap(InvalidInput):
    """Not a cap: unknown period, unknown time zone, contradictory fields."""


class InvalidScope(InvalidInput):
    """Not a scope path."""


class InvalidPriceFile(InvalidInput):
    """A price file that can't be used; names the file, the entry and the field."""


class InvalidSettings(InvalidInput):
    """An ``earmark.toml`` that can't be used; names the file and the key."""


class UnknownPrice(Declined):
    """No price is known, so nothing may be sent.

    Attributes:
        model: the name that was asked for.
        nearest: known names that look like it, best first.
    """

    def __init__(self, message: str, *, model: str = "", nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.model = model
        self.nearest = nearest

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class Unbounded(Declined):
    """The request contains something whose cost has no upper bound.

    Attributes:
        feature: the field or tool by name, as it stands in the request.
    """

    def __init__(self, message: str, *, feature: str = "") -> None:
        super().__init__(message)
        self.feature = feature

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class LedgerUnavailable(LedgerError, Declined):
    """The ledger can't be read or written now. For a hold this is a decline: nothing was sent."""


class LedgerCorrupt(LedgerError):
    """The ledger file fails its checks; it was left as it is."""


class LedgerTooNew(LedgerError):
    """The ledger file was written by a later version of Earmark; it was left as it is."""


class UnknownHold(LedgerError):
    """No hold of this id is in the ledger."""


class AlreadyEnded(LedgerError):
    """The hold was ended before. A hold ends exactly once.

    Attributes:
        hold: id of the hold.
        ended_as: how it ended: ``settle``, ``void``, ``doubt`` or ``resolve``; ``hold`` if the id of a new
            hold was used before.
    """

    def __init__(self, message: str, *, hold: str = "", ended_as: str = "") -> None:
        super().__init__(message)
        self.hold = hold
        self.ended_as = ended_as

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class BudgetExceeded(Declined):
    """A cap would be passed. Nothing was sent and nothing was billed.

    Attributes:
        cap: the cap that is in the way.
        scope: the scope that the cap limits (its owner); ``""`` is everything.
        window: the calendar window the sums belong to.
        posted, held, asked: dollars as Decimal; ``held`` includes what is in doubt.
        in_doubt: the part of ``held`` that only a person or the provider's report can free.
        reserved: the part of ``held`` that is set aside in reserves, where that is what is in the way; else 0.
        reopens_at: when the window turns (aware datetime), or None if it never does.
        asked_by: the scope that the declined call was made in.
        latched: True if this scope was declined before and stays so (rule 13).
        id: names this very decline, so that a loop that swallowed it can be ended.
    """

    def __init__(
        self,
        message: str,
        *,
        cap: Cap,
        window: Window,
        posted: Decimal,
        held: Decimal,
        in_doubt: Decimal,
        asked: Decimal,
        asked_by: str,
        latched: bool,
        reserved: Decimal,
        id: str,  # noqa: A002 - an id is what it is
    ) -> None:
        super().__init__(message)
        self.cap = cap
        self.scope = cap.scope
        self.window = window
        self.posted = posted
        self.held = held
        self.in_doubt = in_doubt
        self.asked = asked
        self.asked_by = asked_by
        self.latched = latched
        self.reserved = reserved
        self.id = id
        self.reopens_at: datetime | None = window.ends

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    kind: type[Exception], args: tuple[object, ...], state: dict[str, object]
) -> Exception:
    """Pickle support: errors cross process borders with their facts."""
    error = kind.__new__(kind, *args)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error
