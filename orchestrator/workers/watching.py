"""Watching: an attempt's deadlines: to start, to finish, to be heard of, and to close; and its memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.outcomes import Outcome

from .processes import Tree

#: Seconds between two looks, and that a session has to close once it has answered.
TICK_S, CLOSE_S = 0.2, 4.0
#: Entries of the folder that are looked at to see whether a silent worker writes files.
_ENTRIES_MOST = 20_000
_HAS_PROC = Path("/proc/self/statm").exists()
#: Seconds between two looks at its processes.
_LOOK_S = 1.0

Verdict = tuple[Outcome, str]


@dataclass(kw_only=True)
class Watch:
    """Says when an attempt must end, and as what.

    Attributes:
        tree: its processes.
        folder: where it works: a file written there is a sign of life.
        start_s: seconds to start.
        deadline: when all must be done (``time.monotonic``); None is no limit.
        timeout_s: the seconds that this came of, for the reason.
        stall_s: seconds without output and without a file written; None is no limit.
        memory_mb: MiB for all its processes; None is no limit.
        says: asked for another reason to end, None while there is none.
    """

    tree: Tree
    folder: Path
    start_s: float
    deadline: float | None
    timeout_s: float | None
    stall_s: float | None
    memory_mb: int | None
    says: Callable[[], Verdict | None]
    _begun: float = field(default_factory=time.monotonic)
    _heard: float = field(default_factory=time.monotonic)
    _due: float = 0.0
    started_s: float | None = None
    is_closing_since: float | None = None

    def heard(self) -> None:
        """It has said something."""
        self._heard = time.monotonic()

    def started(self) -> None:
        """It is ready for work."""
        self.heard()
        self.started_s = time.monotonic() - self._begun

    def closing(self) -> None:
        """It has answered, and is to go."""
        self.is_closing_since = time.monotonic()

    async def until(self, done: asyncio.Future[object]) -> Verdict | None:
        """Wait until it is done (None), or must end."""
        while not done.done():
            await asyncio.wait({done}, timeout=TICK_S)
            if done.done():
                return None
            verdict = await self._look()
            if verdict is not None:
                return verdict
        return None

    async def _look(self) -> Verdict | None:
        now = time.monotonic()
        if self.is_closing_since is not None:
            late = now - self.is_closing_since > CLOSE_S
            return (Outcome.OK, "") if late else None
        verdict = self._by_the_clock(now) or self.says()
        if verdict is None and self._is_due(now):
            verdict = await self._by_its_processes()
        if verdict is None and self.stall_s is not None and now - self._heard > self.stall_s:
            verdict = await self._stalled(self.stall_s)
        return verdict

    def _by_the_clock(self, now: float) -> Verdict | None:
        if self.deadline is not None and now > self.deadline:
            return Outcome.TIMEOUT, f"it took longer than {self.timeout_s:g} s (timeout_s)"
        if self.started_s is None and now - self._begun > self.start_s:
            reason = f"it was not ready after {self.start_s:g} s (start_s)"
            return Outcome.SPAWN_FAILURE, reason
        return None

    async def _by_its_processes(self) -> Verdict | None:
        if self.tree.is_lost:
            return Outcome.INFRA, "its supervisor was killed"
        return None if _HAS_PROC else await asyncio.to_thread(self._memory, self.memory_mb)

    async def _stalled(self, stall_s: float) -> Verdict | None:
        age_s = await asyncio.to_thread(newest_age_s, self.folder)
        if age_s is not None and age_s < stall_s:
            self._heard = time.monotonic() - max(age_s, 0.0)
            return None
        return Outcome.STALLED, f"no output and no file written for {stall_s:g} s (stall_s)"

    def _is_due(self, now: float) -> bool:
        if now < self._due:
            return False
        self._due = now + _LOOK_S
        return True

    def _memory(self, most_mb: int | None) -> Verdict | None:
        """Where the supervisor can't see memory, it is looked at from here."""
        now_mb = self.tree.memory_mb()
        if most_mb is None or now_mb <= most_mb:
            return None
        return out_of_memory(most_mb, now_mb)


def out_of_memory(most_mb: int, now_mb: int) -> Verdict:
    """The verdict on a worker that takes too much memory."""
    return (
        Outcome.INFRA,
        f"its processes took {now_mb} MiB of memory; {most_mb} is the most (memory_mb)",
    )


def newest_age_s(folder: Path) -> float | None:
    """Seconds since a file below a folder was written last; None if there is none. Looks at a bounded number."""
    newest, left, more = 0.0, _ENTRIES_MOST, [str(folder)]
    while more and left > 0:
        try:
            with os.scandir(more.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left <= 0:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        more.append(entry.path)
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
        except OSError:
            continue
    return time.time() - newest if newest else None
