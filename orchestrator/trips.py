"""Trips: what the caller wants done when a cap declines a call.

``"decline"`` raises (the default), ``"wait"`` waits for the cap's window, ``Cheaper`` goes on with a cheaper
model, ``Ask`` asks somebody. A tuple tries one after the other: ``(Cheaper(...), "wait")``. Set for a run
(``Run(on_trip=...)``), for an agent (``Agent(on_trip=...)``), or for a block (``with on_trip(...)``): the
innermost word counts. ``trip_middleware`` does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from budgets.errors import BudgetExceeded
from budgets.money import parse_usd

from .errors import ConfigError


@dataclass(frozen=True, slots=True, init=False)
class Cheaper:
    """Go on with the next cheaper model: ``Cheaper("claude-sonnet-5-5", "claude-haiku-5-5")``.

    Args:
        models: dearest first. A call with one of these goes on with the one after it, any other call with
            the first. The request stays as it is otherwise, so they must take the same fields.

    Raises:
        ConfigError: no model, or something that is no name of one.
    """

    models: tuple[str, ...]

    def __init__(self, *models: str) -> None:
        if not models or not all(models):
            raise ConfigError("Cheaper: give the models by name, dearest first")
        object.__setattr__(self, "models", models)

    def after(self, model: str) -> str | None:
        """The next one after ``model``; None at the end of the chain."""
        if model not in self.models:
            return self.models[0]
        following = self.models[self.models.index(model) + 1 :]
        return following[0] if following else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseCap:
    """An answer: raise the cap that is in the way, for everybody whom it limits, then try again.

    Attributes:
        to, by: dollars, the new amount or what is added; one of the two.

    Raises:
        ConfigError: both or neither.
        InvalidAmount: not an amount.
    """

    to: object = None
    by: object = None

    def __post_init__(self) -> None:
        if (self.to is None) == (self.by is None):
            raise ConfigError("RaiseCap: give either to= or by=, in dollars")
        parse_usd(self.by if self.to is None else self.to, what="RaiseCap")

    def nanos(self, now: int) -> int:
        """The new amount of a cap of ``now`` nano-dollars."""
        if self.to is not None:
            return parse_usd(self.to, what="RaiseCap")
        return now + parse_usd(self.by, what="RaiseCap")


@dataclass(frozen=True, slots=True)
class UseModel:
    """An answer: go on with this model instead, for this call."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TripQuestion:
    """What is asked when a cap is in the way.

    Attributes:
        decline: the decline, with cap, window, posted, held, asked and when it opens again.
        run: id of the run; agent, unit, model: of the call.
        spent: dollars posted by the run so far.
        can_raise: whether ``RaiseCap`` can help (a fallback cap has no place to be raised at).
    """

    decline: BudgetExceeded
    run: str
    agent: str
    unit: str
    model: str
    spent: Decimal
    can_raise: bool

    @property
    def text(self) -> str:
        """The question in two sentences, for a person."""
        error = self.decline
        who = f"agent {self.agent}" if self.agent else "a call"
        what = f" for {self.unit}" if self.unit else ""
        return (
            f"Run {self.run} has spent ${self.spent:,f}. {who}{what} asks for up to ${error.asked:,f} with "
            f"{self.model}, and the cap of {error.cap} is in the way "
            f"(posted ${error.posted:,f}, held ${error.held:,f})."
        )


Answer = RaiseCap | UseModel | Literal[False] | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask somebody what to do; other calls that the same cap declines meanwhile share the answer.

    Attributes:
        callback: takes a ``TripQuestion``; returns ``RaiseCap``, ``UseModel``, or None or False to decline;
            sync (called in a thread) or async. A no holds until the cap is changed.
    """

    callback: Callable[[TripQuestion], Answer | Awaitable[Answer]]


Word = Literal["decline", "wait"]
Step = Word | Cheaper | Ask
Policy = Step | tuple[Step, ...]

_policy: ContextVar[Policy | None] = ContextVar("earmark_on_trip", default=None)


@contextmanager
def on_trip(policy: Policy) -> Iterator[None]:
    """Calls inside follow this policy, whatever was said around it.

    Raises:
        ConfigError: not a policy.
    """
    steps_of(policy)
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def policy_here(default: Policy) -> Policy:
    """The policy of a call that is made here and now."""
    return _policy.get() or default


def steps_of(policy: Policy) -> tuple[Step, ...]:
    """What to try, in order; empty for ``"decline"``.

    Raises:
        ConfigError: not a policy.
    """
    steps: list[Step] = []
    for step in policy if isinstance(policy, tuple) else (policy,):
        if step == "decline":
            break
        if step != "wait" and not isinstance(step, (Cheaper, Ask)):
            raise ConfigError(
                f"on_trip: {step!r} is not a policy; use 'decline', 'wait', Cheaper(...), Ask(...), "
                "or a tuple of them"
            )
        steps.append(step)
    return tuple(steps)
