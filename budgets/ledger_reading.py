"""The reading side of a ledger: balances, lines, what is open, what would fit, and its proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from .admission import Rules
from .check import CheckResult, check_lines
from .counter import Counter
from .records import Balance, CapEntry, Hold, Line
from .report import balance_of
from .room import Room, room_in
from .scopes import normal_scope, place_of_call
from .stores.protocol import Reader, Store


class Reading:
    """What ``Ledger`` can be asked; no question changes anything."""

    number: int
    _rules: Rules
    _store: Store
    _counter: Counter
    _clock: Callable[[], datetime]
    _stay_in_process: Callable[[], None]

    def reader(self) -> Any:
        """A consistent view of the store, as a context manager; see ``stores.protocol.Reader``."""
        self.flush()
        return self._store.reader()

    def flush(self) -> None:
        """Return when everything that was handed over before is written; every question does this first."""
        self._stay_in_process()
        self._counter.flush()

    def caps(self) -> tuple[CapEntry, ...]:
        """All caps in force, outermost scope first."""
        with self.reader() as reader:
            return tuple(sorted(reader.caps().values(), key=lambda e: (e.fallback, e.cap.key)))

    def balance(self, scope: str = "") -> Balance:
        """Posted, held, in doubt and remaining of a scope, everything below it included."""
        reader: Reader
        with self.reader() as reader:
            return balance_of(reader, normal_scope(scope), self._clock())

    def room(self, scope: str = "") -> Room:
        """What calls made here and now, below ``scope`` in the surrounding context, could still take."""
        place = place_of_call(normal_scope(scope), self.number)
        reader: Reader
        with self.reader() as reader:
            return room_in(reader, place, self._clock(), self._rules.undeclared(place.caps))

    def affordable(self, nanos_each: Sequence[int], *, scope: str = "", held: bool = True) -> int:
        """How many of the first of these bounds fit together, under every cap that applies here and now.

        For trimming or declining a set of calls before any of them starts (rule 14). Nothing is set aside
        by it: others may be quicker. Calls that already wait for held money are not counted.

        Args:
            nanos_each: the bounds, nano-dollars, in the order of the calls.
            scope: the calls are made below it, in the surrounding context, as for ``request``.
            held: count what is held as well; False asks what would fit if all of it came back.
        """
        return self.room(scope).fits(nanos_each, held=held)

    def lines(self, scope: str = "", *, hold: str | None = None, after: int = 0) -> Iterator[Line]:
        """Lines in the order they were written, those of one scope if it is given."""
        with self.reader() as reader:
            yield from reader.lines(scope=normal_scope(scope), hold=hold, after=after)

    def open_holds(self) -> list[Hold]:
        """Holds of calls under way and reserves (``held``), and of calls in doubt (``doubt``), oldest first."""
        with self.reader() as reader:
            return list(reader.open_holds())

    def check(self) -> CheckResult:
        """Prove the ledger from its lines: balances, ends, caps at every line, reserves, the file itself."""
        with self.reader() as reader:
            return check_lines(reader)

    @property
    def waiting(self) -> int:
        """Calls of this process that wait for held money now."""
        return self._counter.waiting_count


__all__ = ["Reading"]
