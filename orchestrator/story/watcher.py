"""A watcher: the tree of a run while it goes on, fed by its journal from any thread, asked by whoever draws it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .chronicle import MOMENTS, Chronicle
from .records import Moment, Node

#: Moments that are kept for showing; older ones are forgotten.
_MOMENTS_KEPT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A run at one moment.

    Attributes:
        tree: from the run down, without the units of the nodes.
        working: who has begun and not ended; ``waiting`` of them have no call under way in their scope.
        done: who has ended.
        calls_open, calls_done: HTTP attempts.
        finished: nodes and units that have ended since the last glance, oldest first: scope or label, outcome,
            reason.
        moments: the latest declines, retries and the like; ``counts`` has how many there were of each kind.
        outcome: of the run; empty until its end.
    """

    tree: Node
    working: int
    waiting: int
    done: int
    calls_open: int
    calls_done: int
    finished: tuple[tuple[str, str, str], ...]
    moments: tuple[Moment, ...]
    counts: Mapping[str, int]
    outcome: str


class Watcher:
    """Hears events (``Journal.listen(watcher.hear)``) and gives glances. Thread-safe; memory stays flat.

    Args:
        run, name, scope: of the run.
    """

    def __init__(self, *, run: str, name: str, scope: str) -> None:
        self._lock = threading.Lock()
        self._chronicle = Chronicle(run=run, name=name, scope=scope, keeps_calls=False)
        self._finished: list[tuple[str, str, str]] = []

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event in; never raises on what it holds."""
        with self._lock:
            chronicle = self._chronicle
            chronicle.hear(event)
            kind = event.get("event")
            if kind in {"outcome", "node_end"}:
                self._note_end(event)
            elif len(chronicle.moments) > 2 * _MOMENTS_KEPT:
                del chronicle.moments[:-_MOMENTS_KEPT]

    def _note_end(self, event: Mapping[str, Any]) -> None:
        scope = str(event.get("scope") or event.get("agent") or "")
        label = scope.removeprefix(self._chronicle.scope + "/")
        unit = event.get("unit")
        if unit:
            label = f"{label} {unit}"
        self._finished.append(
            (label or "the run", str(event.get("outcome") or "?"), str(event.get("reason") or ""))
        )

    def glance(self) -> Glance:
        """The run as it is now; what has finished is handed out once."""
        with self._lock:
            chronicle = self._chronicle
            tree = chronicle.root.freeze(is_over=bool(chronicle.outcome))
            finished, self._finished = tuple(self._finished), []
            moments = tuple(chronicle.moments[-_MOMENTS_KEPT:])
            kinds = Counter(chronicle.kinds)
            calls_done = kinds["settle"] + kinds["void"] + kinds["doubt"]
            outcome = chronicle.outcome
        agents = [node for _, node in tree.walk() if node.kind == "agent"]
        working = sum(max(node.begun - node.ended, 0) for node in agents)
        calls_open = tree.open_calls
        return Glance(
            tree=tree,
            working=working,
            waiting=max(working - calls_open, 0),
            done=sum(node.ended for node in agents),
            calls_open=calls_open,
            calls_done=calls_done,
            finished=finished,
            moments=moments,
            counts={kind: count for kind, count in kinds.items() if kind in MOMENTS},
            outcome=outcome,
        )
