"""The processes of a worker: everyone who came of it, how much memory they take, and their end.

Each carries the id of its attempt and of the process that started it in its environment, so that whatever slipped
out of the tree is found by its mark, also by a later process (``sweep``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from budgets.owners import Owner, is_dead, this_process

logger = logging.getLogger("earmark")

#: Variables that mark a worker's processes: its attempt, and who started it (pid and start time).
ATTEMPT, STARTED_BY = "EARMARK_ATTEMPT", "EARMARK_STARTED_BY"
#: Seconds that a tree has after SIGTERM, and after SIGKILL.
TERM_S, KILL_S = 2.0, 3.0
_MEBIBYTE = 1 << 20


def this_starter() -> str:
    """This process, as its workers name it."""
    own = this_process()
    return f"{own.host}/{own.pid}/{own.started_ms}"


def starter_is_dead(name: str) -> bool:
    """Whether a process that ``this_starter`` named is certainly gone; False for what is no such name."""
    host, _, rest = name.rpartition("/")[0].rpartition("/")
    started_ms = name.rpartition("/")[2]
    if not (rest.isdigit() and started_ms.isdigit()):
        return False
    return is_dead(Owner(id="starter", host=host, pid=int(rest), started_ms=int(started_ms)))


class Tree:
    """The processes of one attempt.

    Args:
        attempt: its id.
        folder: where the supervisor writes its pid, and how it ended.
    """

    def __init__(self, attempt: str, folder: Path) -> None:
        self.attempt = attempt
        self._folder = folder
        self._root: psutil.Process | None = None

    @property
    def pid(self) -> int:
        """Of the supervisor; 0 before it has started a program."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._folder / "pid").read_text(encoding="ascii"))
        return 0

    @property
    def root(self) -> psutil.Process | None:
        """The supervisor; None before it has started a program, or where it is gone."""
        if self._root is None and (pid := self.pid):
            with contextlib.suppress(psutil.Error):
                self._root = psutil.Process(pid)
        return self._root

    @property
    def ended(self) -> Mapping[str, Any] | None:
        """What the supervisor wrote at its end, when nobody was left: ``code``, ``why``, ``peak_mb``."""
        with contextlib.suppress(OSError, ValueError):
            said = json.loads((self._folder / "ended").read_text(encoding="ascii"))
            return said if isinstance(said, dict) else None
        return None

    @property
    def is_lost(self) -> bool:
        """The supervisor was there, and is gone without a word."""
        if not self.pid or self.ended is not None:
            return False
        root = self.root
        with contextlib.suppress(psutil.Error):
            if root is not None and root.is_running():
                return root.status() == psutil.STATUS_ZOMBIE and self.ended is None
        return self.ended is None  # it may have been written just now

    def adopt(self, pid: int) -> None:
        """The program itself, where it has no supervisor."""
        (self._folder / "pid").write_text(f"{pid}\n", encoding="ascii")

    def note_end(self, code: int) -> None:
        """The same of its exit code."""
        said = {"code": code, "why": "ended", "peak_mb": 0}
        (self._folder / "ended").write_text(json.dumps(said), encoding="ascii")

    def members(self, *, slipped: bool = False) -> list[psutil.Process]:
        """Who lives: the supervisor and all below it.

        Args:
            slipped: look through all processes for those that left the tree and bear its mark.
        """
        root = self.root
        found: dict[int, psutil.Process] = {}
        if root is not None:
            with contextlib.suppress(psutil.Error):
                if root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
                    found = {one.pid: one for one in (root, *root.children(recursive=True))}
        if slipped:
            found |= {one.pid: one for one in _marked(ATTEMPT, self.attempt)}
        return list(found.values())

    def memory_mb(self) -> int:
        """Resident memory of all of them, in MiB. Pages that they share are counted for each."""
        total = 0
        for one in self.members():
            with contextlib.suppress(psutil.Error):
                total += one.memory_info().rss
        return total // _MEBIBYTE

    def terminate(self) -> None:
        """Ask the supervisor to end them all; where there is none, each of them."""
        root = self.root
        with contextlib.suppress(psutil.Error):
            if root is not None and root.is_running():
                root.send_signal(signal.SIGTERM)
                return
        for one in self.members(slipped=True):
            with contextlib.suppress(psutil.Error):
                one.terminate()

    def kill(self) -> None:
        """End them all at once, in this turn; those who bear the mark as well."""
        kill_all(self.members(slipped=True))

    async def end(self) -> bool:
        """Terminate, then kill; True if nobody is left."""
        if self.ended is not None or not self.members(slipped=True):
            return True
        self.terminate()
        if await self._gone(TERM_S):
            return True
        self.kill()
        return await self._gone(KILL_S)

    async def _gone(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Without a supervisor the tree is empty, whoever lives: then the mark says it.
        while self.ended is None and (self.members() or self.members(slipped=True)):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL for each, and for what they start meanwhile. Parents are stopped first, so that they start nothing."""
    for number in (getattr(signal, "SIGSTOP", None), getattr(signal, "SIGKILL", signal.SIGTERM)):
        if number is None:
            continue
        for one in processes:
            with contextlib.suppress(psutil.Error):
                below = one.children(recursive=True)
                one.send_signal(number)
                for other in below:
                    other.send_signal(number)


def _marked(name: str, value: str | None = None) -> Iterator[psutil.Process]:
    """Living processes of ours whose environment has this variable."""
    own = os.getpid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            said = process.environ().get(name)
            if said is not None and (value is None or said == value):
                yield process


def sweep() -> int:
    """End what workers of dead processes have left behind; how many that were.

    The supervisor leaves nothing. This is for the case that it was killed itself.
    """
    left = []
    for process in _marked(STARTED_BY):
        with contextlib.suppress(psutil.Error, OSError):
            if starter_is_dead(process.environ()[STARTED_BY]):
                left.append(process)
    if left:
        logger.warning("workers: %s processes of a dead owner were still there; ended", len(left))
        kill_all(left)
    return len(left)
