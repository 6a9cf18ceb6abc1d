"""Reconciling: the ledger decides about money, the journal about structure; where they differ, a note says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from budgets.money import format_usd
from budgets.records import RESERVE, Line

from .chronicle import Chronicle, OpenCall
from .records import SpendPoint, Tokens

_HOW_MANY_IDS = 3


@dataclass(slots=True)
class Entry:
    """All that the ledger says of one hold."""

    first: Line
    last: Line
    posted: int = 0
    held: int = 0
    in_doubt: int = 0
    settled: int | None = None
    usage: Mapping[str, Any] | None = None
    kinds: set[str] = field(default_factory=set)

    def add(self, line: Line) -> None:
        """One more line."""
        self.last = line
        self.posted += line.posted
        self.held += line.held
        self.in_doubt += line.in_doubt
        self.kinds.add(line.kind)
        if line.usage:
            self.usage = line.usage
        if line.kind == "settle":
            self.settled = line.nanos

    @property
    def tokens(self) -> Tokens:
        """The four classes, as they were billed."""
        usage = self.usage or {}
        names = ("input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens")
        return Tokens(*(int(usage.get(name) or 0) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSide:
    """A run in its ledger.

    Attributes:
        entries: by hold, in the order of the holds.
        points: the sums after each line: microseconds since 1970, posted, held, in doubt.
        reserved_nanos: held now by reserves, on which nothing is sent.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    points: list[tuple[int, int, int, int]] = field(default_factory=list)
    reserved_nanos: int = 0

    def usage_of(self, hold: str) -> Mapping[str, Any] | None:
        """The usage that a hold's cost was derived from."""
        entry = self.entries.get(hold)
        return None if entry is None else entry.usage


def ledger_side(lines: Iterable[Line]) -> LedgerSide:
    """Add up the lines of a run, as ``Ledger.lines(scope)`` gives them."""
    entries: dict[str, Entry] = {}
    points: list[tuple[int, int, int, int]] = []
    posted = held = in_doubt = reserved = 0
    for line in lines:
        posted, held, in_doubt = posted + line.posted, held + line.held, in_doubt + line.in_doubt
        points.append((line.at_us, posted, held, in_doubt))
        if RESERVE in line.note:
            reserved += line.held
            continue
        entry = entries.get(line.hold)
        if entry is None:
            entry = entries[line.hold] = Entry(line, line)
        entry.add(line)
    return LedgerSide(entries=entries, points=points, reserved_nanos=reserved)


def reconcile(chronicle: Chronicle, side: LedgerSide) -> list[str]:
    """Put the ledger's word about money into a chronicle's calls, and say where the two differ."""
    unheard: list[str] = []  # in the ledger alone
    unended: list[str] = []  # the journal has no end for it
    different: list[str] = []
    for hold, entry in side.entries.items():
        call = chronicle.calls.get(hold)
        if call is None:
            call = _call_of(chronicle, hold, entry)
            unheard.append(hold)
        elif call.ended is None and entry.last.kind not in {"hold", "doubt"}:
            unended.append(hold)
        elif call.state == "settled" and entry.settled not in {None, call.posted}:
            different.append(hold)
        _take(call, entry)
    unknown = [hold for hold in chronicle.calls if hold not in side.entries]
    unheard_money = sum(side.entries[hold].posted for hold in unheard)
    notes = []
    if unheard:
        notes.append(
            f"{_calls(unheard)} in the ledger but not in the journal, {format_usd(unheard_money)} posted: "
            "the journal was cut by a crash or a full disk; the ledger's figures are used"
        )
    if unended:
        notes.append(f"{_calls(unended)} ended in the ledger but not in the journal")
    if different:
        notes.append(
            f"{_calls(different)} settled at another amount in the journal than in the ledger "
            f"({_some(different)}); the ledger's is used"
        )
    if unknown:
        notes.append(
            f"{_calls(unknown)} in the journal but not in this ledger ({_some(unknown)}): "
            "name the run's own ledger by --ledger; the journal's figures are used for these"
        )
    return notes


def _calls(holds: list[str]) -> str:
    return "1 call is" if len(holds) == 1 else f"{len(holds):,} calls are"


def _some(holds: list[str]) -> str:
    return ", ".join(holds[:_HOW_MANY_IDS]) + (", ..." if len(holds) > _HOW_MANY_IDS else "")


def _call_of(chronicle: Chronicle, hold: str, entry: Entry) -> OpenCall:
    line = entry.first
    note = line.note
    call = OpenCall(
        id=hold,
        branch=chronicle.branch(line.scope),
        agent=str(note.get("agent") or ""),
        parent=str(note.get("parent") or ""),
        unit=str(note.get("unit") or ""),
        model=line.model,
        began=line.held_at,
        bound=line.nanos,
    )
    call.branch.see(line.held_at)
    call.branch.open_calls += 1
    if call.agent:
        call.branch.is_agent()
    chronicle.calls[hold] = call
    return call


def _take(call: OpenCall, entry: Entry) -> None:
    """The ledger's word about one call."""
    last = entry.last
    call.posted, call.held, call.in_doubt = entry.posted, entry.held, entry.in_doubt
    if entry.usage:
        call.tokens = entry.tokens
    if call.model == "":
        call.model = last.model
    if call.state == "under way" and last.kind != "hold":
        call.branch.open_calls -= 1
        # Put in doubt because its process died: nobody knows when it ended.
        call.ended = None if last.kind in {"doubt", "resolve"} else last.at
        call.reason = call.reason or str(last.note.get("reason") or "")
        call.stop_reason = call.stop_reason or str(last.note.get("stop_reason") or "")
    if "resolve" in entry.kinds:
        call.state = "resolved"
    elif "settle" in entry.kinds:
        call.state = "settled"
    elif "void" in entry.kinds:
        call.state = "void"
    elif "doubt" in entry.kinds:
        call.state = "in doubt"
        call.reason = str(last.note.get("reason") or call.reason)


def points_of_calls(chronicle: Chronicle) -> list[tuple[int, int, int, int]]:
    """The sums over time by the journal alone, where there is no ledger."""
    steps: list[tuple[int, int, int, int]] = []
    for call in chronicle.calls.values():
        if call.began is not None:
            begun = int(call.began.timestamp() * 1_000_000)
            bound = call.bound
            steps.append((begun, 0, bound, 0))
            if call.ended is not None:
                ended = int(call.ended.timestamp() * 1_000_000)
                steps.append((max(begun, ended), call.posted, -bound, call.in_doubt))
    steps.sort(key=lambda step: step[0])
    points, posted, held, in_doubt = [], 0, 0, 0
    for at, more, set_aside, doubted in steps:
        posted, held, in_doubt = posted + more, held + set_aside, in_doubt + doubted
        points.append((at, posted, held, in_doubt))
    return points


def thin_out(
    points: list[tuple[int, int, int, int]], begin_us: int, end_us: int, most: int
) -> tuple[SpendPoint, ...]:
    """At most so many points: of each stretch of time its last, and its highest where that is another.

    Args:
        points: sums after each line, in the order they were written.
        begin_us, end_us: what counts as second 0, and where the picture ends (later corrections are
            in its last point), microseconds since 1970.
        most: points at most, about.
    """
    slots = max(most // 2, 1)
    width = max(end_us - begin_us, 1)
    last: dict[int, tuple[int, int, int, int]] = {}
    highest: dict[int, tuple[int, int, int, int]] = {}
    for point in points:
        slot = min(max((point[0] - begin_us) * slots // width, 0), slots)
        last[slot] = point
        peak = highest.get(slot)
        if peak is None or point[1] + point[2] + point[3] > peak[1] + peak[2] + peak[3]:
            highest[slot] = point
    chosen = [SpendPoint(0.0, 0, 0, 0)]
    for slot in sorted(last):
        pair = [highest[slot], last[slot]] if highest[slot] is not last[slot] else [last[slot]]
        for at, posted, held, in_doubt in pair:
            seconds = min(max(at - begin_us, 0), width) / 1_000_000
            chosen.append(SpendPoint(seconds, posted, held, in_doubt))
    return tuple(chosen)
