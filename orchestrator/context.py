"""The context of a call: which agent of which run makes it, for journals and reports.

Money does not depend on it: scopes travel in ``budgets.scopes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Who makes a call.

    Attributes:
        agent: name of the agent, ``""`` for a plain call.
        parent: name of the agent around it.
        unit: what the call is about, such as a document's path.
    """

    agent: str = ""
    parent: str = ""
    unit: str = ""


_NOBODY = CallContext()
_current: ContextVar[CallContext] = ContextVar("earmark_call", default=_NOBODY)


def current_call() -> CallContext:
    """Who makes calls here and now."""
    return _current.get()


@contextmanager
def calling_as(agent: str, *, unit: str = "") -> Iterator[None]:
    """Calls inside are this agent's."""
    outer = _current.get()
    token = _current.set(CallContext(agent=agent, parent=outer.agent, unit=unit or outer.unit))
    try:
        yield
    finally:
        _current.reset(token)
