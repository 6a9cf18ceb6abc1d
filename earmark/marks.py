"""Marks of outcomes: the one sign, and the one tone, that each word has wherever it is shown."""

from __future__ import annotations

from typing import Literal

Tone = Literal["good", "money", "bad", "open", "plain"]

#: Stopped by somebody's limit or word: nothing is broken, and it can be gone on with.
_STOPPED = {"budget", "spend_limit", "cancelled", "expired"}
_OPEN = {"running", "under way", "not ended", "in_doubt", "in doubt", "mixed"}
_MARKS: dict[Tone, str] = {"good": "✓", "money": "■", "bad": "✗", "open": "…", "plain": "·"}


def tone_of(outcome: str) -> Tone:
    """How an outcome is meant: good, stopped (``money``), bad, open, or nothing to tell (``plain``)."""
    if outcome == "ok":
        return "good"
    if outcome in _STOPPED:
        return "money"
    if outcome in _OPEN:
        return "open"
    return "bad" if outcome else "plain"


def mark_of(outcome: str) -> str:
    """The sign of an outcome."""
    return _MARKS[tone_of(outcome)]
