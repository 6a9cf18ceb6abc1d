"""The state of one simulated API: its settings, bill, cache, limits, faults and counters."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .bill import Bill, message_id, request_id
from .cache import PromptCache
from .cues import Cue, Cues
from .faults import Faults
from .limits import Limits, RateLimiter
from .threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a simulator is built with.

    Attributes:
        limits: rate limits.
        latency_s: seconds before the first byte of a message.
        pace: output tokens per second; None for at once.
        default_geo: the workspace's place of inference, ``global`` or ``us``.
        cache_delay_s: seconds from the begin of a response until what it cached can be read.
        batch_seconds: seconds that a batch takes; None holds it until ``finish_batches``.
        batch_hits_permille: of a thousand requests of batches, how many look into the cache; the others miss.
        results_late: so many looks at a batch that has ended do not say yet where its results are.
        keep_rows: rows of the bill that are kept; totals cover all.
        keep_calls: latest requests that are kept for inspection.
        seed: of the order of batch results.
        cues: directives for requests that contain a text.
        clock: seconds for lifetimes and limits; tests bring their own.
        wall: seconds since 1970, for the dates of batches.
    """

    limits: Limits = field(default_factory=Limits)
    latency_s: float = 0.0
    pace: float | None = None
    default_geo: str = "global"
    cache_delay_s: float = 0.0
    batch_seconds: float | None = 0.0
    batch_hits_permille: int = 1000
    results_late: int = 0
    keep_rows: int = 50_000
    keep_calls: int = 0
    seed: int = 0
    cues: tuple[Cue, ...] = ()
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as it arrived: number, method, path with query, headers (lower case) and body."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Stats:
    """Counters of messages: arrived, in progress, the most in progress at once, and by status."""

    arrived: int = 0
    in_progress: int = 0
    peak: int = 0
    by_status: dict[int, int] = field(default_factory=dict)


class World:
    """Everything that requests share. Used from one event loop only."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self.settings = settings
        self.faults = faults
        self.tag = secrets.token_hex(3)
        self.bill = Bill(self.tag, keep_rows=settings.keep_rows)
        self.cache = PromptCache(delay_s=settings.cache_delay_s)
        self.cues = Cues(settings.cues)
        self.limiter = RateLimiter(settings.limits)
        self.threads = Threads()
        self.stats = Stats()
        self.calls: deque[Call] = deque(maxlen=settings.keep_calls)
        self.closing = False
        self._number = 0
        self._released = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Seconds of the simulator's clock."""
        return self.settings.clock()

    def next_number(self) -> int:
        """A number of its own for each request and batch item."""
        self._number += 1
        return self._number

    def request_id(self, number: int) -> str:
        """The ``request-id`` of a request."""
        return request_id(self.tag, number)

    def message_id(self, number: int) -> str:
        """The id of the message that answers a request."""
        return message_id(self.tag, number)

    def reset(self) -> None:
        """Forget bill, cache, threads, faults, cues, limits in use and counters."""
        self.bill.reset()
        self.cache.clear()
        self.threads.clear()
        self.faults.clear()
        self.cues = Cues()
        self.limiter = RateLimiter(self.settings.limits)
        self.stats = Stats(in_progress=self.stats.in_progress)
        self.calls.clear()

    def note_arrival(self) -> None:
        """Count a message that arrived, and wake those who wait for it."""
        self.stats.arrived += 1
        if self._waiting:
            for wanted, future in self._waiting:
                if wanted <= self.stats.arrived and not future.done():
                    future.set_result(None)
            self._waiting = [each for each in self._waiting if not each[1].done()]

    async def arrived(self, count: int) -> None:
        """Wait until this many messages have arrived since the start or the last reset."""
        if self.stats.arrived < count:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future

    async def hang(self, seconds: float) -> None:
        """Wait this long, or until ``release``."""
        try:
            async with asyncio.timeout(seconds):
                await self._released.wait()
        except TimeoutError:
            pass

    def release(self) -> None:
        """Let everything go on that hangs now."""
        self._released.set()
        self._released = asyncio.Event()
