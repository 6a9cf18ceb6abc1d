"""Streams: the final usage of a streamed response, from its events or from its bytes.

The output count of ``message_start`` is a placeholder, so a stream that ends without its final
``message_delta`` has no usage: the hold stays, in doubt. A stream that contradicts itself (two whole messages, a key
twice in one object) has no usage that can be believed: its whole hold is posted.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from budgets.shape import Shape
from budgets.usage import Usage

from .usages import Doubting, doubting_json, read_usage

#: The longest line that is kept; a longer one is skipped, which can only leave the usage unknown.
_LONGEST_LINE = 64 * 1024 * 1024


class StreamReader:
    """Watches the events of one streamed response.

    Feed it every event, as the raw JSON object or as the SDK's event object; content deltas cost
    next to nothing. It never raises: what it can't read leaves the usage unknown.

    Attributes:
        begun: ``message_start`` was seen, so the provider has begun to bill.
        finished: the response came to its proper end.
        stop_reason, message_id: as the response says; None until they are known.
        error: the ``error`` object that the provider sent inside the stream.
    """

    __slots__ = (
        "_counted",
        "_deltas",
        "_is_doubted",
        "_message",
        "_requested",
        "_stopped",
        "_usage",
        "begun",
        "error",
        "finished",
        "message_id",
        "stop_reason",
    )

    def __init__(self, requested: Shape | None) -> None:
        self._requested = requested
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._deltas: dict[str, Any] = {}
        self._counted = False
        self._stopped = False
        self._is_doubted = False
        self.begun = False
        self.finished = False
        self.stop_reason: str | None = None
        self.message_id: str | None = None
        self.error: dict[str, Any] | None = None

    def feed(self, event: object) -> None:
        """Take one event. Unknown kinds are ignored."""
        kind = event.get("type") if isinstance(event, dict) else getattr(event, "type", None)
        if kind == "content_block_delta" or not isinstance(kind, str) or kind not in _WATCHED:
            return
        content = _plain(event)
        if isinstance(content, Doubting) and kind in _DECIDING and content.is_doubted():
            self._is_doubted = True
        if kind == "message_start":
            self._start(_plain(content.get("message")))
        elif kind == "message_delta":
            self._delta(_plain(content.get("delta")), _plain(content.get("usage")))
        elif kind == "content_block_start":
            self._block(_plain(content.get("content_block")))
        elif kind == "message_stop":
            self.finished = self._counted
            self._stopped = True
        else:
            self.error = dict(_plain(content.get("error")))

    @property
    def usage(self) -> Usage | None:
        """The final usage; None unless the response came to its proper end and says it, in one way."""
        if not self.finished or self._is_doubted:
            return None
        usage = {**self._usage, **self._deltas}
        message = {**self._message, "usage": usage, "stop_reason": self.stop_reason}
        return read_usage(message, requested=self._requested)

    def _start(self, message: Mapping[str, Any]) -> None:
        if self.begun:
            # A stray one changes nothing; after a whole message it is another one, of which nothing is known.
            self._is_doubted = self._is_doubted or self._stopped
            return
        self.begun = True
        self._message = {"model": message.get("model")}
        self._usage = dict(_plain(message.get("usage")))
        identity = message.get("id")
        self.message_id = identity if isinstance(identity, str) else None

    def _delta(self, delta: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
        # Counts are cumulative and overwrite those of the start; what a delta leaves out (the split of cache
        # writes, tier, place, speed) stays as it was there. Of two deltas the larger count is the safe one.
        self._deltas = _larger(self._deltas, usage)
        if usage.get("output_tokens") is not None:
            self._counted = True
        reason = delta.get("stop_reason")
        if isinstance(reason, str):
            self.stop_reason = reason
            self.finished = self._counted

    def _block(self, block: Mapping[str, Any]) -> None:
        """A fallback block names the model that goes on from here."""
        if block.get("type") == "fallback":
            model = _plain(block.get("to")).get("model")
            if isinstance(model, str):
                self._message["model"] = model


def _larger(old: Any, new: Any, depth: int = 3) -> Any:
    """A later statement of a usage, or of a part of one, without a count that is smaller than it was before."""
    if new is None:
        return old
    if depth and isinstance(old, Mapping) and isinstance(new, Mapping):
        said = {name: value for name, value in new.items() if value is not None}
        return {**old, **{name: _larger(old.get(name), said[name], depth - 1) for name in said}}
    if depth and isinstance(old, list) and isinstance(new, list):
        return [_larger(*pair, depth - 1) for pair in zip_longest(old, new)]
    if type(old) is int and type(new) is int and new >= 0:
        return max(old, new)
    return new


#: Events of which every key must stand once.
_DECIDING = frozenset({"message_start", "message_delta"})
_WATCHED = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "error",
    }
)


def _plain(value: object) -> Mapping[str, Any]:
    """A JSON object as a mapping, whether it comes raw or as an object of the SDK."""
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    dumped = dump(by_alias=True, warnings=False) if callable(dump) else None
    return dumped if isinstance(dumped, dict) else {}


class SseReader:
    """Feeds a ``StreamReader`` from the bytes of a server-sent event stream.

    For a body that is passed through untouched. Takes decoded (not gzipped) bytes in chunks of any
    size; any line ending, multi-line data, comments and a byte order mark are fine.
    """

    __slots__ = ("_data", "_event", "_first", "_pieces", "_size", "malformed", "reader")

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        #: Events whose data was not a JSON object.
        self.malformed = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._event = b""
        self._data: list[bytes] = []
        self._first = True

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body, cut anywhere."""
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return
        held = b"".join(self._pieces) + chunk
        self._pieces.clear()
        self._size = 0
        lines = held.splitlines(keepends=True)
        # A CR at the very end may be half of a CRLF, so only LF ends the last line for certain.
        if not lines[-1].endswith(b"\n"):
            self._keep(lines.pop())
        for line in lines:
            self._line(line.rstrip(b"\r\n"))

    def close(self) -> None:
        """The body has ended: take a last line that waited for its other half."""
        last = b"".join(self._pieces)
        self._pieces.clear()
        if last.endswith(b"\r"):
            self._line(last.rstrip(b"\r"))

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > _LONGEST_LINE:
            self._pieces.clear()
            self._size = 0
            self.malformed += 1
        elif piece:
            self._pieces.append(piece)

    def _line(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            self._dispatch()
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()

    def _dispatch(self) -> None:
        event, data = self._event, self._data
        self._event, self._data = b"", []
        if not data or event in _SKIPPED:
            return
        content = doubting_json(b"\n".join(data))
        if isinstance(content, Doubting):
            self.reader.feed(content)
        else:
            self.malformed += 1


_SKIPPED = frozenset({b"content_block_delta", b"content_block_stop", b"ping"})
