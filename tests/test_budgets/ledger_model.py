"""A second, plain reading of the rules of money, to compare the ledger with: lists, loops, no caches.

It shares no code with the ledger beyond records and windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from budgets.caps import Cap
from budgets.windows import window_of

Key = tuple[str, str, str]


@dataclass
class ModelHold:
    scopes: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]
    nanos: int
    at: datetime
    state: str = "held"
    posted: int = 0
    #: Who made it; the reserve that it is a part of; what it drew on one, and where that belongs.
    owner: int = 0
    reserve: str = ""
    drew: tuple[str, int, ModelHold] | None = None


@dataclass
class Model:
    """Holds and caps; every figure is worked out anew each time."""

    holds: dict[str, ModelHold] = field(default_factory=dict)
    caps: dict[Key, tuple[Cap, bool]] = field(default_factory=dict)
    #: Caps per agent or run know a path from the first line that was written about it as an agent or run.
    begun: set[tuple[Key, str]] = field(default_factory=set)
    latched: dict[tuple[Key, str, str], int] = field(default_factory=dict)
    #: Owner and name of reserves that were not released.
    reserves: set[tuple[int, str]] = field(default_factory=set)

    def set_cap(self, cap: Cap, *, fallback: bool = False) -> None:
        self.caps[cap.key] = (cap, fallback)

    def drop_cap(self, key: Key) -> None:
        self.caps.pop(key, None)
        self.begun = {b for b in self.begun if b[0] != key}
        self.latched = {k: v for k, v in self.latched.items() if k[0] != key}

    # ---- figures ----------------------------------------------------------------------------------

    def sums(
        self, scope: str, window: tuple[str, str] | None = None, key: str = ""
    ) -> tuple[int, int, int]:
        """Posted, held, in doubt of a scope; in one window of ``(per, tz)`` if it is given."""
        posted = held = doubt = 0
        for hold in self.holds.values():
            if not any(scope in _above(path) for path in hold.scopes):
                continue
            if window is not None and window_of(*window, hold.at).key != key:
                continue
            posted += hold.posted
            held += hold.nanos if hold.state == "held" else 0
            doubt += hold.nanos if hold.state == "doubt" else 0
        return posted, held, doubt

    def account(self, cap: Cap, subject: str, at: datetime) -> tuple[str, tuple[int, int, int]]:
        if cap.per in {"day", "week", "month", "year"}:
            key = window_of(cap.per, cap.tz, at).key
            return key, self.sums(subject, (cap.per, cap.tz), key)
        return "ever", self.sums(subject)

    # ---- steps ------------------------------------------------------------------------------------

    def hold(self, hold_id: str, new: ModelHold, draws_on: str = "") -> str:
        """``held``, ``declined`` (for a good reason) or ``short`` (only held money is in the way)."""
        pieces = self.pieces(new.owner, draws_on) if new.nanos else []
        judged, per_call = self._caps_on(new)
        if new.nanos:
            if any(new.nanos > cap.nanos for cap in per_call):
                return "declined"
            verdict = self._judge(new, judged, pieces)
            if verdict != "held":
                return verdict
        for piece in pieces:
            self.meet(piece)
            piece.state = "ended"
        self.meet(new)
        self.holds[hold_id] = new
        if new.reserve:
            self.reserves.add((new.owner, new.reserve))
        if pieces:
            total = sum(piece.nanos for piece in pieces)
            new.drew = (draws_on, min(new.nanos, total), pieces[0])
            if total > new.nanos:
                self._set_aside(f"{hold_id}.rest", total - new.nanos, new.drew, new.at, new.owner)
        return "held"

    def pieces(self, owner: int, name: str) -> list[ModelHold]:
        """What is left of a reserve."""
        found = self.holds.values()
        return [
            h
            for h in found
            if name and h.reserve == name and h.state == "held" and h.owner == owner
        ]

    def _set_aside(
        self, hold_id: str, nanos: int, drew: tuple[str, int, ModelHold], at: datetime, owner: int
    ) -> None:
        name, _, first = drew
        if (owner, name) not in self.reserves:
            return
        new = ModelHold(first.scopes, first.kinds, nanos, at, owner=owner, reserve=name)
        judged, per_call = self._caps_on(new)
        over = any(sum(self.account(cap, path, at)[1]) + nanos > cap.nanos for cap, path in judged)
        if not over and all(nanos <= cap.nanos for cap in per_call):
            self.meet(new)
            self.holds[hold_id] = new

    def release(self, owner: int, name: str) -> int:
        """Give back a reserve."""
        self.reserves.discard((owner, name))
        pieces = self.pieces(owner, name)
        for piece in pieces:
            self.meet(piece)
            piece.state = "ended"
        return sum(piece.nanos for piece in pieces)

    def _caps_on(self, new: ModelHold) -> tuple[list[tuple[Cap, str]], list[Cap]]:
        """Caps that may decline it with their subjects, outermost first, and caps on single calls."""
        chain = list(dict.fromkeys(a for path in new.scopes for a in _above(path)))
        own = set(new.kinds)
        found = []
        per_call = []
        for rank, path in enumerate(chain):
            for cap, fallback in self.caps.values():
                if cap.per == "call":
                    if cap.scope == path:
                        per_call.append((cap, fallback))
                elif cap.per in {"agent", "run"}:
                    known = (path, cap.per) in own or (cap.key, path) in self.begun
                    if path and cap.scope in _above(path) and known:
                        found.append((rank, cap.key, cap, path, fallback))
                elif cap.scope == path:
                    found.append((rank, cap.key, cap, path, fallback))
        found.sort(key=lambda f: f[:2])
        said = [f for f in found if not f[4]]
        said_call = [c for c in per_call if not c[1]]
        single = said_call or ([] if said else per_call)
        return [(cap, path) for _, _, cap, path, _ in said or found], [cap for cap, _ in single]

    def meet(self, hold: ModelHold) -> None:
        """A line about this hold is about to be written: its agents and runs are known from now on."""
        around = {a for path in hold.scopes for a in _above(path)}
        for cap, _ in self.caps.values():
            for path, kind in hold.kinds:
                if path in around and kind == cap.per and cap.scope in _above(path):
                    self.begun.add((cap.key, path))

    def _in(self, cap: Cap, path: str, window: str, holds: list[ModelHold]) -> int:
        """What an account counts of these holds."""
        found = (h for h in holds if any(path in _above(scope) for scope in h.scopes))
        return sum(h.nanos for h in found if self.account(cap, path, h.at)[0] == window)

    def _judge(self, new: ModelHold, judged: list[tuple[Cap, str]], pieces: list[ModelHold]) -> str:
        short = False
        aside = [h for h in self.holds.values() if h.reserve and h.state == "held"]
        for cap, path in judged:
            key = cap.key
            window, (posted, held, doubt) = self.account(cap, path, new.at)
            own = self._in(cap, path, window, pieces)
            others = self._in(cap, path, window, [h for h in aside if h not in pieces])
            held -= own
            latch = self.latched.get((key, path, window))
            if latch is not None and cap.nanos > latch:
                del self.latched[key, path, window]
            elif latch is not None and own < new.nanos:
                return "declined"
            if new.nanos <= cap.nanos < posted + new.nanos:
                if not new.reserve:
                    self.latched[key, path, window] = max(cap.nanos, 1)
                return "declined"
            if posted + doubt + others + new.nanos > cap.nanos:
                return "declined"
            short = short or posted + doubt + held + new.nanos > cap.nanos
        return "short" if short else "held"

    def adjust(self, hold_id: str, nanos: int) -> None:
        self.meet(self.holds[hold_id])
        self.holds[hold_id].posted = nanos

    def end(
        self, hold_id: str, kind: str, nanos: int = 0, at: datetime | None = None, owner: int = 0
    ) -> str:
        """The kind of the line that is written, or why there is none."""
        hold = self.holds.get(hold_id)
        if hold is None:
            return "unknown"
        if hold.state == "ended" or hold.state == kind == "doubt":
            return "ended"
        if hold.state == "held" and (kind == "resolve" or (hold.reserve and kind != "void")):
            return "refused"
        self.meet(hold)
        if hold.state == "doubt":
            hold.state, hold.posted = "ended", 0 if kind == "void" else nanos
            return "resolve"
        if kind == "doubt":
            hold.state = "doubt"
        else:
            hold.state, hold.posted = "ended", 0 if kind == "void" else nanos
        if kind == "void" and hold.drew and at:
            self._set_aside(f"{hold_id}.back", hold.drew[1], hold.drew, at, owner)
        return kind


def _above(path: str) -> list[str]:
    """A path and everything that it lies within."""
    parts = path.split("/") if path else []
    chain = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    return chain if parts[:1] == ["simulated"] else ["", *chain]
