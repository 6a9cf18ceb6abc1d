"""The caps in force, found by scope: what binds a call depends on how deep it is, not on how many caps there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, ValuesView

from .records import CapEntry
from .scopes import Place, ancestors, is_within

CapKey = tuple[str, str, str]


class CapTable:
    """Caps by key (scope, period, zone), with an index by scope."""

    def __init__(self, entries: Iterable[CapEntry] = ()) -> None:
        self._by_key: dict[CapKey, CapEntry] = {}
        self._by_scope: dict[str, dict[CapKey, CapEntry]] = {}
        for entry in entries:
            self.put(entry)

    def put(self, entry: CapEntry) -> None:
        """Add a cap, or replace the one of its key."""
        key = entry.cap.key
        self._by_key[key] = entry
        self._by_scope.setdefault(entry.cap.scope, {})[key] = entry

    def drop(self, key: CapKey) -> CapEntry | None:
        """Take a cap out; None if there is none of this key."""
        entry = self._by_key.pop(key, None)
        if entry is not None:
            on_scope = self._by_scope[entry.cap.scope]
            del on_scope[key]
            if not on_scope:
                del self._by_scope[entry.cap.scope]
        return entry

    def get(self, key: CapKey) -> CapEntry | None:
        """The cap of this key, or None."""
        return self._by_key.get(key)

    def on(self, scope: str) -> Iterable[CapEntry]:
        """Caps set on exactly this scope."""
        return self._by_scope.get(scope, {}).values()

    def values(self) -> ValuesView[CapEntry]:
        """All caps."""
        return self._by_key.values()

    def copy(self) -> CapTable:
        """The same caps in a table of its own."""
        return CapTable(self._by_key.values())

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[CapEntry]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)


class Match:
    """A cap that may apply to a place, and the subject whose sums count against it.

    ``named`` is False for a path above an agent's or a run's own: the cap per agent or per run applies to
    it only once that path has itself been used as an agent or a run (its account has begun then).
    """

    __slots__ = ("entry", "named", "subject")

    def __init__(self, entry: CapEntry, subject: str, *, named: bool) -> None:
        self.entry = entry
        self.subject = subject
        self.named = named


def matching(table: CapTable, place: Place) -> tuple[Match, ...]:
    """Caps that apply to a place, outermost first."""
    chain = list(dict.fromkeys(a for path in place.scopes for a in ancestors(path)))
    found: list[tuple[int, CapKey, Match]] = []
    for rank, path in enumerate(chain):
        for entry in table.on(path):
            cap = entry.cap
            if cap.per not in {"agent", "run"}:
                found.append((rank, cap.key, Match(entry, path, named=True)))
                continue
            own = {p for p, kind in place.kinds if kind == cap.per}
            found.extend(
                (depth, cap.key, Match(entry, each, named=each in own))
                for depth, each in enumerate(chain)
                if each and is_within(each, path)
            )
    found.sort(key=lambda item: item[:2])
    return tuple(match for _, _, match in found)


__all__ = ["CapKey", "CapTable", "Match", "matching"]
