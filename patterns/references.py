"""References: the sources that workers found, each once, with a number to cite and with who found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .parts import Part
from .result import Result

#: Characters of a title in a list of sources.
_TITLE_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One source.

    Attributes:
        number: by which it is cited, from 1.
        title, url: as they were reported; one of the two may be empty.
        found_by: which workers found it, each as name and task (``researcher 1.2``).
        passages: what was cited of it.
    """

    number: int
    title: str
    url: str
    found_by: tuple[str, ...]
    passages: tuple[str, ...] = ()

    def __str__(self) -> str:
        title = " ".join(self.title.split())[:_TITLE_CHARS]
        return f"[{self.number}] {' '.join(one for one in (title, self.url) if one)}"


@dataclass(frozen=True, slots=True)
class _Found:
    title: str
    url: str
    by: tuple[str, ...]
    passages: tuple[str, ...]


class References:
    """All sources of many parts. A source that several name is one; numbers never change."""

    def __init__(self) -> None:
        self._found: dict[str, Reference] = {}
        self._numbers: dict[int, tuple[int, ...]] = {}

    @property
    def all(self) -> tuple[Reference, ...]:
        """In the order of their numbers."""
        return tuple(self._found.values())

    def add(self, part: Part[Any]) -> None:
        """Take in the sources of a part."""
        task = getattr(part.item, "id", part.index + 1)
        who = f"{part.name or 'worker'} {task}"
        numbers = []
        for one in _sources(part, who):
            key = one.url.strip().rstrip("/") or one.title.strip().casefold()
            known = self._found.get(key)
            if known is None:
                known = Reference(number=len(self._found) + 1, title="", url=one.url, found_by=())
            self._found[key] = replace(
                known,
                title=known.title or one.title,
                found_by=tuple(dict.fromkeys((*known.found_by, *one.by))),
                passages=tuple(dict.fromkeys((*known.passages, *one.passages))),
            )
            numbers.append(known.number)
        self._numbers[part.index] = tuple(dict.fromkeys(numbers))

    def of(self, part: Part[Any]) -> tuple[int, ...]:
        """The numbers of a part's sources."""
        return self._numbers.get(part.index, ())


def _sources(part: Part[Any], who: str) -> Iterator[_Found]:
    """What a part names: what its answer cites, the ``sources`` of its report, those of a team's result."""
    if isinstance(part.value, Result):
        for one in getattr(part.value, "sources", ()):
            by = tuple(f"{who} / {name}" for name in one.found_by)
            yield _Found(one.title, one.url, by or (who,), one.passages)
        return
    for one in getattr(part.answer, "sources", ()):
        cited = (one.cited_text,) if one.cited_text else ()
        yield from _known(one.title, one.url, who, cited)
    given = part.value
    named = given.get("sources") if isinstance(given, Mapping) else getattr(given, "sources", None)
    if isinstance(named, Sequence) and not isinstance(named, str):
        for one in named:
            if isinstance(one, str):
                is_url = "://" in one
                yield from _known("" if is_url else one, one if is_url else "", who)
            else:
                yield from _known(_field(one, "title"), _field(one, "url"), who)


def _known(title: str, url: str, who: str, passages: tuple[str, ...] = ()) -> Iterator[_Found]:
    if title.strip() or url.strip():
        yield _Found(title.strip(), url.strip(), (who,), passages)


def _field(record: object, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else getattr(record, name, "")
    return value if isinstance(value, str) else ""


__all__ = ["Reference", "References"]
