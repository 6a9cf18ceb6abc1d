"""Prefixes: the part of a request that many share, apart from the rest, and marked for the cache.

Which lifetimes a request asks for is read in ``caching``; whether a mark pays is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

#: What comes before the messages in a prompt, and what else decides whether two prefixes are one.
_PREFIX_FIELDS = ("model", "tools", "system")
_MARK = {"type": "ephemeral", "ttl": "1h"}
#: A mark adds no tokens to the prompt; a plain text that becomes a block might add a few.
MARK_TOKENS = 64


def split_prefix(body: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """A request's prefix and the rest of it, as JSON; ``join`` puts them together.

    Raises:
        TypeError, ValueError: it holds what JSON does not know (a date, say, or a number that is none).
    """
    prefix = {name: body[name] for name in _PREFIX_FIELDS if name in body}
    rest = {name: value for name, value in body.items() if name not in prefix}
    return _strict_json(prefix), _strict_json(rest)


def join(prefix: bytes, rest: bytes) -> bytes:
    """The whole request. Both parts have at least one field."""
    return prefix[:-1] + b"," + rest[1:]


def joined_size(prefix: bytes, rest: int) -> int:
    """Bytes of a request whose rest has so many."""
    return len(prefix) + rest - 1


def marked(prefix: bytes) -> bytes | None:
    """The prefix with one mark of an hour at its end; None if there is nothing to mark.

    A prefix, or a request, that has marks of its own is its maker's business: ``is_marked`` tells.
    """
    fields = json.loads(prefix)
    name = "system" if fields.get("system") else "tools"
    blocks = fields.get(name)
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    if not blocks:
        return None
    fields[name] = [*blocks[:-1], {**blocks[-1], "cache_control": _MARK}]
    return to_json(fields)


def is_marked(part: bytes) -> bool:
    """Whether the JSON of a request's part has a mark. Inside a text every quote is escaped."""
    return b'"cache_control":{' in part


def counting_body(prefix: bytes) -> dict[str, Any]:
    """A request for the token counter that is hardly more than the prefix."""
    fields: dict[str, Any] = json.loads(prefix)
    return {**fields, "messages": [{"role": "user", "content": "."}]}


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_escaped = json.JSONEncoder(separators=(",", ":"))
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _strict_json(value: object) -> bytes:
    text = _strict.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _escaped.encode(value).encode()


def to_json(value: object) -> bytes:
    """Compact UTF-8 JSON; what has no UTF-8 (lone surrogates) is written as escapes."""
    try:
        return _compact.encode(value).encode()
    except UnicodeEncodeError:
        return _escaped.encode(value).encode()


def of_json(data: bytes | str) -> Any:
    """A JSON value, however it was written: with escaped lone surrogates, too, which the fast reader refuses.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)
