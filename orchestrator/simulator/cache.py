"""Prompt caching with its rules: breakpoints, lifetimes, minimum, and when entries are readable.

An entry is written when a response begins, so of several equal requests sent at once each one
writes; a hit gives the entry its full lifetime again, counted from the start of the request.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .api_errors import ApiError

if TYPE_CHECKING:
    from .request import MessageRequest
    from .tokens import Block

TTL_S = {"5m": 300.0, "1h": 3600.0}
MAX_BREAKPOINTS = 4
LOOK_BACK = 20
MAX_ENTRIES = 10_000


@dataclass(slots=True)
class _Entry:
    ttl_s: float
    expires: float
    readable_from: float


@dataclass(slots=True)
class CachePlan:
    """What one request reads and writes; ``begin`` makes it true.

    Attributes:
        input: tokens neither read nor written.
        write_5m, write_1h, read: tokens by class.
        hits: entries to refresh.
        writes: entries to create, with their lifetimes in seconds.
    """

    input: int
    write_5m: int = 0
    write_1h: int = 0
    read: int = 0
    started: float = 0.0
    hits: list[bytes] = field(default_factory=list)
    writes: list[tuple[bytes, float]] = field(default_factory=list)


class PromptCache:
    """All cached prefixes of the simulated workspace, the least recently used dropped first."""

    def __init__(self, *, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def clear(self) -> None:
        """Forget every prefix."""
        self._entries.clear()

    def plan(
        self, request: MessageRequest, blocks: list[Block], tail: int, now: float
    ) -> CachePlan:
        """Work out what a request reads and writes.

        Raises:
            ApiError: 400 for more than four breakpoints, or 1h after 5m.
        """
        marks = _breakpoints(request, blocks)
        if not marks:
            return CachePlan(input=sum(block.tokens for block in blocks) + tail)
        last = max(marks)
        keys = _prefix_keys(request, blocks, last)
        sizes = _running_sums(blocks)
        plan = CachePlan(input=0, started=now)
        hit = self._longest_hit(marks, keys, now)
        written_1h = written = hit
        for mark, ttl in sorted(marks.items()):
            if mark <= hit:
                plan.hits.append(keys[mark])
            elif sizes[mark] >= request.spec.cache_minimum:
                plan.writes.append((keys[mark], TTL_S[ttl]))
                written = mark
                if ttl == "1h":
                    written_1h = mark
        size_hit = sizes[hit] if hit >= 0 else 0
        size_1h = sizes[written_1h] if written_1h >= 0 else 0
        size_all = sizes[written] if written >= 0 else 0
        if hit >= 0:
            plan.hits.append(keys[hit])
        plan.read = size_hit
        plan.write_1h = size_1h - size_hit
        plan.write_5m = size_all - size_1h
        plan.input = sizes[-1] - size_all + tail
        return plan

    def begin(self, plan: CachePlan, now: float) -> None:
        """The response begins now: refresh what was read, and make what was written readable."""
        for key in plan.hits:
            entry = self._entries.get(key)
            if entry is not None:
                entry.expires = max(entry.expires, plan.started + entry.ttl_s)
                self._entries.move_to_end(key)
        for key, ttl_s in plan.writes:
            known = self._entries.get(key)
            ready = now + self._delay_s
            if known is not None and known.expires > now:
                ready = min(ready, known.readable_from)
            self._entries[key] = _Entry(ttl_s, plan.started + ttl_s, ready)
            self._entries.move_to_end(key)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def _longest_hit(self, marks: dict[int, str], keys: list[bytes], now: float) -> int:
        if not self._entries:
            return -1
        for mark in sorted(marks, reverse=True):
            for at in range(mark, max(-1, mark - LOOK_BACK), -1):
                entry = self._entries.get(keys[at])
                if entry is not None and entry.readable_from <= now < entry.expires:
                    return at
        return -1


def _breakpoints(request: MessageRequest, blocks: list[Block]) -> dict[int, str]:
    marks: dict[int, str] = {}
    for index, block in enumerate(blocks):
        if block.marker is not None:
            marks[index] = _ttl(block.marker)
    if request.cache_control is not None and blocks:
        ttl = _ttl(request.cache_control)
        last = len(blocks) - 1
        if marks.get(last, ttl) != ttl:
            raise ApiError(
                400, "cache_control: the last block has a cache_control of its own with another ttl"
            )
        marks[last] = ttl
    if len(marks) > MAX_BREAKPOINTS:
        raise ApiError(
            400,
            f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. "
            f"Found {len(marks)}.",
        )
    short = False
    for _, ttl in sorted(marks.items()):
        if ttl == "1h" and short:
            raise ApiError(
                400,
                "cache_control.ttl: a ttl='1h' cache_control block must not come after a "
                "ttl='5m' cache_control block. Note that blocks are processed in the following "
                "order: `tools`, `system`, `messages`.",
            )
        short = short or ttl == "5m"
    return marks


def _ttl(marker: object) -> str:
    if not isinstance(marker, dict) or marker.get("type") != "ephemeral":
        raise ApiError(400, "cache_control.type: Input should be 'ephemeral'")
    ttl = marker.get("ttl") or "5m"
    if ttl not in TTL_S:
        raise ApiError(400, "cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    return str(ttl)


def _prefix_keys(request: MessageRequest, blocks: list[Block], last: int) -> list[bytes]:
    """A hash of each prefix; a change breaks its own section and all that follows."""
    running = blake2b(request.spec.id.encode(), digest_size=16)
    section = ""
    keys = []
    for block in blocks[: last + 1]:
        if block.section != section:
            section = block.section
            running.update(_section_seed(request, section))
        running.update(_canonical(block.content))
        keys.append(running.digest())
    return keys


def _section_seed(request: MessageRequest, section: str) -> bytes:
    if section == "system":
        return b"\0system" + (b"fast" if request.fast else b"")
    if section == "messages":
        settings = (request.tool_choice, request.thinking, request.effort, request.fast)
        return b"\0messages" + _canonical(settings)
    return b"\0tools"


def _canonical(content: Any) -> bytes:
    return b"\0" + json.dumps(content, separators=(",", ":")).encode()


def _running_sums(blocks: list[Block]) -> list[int]:
    total = 0
    sums = []
    for block in blocks:
        total += block.tokens
        sums.append(total)
    return sums
