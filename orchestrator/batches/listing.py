"""Jobs of batches beside a ledger: what each run's file says, without taking it up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError

from .job_file import FILE
from .job_store import JobStore
from .progress import Progress, progress_of

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as its file has it.

    Attributes:
        run: id of its run.
        folder: the run's folder.
        progress: where it stands.
        is_complete: nothing is left to do.
        fault: why its file can't be read; ``""`` if it can.
    """

    run: str
    folder: Path
    progress: Progress | None
    is_complete: bool
    fault: str = ""

    def oldest_days(self, now: float) -> float | None:
        """Age of its oldest batch that is under way, in days (``now``: seconds since 1970); None if none is."""
        if self.progress is None:
            return None
        made = [
            row.created_at
            for row in self.progress.batches
            if row.state.is_open and row.created_at is not None
        ]
        return (now - min(made)) / _DAY_S if made else None


def read_job(folder: Path) -> JobRecord | None:
    """The job of a run's folder; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        store = JobStore(path, read_only=True)
    except ConfigError as error:
        return JobRecord(
            run=folder.name, folder=folder, progress=None, is_complete=False, fault=str(error)
        )
    try:
        progress = progress_of(store)
    finally:
        store.close()
    return JobRecord(
        run=folder.name,
        folder=folder,
        progress=progress,
        is_complete=progress.is_complete and progress.all_taken_in,
    )


def jobs_beside(ledger: Path) -> list[JobRecord]:
    """Every job whose run's folder lies beside a ledger, by the names of the runs."""
    runs = ledger.parent / "runs"
    folders = sorted(runs.iterdir()) if runs.is_dir() else []
    return [job for folder in folders if (job := read_job(folder)) is not None]
