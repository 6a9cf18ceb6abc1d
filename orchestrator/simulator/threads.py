"""Message threads: conversations that the server holds, so that turns send only what is new."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .api_errors import ApiError

BETA = "message-threads-2026-08-12"
LIFETIME_S = 300.0
MAX_THREADS = 1_000
#: What a thread keeps from its first turn when a later one leaves it out.
_KEPT = ("system", "tools")


@dataclass(slots=True)
class _Stored:
    body: dict[str, Any]
    messages: list[dict[str, Any]]
    expires: float
    continued: bool = False


class Threads:
    """The latest threads, by the id of their last reply."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, _Stored] = OrderedDict()

    def expand(self, body: dict[str, Any], betas: str, now: float) -> dict[str, Any]:
        """The request as if it had been sent in full.

        Raises:
            ApiError: 400 without the beta header or for a reply that was continued before; 404
                ``thread_not_found`` for a reply that isn't held (any more).
        """
        thread = body.get("thread")
        if thread is None:
            return body
        if BETA not in betas:
            raise ApiError(400, f"thread: requires the beta header {BETA}")
        if thread.get("type") == "create":
            return body
        if thread.get("type") != "continue":
            raise ApiError(400, "thread.type: Input should be 'create' or 'continue'")
        previous = thread.get("previous_message_id")
        stored = self._stored.get(str(previous))
        if stored is None or stored.expires <= now:
            raise ApiError(404, f"thread: no message {previous}", code="thread_not_found")
        if stored.continued:
            raise ApiError(
                400, f"thread: {previous} was continued before", code="thread_already_continued"
            )
        kept = {field: stored.body[field] for field in _KEPT if field in stored.body}
        return {**kept, **body, "messages": [*stored.messages, *(body.get("messages") or [])]}

    def store(self, body: dict[str, Any], reply_id: str, content: list[Any], now: float) -> None:
        """Hold the conversation that this reply ends, if the request asked for a thread."""
        thread = body.get("thread")
        if thread is None:
            return
        previous = self._stored.get(str(thread.get("previous_message_id")))
        if previous is not None:
            previous.continued = True
        reply = {"role": "assistant", "content": content}
        stored = _Stored(body, [*body["messages"], reply], now + LIFETIME_S)
        self._stored[reply_id] = stored
        while len(self._stored) > MAX_THREADS:
            self._stored.popitem(last=False)

    def clear(self) -> None:
        """Forget every thread."""
        self._stored.clear()
