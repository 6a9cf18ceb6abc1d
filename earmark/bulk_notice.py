"""Telling of a bulk job's end (``--notify``, ``--webhook``): once, whatever the end, in counts and dollars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.batches.notify import tell
from orchestrator.batches.settings import Notify

from .bulk_request import Request, notified
from .exits import Exit
from .failures import code_of

_FIGURES = ("command", "exit_code", "via", "documents", "posted_usd", "held_usd", "in_doubt_usd")


async def tell_of_end(request: Request, summary: Mapping[str, Any]) -> None:
    """Tell of a job that has ended, also by a cap; not of one that was left and will be gone on with.

    Args:
        request: says who is told.
        summary: of the job, as ``--json`` prints it.
    """
    if summary["exit_code"] == Exit.INTERRUPTED:
        return
    figures = {name: summary[name] for name in (*_FIGURES, "cap_usd")}
    await _tell(
        request,
        {"run": summary["run"], "end": "complete", **figures, "done": summary["outcomes"]},
    )


async def tell_of_fault(request: Request, run: str, error: Exception) -> None:
    """Tell of a job that a mistake or a fault has ended; which one, by its name only."""
    facts = {"command": request.command, "exit_code": int(code_of(error))}
    await _tell(request, {"run": run, "end": "fault", **facts, "fault": type(error).__name__})


async def _tell(request: Request, facts: Mapping[str, Any]) -> None:
    command, webhook = notified(request)
    await tell(Notify(command=command, webhook=webhook), facts)
