"""The stand-in for a tokenizer: deterministic, never more tokens than a text has UTF-8 bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .request import MessageRequest

#: What the API adds to a prompt with tools, as the real one does.
TOOLS_PROMPT = 346
#: What a JSON output format adds besides its schema.
FORMAT_PROMPT = 12
MESSAGE_OVERHEAD = 3
IMAGE = 1_600
PDF_PAGE = 1_500
#: A document by file id or URL, whose size the request doesn't show.
REMOTE_DOCUMENT = 3_000


@dataclass(slots=True)
class Block:
    """One piece of the prompt, in the order in which the cache sees it.

    Attributes:
        section: ``tools``, ``system`` or ``messages``.
        tokens: its size.
        content: what a cached prefix must repeat exactly.
        marker: its ``cache_control``, if any.
    """

    section: str
    tokens: int
    content: Any
    marker: dict[str, Any] | None


def text_tokens(text: str) -> int:
    """Tokens of a text: a quarter of its characters, rounded up."""
    return (len(text) + 3) // 4


def json_tokens(value: object) -> int:
    """Tokens of a JSON value as the model would see it."""
    return text_tokens(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def split_prompt(request: MessageRequest) -> list[Block]:
    """The prompt as blocks, tools first, then system, then messages."""
    blocks: list[Block] = []
    for tool in request.tools:
        bare = {key: value for key, value in tool.items() if key != "cache_control"}
        blocks.append(Block("tools", json_tokens(bare), bare, tool.get("cache_control")))
    if blocks:
        blocks[0].tokens += TOOLS_PROMPT
    system = request.system
    if isinstance(system, str):
        if system:
            blocks.append(Block("system", text_tokens(system), system, None))
    else:
        blocks.extend(_block("system", part, None) for part in system)
    for message in request.messages:
        _split_message(message, blocks)
    return blocks


def _split_message(message: dict[str, Any], blocks: list[Block]) -> None:
    content, role = message["content"], message["role"]
    if isinstance(content, str):
        tokens = text_tokens(content) + MESSAGE_OVERHEAD
        blocks.append(Block("messages", tokens, (role, content), None))
        return
    first = len(blocks)
    blocks.extend(_block("messages", part, role) for part in content)
    if len(blocks) > first:
        blocks[first].tokens += MESSAGE_OVERHEAD


def _block(section: str, part: dict[str, Any], role: str | None) -> Block:
    marker = part.get("cache_control")
    if part.get("type") == "text":
        # The same words are the same prefix, whether written as a string or as a text block.
        content: Any = (role, part["text"]) if role else part["text"]
        return Block(section, text_tokens(part["text"]), content, marker)
    bare = {key: value for key, value in part.items() if key != "cache_control"}
    return Block(section, part_tokens(part), (role, bare), marker)


def part_tokens(part: dict[str, Any]) -> int:
    """Tokens of one content block of any type."""
    count = _COUNTERS.get(str(part.get("type")))
    if count is not None:
        return count(part)
    return json_tokens({key: value for key, value in part.items() if key != "cache_control"})


def _result_tokens(content: object) -> int:
    if content is None:
        return 1
    if isinstance(content, str):
        return text_tokens(content)
    if isinstance(content, list):
        return sum(part_tokens(part) for part in content if isinstance(part, dict))
    return json_tokens(content)


def _document_tokens(part: dict[str, Any]) -> int:
    source = part.get("source") or {}
    data = source.get("data")
    if source.get("type") == "text" and isinstance(data, str):
        return text_tokens(data)
    if source.get("type") == "content":
        return _result_tokens(source.get("content"))
    if isinstance(data, str):
        # About 50 kB of PDF to a page; base64 is a third longer.
        return PDF_PAGE * (1 + len(data) // 66_000)
    return REMOTE_DOCUMENT


def _call_tokens(part: dict[str, Any]) -> int:
    return text_tokens(str(part.get("name", ""))) + json_tokens(part.get("input", {}))


_COUNTERS: dict[str, Callable[[dict[str, Any]], int]] = {
    "text": lambda part: text_tokens(part["text"]),
    "image": lambda _: IMAGE,
    "document": _document_tokens,
    "tool_result": lambda part: _result_tokens(part.get("content")),
    "tool_use": _call_tokens,
    "thinking": lambda part: text_tokens(str(part.get("thinking", ""))),
}


def tail_tokens(request: MessageRequest) -> int:
    """Tokens behind the last block: the output format. Never cached."""
    return 0 if request.schema is None else FORMAT_PROMPT + json_tokens(request.schema)


def estimate(tokens: int) -> int:
    """What ``count_tokens`` says: within one percent of the real count, on either side of it."""
    off = tokens * 2_654_435_761 % 5 - 2
    error = abs(off) * tokens // 200
    return tokens + error if off > 0 else tokens - error
