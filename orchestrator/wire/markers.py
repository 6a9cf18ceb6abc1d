"""Markers: the prefixes of a request that can be cached, and how one is marked.

Pure functions over bodies. Which prefix is worth a marker is decided in ``prefixes``; what lifetimes cost, in
``budgets.lifetimes``.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pydantic_core import to_json

from budgets.shape import Ttl

from .fields import NESTING_BLOCKS

#: The provider takes four markers in a request, and looks back 20 blocks from each for what is cached.
MARKERS_MAX: Final = 4
LOOK_BACK: Final = 20

#: Blocks that surely take a marker. Thinking never does, nor do empty texts.
_MARKABLE = frozenset({"image", "document", "search_result", "tool_use", "tool_result"})
_PLAIN_TEXT = frozenset({"type", "text", "cache_control"})
#: What long texts come to is remembered: every call of a fan-out brings the same ones.
_LONG, _KNOWN_MAX = 1_024, 256
_known: OrderedDict[str, tuple[int, bytes]] = OrderedDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """All of a prompt up to the end of one block, in the order tools, system, messages.

    Attributes:
        key: names it: equal for requests that can read each other's cache of it.
        tokens: its length, guessed low.
        section: of its last block: ``tools``, ``system`` or ``messages``.
        message, block: where that stands; ``message`` is 0 outside of messages.
        is_markable: whether its last block takes a marker.
    """

    key: bytes
    tokens: int
    section: str
    message: int
    block: int
    is_markable: bool


def likely_tokens(text: str) -> int:
    """Tokens of a text, guessed low: about 4 bytes each, so that caching is not promised too soon."""
    return len(text.encode("utf-8", "surrogatepass")) // 4


def has_markers(body: Mapping[str, Any]) -> bool:
    """Whether the caller has marked anything in a request."""
    if body.get("cache_control") is not None:
        return True
    blocks = [*_list(body.get("tools")), *_list(body.get("system"))]
    for message in _list(body.get("messages")):
        if isinstance(message, Mapping):
            blocks += _list(message.get("content"))
    return _any_marked(blocks)


def _any_marked(blocks: Sequence[Any]) -> bool:
    for block in blocks:
        if not isinstance(block, Mapping):
            continue
        if block.get("cache_control") is not None:
            return True
        if block.get("type") in NESTING_BLOCKS and _any_marked(_list(block.get("content"))):
            return True
    return False


def is_surely_shorter(body: Mapping[str, Any], tokens: int) -> bool:
    """Whether a request is so short that no prefix of it is guessed to have so many tokens; a quick look."""
    length = 0
    for content in (body.get("system"), *[one.get("content") for one in body["messages"]]):
        if isinstance(content, str):
            length += _most_tokens(content)
            continue
        for block in _list(content):
            text = block.get("text") if isinstance(block, Mapping) else None
            if not isinstance(text, str):
                return False
            length += _most_tokens(text)
    if length < tokens and (tools := body.get("tools")):
        # Written as JSON twice, it would be longer only where it is no plain ASCII.
        data = to_json(tools, fallback=str)
        length += len(data) // 4 if data.isascii() else tokens
    return length < tokens


def _most_tokens(text: str) -> int:
    """What a text is guessed to have at most: a sign has four bytes at most, and four bytes make a token."""
    return len(text) // 4 if text.isascii() else len(text)


def prefixes_of(body: Mapping[str, Any], *, messages: int) -> list[Prefix]:
    """The prefixes of a request, shortest first.

    Args:
        body: of a request for a message.
        messages: how many of its messages to look at.
    """
    running = blake2b(digest_size=16)
    tokens = 0
    found: list[Prefix] = []
    section = ""
    for name, number, index, block in _blocks(body, messages):
        if name != section:
            section = name
            running.update(_settings(body, name))
        size, digest = _measured(block)
        tokens += size
        running.update(_role(body, number) + digest if name == "messages" else digest)
        found.append(
            Prefix(
                key=running.digest(),
                tokens=tokens,
                section=name,
                message=number,
                block=index,
                is_markable=_is_markable(name, block),
            )
        )
    return found


def leading(body: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> int | None:
    """Index of the last of these blocks if the first message begins with them, else None."""
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or not messages or not blocks:
        return None
    content = as_blocks(messages[0].get("content"))
    count = len(blocks)
    return count - 1 if list(content[:count]) == list(blocks) else None


def marked(body: Mapping[str, Any], places: Sequence[Prefix], ttl: Ttl) -> dict[str, Any]:
    """The fields of a request that change when the ends of these prefixes are marked.

    Nothing in the request's meaning changes: a plain text becomes a block of that text.
    """
    marker = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    changes: dict[str, Any] = {}
    for place in places:
        if place.section != "messages":
            blocks = changes.get(place.section) or list(as_blocks(body[place.section]))
            blocks[place.block] = {**blocks[place.block], "cache_control": marker}
            changes[place.section] = blocks
            continue
        messages = changes.setdefault("messages", list(body["messages"]))
        message = messages[place.message]
        content = list(as_blocks(message["content"]))
        content[place.block] = {**content[place.block], "cache_control": marker}
        messages[place.message] = {**message, "content": content}
    return changes


def as_blocks(content: object) -> Sequence[Any]:
    """Content as blocks, whichever way it was written."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return _list(content)


def _blocks(body: Mapping[str, Any], messages: int) -> Iterator[tuple[str, int, int, Any]]:
    for section in ("tools", "system"):
        for index, block in enumerate(as_blocks(body.get(section))):
            yield section, 0, index, block
    for number, message in enumerate(_list(body.get("messages"))[:messages]):
        for index, block in enumerate(as_blocks(message.get("content"))):
            yield "messages", number, index, block


def _role(body: Mapping[str, Any], message: int) -> bytes:
    return b"a" if body["messages"][message].get("role") == "assistant" else b"u"


def _settings(body: Mapping[str, Any], section: str) -> bytes:
    """What besides the blocks has to be the same for a section to be read from the cache."""
    output = body.get("output_config")
    output = output if isinstance(output, Mapping) else {}
    if section == "messages":
        settings = [body.get("tool_choice"), body.get("thinking"), output.get("effort")]
    else:
        place = body.get("inference_geo")
        settings = [body.get("model"), body.get("speed"), place, output.get("format")]
    return f"\0{section}".encode() + _json([*settings, body.get("output_format")])


def _measured(block: Any) -> tuple[int, bytes]:
    """Tokens of a block, guessed low, and a digest of what it says."""
    if isinstance(block, Mapping) and block.get("type") == "text" and block.keys() <= _PLAIN_TEXT:
        return _measured_text(str(block.get("text", "")))
    bare = block
    if isinstance(block, Mapping):
        bare = {name: value for name, value in block.items() if name != "cache_control"}
    data = _json(bare)
    size = 0 if _holds_media(block) else len(data) // 4
    return size, blake2b(b"\0json" + data, digest_size=16).digest()


def _holds_media(block: Any) -> bool:
    """Whether its bytes say nothing of its tokens; it then counts as none, so that no guess is too high."""
    if not isinstance(block, Mapping):
        return False
    if block.get("type") in {"image", "document"}:
        source = block.get("source")
        return not isinstance(source, Mapping) or source.get("type") not in {"text", "content"}
    if block.get("type") in NESTING_BLOCKS:
        return any(_holds_media(inner) for inner in _list(block.get("content")))
    return False


def _measured_text(text: str) -> tuple[int, bytes]:
    known = _known.get(text) if len(text) >= _LONG else None
    if known is None:
        data = text.encode("utf-8", "surrogatepass")
        known = len(data) // 4, blake2b(b"\0text" + data, digest_size=16).digest()
        if len(text) >= _LONG:
            _known[text] = known
            if len(_known) > _KNOWN_MAX:
                _known.popitem(last=False)
    return known


def _is_markable(section: str, block: Any) -> bool:
    if not isinstance(block, Mapping):
        return False
    if section == "tools":
        return not block.get("defer_loading")
    if block.get("type") == "text":
        text = str(block.get("text", ""))
        return bool(text) and not text.isspace()
    return block.get("type") in _MARKABLE


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
