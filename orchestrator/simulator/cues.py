"""Cues: directives for requests that contain a text, so that a test can script a conversation of many calls.

A cue is drawn like a fault: of those whose ``match`` is in the body, the first that is not used up. Its directives
(see ``directives``) are read after those of the prompt, as if they stood in the header ``x-sim``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """One cue.

    Attributes:
        match: only requests whose body contains this text (as it stands in JSON).
        say: directives, ``[[sim:text={"done": true}]]``.
        times: how many requests get it; 0 means every one.
    """

    match: str
    say: str
    times: int = 1


class Cues:
    """Cues in their order, and how often each was given."""

    def __init__(self, cues: Iterable[Cue] = ()) -> None:
        self._cues = [(cue, cue.match.encode()) for cue in cues]
        self._given = [0] * len(self._cues)

    def draw(self, raw: bytes) -> str:
        """The directives for a request; empty if no cue is for it."""
        for number, (cue, match) in enumerate(self._cues):
            if match in raw and (cue.times == 0 or self._given[number] < cue.times):
                self._given[number] += 1
                return cue.say
        return ""
