"""Telling of a bulk job's end (``--notify``, ``--webhook``): once, whatever the end, in counts and dollars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.batches.notify import reached, tell
from orchestrator.batches.settings import Notify

from .bulk_request import Request, notified
from .exits import Exit
from .failures import code_of

_FIGURES = ("command", "exit_code", "via", "documents", "posted_usd", "held_usd", "in_doubt_usd")


class EndNotice:
    """What is told of one job's end.

    Args:
        request: says who is told.
        run, folder: the job's run, and its folder, where it is written down which end was told.
        only_looks: whoever looked on at a job that had come to its end, or that another process ended, does not
            tell of that end.
    """

    def __init__(self, request: Request, run: str, folder: Path, *, only_looks: bool) -> None:
        self._request = request
        self._run = run
        self._folder = folder
        self._only_looks = only_looks
        self._is_known = False

    def reached(self, summary: Mapping[str, Any]) -> None:
        """The job has come to its end, and its run is still this process's."""
        if summary["exit_code"] != Exit.INTERRUPTED:
            self._reached(self._facts(summary))

    def _reached(self, facts: Mapping[str, Any]) -> None:
        if any(notified(self._request)):
            self._is_known = reached(self._folder, facts)

    async def tell(self, summary: Mapping[str, Any]) -> None:
        """Tell of a job that has ended, also by a cap; not of one that was left and will be gone on with.

        Args:
            summary: of the job, as ``--json`` prints it.
        """
        if summary["exit_code"] != Exit.INTERRUPTED:
            await self._tell(self._facts(summary))

    async def tell_of_fault(self, error: Exception) -> None:
        """Tell of a job that a mistake or a fault has ended; which one, by its name only."""
        code = int(code_of(error))
        facts: dict[str, Any] = {"run": self._run, "end": "fault", "command": self._request.command}
        facts |= {"exit_code": code, "fault": type(error).__name__}
        self._reached(facts)
        await self._tell(facts)

    def _facts(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        figures = {name: summary[name] for name in (*_FIGURES, "cap_usd")}
        return {"run": self._run, "end": "complete", **figures, "done": summary["outcomes"]}

    async def _tell(self, facts: Mapping[str, Any]) -> None:
        if not (self._only_looks and self._is_known):
            command, webhook = notified(self._request)
            await tell(self._folder, Notify(command=command, webhook=webhook), facts)
