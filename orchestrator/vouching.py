"""Vouching by context: what a caller says about the costs of one call, beside what the meter was told.

A tool that carries the caller's word about itself (``server_tools``) is believed for the calls of the agent
that has it, and for no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from .wire import Allowances

_NO_WORD = Allowances()
_words: ContextVar[Allowances | None] = ContextVar("earmark_words", default=None)


@contextmanager
def vouching(*words: Allowances) -> Iterator[None]:
    """Calls inside may rely on these words; of the same thing, the last one counts."""
    said = _words.get()
    for word in words:
        said = word if said is None else merged(said, word)
    token = _words.set(said)
    try:
        yield
    finally:
        _words.reset(token)


def words_here(own: Allowances) -> Allowances:
    """A meter's own allowances, and on top of them what was said for the call that is made here."""
    said = _words.get()
    return own if said is None else merged(own, said)


def merged(first: Allowances, second: Allowances) -> Allowances:
    """Both words; where they speak of the same thing, the second one."""
    values: dict[str, Any] = {}
    for field in fields(Allowances):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(other, frozenset):
            values[field.name] = one | other
        else:
            values[field.name] = one if other == getattr(_NO_WORD, field.name) else other
    return Allowances(**values)
