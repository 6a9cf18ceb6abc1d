"""Cancelling a job that another process is at: it is asked to, by a word in the job's file, and does it itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.run import Run

from .job_file import FILE, JobFile
from .work import Work

logger = logging.getLogger("earmark")

#: How often a job looks whether it is asked to.
_LOOK_S = 0.5
_FACT = "cancel"


def ask_to_cancel(folder: Path, *, pid: int, started: str) -> None:
    """Ask the process that is at a job to cancel it; it sees that within a second of its next wait.

    Args:
        folder: of the job's run.
        pid, started: as its ``run.json`` says: no later process is meant, whatever becomes of this one.

    Raises:
        ConfigError: the job's file can't be written.
    """
    file = JobFile(folder / FILE)
    try:
        file.note(**{_FACT: _address(pid, started)})
    finally:
        file.close()


def is_asked(file: JobFile, run: Run) -> bool:
    """Whether this process is asked to cancel its job."""
    started = run.started_at.isoformat(timespec="seconds")
    return file.fact(_FACT) == _address(os.getpid(), started)


async def heed(work: Work, cancel: Callable[[], None]) -> None:
    """Cancel a job once that is asked for; look for it until then."""
    while not is_asked(work.store, work.run):  # whoever leaves the job cancels this
        await work.control.nap(_LOOK_S)
    work.store.note(**{_FACT: ""})  # it is about this job, and not about one that the run has later
    if not work.control.is_cancelled:
        logger.warning("run %s: another process asks to cancel it", work.run.id)
        work.run.journal.write("job_cancel", reason="another process asked for it")
        cancel()


def _address(pid: int, started: str) -> str:
    return f"{pid} {started}"
