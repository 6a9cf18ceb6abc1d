"""Stops: when nothing new starts any more, because enough has failed, or because nothing can start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .parts import Part

#: A share of failures is not looked at before so many parts have ended.
_PARTS_LEAST = 10
#: So many parts in a row, and the width, can't start before a source that may be endless is left alone; so many
#: times as many where nothing is shut, so that a smaller item may still fit.
DECLINED_MOST, SMALLER_ONES = 100, 10
#: Ends of parts that could not start since nothing may any more.
_NOT_STARTED = frozenset({Outcome.BUDGET, Outcome.SPEND_LIMIT, Outcome.CANCELLED})


@dataclass(slots=True)
class Stop:
    """When nothing new starts any more.

    Attributes:
        when: a function of the parts so far, None for a share of failures.
        share: of the parts that may fail, from 0 to 1.
        reason: why it stopped; empty while it goes on.
        undrawn: why the source was not drawn to its end; empty if it was.
    """

    when: Callable[[list[Part[Any]]], Any] | None = None
    share: float | None = None
    reason: str = ""
    undrawn: str = ""
    _done: int = 0
    _failed: int = 0
    _parts: list[Part[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, given: Stop | Callable[[list[Part[Any]]], Any] | float | None) -> Stop:
        """From what a user writes: a share, a function of the parts so far, or None for never.

        Raises:
            ConfigError: a share outside 0 to 1.
        """
        if given is None or isinstance(given, Stop):
            return given or cls()
        if callable(given):
            return cls(when=given)
        if isinstance(given, bool) or not 0 <= given <= 1:
            raise ConfigError(
                f"stop_when: {given!r} is not a share; write a number from 0 to 1 (0.5 stops when half have failed) "
                "or a function of the parts so far"
            )
        return cls(share=given)

    def hear(self, part: Part[Any]) -> None:
        """Count a part that has ended."""
        if self.reason:
            return
        self._done += 1
        self._failed += not part.ok
        if self.when is not None:
            self._parts.append(part)
            if self.when(self._parts):
                self.reason = f"stop_when was true after {self._done} parts"
        elif self._is_past_share():
            self.reason = f"{self._failed} of {self._done} parts had failed (stop_when)"

    def _is_past_share(self) -> bool:
        return (
            self.share is not None
            and self._done >= _PARTS_LEAST
            and 0 < self._failed >= self.share * self._done
        )


class Patience:
    """With a source that may be endless, once nothing starts any more since money or the run has ended."""

    def __init__(self, run: Run, stop: Stop, width: int) -> None:
        self._run = run
        self._stop = stop
        self._most = width + DECLINED_MOST
        self._declined = 0

    def ended_by(self, part: Part[Any]) -> str:
        """Why the source is left alone from now on; empty while it is not."""
        if part.calls or part.outcome not in _NOT_STARTED:
            self._declined = 0
            return ""
        self._declined += 1
        if self._declined < self._most:
            return ""
        if not self._is_shut(part.outcome) and self._declined < self._most * SMALLER_ONES:
            return ""
        return f"the source was not drawn further after {self._declined} in a row could not start"

    def _is_shut(self, outcome: Outcome) -> bool:
        """Whether no other item can start either; a smaller one may still fit under a cap."""
        if outcome is Outcome.BUDGET:
            least = self._run.room().unheld
            return least is not None and least.nanos == 0
        if outcome is Outcome.CANCELLED:
            return bool(self._stop.reason or self._run.stopped)
        return True
