"""The gate: how many calls are on the way at once, and how many may leave a minute.

It knows no money (``budgets``) and no requests (``wire``); when to try again is decided in
``retry``.
"""

from .errors import NestedTooDeep, RateDeadline
from .gate import Gate, Ticket
from .groups import group_of
from .statistics import GateStatistics, GroupStatistics, LimitChange

__all__ = [
    "Gate",
    "GateStatistics",
    "GroupStatistics",
    "LimitChange",
    "NestedTooDeep",
    "RateDeadline",
    "Ticket",
    "group_of",
]
