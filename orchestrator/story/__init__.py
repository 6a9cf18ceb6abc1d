"""The story of a run: a tree, its calls and its money over time, computed from its journal and its ledger."""

from .foreign import tell_log
from .lines import is_journal
from .records import (
    CacheUse,
    Call,
    CapUse,
    Moment,
    Node,
    Share,
    SpendPoint,
    Story,
    Sum,
    Tokens,
    Unit,
    Unpriced,
)
from .telling import tell_run
from .watcher import Glance, Watcher

__all__ = [
    "CacheUse",
    "Call",
    "CapUse",
    "Glance",
    "Moment",
    "Node",
    "Share",
    "SpendPoint",
    "Story",
    "Sum",
    "Tokens",
    "Unit",
    "Unpriced",
    "Watcher",
    "is_journal",
    "tell_log",
    "tell_run",
]
