"""Sharing: the word that calls made here and now have a prefix in common, and how often it will be used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.wire.markers import as_blocks

_BORDERS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"\s"))
#: A shorter common beginning is never worth two blocks: no model caches less than 512 tokens.
_SHORTEST = 2_048
#: How far back a natural border is looked for: a border of the better kind may cost this much of the prefix.
_BORDER_AT = 0.9
#: So many different prefixes in a row are taken for the answer that nothing is shared.
_DOUBTS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Content blocks that begin the first message of several calls.

    Attributes:
        blocks: the blocks themselves.
        uses: calls that begin with them; None for many.
    """

    blocks: tuple[Mapping[str, Any], ...]
    uses: int | None


class Word:
    """Whether what somebody said about sharing proves true: ``sharing`` may stand around calls with nothing in common.

    Attributes:
        cold, warm: calls that were the first with their prefix, and calls that were not.
    """

    __slots__ = ("cold", "warm")

    def __init__(self) -> None:
        self.cold = self.warm = 0

    @property
    def is_refuted(self) -> bool:
        """So many calls, and no two of them had a prefix in common."""
        return self.cold >= _DOUBTS_MAX and not self.warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What is expected of the prefixes of a call.

    Attributes:
        uses: calls with the same tools and system; None for many, 1 for this call alone.
        leads: common beginnings of the first message, outer ones first.
        turns: turns of this conversation that may follow the call; None where nobody said.
        every_s: seconds between the uses of a prefix.
        word: how the number of uses proves true.
    """

    uses: int | None = 1
    leads: tuple[Lead, ...] = ()
    turns: int | None = None
    every_s: int = 0
    word: Word = field(default_factory=Word, compare=False)


ALONE = Sharing()
_current: ContextVar[Sharing] = ContextVar("earmark_sharing", default=ALONE)


def current_sharing() -> Sharing:
    """What is expected of calls here and now."""
    return _current.get()


@contextmanager
def sharing(
    *,
    uses: int | None = 1,
    shared: str | Sequence[Mapping[str, Any]] = (),
    turns: int | None = None,
    every_s: float | None = None,
) -> Iterator[None]:
    """Calls inside have a prefix in common: it is cached without being asked.

    Nested blocks multiply: in a fan-out of 50 with 5 voters each, tools and system serve 250 calls. What a
    prompt says about itself (a marker of the caller's own) beats all this.

    Args:
        uses: so many calls share tools and system; None for many.
        shared: text or content blocks with which the first message of each of them begins.
        turns: turns of the same conversation that may follow; for whoever runs a loop with tools. What
            the outer block said if not given.
        every_s: seconds between the uses, where that is known; short if not given.

    Raises:
        ConfigError: a number below 1 (``turns``: below 0).
    """
    if (uses is not None and uses < 1) or (turns or 0) < 0 or (every_s or 0) < 0:
        raise ConfigError(
            f"sharing: uses={uses}, turns={turns}, every_s={every_s} can't be; write uses=2 or more, or None for many"
        )
    outer = _current.get()
    leads = outer.leads
    if uses != 1:
        leads = tuple(Lead(blocks=lead.blocks, uses=_times(lead.uses, uses)) for lead in leads)
    blocks = tuple(as_blocks(shared))
    if blocks:
        leads = (*leads, Lead(blocks=blocks, uses=uses))
    token = _current.set(
        Sharing(
            uses=_times(outer.uses, uses),
            leads=leads,
            turns=outer.turns if turns is None else turns,
            every_s=outer.every_s if every_s is None else int(every_s),
            word=outer.word if uses == 1 and not blocks else Word(),
        )
    )
    try:
        yield
    finally:
        _current.reset(token)


def _times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def most_uses(*uses: int | None) -> int | None:
    """The largest of several numbers of uses; None, for many, beats any."""
    return None if None in uses else max(number for number in uses if number is not None)


def split_shared(items: Sequence[str]) -> int:
    """Length of the beginning that all items have in common, cut at the end of a paragraph, line or word.

    Returns:
        Characters; 0 if they have too little in common to be cached, or one of them has nothing else.
    """
    if len(items) < 2:
        return 0
    common = os.path.commonprefix(list(items))  # noqa: RUF071 - characters are meant
    # Each item keeps something of its own: an empty block is not allowed.
    length = min(len(common), min(len(item.rstrip()) for item in items) - 1)
    if length < _SHORTEST:
        return 0
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(common, int(length * _BORDER_AT), length)]
        if ends:
            return ends[-1]
    return length
