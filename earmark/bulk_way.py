"""Which way a bulk job goes, direct calls or message batches, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from budgets.money import format_usd
from orchestrator.run import Run
from patterns.bulk import Quote

from .bulk_options import Way as Asked
from .bulk_request import Request
from .failures import Mistake

#: Below so many documents, half the price is not worth a wait of up to a day.
DOCUMENTS_LEAST = 200
#: And below so much saved: a cent.
_SAVED_LEAST = 10_000_000


@dataclass(frozen=True, slots=True)
class Way:
    """How documents are sent, and why so."""

    is_batch: bool
    why: str

    @property
    def name(self) -> str:
        """As on the command line."""
        return "batch" if self.is_batch else "direct"


def check_way(request: Request) -> None:
    """Options that would be passed over in silence.

    Raises:
        Mistake: an option that means nothing for the way that was asked for.
    """
    of_batches = {
        "--failed-direct": request.failed_direct,
        "--notify": request.notify,
        "--webhook": request.webhook,
    }
    for name, value in of_batches.items():
        if value and request.via is Asked.DIRECT:
            raise Mistake(
                f"{name}: it is for batches; add --via batch or --via auto, or leave it out"
            )
    if request.urgent and request.via is not Asked.AUTO:
        raise Mistake("--urgent: it helps --via auto to choose; add that, or leave it out")


def choose(request: Request, estimate: Quote, run: Run | None) -> Way:
    """Batches or direct calls.

    Args:
        request: what was asked; ``auto`` leaves it to the size of the job.
        estimate: what it will cost.
        run: one that has begun with batches goes on with them; None for a dry run.
    """
    if run is not None and run.folder.path is not None and _has_job(run.folder.path):
        return Way(True, "this run has begun with batches")
    if request.via is not Asked.AUTO:
        return Way(request.via is Asked.BATCH, f"--via {request.via.value}")
    saved = estimate.likely_nanos - estimate.batch_likely_nanos
    if request.urgent:
        return Way(False, "it is urgent, and a batch may take up to a day")
    if estimate.documents < DOCUMENTS_LEAST:
        return Way(False, f"{estimate.documents:,} documents are soon done")
    if saved < _SAVED_LEAST:
        return Way(False, f"batches would save only about {format_usd(saved, places=4)}")
    return Way(
        True,
        f"{estimate.documents:,} documents: at half the token price that saves about "
        f"{format_usd(saved, places=2)}",
    )


def _has_job(folder: Path) -> bool:
    if not (folder / "batches.db").exists():  # the engine is imported only where it is needed
        return False
    from orchestrator.batches import read_job

    return read_job(folder) is not None
