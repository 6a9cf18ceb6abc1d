"""The context of a call: which agent of which run makes it, and the tally of what it has cost so far.

Money does not depend on it: scopes travel in ``budgets.scopes``, and only the ledger decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from budgets.money import format_usd
from budgets.pricing import CacheEffect
from budgets.records import Ending, Hold

TOKENS = ("input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens")


@dataclass(slots=True)
class Tally:
    """What the calls of an agent or a unit of work came to.

    Attributes:
        calls: HTTP attempts that were held for.
        posted_nanos, in_doubt_nanos: nano-dollars charged, and in doubt.
        tokens: the four disjoint classes of tokens that were billed.
        saved_nanos: tokens read from the prompt cache, at the price of plain input, less what they cost.
        surcharge_nanos: what tokens written to it cost above plain input.
        wasted_nanos: the part of the surcharge that brought nothing so far; see ``prefixes``.
    """

    calls: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    saved_nanos: int = 0
    surcharge_nanos: int = 0
    wasted_nanos: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, hold: Hold, ending: Ending, effect: CacheEffect | None = None) -> None:
        """Count the end of one hold. ``effect`` is what the prompt cache did to its price."""
        with self._lock:
            if effect is not None:
                self.saved_nanos += effect.saved_nanos
                self.surcharge_nanos += effect.surcharge_nanos
            self.calls += 1
            if ending.kind == "settle":
                self.posted_nanos += ending.nanos
            elif ending.kind == "doubt":
                self.in_doubt_nanos += hold.nanos
            if ending.usage:
                for name in TOKENS:
                    self.tokens[name] += int(ending.usage.get(name, 0))

    def waste(self, nanos: int) -> None:
        """A write that nothing has read yet; or one less of them, as a negative amount."""
        with self._lock:
            self.wasted_nanos += nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Who makes a call.

    Attributes:
        agent: name of the agent, ``""`` for a plain call.
        parent: name of the agent around it.
        unit: what the call is about, such as a document's identity; written into the ledger's lines.
        keep: takes the JSON of an answer and returns what of it to write into the line that settles it
            (short, JSON), so that a paid answer survives a crash; None keeps nothing.
        tallies: everyone who wants the cost of this call counted, innermost last.
        marks: the prefixes that were marked for the prompt cache, see ``prefixes.accounts``.
    """

    agent: str = ""
    parent: str = ""
    unit: str = ""
    keep: Callable[[Mapping[str, Any]], Any] | None = None
    tallies: tuple[Tally, ...] = ()
    marks: Any = None


_NOBODY = CallContext()
_may_latch: ContextVar[bool] = ContextVar("earmark_may_latch", default=True)


def may_latch() -> bool:
    """Whether a decline here shuts its scope (rule 13)."""
    return _may_latch.get()


@contextmanager
def trying() -> Iterator[None]:
    """Declines inside shut nothing: whoever makes the call has something else to try next."""
    token = _may_latch.set(False)
    try:
        yield
    finally:
        _may_latch.reset(token)


_current: ContextVar[CallContext] = ContextVar("earmark_call", default=_NOBODY)


def current_call() -> CallContext:
    """Who makes calls here and now."""
    return _current.get()


class calling_as:  # noqa: N801 - reads as a statement: ``with calling_as("researcher") as tally:``
    """Calls inside are this agent's (the outer one's if it is not named); gives their tally, ``tally`` or a new one.

    A class and not a generator, which would cost twice as much, and is entered for each call.
    """

    __slots__ = ("_agent", "_keep", "_tally", "_token", "_unit")

    def __init__(
        self,
        agent: str = "",
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._tally = Tally() if tally is None else tally
        self._agent = agent
        self._unit = unit
        self._keep = keep

    def __enter__(self) -> Tally:
        outer, agent, unit, tally = _current.get(), self._agent, self._unit, self._tally
        self._token = _current.set(
            CallContext(
                agent=agent or outer.agent,
                parent=outer.agent if agent else outer.parent,
                unit=unit or outer.unit,
                keep=self._keep or (None if unit else outer.keep),
                tallies=(*outer.tallies, tally),
            )
        )
        return tally

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def carry_figures(error: BaseException, who: str, tally: Tally) -> None:
    """Have an exception say what was spent before it: as its ``tally``, and in a note."""
    error.tally = tally  # type: ignore[attr-defined]
    error.add_note(
        f"{who}: {tally.calls} calls, {format_usd(tally.posted_nanos)} posted, "
        f"{format_usd(tally.in_doubt_nanos)} in doubt when it was left"
    )


@contextmanager
def with_figures(who: str, tally: Tally) -> Iterator[None]:
    """Whatever is raised inside carries what was spent so far."""
    try:
        yield
    except BaseException as error:
        carry_figures(error, who, tally)
        raise


@contextmanager
def calling_with(marks: object) -> Iterator[None]:
    """The call inside bears these marks."""
    token = _current.set(replace(_current.get(), marks=marks))
    try:
        yield
    finally:
        _current.reset(token)
