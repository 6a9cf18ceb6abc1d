"""Patterns of --include and --exclude. They match a path, its name, or a folder above it."""

from __future__ import annotations

import fnmatch
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from .names import printable
from .record import DocumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    parts: tuple[re.Pattern[str] | None, ...]  # None is ``**``: any number of folders
    name_only: bool
    folders_only: bool

    def fits(self, path: tuple[str, ...]) -> bool:
        if self.name_only:
            part = self.parts[0]
            return part is None or part.match(path[-1]) is not None
        # The positions in the pattern that the names so far can have led to.
        positions = self._past_stars({0})
        for name in path:
            reached: set[int] = set()
            for at in positions:
                if at < len(self.parts):
                    part = self.parts[at]
                    if part is None:
                        reached.add(at)
                    elif part.match(name):
                        reached.add(at + 1)
            positions = self._past_stars(reached)
        return len(self.parts) in positions

    def _past_stars(self, positions: set[int]) -> set[int]:
        for at in range(len(self.parts)):
            if at in positions and self.parts[at] is None:
                positions.add(at + 1)
        return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Globs:
    """Compiled patterns.

    In a pattern ``*`` and ``?`` stay within one name, ``**/`` spans folders. A pattern with a
    slash in it counts from the folder itself; one without matches names at any depth; one that
    ends in a slash matches folders only. Composed and decomposed accents are the same; case
    counts, except on Windows.
    """

    patterns: tuple[_Pattern, ...]

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Globs:
        """Compile patterns.

        Raises:
            DocumentError: an empty pattern, or a single string instead of a list.
        """
        if isinstance(patterns, str):
            message = f"patterns are a list of strings, not one string: write [{patterns!r}]."
            raise DocumentError(message)
        return cls(patterns=tuple(_compiled(pattern) for pattern in patterns))

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def fit(self, path: tuple[str, ...], *, folder: bool) -> bool:
        """Whether any pattern matches this path itself (folders above it are the walk's part)."""
        if not self.patterns:
            return False
        raw = tuple(_folded(name) for name in path)
        # What a report prints can be pasted as a pattern, escapes and all.
        shown = tuple(_folded(printable(name)) for name in path)
        return any(
            pattern.fits(raw) or (shown != raw and pattern.fits(shown))
            for pattern in self.patterns
            if folder or not pattern.folders_only
        )


def _compiled(pattern: str) -> _Pattern:
    text = _folded(pattern)
    if os.name == "nt":
        text = text.replace("\\", "/")
    body = text.removeprefix("./")
    names = [name for name in body.split("/") if name]
    if not names:
        message = f"the pattern {pattern!r} matches nothing; leave it out, or write '*' for all."
        raise DocumentError(message)
    if names[-1] == "**" and len(names) > 1:
        names.append("*")  # what is inside the folder, not the folder
    return _Pattern(
        parts=tuple(None if n == "**" else re.compile(fnmatch.translate(n)) for n in names),
        name_only="/" not in body.rstrip("/"),
        folders_only=body.endswith("/"),
    )


def _folded(text: str) -> str:
    text = unicodedata.normalize("NFC", text)
    return text.lower() if os.name == "nt" else text
