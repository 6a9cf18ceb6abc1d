"""Taking up a job of batches from the command line: what is shown meanwhile, and what Ctrl-C asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budgets.scopes import SIMULATED

from .failures import Mistake
from .output import dollars, money, remark
from .run_places import RunPlace

if TYPE_CHECKING:
    from budgets.prices import PriceBook
    from orchestrator.batches import BatchJob, Progress
    from orchestrator.run import Run

#: A line at most this often, where nothing but time has passed.
_SHOWN_S = 30.0
#: Whether it can be seen that another process is at a run (not on Windows).
_LOCKS_SHOW = os.name == "posix"
_QUESTION = "Leave the batches running and come back later [l], or cancel them [c]? "


class View:
    """Says on standard error where a job stands, when that has changed."""

    def __init__(self) -> None:
        self._said: tuple[int, int] | None = None
        self._at = 0.0

    def show(self, progress: Progress) -> None:
        """One line."""
        now = time.monotonic()
        state = (progress.ended, len(progress.batches))
        if state == self._said and now - self._at < _SHOWN_S:
            return
        self._said, self._at = state, now
        under_way = sum(row.state.is_open for row in progress.batches)
        remark(
            f"{progress.ended:,} of {progress.items:,} items ended ({progress.failed:,} without success), "
            f"{under_way} batches under way, posted {dollars(progress.posted_nanos)}, "
            f"held {dollars(progress.held_nanos)}, {progress.seconds:,.0f} s"
        )


def summary(progress: Progress) -> dict[str, Any]:
    """A job in JSON: counts, money, and the four bills."""
    bills = progress.bills
    return {
        "items": progress.items,
        "waiting": progress.waiting,
        "sent": progress.sent,
        "outcomes": dict(progress.done),
        "complete": progress.is_complete,
        "all_taken_in": progress.all_taken_in,
        "batches": [
            {
                "batch": row.n,
                "id": row.id,
                "state": row.state.value,
                "model": row.model,
                "items": row.items,
                **money("posted", row.posted_nanos),
                **money("bound", row.bound_nanos),
            }
            for row in progress.batches
        ],
        **money("posted", progress.posted_nanos),
        **money("held", progress.held_nanos),
        "cache_hits": bills.hits,
        "billed_results": bills.results,
        **money("batch", bills.batch_nanos),
        **money("batch_without_cache", bills.batch_without_nanos),
        **money("direct", bills.direct_nanos),
        **money("direct_without_cache", bills.direct_without_nanos),
    }


def take_up(place: RunPlace, prices: PriceBook, *, cancels: bool) -> Progress:
    """Go on with a job until it has ended, it is left, or (``cancels``) it is cancelled and settled.

    It knows items and answers, no documents: the rows of a bulk job are written by ``bulk_again``.

    Raises:
        Mistake: the run's record can't be read.
        ConfigError: it is under way in another process.
        JobFault: a person is needed.
    """
    from .upstream import upstream

    # Play batches are with no provider: one of play says that it does not know them.
    is_play = place.scope.partition("/")[0] == SIMULATED
    options: AbstractContextManager[dict[str, Any]]
    options = upstream(simulate=True) if is_play else nullcontext({})
    with options as client:
        return asyncio.run(_take_up(place, prices, client, cancels=cancels))


async def _take_up(
    place: RunPlace, prices: PriceBook, client: Mapping[str, Any], *, cancels: bool
) -> Progress:
    from orchestrator.batches import BatchJob

    view = View()
    async with _run_of(place, prices, client) as run, BatchJob(run, on_progress=view.show) as job:
        if cancels:
            job.cancel()
        with listening(job):
            async for _ in job.results():
                pass
        if job.is_detached:
            remark(
                f"the batches go on at the provider, their holds stay; 'earmark batches attach {place.id}' goes on"
            )
        return job.progress()


def _run_of(place: RunPlace, prices: PriceBook, client: Mapping[str, Any]) -> Run:
    from orchestrator.run import Run

    name, ledger = place.text("name"), place.ledger
    own = f"{name}/{place.id}"
    if not name or ledger is None or not place.scope.endswith(own):
        raise Mistake(
            f"run {place.id}: its record in {place.folder} can't be read, or its ledger is not there any more"
        )
    return Run(
        name,
        id=place.id,
        scope=place.scope[: -len(own)].rstrip("/"),
        ledger=ledger,
        folder=place.folder,
        prices=prices,
        client=dict(client) or None,
        kill_switch=False,
    )


@contextlib.contextmanager
def listening(job: BatchJob) -> Iterator[None]:
    """Ctrl-C asks, where somebody can answer, and leaves the batches running otherwise; twice always does."""
    from orchestrator.stopping import signals_to

    loop = asyncio.get_running_loop()
    asking: list[asyncio.Task[None]] = []

    def press() -> None:
        if asking or not (sys.stdin.isatty() and sys.stderr.isatty()):
            job.detach()
        else:
            asking.append(loop.create_task(_ask(job)))

    try:
        with signals_to(press):
            yield
    finally:
        for task in asking:
            task.cancel()


async def _ask(job: BatchJob) -> None:
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(file)
        if not typed.done():
            typed.set_result(os.read(file, 1024))

    sys.stderr.write(_QUESTION)
    sys.stderr.flush()
    # Not in a thread: nothing ends that but an answer, and nobody has to give one.
    loop.add_reader(file, read)
    try:
        answer = (await typed).strip().lower()
    finally:
        loop.remove_reader(file)
    if answer.startswith(b"c"):
        remark("cancelling: what was answered by now is settled, the rest is not billed")
        job.cancel()
    else:
        job.detach()


def watch_other(folder: Path, *, every_s: float) -> Progress:
    """Follow a job that another process does, by its file, until it is complete or nobody is at it any more.

    Raises:
        Mistake: its file can't be read.
    """
    from orchestrator.batches import read_job
    from orchestrator.run_folder import is_under_way

    view = View()
    while True:  # until it is complete, nobody is at it, or the person leaves
        is_left = _LOCKS_SHOW and not is_under_way(folder)
        job = read_job(folder)  # after that look: what its process wrote last is seen
        if job is None or job.progress is None:
            raise Mistake(
                f"run {folder.name}: its job can't be read ({job.fault if job else 'gone'})"
            )
        view.show(job.progress)
        if job.is_complete or is_left:
            return job.progress
        time.sleep(every_s)
