"""Message batches: their life from creation to results, at half the token price."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .api_errors import ApiError
from .batch_items import BatchItems

if TYPE_CHECKING:
    from .world import World

MAX_REQUESTS = 100_000
MAX_BODY = 256 * 1024 * 1024
MAX_KEPT = 1_000
#: Items between two turns of the event loop, so that other requests are served meanwhile.
SLICE = 50
#: Results are dropped so long after a batch was made.
KEPT_DAYS = 29
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OUTCOMES = ("succeeded", "errored", "canceled", "expired")


@dataclass(slots=True)
class _Batch:
    id: str
    key: str
    requests: list[dict[str, Any]]
    version: str
    created: datetime
    size: int
    status: str = "in_progress"
    cancelled_at: datetime | None = None
    ended_at: datetime | None = None
    results: list[bytes] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OUTCOMES, 0))
    go: asyncio.Event = field(default_factory=asyncio.Event)
    expire: bool = False
    late: int = 0
    processed: int = 0


class Batches:
    """All batches of the simulated workspace; each runs as a task of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items = BatchItems(world)
        self._batches: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._created = 0

    def create(
        self, body: dict[str, Any], *, key: str, version: str, base_url: str
    ) -> dict[str, Any]:
        """Take in a batch. Who comes with another key than this one does not see it.

        Raises:
            ApiError: 400 for a bad list or a bad or repeated ``custom_id``.
        """
        requests = _checked(body.get("requests"))
        self._created += 1
        batch = _Batch(
            id=f"msgbatch_sim_{self._world.tag}_{self._created:06d}",
            key=key,
            requests=requests,
            version=version,
            created=self._now(),
            size=len(requests),
        )
        self._batches[batch.id] = batch
        while len(self._batches) > MAX_KEPT:
            del self._batches[next(iter(self._batches))]
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self._json(batch, base_url)

    def retrieve(self, batch_id: str, *, key: str, base_url: str) -> dict[str, Any]:
        """One batch."""
        batch = self._find(batch_id, key)
        told = self._json(batch, base_url)
        if told["results_url"] and batch.late < self._world.settings.results_late:
            batch.late += 1
            told["results_url"] = None
        return told

    def page(
        self, *, limit: int, after: str | None, before: str | None, key: str, base_url: str
    ) -> dict[str, Any]:
        """A page of batches, the newest first.

        Args:
            limit: the most batches to a page, 1 to 1,000.
            after, before: ids of the batches that border the page.
            key: whose batches.
            base_url: where results can be fetched.
        """
        newest_first = [b for b in reversed(self._batches.values()) if b.key == key]
        ids = [batch.id for batch in newest_first]
        if not 1 <= limit <= 1000:
            raise ApiError(400, "limit: Input should be from 1 to 1000")
        start = ids.index(self._find(after, key).id) + 1 if after else 0
        end = ids.index(self._find(before, key).id) if before else len(ids)
        if before:
            start = max(start, end - limit)
        shown = newest_first[start : min(end, start + limit)]
        more = start > 0 if before else start + len(shown) < end
        return {
            "data": [self._json(batch, base_url) for batch in shown],
            "has_more": more,
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
        }

    def cancel(self, batch_id: str, *, key: str, base_url: str) -> dict[str, Any]:
        """Ask for the end: what isn't processed yet ends as canceled."""
        batch = self._find(batch_id, key)
        if batch.status == "in_progress":
            batch.status = "canceling"
            batch.cancelled_at = self._now()
            batch.go.set()
        return self._json(batch, base_url)

    def delete(self, batch_id: str, *, key: str) -> dict[str, Any]:
        """Drop an ended batch with its results."""
        batch = self._find(batch_id, key)
        if batch.status != "ended":
            raise ApiError(400, f"{batch_id} is {batch.status}; cancel it before deleting")
        del self._batches[batch_id]
        return {"id": batch_id, "type": "message_batch_deleted"}

    def results(self, batch_id: str, *, key: str) -> list[bytes]:
        """The result lines of an ended batch, in no particular order."""
        batch = self._find(batch_id, key)
        if batch.status != "ended":
            raise ApiError(404, f"no results of {batch_id} yet: it is {batch.status}")
        if self._is_archived(batch):
            raise ApiError(404, f"the results of {batch_id} were kept for {KEPT_DAYS} days")
        return batch.results

    def finish_first(self) -> None:
        """Let the oldest batch that is under way end; the others go on."""
        for batch in self._batches.values():
            if batch.status == "in_progress":
                batch.go.set()
                return

    def process(self, count: int) -> None:
        """Do so many further requests of every batch that is under way, and let none end."""
        for batch in self._batches.values():
            if batch.status == "in_progress":
                for _ in range(count):
                    self._process_next(batch)

    async def finish(self, *, expire: bool = False) -> None:
        """Let every batch run to its end now, and wait for it.

        Args:
            expire: what isn't processed yet ends as expired instead.
        """
        for batch in self._batches.values():
            batch.expire = batch.expire or expire
            batch.go.set()
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Stop whatever runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._world.settings.wall(), UTC)

    def _find(self, batch_id: str, key: str) -> _Batch:
        batch = self._batches.get(batch_id)
        if batch is None or batch.key != key:
            raise ApiError(404, f"batch: {batch_id}")
        return batch

    def _is_archived(self, batch: _Batch) -> bool:
        return self._now() - batch.created > timedelta(days=KEPT_DAYS)

    async def _run(self, batch: _Batch) -> None:
        seconds = self._world.settings.batch_seconds
        if seconds != 0 or batch.status != "in_progress":
            try:
                async with asyncio.timeout(seconds):
                    await batch.go.wait()
            except TimeoutError:
                pass
        while batch.processed < batch.size:
            self._process_next(batch)
            if batch.processed % SLICE == 0:
                await asyncio.sleep(0)
        # Results come in no particular order; a reader who relies on it finds out here.
        random.Random(self._world.settings.seed).shuffle(batch.results)
        batch.requests = []
        batch.ended_at = self._now()
        batch.status = "ended"

    def _process_next(self, batch: _Batch) -> None:
        if batch.processed >= batch.size:
            return
        item = batch.requests[batch.processed]
        batch.processed += 1
        stopped = "canceled" if batch.status == "canceling" else "expired" if batch.expire else None
        done = self._items.result(item, version=batch.version, stopped=stopped)
        batch.counts[done.kind] += 1
        if done.line:
            batch.results.append(done.line)

    def _json(self, batch: _Batch, base_url: str) -> dict[str, Any]:
        ended = batch.status == "ended"
        archived = batch.created + timedelta(days=KEPT_DAYS) if self._is_archived(batch) else None
        url = f"{base_url}/v1/messages/batches/{batch.id}/results"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": batch.status,
            "request_counts": {
                "processing": 0 if ended else batch.size,
                **(batch.counts if ended else dict.fromkeys(_OUTCOMES, 0)),
            },
            "created_at": _rfc3339(batch.created),
            "expires_at": _rfc3339(batch.created + timedelta(hours=24)),
            "ended_at": _rfc3339(batch.ended_at),
            "cancel_initiated_at": _rfc3339(batch.cancelled_at),
            "archived_at": _rfc3339(archived),
            "results_url": url if ended and archived is None else None,
        }


def _checked(requests: object) -> list[dict[str, Any]]:
    if not isinstance(requests, list) or not requests:
        raise ApiError(400, "requests: at least one request is required")
    if len(requests) > MAX_REQUESTS:
        raise ApiError(400, f"requests: at most {MAX_REQUESTS} requests to a batch")
    seen = set()
    for index, item in enumerate(requests):
        where = f"requests.{index}"
        custom_id = item.get("custom_id") if isinstance(item, dict) else None
        if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
            raise ApiError(
                400, f"{where}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
            )
        if custom_id in seen:
            raise ApiError(400, f"{where}.custom_id: {custom_id!r} is not unique in this batch")
        seen.add(custom_id)
        if not isinstance(item.get("params"), dict):
            raise ApiError(400, f"{where}.params: Field required")
    return requests


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
