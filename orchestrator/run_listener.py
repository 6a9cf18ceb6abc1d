"""What a run writes down of its calls: every hold, its end, declines and retries, each with its place in the tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from budgets.errors import BudgetError
from budgets.records import Ending

from .attempt import Attempt
from .context import current_call
from .time_limits import check_time
from .wire import ErrorKind

if TYPE_CHECKING:
    from .run import Run


class RunListener:
    """Journals what the meter does, and lets a stopped run make no call."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def before_call(self) -> None:
        self._run.check()
        check_time()

    def held(self, attempt: Attempt) -> None:
        assert attempt.hold is not None
        self._write(
            attempt,
            "hold",
            model=attempt.reading.model,
            nanos=attempt.hold.nanos,
        )
        # It may have waited long for its slot or its money, and the run was stopped meanwhile.
        self.before_call()

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        assert attempt.hold is not None
        self._run.tally.add(attempt.hold, ending, attempt.effect)
        self._run.prefixes.settled(attempt.call, ending, attempt.effect)
        self._run.note_failure(attempt.failure)
        usage = ending.usage or {}
        self._write(
            attempt,
            ending.kind,
            model=usage.get("model") or attempt.reading.model,
            nanos=ending.nanos if ending.kind == "settle" else attempt.hold.nanos,
            stop_reason=ending.note.get("stop_reason"),
            reason=ending.note.get("reason"),
            unpriced=ending.note.get("unpriced"),
            request_id=ending.note.get("request_id"),
            status=attempt.status or None,
            latency_ms=round((time.monotonic() - attempt.begun_at) * 1000),
            **{name: usage[name] for name in self._run.tally.tokens if name in usage},
        )

    def declined(self, error: BudgetError) -> None:
        self._note("decline", kind=type(error).__name__, reason=str(error))

    def retrying(self, error: ErrorKind | None, tries: int, wait_s: float) -> None:
        self._note(
            "retry", reason=error.word if error else "infra", tries=tries, wait_s=round(wait_s, 3)
        )

    def _note(self, event: str, **fields: Any) -> None:
        """Something about a call that has no hold (any more)."""
        call = current_call()
        self._run.journal.write(
            event,
            agent=call.agent,
            parent=call.parent,
            unit=call.unit,
            scope=self._run.here,
            **fields,
        )

    def _write(self, attempt: Attempt, event: str, **fields: Any) -> None:
        assert attempt.hold is not None
        call = attempt.call
        self._run.journal.write(
            event,
            hold=attempt.hold.id,
            agent=call.agent,
            parent=call.parent,
            unit=call.unit,
            scope=attempt.hold.scope,
            **fields,
        )
