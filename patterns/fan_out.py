"""Fan-out: the same work for many items at once, one result per item, in order.

When: items don't depend on each other. When not: a later item needs an earlier one's result (pipeline).
At worst it costs the sum of what the workers may cost; the run's caps hold over all of them, and items
beyond them end as ``budget``. A failed item is a row with its reason; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

from budgets.money import to_decimal
from orchestrator.agent import Agent, AgentResult
from orchestrator.context import TOKENS, calling_as
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

Item = TypeVar("Item")
Worker = Agent | Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[Item]):
    """What became of one item.

    Attributes:
        index: its place among the items, from 0.
        item: the item itself.
        outcome: one word of the closed set.
        reason: one sentence, empty for ``ok``.
        value: what the worker returned, or an agent's parsed value (its text if it has no output).
        posted_nanos, in_doubt_nanos: what it cost, and what is in doubt.
        calls: HTTP attempts.
        tokens: the four disjoint classes of tokens.
        seconds: from its start to its end.
    """

    index: int
    item: Item
    outcome: Outcome
    reason: str = ""
    value: Any = None
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    calls: int = 0
    tokens: dict[str, int]
    seconds: float = 0.0

    @property
    def cost(self) -> Decimal:
        """Dollars posted."""
        return to_decimal(self.posted_nanos)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutResult(Generic[Item]):
    """What became of all items.

    Attributes:
        parts: one per item, in the order of the items.
        reduced: what ``reduce`` made of the parts; None without one.
        reduce_outcome, reduce_reason: how the reducer ended; ``ok`` without one.
    """

    parts: tuple[Part[Item], ...]
    reduced: Any = None
    reduce_outcome: Outcome = Outcome.OK
    reduce_reason: str = ""

    @property
    def outcomes(self) -> dict[str, int]:
        """How many parts ended in which outcome."""
        return dict(Counter(part.outcome.value for part in self.parts))

    @property
    def values(self) -> list[Any]:
        """The values of the parts that are ``ok``, in order."""
        return [part.value for part in self.parts if part.outcome is Outcome.OK]

    @property
    def posted_nanos(self) -> int:
        """Nano-dollars of all parts."""
        return sum(part.posted_nanos for part in self.parts)

    @property
    def in_doubt_nanos(self) -> int:
        """Nano-dollars of all parts that are in doubt."""
        return sum(part.in_doubt_nanos for part in self.parts)

    @property
    def cost(self) -> Decimal:
        """Dollars posted by all parts."""
        return to_decimal(self.posted_nanos)


class SourceFailed(OrchestratorError):
    """Drawing the items of a fan-out raised; its cause is what was raised.

    Attributes:
        parts: what was done, in order, and is paid for; empty where a stream handed it out already.
    """

    parts: tuple[Part[Any], ...] = ()


async def fan_out(
    run: Run,
    worker: Worker,
    items: Iterable[Item] | AsyncIterable[Item],
    *,
    width: int | None = None,
    reduce: Callable[[list[Part[Item]]], Any] | None = None,
    on_part: Callable[[Part[Item]], Any] | None = None,
) -> FanOutResult[Item]:
    """Work on every item, at most ``width`` at once, and collect the parts in order.

    Args:
        run: whose client and caps the work draws on.
        worker: an agent (each item is its prompt; other than text it is given as JSON-like text), or an
            async function of one item.
        items: drawn as they are needed; a list, a generator or an async generator.
        width: items under way at once; by default the gate's width.
        reduce: makes one value of all parts, when they are there; may be async. Its failure is an outcome of
            the result, the parts are kept.
        on_part: called with each part as it finishes, in any order.

    Returns:
        One part per item. Items that could not start because the run was stopped or its money is out are
        parts, too.

    Raises:
        ConfigError: a width below 1.
        SourceFailed: drawing the items raised; the parts that were done are in it.
        CancelledError: cancelled; its workers are cancelled and settled first.
    """
    parts: list[Part[Item]] = []
    try:
        async with contextlib.aclosing(stream_out(run, worker, items, width=width)) as stream:
            async for part in stream:
                parts.append(part)
                if on_part is not None:
                    on_part(part)
    except SourceFailed as error:
        error.parts = tuple(sorted(parts, key=lambda part: part.index))
        raise
    parts.sort(key=lambda part: part.index)
    if reduce is None:
        return FanOutResult(parts=tuple(parts))
    try:
        reduced = reduce(parts)
        if inspect.isawaitable(reduced):
            reduced = await reduced
    except Exception as error:  # noqa: BLE001 - the parts are paid for, whatever the reducer does
        outcome, reason = outcome_of(error)
        return FanOutResult(parts=tuple(parts), reduce_outcome=outcome, reduce_reason=reason)
    return FanOutResult(parts=tuple(parts), reduced=reduced)


async def stream_out(
    run: Run,
    worker: Worker,
    items: Iterable[Item] | AsyncIterable[Item],
    *,
    width: int | None = None,
) -> AsyncGenerator[Part[Item], None]:
    """As ``fan_out``, but hands out each part as it finishes, and keeps none: memory stays flat.

    Close it (``contextlib.aclosing``) if you stop early: the workers are cancelled then.

    Raises:
        ConfigError: a width below 1.
        SourceFailed: drawing the items raised; what was under way has been handed out first.
    """
    width = run.gate.statistics().width if width is None else width
    if width < 1:
        raise ConfigError(f"fan_out: width is {width}; it must be 1 or more")
    crew = _Crew(run, worker, _Source(items), width)
    try:
        while (part := await crew.next()) is not None:
            yield part
    finally:
        await crew.close()
    if crew.source.failure is not None:
        error = crew.source.failure
        raise SourceFailed(
            f"fan_out: the source of the items failed ({type(error).__name__}: {error})"
        ) from error


class _Crew(Generic[Item]):
    """The workers of one fan-out, and the parts that they have finished."""

    def __init__(self, run: Run, worker: Worker, source: _Source[Item], width: int) -> None:
        self.source = source
        self._run = run
        self._worker = worker
        # Bounded, so that a slow reader slows the workers down instead of filling memory.
        self._done: asyncio.Queue[Part[Item] | None] = asyncio.Queue(maxsize=width)
        self._working = width
        self._is_closing = False
        self._tasks = [
            asyncio.create_task(self._work(), name=f"fan_out-{number}") for number in range(width)
        ]

    async def next(self) -> Part[Item] | None:
        """The next part; None when all are there."""
        while self._working:  # each round takes a part, or sees one worker end
            part = await self._done.get()
            if part is not None:
                return part
            self._working -= 1
        return None

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has settled."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.source.close()

    async def _work(self) -> None:
        """Draw, work, hand on. ``Run.cancel`` ends the item under way, which is a part then, too."""
        with self._run.tracking():
            part: Part[Item] | None = None
            is_over = False
            while True:  # ends when the source has ended and the reader knows
                try:
                    if part is None and not is_over:
                        drawn = await self.source.draw()
                        is_over = drawn is None
                        if drawn is not None:
                            part = await self._work_on(*drawn)
                    await self._done.put(part)
                except asyncio.CancelledError:
                    self._go_on_unless_closing()
                    continue
                if is_over:
                    return
                part = None

    def _go_on_unless_closing(self) -> None:
        """After a cancellation: raise it, unless it was meant for the item alone."""
        if self._is_closing:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()

    async def _work_on(self, index: int, item: Item) -> Part[Item]:
        begun = time.monotonic()
        worker = self._worker
        value: Any = None
        with calling_as() as tally:
            try:
                self._run.check()
                if isinstance(worker, Agent):
                    result = await worker.run(
                        self._run, item if isinstance(item, str) else str(item)
                    )
                else:
                    result = await worker(item)
                outcome, reason, value = _read(result)
            except asyncio.CancelledError:
                self._go_on_unless_closing()
                outcome, reason = Outcome.CANCELLED, self._run.stopped or "it was cancelled"
            except Exception as error:  # noqa: BLE001 - a failed item is a row, the others go on
                outcome, reason = outcome_of(error)
        return Part(
            index=index,
            item=item,
            outcome=outcome,
            reason=reason,
            value=value,
            posted_nanos=tally.posted_nanos,
            in_doubt_nanos=tally.in_doubt_nanos,
            calls=tally.calls,
            tokens={name: tally.tokens[name] for name in TOKENS},
            seconds=time.monotonic() - begun,
        )


def _read(result: Any) -> tuple[Outcome, str, Any]:
    """A worker may hand on an agent's result, or any record with an outcome: it is then the part's."""
    if isinstance(result, AgentResult):
        value = result.value if result.value is not None else result.text
        return result.outcome, result.reason, value if result.outcome is Outcome.OK else None
    outcome = getattr(result, "outcome", None)
    if isinstance(outcome, Outcome):
        return outcome, str(getattr(result, "reason", "")), result
    return Outcome.OK, "", result


class _Source(Generic[Item]):
    """Items with their index, drawn one at a time by many workers."""

    def __init__(self, items: Iterable[Item] | AsyncIterable[Item]) -> None:
        self._count = itertools.count()
        self._turn = asyncio.Lock()
        self._async: AsyncIterator[Item] | None = None
        self._plain: Iterator[Item] | None = None
        self.failure: Exception | None = None
        if isinstance(items, AsyncIterable):
            self._async = aiter(items)
        else:
            self._plain = iter(items)

    async def draw(self) -> tuple[int, Item] | None:
        """The next item and its index; None at the end, and after a failure."""
        if self.failure is not None:
            return None
        try:
            if self._plain is not None:
                # No await in between: the next item and its index belong together.
                item = next(self._plain)
                return next(self._count), item
            assert self._async is not None
            async with self._turn:
                item = await anext(self._async)
                return next(self._count), item
        except (StopIteration, StopAsyncIteration):
            return None
        except Exception as error:  # noqa: BLE001 - the reader hears of it when all is done
            self.failure = error
            return None

    async def close(self) -> None:
        close = getattr(self._async, "aclose", None)
        if close is not None:
            await close()
