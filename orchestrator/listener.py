"""Listeners: who hears what a meter does. ``Run`` journals it."""

from __future__ import annotations

from typing import Protocol

from budgets.errors import BudgetError
from budgets.records import Ending

from .attempt import Attempt
from .wire import ErrorKind


class Listener(Protocol):
    """Hears what a meter does."""

    def before_call(self) -> None:
        """Called before anything else, and again just before it leaves; raise to keep it from being made."""

    def held(self, attempt: Attempt) -> None:
        """A hold was made."""

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        """A hold ends so; it is being written. What this raises is logged."""

    def declined(self, error: BudgetError) -> None:
        """A call was declined."""

    def retrying(self, error: ErrorKind | None, tries: int, wait_s: float) -> None:
        """A try failed and will be repeated."""
