"""A bulk job gone on with by its run alone (``earmark batches``): its rows and summary are those of its own command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from budgets.errors import BudgetError
from orchestrator.errors import ConfigError

from .bulk_place import find_state, go_on
from .bulk_request import Request, kept_in
from .failures import Mistake
from .output import remark
from .run_places import RunPlace

if TYPE_CHECKING:
    from .bulk_job import Job


@contextlib.contextmanager
def job_again(
    place: RunPlace, *, config: Path | None, json: bool, sends: bool, only_looks: bool = False
) -> Iterator[Job | None]:
    """The bulk job of a run, as ``--resume`` would go on with it; None where that can't be, and why is said.

    Args:
        place: the run.
        config, json: as for the command that goes on with it.
        sends: False only writes the rows of what was cancelled.
        only_looks: see ``Job``.
    """
    kept = kept_in(place.folder)
    with contextlib.ExitStack() as stack:
        job = None
        if kept is not None:
            try:
                job = stack.enter_context(_prepared(place, *kept, config, json=json))
                job.sends, job.only_looks = sends, only_looks
            except (Mistake, ConfigError, BudgetError, OSError) as error:
                remark(f"its rows can't be written now: {error}")
        yield job


@contextlib.contextmanager
def _prepared(
    place: RunPlace, request: Request, fingerprint: str, config: Path | None, *, json: bool
) -> Iterator[Job]:
    from .bulk_job import prepared

    again = replace(
        request,
        config=config or request.config,
        ledger=place.ledger,
        resume=True,
        json=json,
    )
    with prepared(again, may_begin=False) as job:
        if job.fingerprint != fingerprint:
            raise Mistake(
                f"run {place.id}: the schema, the template or the model is not the one that it began with, so all its "
                "documents would be asked and paid again"
            )
        yield job


def rows_by(place: RunPlace) -> str | None:
    """The command that writes the rows of a bulk job; None if the run is no such thing."""
    if place.ledger is None:
        return None
    try:
        out, state = find_state(place.id, place.ledger)
    except Mistake:
        return None
    return go_on(state.get("command") or (), out)
