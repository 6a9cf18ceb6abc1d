"""Fan-out: the same work for many items at once, one result per item, in order.

When: items don't depend on each other. When not: a later item needs an earlier one's result (pipeline).
At worst it costs the sum of what the workers may cost; the run's caps hold over all of them, and items
beyond them end as ``budget``. A failed item is a row with its reason; the others go on.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

from budgets.money import to_decimal
from orchestrator.agent import Agent, AgentResult
from orchestrator.context import TOKENS, calling_as
from orchestrator.errors import ConfigError
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
        CancelledError: cancelled; its workers are cancelled and settled first.
    """
    parts: list[Part[Item]] = []
    async for part in stream_out(run, worker, items, width=width):
        parts.append(part)
        if on_part is not None:
            on_part(part)
    parts.sort(key=lambda part: part.index)
    if reduce is None:
        return FanOutResult(parts=tuple(parts))
    try:
        reduced = reduce(parts)
        if inspect.isawaitable(reduced):
            reduced = await reduced
    except (
        Exception
    ) as error:  # the parts are paid for: they are handed back whatever the reducer does
        outcome, reason = outcome_of(error)
        return FanOutResult(parts=tuple(parts), reduce_outcome=outcome, reduce_reason=reason)
    return FanOutResult(parts=tuple(parts), reduced=reduced)


async def stream_out(
    run: Run,
    worker: Worker,
    items: Iterable[Item] | AsyncIterable[Item],
    *,
    width: int | None = None,
) -> AsyncIterator[Part[Item]]:
    """As ``fan_out``, but hands out each part as it finishes, and keeps none: memory stays flat.

    Close it (``contextlib.aclosing``) if you stop early: the workers are cancelled then.
    """
    width = run.gate.statistics().width if width is None else width
    if width < 1:
        raise ConfigError(f"fan_out: width is {width}; it must be 1 or more")
    source = _Source(items)
    # Bounded, so that a slow reader slows the workers down instead of filling memory.
    done: asyncio.Queue[Part[Item] | BaseException | None] = asyncio.Queue(maxsize=width)

    async def work() -> None:
        try:
            while (drawn := await source.draw()) is not None:
                await done.put(await _work_on(run, worker, *drawn))
            await done.put(None)
        except Exception as error:  # the source of the items failed: the reader must hear of it
            await done.put(error)

    tasks = [asyncio.create_task(work(), name=f"fan_out-{n}") for n in range(width)]
    for task in tasks:
        run.track(task)
    try:
        finished = 0
        while finished < width:
            part = await _next(done, tasks)
            if isinstance(part, BaseException):
                raise part
            if part is None:
                finished += 1
            else:
                yield part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await source.close()


async def _next(done: asyncio.Queue[Any], tasks: list[asyncio.Task[None]]) -> Any:
    """The next part; workers that were cancelled from outside (``Run.cancel``) end the stream."""
    while True:  # ends with a part, or when every worker has ended
        if not done.empty():
            return done.get_nowait()
        getter = asyncio.ensure_future(done.get())
        try:
            await asyncio.wait(
                [getter, *(t for t in tasks if not t.done())], return_when=asyncio.FIRST_COMPLETED
            )
            if getter.done():
                return getter.result()
        finally:
            getter.cancel()
        if all(task.done() for task in tasks) and done.empty():
            raise asyncio.CancelledError("the run was cancelled")


async def _work_on(run: Run, worker: Worker, index: int, item: Item) -> Part[Item]:
    begun = time.monotonic()
    value: Any = None
    with calling_as() as tally:
        try:
            run.check()
            if isinstance(worker, Agent):
                result = await worker.run(run, item if isinstance(item, str) else str(item))
            else:
                result = await worker(item)
            outcome, reason, value = _read(result)
        except Exception as error:  # a failed item is a row, the others go on
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
        if isinstance(items, AsyncIterable):
            self._async = aiter(items)
        else:
            self._plain = iter(items)

    async def draw(self) -> tuple[int, Item] | None:
        if self._plain is not None:
            # No await in between: the next item and its index belong together.
            try:
                return next(self._count), next(self._plain)
            except StopIteration:
                return None
        assert self._async is not None
        async with self._turn:
            try:
                item = await anext(self._async)
            except StopAsyncIteration:
                return None
            return next(self._count), item

    async def close(self) -> None:
        close = getattr(self._async, "aclose", None)
        if close is not None:
            await close()
