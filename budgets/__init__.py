"""What Claude calls may cost: money, prices, bounds, caps and the ledger. Knows no HTTP and no SDK.

Reading order: ``money`` and ``windows``; ``shape``, ``usage``, ``prices`` and ``pricing`` (what a call can
cost, what it did cost); ``scopes`` and ``caps``; ``records``, ``admission`` and ``ledger`` (the rules);
``stores`` (where it is kept); ``report``, ``check`` and ``estimate`` (questions).
"""

from .caps import Cap
from .check import CheckResult
from .errors import (
    AlreadyEnded,
    BudgetError,
    BudgetExceeded,
    Declined,
    InvalidAmount,
    InvalidCap,
    InvalidInput,
    InvalidPriceFile,
    InvalidScope,
    InvalidSettings,
    LedgerCorrupt,
    LedgerError,
    LedgerTooNew,
    LedgerUnavailable,
    Unbounded,
    UnknownHold,
    UnknownPrice,
)
from .ledger import Ledger
from .prices import PriceBook, default_book
from .pricing import bound, cost
from .records import Balance, Ending, Hold, HoldRequest, Line
from .reserves import Reserve, drawing_on
from .room import Room
from .scopes import scope
from .shape import Shape
from .usage import Usage

#: Compared at import by ``orchestrator``: a user's own folder of this name would come first on the path.
__project__ = "earmark"

__all__ = [
    "AlreadyEnded",
    "Balance",
    "BudgetError",
    "BudgetExceeded",
    "Cap",
    "CheckResult",
    "Declined",
    "Ending",
    "Hold",
    "HoldRequest",
    "InvalidAmount",
    "InvalidCap",
    "InvalidInput",
    "InvalidPriceFile",
    "InvalidScope",
    "InvalidSettings",
    "Ledger",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerTooNew",
    "LedgerUnavailable",
    "Line",
    "PriceBook",
    "Reserve",
    "Room",
    "Shape",
    "Unbounded",
    "UnknownHold",
    "UnknownPrice",
    "Usage",
    "bound",
    "cost",
    "default_book",
    "drawing_on",
    "scope",
]
