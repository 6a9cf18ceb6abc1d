"""One request of a batch: its result, its charge, and the ways in which a test can have it end."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .accounting import account_for, message_json, usage_json
from .api_errors import ApiError
from .cache import PromptCache
from .messages import charge, plan_prompt
from .model import answer
from .request import MessageRequest, read_request

if TYPE_CHECKING:
    from .world import World

#: The errors that a request can be told to end in: ``[[sim:batch=overloaded]]``.
_ERRORS: dict[str, tuple[int, str]] = {
    "errored": (500, "Internal server error"),
    "overloaded": (529, "Overloaded"),
    "rate_limited": (429, "This request would exceed your organization's rate limit."),
    "invalid": (400, "messages.0.content: this request is told to be invalid"),
    "billing": (402, "Your credit balance is too low to access the API."),
}
#: Ways that concern only what is reported (or that it is charged as a direct call: ``standard``).
_REPORTED = frozenset({"missing", "no_usage", "standard"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemEnd:
    """How a request ended, and its line of the results; empty if it is told to be missing there."""

    kind: str
    line: bytes


class BatchItems:
    """Serves requests of batches, and remembers how often each was told to fail."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._times: Counter[str] = Counter()
        self._chance = random.Random(world.settings.seed)

    def result(self, item: dict[str, Any], *, version: str, stopped: str | None) -> ItemEnd:
        """Serve one request; ``stopped`` is how it ends without being served."""
        if stopped is not None:
            return _end(item, {"type": stopped})
        number = self._world.next_number()
        try:
            result = self._serve(item["params"], number, version)
        except ApiError as error:
            body = error.body(self._world.request_id(number))
            return _end(item, {"type": "errored", "error": body})
        end = _end(item, result)
        return replace(end, line=b"") if result.get("missing") else end

    def _serve(self, params: dict[str, Any], number: int, version: str) -> dict[str, Any]:
        world = self._world
        request = read_request(
            params, version=version, default_geo=world.settings.default_geo, batch=True
        )
        way = self._way(request, params)
        if way == "expired":
            return {"type": "expired"}
        if way in _ERRORS:
            raise ApiError(*_ERRORS[way])
        if way and way not in _REPORTED:
            known = ", ".join(sorted({"expired", *_ERRORS, *_REPORTED}))
            raise ApiError(400, f"simulator: batch={way}: the ways are {known}")
        # In batches caching is best effort: some requests find nothing, and write it again.
        hits = self._chance.randrange(1000) < world.settings.batch_hits_permille
        plan, prompt_tokens = plan_prompt(world, request, None if hits else PromptCache())
        world.cache.begin(plan, world.now())
        said = answer(request, number=number, prompt_tokens=prompt_tokens)
        account = account_for(request, plan, said, batch=way != "standard")
        charge(world, number, account, "batch")
        usage = None if way == "no_usage" else usage_json(account)
        message = message_json(world.message_id(number), said, account, usage)
        result: dict[str, Any] = {"type": "succeeded", "message": message}
        return {**result, "missing": True} if way == "missing" else result

    def _way(self, request: MessageRequest, params: dict[str, Any]) -> str:
        """How it is told to end; ``WAY,N`` only the first N times that the same request comes."""
        way, _, times = (request.directives.batch or "").partition(",")
        if times:
            key = json.dumps(params.get("messages"))
            self._times[key] += 1
            if self._times[key] > int(times):
                return ""
        return way


def _end(item: dict[str, Any], result: dict[str, Any]) -> ItemEnd:
    line = json.dumps({"custom_id": item["custom_id"], "result": result}).encode() + b"\n"
    return ItemEnd(kind=str(result["type"]), line=line)
