"""The checker: proves a ledger from its lines alone, and compares what is kept beside them.

It replays every line in order with the caps as they stood at that moment, and says what it finds wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from .admission import EVER, matching
from .caps import CALENDAR
from .money import format_usd, to_decimal
from .records import CapEntry, Line, from_us
from .scopes import Place
from .stores.protocol import AccountKey, Reader
from .windows import Window, window_of

_FINDINGS_MAX = 50


@dataclass(slots=True)
class CheckResult:
    """What the checker found.

    Attributes:
        findings: sentences, one per fault; empty if the ledger is proven.
        lines, holds: how much was read.
        posted_nanos, held_nanos, in_doubt_nanos: the sums of all lines, real and simulated.
        open_holds: calls under way; doubts: calls in doubt.
        overruns: hold ids whose real cost was above their bound (posted in full all the same).
        caller_word: holds whose bound rests on the caller's word.
        unpriced: holds that were posted in full because their real cost could not be worked out.
    """

    findings: list[str] = field(default_factory=list)
    lines: int = 0
    holds: int = 0
    posted_nanos: int = 0
    held_nanos: int = 0
    in_doubt_nanos: int = 0
    open_holds: int = 0
    doubts: int = 0
    overruns: list[str] = field(default_factory=list)
    caller_word: int = 0
    unpriced: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing was found wrong."""
        return not self.findings

    @property
    def posted(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.posted_nanos)

    @property
    def held(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.held_nanos)

    @property
    def in_doubt(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.in_doubt_nanos)

    def find(self, sentence: str) -> None:
        """Add a fault; beyond fifty they are only counted in the last line."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(sentence)
        elif len(self.findings) == _FINDINGS_MAX:
            self.findings.append("... and more")


def check_lines(reader: Reader) -> CheckResult:
    """Check everything that a reader shows."""
    result = CheckResult()
    for fault in reader.integrity():
        result.find(f"storage: {fault}")
    replay = _Replay(reader, result)
    for line in reader.lines():
        replay.line(line)
    replay.compare()
    return result


class _Replay:
    """The ledger, worked out again from its lines."""

    def __init__(self, reader: Reader, result: CheckResult) -> None:
        self._reader = reader
        self._result = result
        self._extra = reader.extra_scopes()
        self._history = list(reader.cap_history())
        self._next_cap = 0
        self._caps: dict[tuple[str, str, str], CapEntry] = {}
        self._states: dict[str, tuple[str, int]] = {}
        self._places: dict[str, Place] = {}
        self._sums: defaultdict[AccountKey, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._all_caps = {entry.cap.key: entry for entry, _ in self._history}
        self._windows: dict[tuple[str, str], Window] = {}

    def line(self, line: Line) -> None:
        result = self._result
        result.lines += 1
        result.posted_nanos += line.posted
        result.held_nanos += line.held
        result.in_doubt_nanos += line.in_doubt
        if "overrun_nanos" in line.note:
            result.overruns.append(line.hold)
        result.unpriced += line.kind == "settle" and bool(line.note.get("unpriced"))
        _STEPS[line.kind](self, line)
        self._advance_caps(line.at_us)
        self._add(line)

    # ---- the life of a hold -----------------------------------------------------------------------

    def _begin(self, line: Line) -> None:
        self._result.holds += 1
        self._result.caller_word += bool(line.note.get("caller_word"))
        if line.hold in self._states:
            self._result.find(f"line {line.id}: hold {line.hold} begins a second time")
        if (line.posted, line.held, line.in_doubt) != (0, line.nanos, 0):
            self._result.find(f"line {line.id}: a hold must set aside exactly its amount")
        self._states[line.hold] = ("held", line.nanos)
        kinds = tuple((str(path), str(kind)) for path, kind in line.note.get("kinds", ()))
        scopes = (line.scope, *self._extra.get(line.hold, ()))
        self._places[line.hold] = Place(scopes=scopes, kinds=kinds)  # type: ignore[arg-type]

    def _end(self, line: Line) -> None:
        state, nanos = self._states.get(line.hold, ("none", 0))
        allowed = {
            "settle": ("held",),
            "void": ("held",),
            "doubt": ("held",),
            "resolve": ("doubt",),
        }[line.kind]
        if state not in allowed:
            self._result.find(f"line {line.id}: hold {line.hold} is {state}, it can't {line.kind}")
        expected_held = -nanos if state == "held" else 0
        expected_doubt = nanos if line.kind == "doubt" else (-nanos if state == "doubt" else 0)
        if (line.held, line.in_doubt) != (expected_held, expected_doubt):
            self._result.find(f"line {line.id}: hold {line.hold} does not give back what was held")
        self._states[line.hold] = ("doubt" if line.kind == "doubt" else "ended", nanos)

    def _adjust(self, line: Line) -> None:
        if self._states.get(line.hold, ("none", 0))[0] != "ended":
            self._result.find(
                f"line {line.id}: hold {line.hold} is corrected before anything was posted"
            )

    # ---- caps -------------------------------------------------------------------------------------

    def _advance_caps(self, at_us: int) -> None:
        while (
            self._next_cap < len(self._history)
            and self._history[self._next_cap][0].since_us <= at_us
        ):
            entry, dropped = self._history[self._next_cap]
            if dropped:
                self._caps.pop(entry.cap.key, None)
            else:
                self._caps[entry.cap.key] = entry
            self._next_cap += 1

    def _add(self, line: Line) -> None:
        place = self._places.get(line.hold, Place(scopes=(line.scope,)))
        matches = [m for m in matching(self._all_caps.values(), place) if m.entry.cap.per != "call"]
        said = any(
            m.named and not self._caps[m.entry.cap.key].fallback
            for m in matches
            if m.entry.cap.key in self._caps
        )
        for entry, subject, named in matches:
            cap = entry.cap
            window = self._window(cap.per, cap.tz, line.held_at_us)
            sums = self._sums[cap.key, subject, window.key]
            sums[0] += line.posted
            sums[1] += line.held
            sums[2] += line.in_doubt
            now = self._caps.get(cap.key)
            if (
                line.kind != "hold"
                or not line.nanos
                or now is None
                or not named
                or (now.fallback and said)
            ):
                continue
            if sum(sums) > now.cap.nanos:
                self._result.find(
                    f"line {line.id}: hold {line.hold} passes the cap of {now.cap.at_scope(subject)} "
                    f"({window}): {format_usd(sum(sums))} counted"
                )

    def _window(self, per: str | None, tz: str, at_us: int) -> Window:
        if per is None or per not in CALENDAR:
            return EVER
        at = from_us(at_us)
        window = self._windows.get((per, tz))
        if window is None or not window.covers(at):
            window = self._windows[per, tz] = window_of(per, tz, at)
        return window

    # ---- what is kept beside the lines ------------------------------------------------------------

    def compare(self) -> None:
        result = self._result
        kept = {hold.id: hold for hold in self._reader.open_holds()}
        for hold_id, (state, nanos) in self._states.items():
            if state == "ended":
                continue
            result.open_holds += state == "held"
            result.doubts += state == "doubt"
            hold = kept.pop(hold_id, None)
            if hold is None or hold.state != state or hold.nanos != nanos:
                result.find(
                    f"hold {hold_id}: it is {state} by its lines, but not so in the list of open holds"
                )
        for hold_id in kept:
            result.find(f"hold {hold_id}: it is listed as open, but by its lines it is not")
        for account in self._reader.accounts():
            sums = self._sums.get(account.key, [0, 0, 0])
            if sums != [account.posted, account.held, account.in_doubt]:
                result.find(
                    f"account {account.subject or 'everything'} {account.window}: it says posted, held, in doubt "
                    f"{account.posted}, {account.held}, {account.in_doubt}, but the lines add up to {sums}"
                )


_STEPS: dict[str, Callable[[_Replay, Line], None]] = {
    "hold": _Replay._begin,
    "settle": _Replay._end,
    "void": _Replay._end,
    "doubt": _Replay._end,
    "resolve": _Replay._end,
    "adjust": _Replay._adjust,
}
