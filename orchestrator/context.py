"""The context of a call: which agent of which run makes it, and the tally of what it has cost so far.

Money does not depend on it: scopes travel in ``budgets.scopes``, and only the ledger decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from budgets.records import Ending, Hold

TOKENS = ("input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens")


@dataclass(slots=True)
class Tally:
    """What the calls of an agent or a unit of work came to.

    Attributes:
        calls: HTTP attempts that were held for.
        posted_nanos, in_doubt_nanos: nano-dollars charged, and in doubt.
        tokens: the four disjoint classes of tokens that were billed.
    """

    calls: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, hold: Hold, ending: Ending) -> None:
        """Count the end of one hold."""
        with self._lock:
            self.calls += 1
            if ending.kind == "settle":
                self.posted_nanos += ending.nanos
            elif ending.kind == "doubt":
                self.in_doubt_nanos += hold.nanos
            for name in TOKENS:
                self.tokens[name] += int((ending.usage or {}).get(name, 0))


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
    """

    agent: str = ""
    parent: str = ""
    unit: str = ""
    keep: Callable[[Mapping[str, Any]], Any] | None = None
    tallies: tuple[Tally, ...] = ()


_NOBODY = CallContext()
_current: ContextVar[CallContext] = ContextVar("earmark_call", default=_NOBODY)


def current_call() -> CallContext:
    """Who makes calls here and now."""
    return _current.get()


@contextmanager
def calling_as(
    agent: str = "", *, unit: str = "", keep: Callable[[Mapping[str, Any]], Any] | None = None
) -> Iterator[Tally]:
    """Calls inside are this agent's (the outer one's if it is not named); yields their tally."""
    outer = _current.get()
    tally = Tally()
    token = _current.set(
        CallContext(
            agent=agent or outer.agent,
            parent=outer.agent if agent else outer.parent,
            unit=unit or outer.unit,
            keep=keep or (None if unit else outer.keep),
            tallies=(*outer.tallies, tally),
        )
    )
    try:
        yield tally
    finally:
        _current.reset(token)
