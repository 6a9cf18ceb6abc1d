"""The process that is at a job of batches: which one it is, and having it end the job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .failures import Mistake
from .output import remark
from .run_places import RECORD, RunPlace, read_record

if TYPE_CHECKING:
    from orchestrator.batches import Progress

_LOOK_S = 0.5


def refuse_taken(place: RunPlace) -> None:
    """Say who is at a job that was to be gone on with, and what can be done meanwhile.

    Args:
        place: a run that is under way in another process.

    Raises:
        Mistake: always, if it has a job of batches.
    """
    from orchestrator.batches import read_job

    if read_job(place.folder) is not None:
        raise Mistake(
            f"run {place.id}: process {_pid_of(place)} is at it; 'earmark batches watch {place.id}' looks on, and "
            f"'earmark batches cancel {place.id}' ends it"
        )


def end_elsewhere(place: RunPlace) -> Progress | None:
    """Have the process that is at a job cancel it, and wait until it has; nothing if nobody is at it.

    A process that is killed meanwhile leaves the job to the caller.

    Args:
        place: the job's run.

    Returns:
        Where the job stands, if it has ended while its process keeps the run for something else; None if
        nobody has the run any more.

    Raises:
        Mistake, ConfigError: the job's file can't be read or written.
    """
    from orchestrator.batches import ask_to_cancel, read_job
    from orchestrator.run_folder import is_under_way

    from .batch_watch import View
    from .bulk_request import kept_in

    view, asked = View(), ("", "")
    # A bulk job has ended when its rows are written, too: its process lets go of the run then.
    has_rows = kept_in(place.folder) is not None
    while is_under_way(place.folder):  # until its process has ended it, or is gone
        record = read_record(place.folder / RECORD)
        owner = str(record.get("pid", "")), str(record.get("started", ""))
        if owner != asked and owner[0].isdigit():
            ask_to_cancel(place.folder, pid=int(owner[0]), started=owner[1])
            remark(f"run {place.id}: process {owner[0]} is at it and was asked to cancel it")
            asked = owner
        job = read_job(place.folder)
        if job is None or job.progress is None:
            raise Mistake(f"run {place.id}: its job can't be read ({job.fault if job else 'gone'})")
        view.show(job.progress)
        if job.is_complete and not has_rows:
            return job.progress
        time.sleep(_LOOK_S)
    return None


def _pid_of(place: RunPlace) -> str:
    return str(read_record(place.folder / RECORD).get("pid", "unknown"))
