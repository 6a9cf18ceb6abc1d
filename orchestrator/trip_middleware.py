"""The middleware that does what ``trips`` says when a cap declines a call, in front of the meter.

A decline has given its slot and its hold back when it comes here, so that nothing is kept while a call waits
for a window or an answer. Retries and breakers never see it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from anthropic import APIRequest, Middleware

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.records import CapEntry
from budgets.scopes import is_within

from .context import current_call, trying
from .halting import Halt
from .outgoing import model_of
from .questions import Questions, call, call_async, unless_halted
from .swallowed import was_swallowed
from .trips import (
    Answer,
    Ask,
    Cheaper,
    Policy,
    RaiseCap,
    Step,
    TripQuestion,
    UseModel,
    on_trip,
    policy_here,
    steps_of,
)
from .wire import classify_path

logger = logging.getLogger("earmark")

#: A waiting call looks up this often: its cap may have been raised meanwhile, by another process, say.
_NAP_S = 30.0
#: Answers that one call may use: a policy that says the same for ever must not make it try for ever.
_ANSWERS_MAX = 10
#: Windows that a call waits for which is too large by its bytes, and may fit when it is counted.
_WINDOWS_MOST = 7
#: After a window has turned, so that a clock a little ahead of the ledger's does not ask too early.
_MARGIN_S = 0.02


@dataclass(frozen=True, slots=True)
class _Until:
    """Wait for this moment of the ledger's clock."""

    at: datetime


_Move = _Until | Ask | Literal["again", "stands"]


class Trips(Middleware):
    """Follows the policy of each call; outside the meter, and outside everything that depends on the model.

    Args:
        ledger: whose caps they are.
        run: id of the run, for questions.
        policy: where neither an agent nor a block has one.
        write: writes what was done into the journal.
        spent: dollars posted by the run so far.
        check: raises if the run has been stopped.
        halt: says so to those who wait.
        deadline: ``time.monotonic`` seconds after which nothing is waited for.

    Raises:
        ConfigError: not a policy.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        policy: Policy,
        write: Callable[..., None],
        spent: Callable[[], Decimal],
        check: Callable[[], None],
        halt: Halt,
        deadline: float | None,
    ) -> None:
        steps_of(policy)
        self.ledger = ledger
        self.run = run
        self.policy = policy
        self.write = write
        self.spent = spent
        self.deadline = deadline
        self._check = check
        self._halt = halt
        self._questions = Questions()
        #: Caps, at their amounts, that nobody wanted to raise.
        self.refused: set[Hashable] = set()

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client."""
        steps = self._steps(request)
        if not steps:
            return await call_next(request)
        trip = _Trip(self, request, steps)
        while True:  # each round uses a step up, waits for a window, or has an answer
            try:
                with trip.trying():
                    return await call_next(trip.request)
            except BudgetExceeded as error:
                declined, move = error, trip.move(error)
                if move == "stands":
                    raise
            if isinstance(move, _Until):
                while (nap := self._nap(move.at, declined)) > 0:
                    await self._halt.wait_async(nap)
            elif isinstance(move, Ask):
                trip.take(declined, await self._ask_async(trip, move, declined))
            self._check()

    def handle(self, request: APIRequest, call_next: Any) -> Any:
        """As ``handle_async``, for the sync client."""
        steps = self._steps(request)
        if not steps:
            return call_next(request)
        trip = _Trip(self, request, steps)
        while True:
            try:
                with trip.trying():
                    return call_next(trip.request)
            except BudgetExceeded as error:
                declined, move = error, trip.move(error)
                if move == "stands":
                    raise
            if isinstance(move, _Until):
                while (nap := self._nap(move.at, declined)) > 0:
                    self._halt.wait(nap)
            elif isinstance(move, Ask):
                trip.take(declined, self._ask(trip, move, declined))
            self._check()

    def _steps(self, request: APIRequest) -> tuple[Step, ...]:
        policy = policy_here(self.policy)
        if policy == "decline" or classify_path(request.method, request.url) != "messages":
            return ()
        return steps_of(policy) if isinstance(request.json, Mapping) else ()

    # ---- waiting ----------------------------------------------------------------------------------

    def opens_at(self, error: BudgetExceeded) -> datetime | None:
        """When waiting helps: the turn of the cap's window, if it comes in time."""
        opens = error.reopens_at
        if opens is None:
            return None
        left_s = (opens - self.ledger.now()).total_seconds()
        if self.deadline is not None and time.monotonic() + left_s > self.deadline:
            return None
        return opens

    def _nap(self, until: datetime, error: BudgetExceeded) -> float:
        """How long to sleep before looking again, in seconds; 0 when it is time, or the cap was changed."""
        left_s = (until - self.ledger.now()).total_seconds() + _MARGIN_S
        if left_s <= 0 or self._halt.is_set or self.was_changed(error):
            return 0.0
        return min(left_s, _NAP_S)

    # ---- asking -----------------------------------------------------------------------------------

    async def _ask_async(self, trip: _Trip, ask: Ask, error: BudgetExceeded) -> Answer:
        async def put() -> Answer:
            if self.was_changed(error):
                return None
            with on_trip("decline"), _answers(ask):
                asking = call_async(ask.callback, trip.question(error))
                answer: Answer = await unless_halted(self._halt, asking)
                return self.apply(trip, error, answer)
            return self.apply(trip, error, None)

        return await self._questions.ask_async(_key(error), put)

    def _ask(self, trip: _Trip, ask: Ask, error: BudgetExceeded) -> Answer:
        def put() -> Answer:
            if self.was_changed(error):
                return None
            with on_trip("decline"), _answers(ask):
                return self.apply(trip, error, call(ask.callback, trip.question(error)))
            return self.apply(trip, error, None)

        return self._questions.ask(_key(error), put)

    def apply(self, trip: _Trip, error: BudgetExceeded, answer: Answer) -> Answer:
        """Do what the answer says about the cap; returns what it says about the calls that wait for it."""
        if isinstance(answer, RaiseCap):
            entry, cap = self.entry_of(error), error.cap
            to = answer.nanos(cap.nanos)
            if entry is not None and not entry.fallback and to > cap.nanos:
                scope, per, tz = entry.cap.scope, entry.cap.per, entry.cap.tz
                self.ledger.set_cap(
                    Cap.from_nanos(to, per=per, scope=scope, tz=tz, owner="an answer")
                )
                trip.note(error, policy="ask", answer="raised", nanos=cap.nanos, to_nanos=to)
                return answer
            logger.warning("the cap of %s can't be raised by an answer of %s", cap, answer)
        elif isinstance(answer, UseModel):
            trip.note(error, policy="ask", answer="model", model=trip.model, to=answer.model)
            return answer
        elif answer is not None and answer is not False:
            logger.warning("Ask: %r is not an answer, so the call is declined", answer)
        trip.note(error, policy="ask", answer="declined")
        self.refused.add(_key(error))
        return None

    # ---- the cap in the way -----------------------------------------------------------------------

    def entry_of(self, error: BudgetExceeded) -> CapEntry | None:
        """The cap in the ledger that is in the way; None if it isn't there at that amount any more."""
        cap = error.cap
        # A cap on each call, agent or run below a scope is named by that one in a decline.
        each = cap.per in {"call", "agent", "run"}
        found = [
            entry
            for entry in self.ledger.caps()
            if (entry.cap.per, entry.cap.tz, entry.cap.nanos) == (cap.per, cap.tz, cap.nanos)
            and (is_within(cap.scope, entry.cap.scope) if each else cap.scope == entry.cap.scope)
        ]
        return max(found, key=lambda entry: len(entry.cap.scope), default=None)

    def was_changed(self, error: BudgetExceeded) -> bool:
        """Whether the cap was raised, lowered or lifted since it was in the way."""
        return self.entry_of(error) is None


class _Trip:
    """One call, and which step of its policy is next."""

    def __init__(self, trips: Trips, request: APIRequest, steps: tuple[Step, ...]) -> None:
        self.request = request
        self._trips = trips
        self._first = request
        self._steps = steps
        self._at = 0
        self._is_last = False
        self._waits = 0
        self._answers = 0
        self._rechecked: set[Hashable] = set()

    @property
    def model(self) -> str:
        """The model of the next try."""
        return model_of(self.request)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Around one try. Only the last one may shut the scope."""
        if self._is_last or self._ends_here():
            yield
        else:
            with trying():
                yield

    def _ends_here(self) -> bool:
        """Whether nothing is left to try after the present model."""
        last = self._steps[-1]
        is_at_end = self._at >= len(self._steps) - 1
        return is_at_end and isinstance(last, Cheaper) and last.after(self.model) is None

    def move(self, error: BudgetExceeded) -> _Move:
        """What to do about a decline."""
        if self._is_last or self._ends_here() or was_swallowed(error):
            return "stands"
        trips = self._trips
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if step == "wait" and self._may_fit(error) and (opens := trips.opens_at(error)):
                self.note(error, policy="wait", until=opens.isoformat())
                self.request, self._at, self._waits = self._first, 0, self._waits + 1
                return _Until(opens)
            if isinstance(step, Cheaper) and not error.latched:
                model = step.after(self.model)
                if model is not None:
                    self.note(error, policy="cheaper", model=self.model, to=model)
                    self._use(model)
                    return "again"
            if isinstance(step, Ask) and _key(error) not in trips.refused:
                return step
            self._at += 1
        # Nothing is left. What was declined for posted money stays so (rule 13): once more, to shut the scope.
        self._is_last = True
        short = error.posted + error.asked > error.cap.amount
        return "again" if short and not error.latched else "stands"

    def _may_fit(self, error: BudgetExceeded) -> bool:
        """Whether an empty window may have room for it. A bound by bytes may be too large, and the counted one
        not, which is asked for only where there is room at all: so a large one waits for some windows, where it
        was not alone. Others may be quicker than it in each of them.
        """
        if error.asked <= error.cap.amount:
            return True
        return self._waits < _WINDOWS_MOST and error.posted + error.held > 0

    def take(self, error: BudgetExceeded, answer: Answer) -> None:
        """Go on as an answer says. Without one the next step is up, unless the cap was changed meanwhile."""
        self._answers += 1
        if self._answers >= _ANSWERS_MAX:
            self._at += 1
        elif isinstance(answer, UseModel) and answer.model != self.model:
            self._use(answer.model)
        elif not isinstance(answer, RaiseCap) and not self._changed_once(error):
            self._at += 1

    def _changed_once(self, error: BudgetExceeded) -> bool:
        """Whether the cap was changed meanwhile, so that another try may end better; believed once."""
        key = _key(error)
        if key in self._rechecked or not self._trips.was_changed(error):
            return False
        self._rechecked.add(key)
        return True

    def question(self, error: BudgetExceeded) -> TripQuestion:
        """What is asked about a decline."""
        made_by, entry = current_call(), self._trips.entry_of(error)
        return TripQuestion(
            decline=error,
            run=self._trips.run,
            agent=made_by.agent,
            unit=made_by.unit,
            model=self.model,
            spent=self._trips.spent(),
            can_raise=entry is not None and not entry.fallback,
        )

    def note(self, error: BudgetExceeded, **facts: Any) -> None:
        """Write it into the journal."""
        made_by = current_call()
        self._trips.write(
            agent=made_by.agent,
            parent=made_by.parent,
            unit=made_by.unit,
            scope=error.asked_by,
            cap=str(error.cap),
            **facts,
        )

    def _use(self, model: str) -> None:
        request = self.request
        options = request.options.model_copy()
        body = request.json
        assert isinstance(body, Mapping)
        options.json_data = {**body, "model": model}
        self.request = APIRequest(
            options=options,
            cast_to=request.cast_to,
            stream=request.stream,
            stream_cls=request.stream_cls,
            retries_taken=request.retries_taken,
        )


def _key(error: BudgetExceeded) -> Hashable:
    return (*error.cap.key, error.window.key, error.cap.nanos)


@contextmanager
def _answers(ask: Ask) -> Iterator[None]:
    """A callback that fails has said no."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the user's callback
        logger.warning(
            "Ask: %s failed (%s), so the call is declined",
            getattr(ask.callback, "__name__", ask.callback),
            f"{type(error).__name__}: {error}",
        )
