"""Replies: what a model answered, as plain JSON, so that its blocks can go back as they came.

Built from the bytes of the answer: the SDK's models of it would cost more time than all else that a loop does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from anthropic import AsyncAPIResponse
from anthropic.types import ContentBlock, Message

from .errors import UnreadableAnswer
from .wire.json_body import json_of

#: What a block must have as text, beside its type, so that it can be worked with.
_TEXTS: Mapping[str, tuple[str, ...]] = {"text": ("text",), "tool_use": ("id", "name")}
#: Kinds of content blocks that the SDK knows.
_KNOWN = frozenset(
    kind
    for block in get_args(get_args(ContentBlock)[0])
    for kind in get_args(block.model_fields["type"].annotation)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        content: its blocks, unchanged, those of server tools included.
        model: that gave it, as the provider names it.
        stop_reason: why it ended; None where it doesn't say.
        container: id of the container that it ran code in; None without one.
    """

    content: Sequence[dict[str, Any]]
    model: str
    stop_reason: str | None
    container: str | None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join([block["text"] for block in self.content if block["type"] == "text"])

    @property
    def uses(self) -> list[dict[str, Any]]:
        """Its calls of our tools."""
        return [block for block in self.content if block["type"] == "tool_use"]

    @property
    def strange(self) -> list[str]:
        """Kinds of blocks that are not known here."""
        return sorted({block["type"] for block in self.content} - _KNOWN)


async def reply_of(answer: object) -> Reply:
    """The reply in what a client handed back: its raw response, or a message that was built already.

    Raises:
        UnreadableAnswer: it is no message. Blocks of kinds that are not known here are no fault.
        ValueError: it is not JSON.
    """
    if isinstance(answer, AsyncAPIResponse):
        body = json_of(await answer.read())
    elif isinstance(answer, Message):  # of a stream, or of a middleware in between
        body = answer.to_dict(warnings=False)
    else:
        body = None
    if not isinstance(body, dict):
        raise UnreadableAnswer("the answer is no message; something in between has replied")
    if fault := _fault_of(body.get("content")):
        raise UnreadableAnswer(f"the answer can't be read: {fault}; it may have been billed")
    reason, container = body.get("stop_reason"), body.get("container")
    return Reply(
        content=body["content"],
        model=str(body.get("model") or ""),
        stop_reason=None if reason is None else str(reason),
        container=container.get("id") if isinstance(container, dict) else None,
    )


def _fault_of(content: object) -> str:
    """What keeps content from being worked with, as the end of a sentence; empty if nothing does."""
    if not isinstance(content, list):
        return "it has no list of content blocks"
    for number, block in enumerate(content, 1):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            return f"content block {number} is no block"
        for name in _TEXTS.get(kind, ()):
            if not isinstance(block.get(name), str):
                return f"content block {number} ({kind}) has no {name}"
    return ""
