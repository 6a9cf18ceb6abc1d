"""The checker: proves a ledger from its lines alone, and compares what is kept beside them.

It replays every line in order with the caps as they stood at that moment, and says what it finds wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from .bindings import EVER
from .cap_table import CapTable, Match, matching
from .caps import CALENDAR
from .errors import InvalidInput
from .money import format_usd
from .records import RESERVE, DollarSums, Line, from_us
from .reserves import Purses
from .scopes import Place
from .stores.protocol import AccountKey, Reader
from .windows import Window, window_of

_FINDINGS_MAX = 50


@dataclass(slots=True)
class _Life:
    """A hold so far: ``held``, ``doubt`` or ``ended``, the line that began it, and what was posted."""

    state: str
    first: Line
    place: Place
    posted: int = 0


@dataclass(slots=True)
class CheckResult(DollarSums):
    """What the checker found.

    Attributes:
        findings: sentences, one per fault; empty if the ledger is proven.
        lines, holds: how much was read.
        posted_nanos, held_nanos, in_doubt_nanos: the sums of all lines, real and simulated.
        open_holds: calls under way; doubts: calls in doubt; reserves: set aside for later calls.
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
    reserves: int = 0
    overruns: list[str] = field(default_factory=list)
    caller_word: int = 0
    unpriced: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing was found wrong."""
        return not self.findings

    def __bool__(self) -> bool:
        """As ``ok``, so that ``assert ledger.check()`` says what it seems to say."""
        return self.ok

    def find(self, sentence: str) -> None:
        """Add a fault; beyond fifty they are only counted in the last line."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(sentence)
        elif len(self.findings) == _FINDINGS_MAX:
            self.findings.append("... and more")


def check_lines(reader: Reader) -> CheckResult:
    """Check everything that a reader shows; a row that can't be read is a finding, not an error."""
    result = CheckResult()
    for fault in reader.integrity():
        result.find(f"storage: {fault}")
    try:
        replay = _Replay(reader, result)
        for line in reader.lines():
            replay.line(line)
        replay.compare()
    except (ValueError, TypeError, KeyError, InvalidInput) as error:
        result.find(f"after line {result.lines}: a row can't be read ({error})")
    return result


class _Replay:
    """The ledger, worked out again from its lines."""

    def __init__(self, reader: Reader, result: CheckResult) -> None:
        self._reader = reader
        self._result = result
        self._extra = reader.extra_scopes()
        self._history = list(reader.cap_history())
        self._next_cap = 0
        self._caps = CapTable()
        self._all_caps = CapTable(change.entry for change in self._history)
        self._holds: dict[str, _Life] = {}
        self._sums: defaultdict[AccountKey, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._seen: set[AccountKey] = set()
        self._purses = Purses()
        self._matches: dict[Place, tuple[Match, ...]] = {}
        self._windows: dict[tuple[str, str], Window] = {}

    def line(self, line: Line) -> None:
        result = self._result
        result.lines += 1
        if line.id != result.lines:
            result.find(f"line {line.id}: line {result.lines} should be here, it is missing")
            result.lines = line.id
        result.posted_nanos += line.posted
        result.held_nanos += line.held
        result.in_doubt_nanos += line.in_doubt
        if "overrun_nanos" in line.note:
            result.overruns.append(line.hold)
        result.unpriced += line.kind == "settle" and bool(line.note.get("unpriced"))
        self._advance_caps(line.id)
        step = _STEPS.get(line.kind)
        if step is None:
            result.find(f"line {line.id}: {line.kind!r} is not a kind of line")
            return
        step(self, line)
        self._add(line)

    # ---- the life of a hold -----------------------------------------------------------------------

    def _begin(self, line: Line) -> None:
        self._result.holds += 1
        self._result.caller_word += bool(line.note.get("caller_word"))
        if line.hold in self._holds:
            self._result.find(f"line {line.id}: hold {line.hold} begins a second time")
        if (line.posted, line.held, line.in_doubt) != (0, line.nanos, 0) or line.nanos < 0:
            self._result.find(f"line {line.id}: a hold must set aside exactly its amount")
        if line.at_us != line.held_at_us:
            self._result.find(f"line {line.id}: a hold must count from when it was written")
        kinds = tuple((str(path), str(kind)) for path, kind in line.note.get("kinds", ()))
        fault = self._purses.begin(line)
        if fault:
            self._result.find(f"line {line.id}: hold {line.hold} {fault}")
        scopes = (line.scope, *self._extra.get(line.hold, ()))
        place = Place(scopes=scopes, kinds=kinds)  # type: ignore[arg-type]
        self._holds[line.hold] = _Life("held", line, place)

    def _end(self, line: Line) -> None:
        life = self._holds.get(line.hold)
        if life is None:
            self._result.find(f"line {line.id}: hold {line.hold} never began, it can't {line.kind}")
            return
        if life.state != ("doubt" if line.kind == "resolve" else "held"):
            self._result.find(
                f"line {line.id}: hold {line.hold} is {life.state}, it can't {line.kind}"
            )
        nanos = life.first.nanos
        held = -nanos if life.state == "held" else 0
        doubt = nanos if line.kind == "doubt" else (-nanos if life.state == "doubt" else 0)
        if (line.held, line.in_doubt) != (held, doubt):
            self._result.find(f"line {line.id}: hold {line.hold} does not give back what was held")
        charged = line.posted if line.kind in {"settle", "resolve"} else 0
        amount = charged if line.kind in {"settle", "resolve"} else nanos
        if (line.posted, line.nanos) != (charged, amount) or charged < 0:
            self._result.find(f"line {line.id}: its amount and what it posts do not agree")
        if line.note.get("overrun_nanos", 0) != max(charged - nanos, 0):
            self._result.find(f"line {line.id}: hold {line.hold} has an overrun that is not marked")
        fault = self._purses.end(line, life.first)
        if fault:
            self._result.find(f"line {line.id}: hold {line.hold} {fault}")
        self._compare_with_first(line, life)
        life.state = "doubt" if line.kind == "doubt" else "ended"
        life.posted += charged

    def _adjust(self, line: Line) -> None:
        life = self._holds.get(line.hold)
        if life is None or life.state != "ended":
            self._result.find(
                f"line {line.id}: hold {line.hold} is corrected before anything was posted"
            )
            return
        life.posted += line.posted
        if (line.held, line.in_doubt) != (0, 0) or line.nanos != line.posted or life.posted < 0:
            self._result.find(f"line {line.id}: this is not a correction of what was posted")
        self._compare_with_first(line, life)

    def _compare_with_first(self, line: Line, life: _Life) -> None:
        first = life.first
        if (line.scope, line.model, line.held_at_us) != (
            first.scope,
            first.model,
            first.held_at_us,
        ):
            self._result.find(
                f"line {line.id}: its scope, model or time differ from line {first.id}, where its hold began"
            )

    # ---- caps -------------------------------------------------------------------------------------

    def _advance_caps(self, line_id: int) -> None:
        while self._next_cap < len(self._history) and self._history[self._next_cap].after < line_id:
            change = self._history[self._next_cap]
            key = change.entry.cap.key
            if change.dropped:
                self._caps.drop(key)
                self._seen = {account for account in self._seen if account[0] != key}
            else:
                self._caps.put(change.entry)
            self._next_cap += 1

    def _add(self, line: Line) -> None:
        life = self._holds.get(line.hold)
        place = life.place if life else Place(scopes=(line.scope,))
        matches = self._matches.get(place)
        if matches is None:
            matches = self._matches[place] = matching(self._all_caps, place)
        in_force = []
        for match in matches:
            cap = match.entry.cap
            now = self._caps.get(cap.key)
            if cap.per == "call":
                if now is not None and line.kind == "hold":
                    in_force.append((now.cap.nanos, _dearest(line), now.fallback, match, EVER))
                continue
            window = self._window(cap.per, cap.tz, line.held_at_us)
            key = (cap.key, match.subject, window.key)
            sums = self._sums[key]
            sums[0] += line.posted
            sums[1] += line.held
            sums[2] += line.in_doubt
            if now is not None and match.named:
                self._seen.add(key)
            if now is not None and key in self._seen:
                in_force.append((now.cap.nanos, sum(sums), now.fallback, match, window))
        if line.kind == "hold" and line.nanos:
            self._judge(line, in_force)

    def _judge(self, line: Line, in_force: list[tuple[int, int, bool, Match, Window]]) -> None:
        """A hold may not pass a cap, whatever was known when it was made."""
        said = {m.entry.cap.per == "call" for _, _, fallback, m, _ in in_force if not fallback}
        for limit, counted, fallback, match, window in in_force:
            per_call = match.entry.cap.per == "call"
            if counted <= limit or (fallback and (False in said or (per_call and said))):
                continue
            cap = self._caps.get(match.entry.cap.key)
            assert cap is not None
            self._result.find(
                f"line {line.id}: hold {line.hold} passes the cap of {cap.cap.at_scope(match.subject)} "
                f"({window}): {format_usd(counted)} counted"
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
        for hold_id, life in self._holds.items():
            if life.state == "ended":
                continue
            reserved = RESERVE in life.first.note
            result.open_holds += life.state == "held" and not reserved
            result.reserves += reserved
            result.doubts += life.state == "doubt"
            hold = kept.pop(hold_id, None)
            if hold is None or (hold.state, hold.nanos) != (life.state, life.first.nanos):
                result.find(
                    f"hold {hold_id}: it is {life.state} by its lines, but not so in the list of open holds"
                )
            elif (hold.held_at_us, set(hold.scopes)) != (
                life.first.held_at_us,
                set(life.place.scopes),
            ):
                result.find(f"hold {hold_id}: its scopes or time differ in the list of open holds")
        for hold_id in kept:
            result.find(f"hold {hold_id}: it is listed as open, but by its lines it is not")
        for account in self._reader.accounts():
            sums = self._sums.get(account.key, [0, 0, 0])
            if sums != [account.posted, account.held, account.in_doubt]:
                result.find(
                    f"account {account.subject or 'everything'} {account.window}: it says posted, held, in doubt "
                    f"{account.posted}, {account.held}, {account.in_doubt}, but the lines add up to {sums}"
                )


def _dearest(line: Line) -> int:
    """The dearest single call of a hold: one of its items where it is a batch's."""
    batch = line.note.get("batch_of")
    return line.nanos if batch is None else int(batch["largest_nanos"])


_STEPS: dict[str, Callable[[_Replay, Line], None]] = {
    "hold": _Replay._begin,
    "settle": _Replay._end,
    "void": _Replay._end,
    "doubt": _Replay._end,
    "resolve": _Replay._end,
    "adjust": _Replay._adjust,
}
