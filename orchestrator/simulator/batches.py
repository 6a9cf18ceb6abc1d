"""Message batches: their life from creation to results, at half the token price."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .accounting import account_for, message_json, usage_json
from .api_errors import ApiError
from .messages import charge, plan_prompt
from .model import answer
from .request import read_request

if TYPE_CHECKING:
    from .world import World

MAX_REQUESTS = 100_000
MAX_BODY = 256 * 1024 * 1024
MAX_KEPT = 1_000
#: Items between two turns of the event loop, so that other requests are served meanwhile.
SLICE = 50
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OUTCOMES = ("succeeded", "errored", "canceled", "expired")


@dataclass(slots=True)
class _Batch:
    id: str
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


class Batches:
    """All batches of the simulated workspace; each runs as a task of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._batches: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._created = 0

    def create(self, body: dict[str, Any], *, version: str, base_url: str) -> dict[str, Any]:
        """Take in a batch.

        Raises:
            ApiError: 400 for a bad list or a bad or repeated ``custom_id``.
        """
        requests = _checked(body.get("requests"))
        self._created += 1
        batch = _Batch(
            id=f"msgbatch_sim_{self._world.tag}_{self._created:06d}",
            requests=requests,
            version=version,
            created=datetime.now(UTC),
            size=len(requests),
        )
        self._batches[batch.id] = batch
        while len(self._batches) > MAX_KEPT:
            del self._batches[next(iter(self._batches))]
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _batch_json(batch, base_url)

    def retrieve(self, batch_id: str, *, base_url: str) -> dict[str, Any]:
        """One batch."""
        return _batch_json(self._find(batch_id), base_url)

    def page(
        self, *, limit: int, after: str | None, before: str | None, base_url: str
    ) -> dict[str, Any]:
        """A page of batches, the newest first.

        Args:
            limit: the most batches to a page, 1 to 1,000.
            after, before: ids of the batches that border the page.
            base_url: where results can be fetched.
        """
        newest_first = list(reversed(self._batches.values()))
        ids = [batch.id for batch in newest_first]
        if not 1 <= limit <= 1000:
            raise ApiError(400, "limit: Input should be from 1 to 1000")
        start = ids.index(self._find(after).id) + 1 if after else 0
        end = ids.index(self._find(before).id) if before else len(ids)
        if before:
            start = max(start, end - limit)
        shown = newest_first[start : min(end, start + limit)]
        more = start > 0 if before else start + len(shown) < end
        return {
            "data": [_batch_json(batch, base_url) for batch in shown],
            "has_more": more,
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
        }

    def cancel(self, batch_id: str, *, base_url: str) -> dict[str, Any]:
        """Ask for the end: what isn't processed yet ends as canceled."""
        batch = self._find(batch_id)
        if batch.status == "in_progress":
            batch.status = "canceling"
            batch.cancelled_at = datetime.now(UTC)
            batch.go.set()
        return _batch_json(batch, base_url)

    def delete(self, batch_id: str) -> dict[str, Any]:
        """Drop an ended batch with its results."""
        batch = self._find(batch_id)
        if batch.status != "ended":
            raise ApiError(400, f"{batch_id} is {batch.status}; cancel it before deleting")
        del self._batches[batch_id]
        return {"id": batch_id, "type": "message_batch_deleted"}

    def results(self, batch_id: str) -> list[bytes]:
        """The result lines of an ended batch, in no particular order."""
        batch = self._find(batch_id)
        if batch.status != "ended":
            raise ApiError(404, f"no results of {batch_id} yet: it is {batch.status}")
        return batch.results

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

    def _find(self, batch_id: str) -> _Batch:
        batch = self._batches.get(batch_id)
        if batch is None:
            raise ApiError(404, f"batch: {batch_id}")
        return batch

    async def _run(self, batch: _Batch) -> None:
        seconds = self._world.settings.batch_seconds
        if seconds != 0 or batch.status != "in_progress":
            try:
                async with asyncio.timeout(seconds):
                    await batch.go.wait()
            except TimeoutError:
                pass
        for index, item in enumerate(batch.requests):
            result = self._result(batch, item)
            batch.counts[str(result["type"])] += 1
            line = json.dumps({"custom_id": item["custom_id"], "result": result})
            batch.results.append(line.encode() + b"\n")
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        # Results come in no particular order; a reader who relies on it finds out here.
        random.Random(self._world.settings.seed).shuffle(batch.results)
        batch.requests = []
        batch.ended_at = datetime.now(UTC)
        batch.status = "ended"

    def _result(self, batch: _Batch, item: dict[str, Any]) -> dict[str, Any]:
        if batch.status == "canceling":
            return {"type": "canceled"}
        if batch.expire:
            return {"type": "expired"}
        number = self._world.next_number()
        try:
            return self._process(batch, item["params"], number)
        except ApiError as error:
            body = error.body(self._world.request_id(number))
            return {"type": "errored", "error": body}

    def _process(self, batch: _Batch, params: dict[str, Any], number: int) -> dict[str, Any]:
        world = self._world
        request = read_request(
            params, version=batch.version, default_geo=world.settings.default_geo, batch=True
        )
        wanted = request.directives.batch
        if wanted == "expired":
            return {"type": "expired"}
        if wanted == "errored":
            raise ApiError(500, "Internal server error")
        plan, prompt_tokens = plan_prompt(world, request)
        world.cache.begin(plan, world.now())
        said = answer(request, number=number, prompt_tokens=prompt_tokens)
        account = account_for(request, plan, said, batch=True)
        charge(world, number, account, "batch")
        message = message_json(world.message_id(number), said, account, usage_json(account))
        return {"type": "succeeded", "message": message}


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


def _batch_json(batch: _Batch, base_url: str) -> dict[str, Any]:
    ended = batch.status == "ended"
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
        "archived_at": None,
        "results_url": f"{base_url}/v1/messages/batches/{batch.id}/results" if ended else None,
    }


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
