"""The crew: many workers drawing items from one source, each item ending in one part, as they finish."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .node import check_run
from .parts import Item, Part, Prompt, Worker, is_performer, perform

#: A share of failures is not looked at before so many parts have ended.
_PARTS_LEAST = 10
#: So many parts in a row, and the width, can't start before a source that may be endless is left alone; so many
#: times as many where nothing is shut, so that a smaller item may still fit.
DECLINED_MOST, SMALLER_ONES = 100, 10
#: Ends of parts that could not start since nothing may any more.
_NOT_STARTED = frozenset({Outcome.BUDGET, Outcome.SPEND_LIMIT, Outcome.CANCELLED})


class SourceFailed(OrchestratorError):
    """Drawing the items of a fan-out raised; its cause is what was raised.

    Attributes:
        parts: what was done, in order, and is paid for; empty where a stream handed it out already.
    """

    parts: tuple[Part[Any], ...] = ()


Items = Iterable[Item] | AsyncIterable[Item]
Made = TypeVar("Made", bound=Part[Any])


def known_items(pattern: str, items: Any) -> list[Any] | None:
    """Items that are there all at once, as a list; None for those that come as they are drawn.

    Raises:
        ConfigError: not items at all, or a single text.
    """
    if isinstance(items, (str, bytes, Mapping)):
        raise ConfigError(
            f"{pattern}: the items are a single {type(items).__name__}; give a list, as in [text]"
        )
    if isinstance(items, Collection):
        return list(items)
    if not isinstance(items, (Iterable, AsyncIterable)):
        raise ConfigError(
            f"{pattern}: {type(items).__name__} can't be gone through; give a list or a generator of items"
        )
    return None


@dataclass(slots=True)
class Stop:
    """When nothing new starts any more.

    Attributes:
        when: a function of the parts so far, None for a share of failures.
        share: of the parts that may fail, from 0 to 1.
        reason: why it stopped; empty while it goes on.
        undrawn: why the source was not drawn to its end; empty if it was.
    """

    when: Callable[[list[Part[Any]]], Any] | None = None
    share: float | None = None
    reason: str = ""
    undrawn: str = ""
    _done: int = 0
    _failed: int = 0
    _parts: list[Part[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, given: Stop | Callable[[list[Part[Any]]], Any] | float | None) -> Stop:
        """From what a user writes: a share, a function of the parts so far, or None for never.

        Raises:
            ConfigError: a share outside 0 to 1.
        """
        if given is None or isinstance(given, Stop):
            return given or cls()
        if callable(given):
            return cls(when=given)
        if isinstance(given, bool) or not 0 <= given <= 1:
            raise ConfigError(
                f"stop_when: {given!r} is not a share; write a number from 0 to 1 (0.5 stops when half have failed) "
                "or a function of the parts so far"
            )
        return cls(share=given)

    def hear(self, part: Part[Any]) -> None:
        """Count a part that has ended."""
        if self.reason:
            return
        self._done += 1
        self._failed += not part.ok
        if self.when is not None:
            self._parts.append(part)
            if self.when(self._parts):
                self.reason = f"stop_when was true after {self._done} parts"
        elif self._is_past_share():
            self.reason = f"{self._failed} of {self._done} parts had failed (stop_when)"

    def _is_past_share(self) -> bool:
        return (
            self.share is not None
            and self._done >= _PARTS_LEAST
            and 0 < self._failed >= self.share * self._done
        )


async def stream_out(
    run: Run,
    worker: Worker,
    items: Iterable[Item] | AsyncIterable[Item],
    *,
    width: int | None = None,
    stop: Stop | None = None,
    limit: int | None = None,
    prompt_of: Callable[[Item], Prompt] | None = None,
) -> AsyncGenerator[Part[Item], None]:
    """As ``fan_out``, but hands out each part as it finishes, and keeps none: memory stays flat.

    Close it (``contextlib.aclosing``) if you stop early: the workers are cancelled then.

    Args:
        run, worker, items, width: as for ``fan_out``.
        stop: says when nothing new starts; the items left are ``cancelled``.
        limit: only so many items are started; the rest is ``budget``.
        prompt_of: what an agent is given for an item; the item itself by default.

    Raises:
        ConfigError: a width below 1, or a worker that is neither an agent nor a function.
        SourceFailed: drawing the items raised; what was under way has been handed out first.
    """
    crew = _Crew(run, worker, items, width=width, stop=stop, limit=limit, prompt_of=prompt_of)
    # Bounded, so that a slow reader slows the workers down instead of filling memory.
    done: asyncio.Queue[Part[Item] | None] = asyncio.Queue(maxsize=crew.width)
    crew.begin(done.put)

    def wake() -> None:
        if not done.full():
            done.put_nowait(None)

    crew.when_broken(wake)
    working = crew.width
    try:
        while working:  # each round takes a part, or sees one worker end
            if done.empty():  # parts that are there already are handed out first
                crew.raise_broken()
            part = await done.get()
            if part is None:
                working -= 1
            else:
                yield part
        crew.raise_broken()
    finally:
        await crew.close()
    crew.raise_failure()


async def work_through(
    run: Run,
    worker: Worker,
    items: Items[Item],
    *,
    on_part: Callable[[Part[Item]], Any] = lambda _: None,
    made: Callable[[Part[Item]], Made] | None = None,
    width: int | None = None,
    stop: Stop | None = None,
    limit: int | None = None,
    prompt_of: Callable[[Item], Prompt] | None = None,
    leaves: bool = False,
) -> list[Made]:
    """As ``stream_out``, but all parts at the end, in the order of the items; that is quicker.

    Args:
        on_part: called with each part as it finishes; what it raises ends the work.
        made: what becomes of a part first; by default it stays what it is.
        leaves: stop drawing after ``DECLINED_MOST`` items in a row that could not start, since money or the run
            has ended; ``stop.undrawn`` says so. For sources that may be endless: the parts are all kept.
        run, worker, items, width, stop, limit, prompt_of: as for ``stream_out``.

    Raises:
        SourceFailed: with the parts that were done.
        Whatever else ``stream_out`` or ``on_part`` raises.
    """
    parts: list[Any] = []

    async def hand_on(part: Part[Item] | None) -> None:
        if part is not None:
            one = part if made is None else made(part)
            parts.append(one)
            on_part(one)

    crew = _Crew(
        run, worker, items,
        width=width, stop=stop, limit=limit, prompt_of=prompt_of, leaves=leaves,
    )  # fmt: skip
    crew.begin(hand_on)
    try:
        await crew.all_done()
    finally:
        await crew.close()
    parts.sort(key=lambda part: part.index)
    crew.raise_failure(tuple(parts))
    return parts


class _Patience:
    """With a source that may be endless, once nothing starts any more since money or the run has ended."""

    def __init__(self, run: Run, stop: Stop, width: int) -> None:
        self._run = run
        self._stop = stop
        self._most = width + DECLINED_MOST
        self._declined = 0

    def ended_by(self, part: Part[Any]) -> str:
        """Why the source is left alone from now on; empty while it is not."""
        if part.calls or part.outcome not in _NOT_STARTED:
            self._declined = 0
            return ""
        self._declined += 1
        if self._declined < self._most:
            return ""
        if not self._is_shut(part.outcome) and self._declined < self._most * SMALLER_ONES:
            return ""
        return f"the source was not drawn further after {self._declined} in a row could not start"

    def _is_shut(self, outcome: Outcome) -> bool:
        """Whether no other item can start either; a smaller one may still fit under a cap."""
        if outcome is Outcome.BUDGET:
            least = self._run.room().unheld
            return least is not None and least.nanos == 0
        if outcome is Outcome.CANCELLED:
            return bool(self._stop.reason or self._run.stopped)
        return True


class _Work(Generic[Item]):
    """What is done with one item."""

    def __init__(
        self,
        run: Run,
        worker: Worker,
        stop: Stop,
        limit: int | None,
        prompt_of: Callable[[Item], Prompt] | None,
    ) -> None:
        self._run = run
        self._worker = worker
        self._stop = stop
        self._limit = limit
        self._prompt_of = prompt_of

    def not_begun(self, index: int, item: Item) -> Part[Item] | None:
        """The part of an item that is not to be begun; None for one that is."""
        if self._stop.reason:
            return Part(index=index, item=item, outcome=Outcome.CANCELLED, reason=self._stop.reason)
        if self._limit is not None and index >= self._limit:
            reason = f"not started: at worst the caps carry only {self._limit} of these"
            return Part(index=index, item=item, outcome=Outcome.BUDGET, reason=reason)
        return None

    async def on(self, index: int, item: Item, absorbs: Callable[[], bool]) -> Part[Item]:
        prompt = self._prompt_of(item) if self._prompt_of is not None else None
        return await perform(
            self._run, self._worker, item, index=index, prompt=prompt, absorbs=absorbs
        )


class _Crew(Generic[Item]):
    """The workers of one fan-out."""

    def __init__(
        self,
        run: Run,
        worker: Worker,
        items: Items[Item],
        *,
        width: int | None,
        stop: Stop | None,
        limit: int | None,
        prompt_of: Callable[[Item], Prompt] | None,
        leaves: bool = False,
    ) -> None:
        check_run("fan_out", run)
        self.width = run.gate.statistics().width if width is None else width
        check_whole("fan_out", width=self.width)
        if not is_performer(worker) and not callable(worker):
            raise ConfigError(
                f"fan_out: {worker!r} can't work; give an agent, or an async function of one item"
            )
        self._run = run
        self._stop = stop or Stop()
        self._work_on = _Work(run, worker, self._stop, limit, prompt_of)
        self._source = _Source(items)
        self._patience = _Patience(run, self._stop, self.width) if leaves else None
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: asyncio.Task[None] | None = None

    def begin(self, hand_on: Callable[[Part[Item] | None], Awaitable[None]]) -> None:
        """Start all workers; each hands on its parts, and None when there is nothing left to do."""
        self._tasks = [
            asyncio.create_task(self._work(hand_on), name=f"fan_out-{number}")
            for number in range(self.width)
        ]

    async def all_done(self) -> None:
        """Wait for all workers; raises what handing on raised."""
        # Not gather: it would pass a cancellation on to workers who don't know yet that all is over.
        ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()

    def when_broken(self, wake: Callable[[], None]) -> None:
        """Have a worker that ends without saying so (a ``BaseException``) wake who waits for its parts."""

        def look(task: asyncio.Task[None]) -> None:
            if not self._is_closing and (task.cancelled() or task.exception() is not None):
                self._broken = task
                wake()

        for task in self._tasks:
            task.add_done_callback(look)

    def raise_broken(self) -> None:
        """Raise what such a worker raised."""
        if self._broken is not None:
            self._broken.result()

    def raise_failure(self, parts: tuple[Part[Any], ...] = ()) -> None:
        """Raise if the source of the items has failed."""
        error = self._source.failure
        if error is not None:
            failed = SourceFailed(
                f"fan_out: the source of the items failed ({type(error).__name__}: {error})"
            )
            failed.parts = parts
            raise failed from error

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has settled."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._source.close()

    async def _work(self, hand_on: Callable[[Part[Item] | None], Awaitable[None]]) -> None:
        """Draw, work, hand on. ``Run.cancel`` ends the item under way, which is a part then, too."""
        with self._run.tracking():
            part: Part[Item] | None = None
            is_over = False
            while True:  # ends when the source has ended and the reader knows
                try:
                    if part is None and not is_over:
                        drawn = None if self._is_drained else await self._source.draw()
                        is_over = drawn is None
                        if drawn is not None:
                            part = self._work_on.not_begun(*drawn)
                            if part is None:
                                part = await self._work_on.on(*drawn, self._absorbs)
                                await self._hear(part, hand_on)
                            self._look_at(part)
                    await hand_on(part)
                    if is_over:
                        return
                    # Parts that cost no time (declined, say) must not keep cancellations and Ctrl-C out.
                    has_waited = part is not None and part.calls > 0
                    part = None
                    if not has_waited:
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    if not _is_cancelled() or not self._absorbs():
                        raise

    @property
    def _is_drained(self) -> bool:
        """Whether nothing is drawn any more, whatever is left."""
        return self._broken is not None or bool(self._stop.undrawn)

    async def _hear(
        self, part: Part[Item], hand_on: Callable[[Part[Item] | None], Awaitable[None]]
    ) -> None:
        try:
            self._stop.hear(part)
        except BaseException:
            await hand_on(part)  # it is paid for, whatever becomes of the user's function
            raise

    def _look_at(self, part: Part[Item]) -> None:
        if self._patience is not None and not self._stop.undrawn:
            self._stop.undrawn = self._patience.ended_by(part)

    def _absorbs(self) -> bool:
        """After a cancellation: whether it was meant for the item alone."""
        if self._is_closing:
            return False
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return True


def _is_cancelled() -> bool:
    """Whether a ``CancelledError`` is of this task, not one that a user's callback raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Source(Generic[Item]):
    """Items with their index, drawn one at a time by many workers."""

    def __init__(self, items: Iterable[Item] | AsyncIterable[Item]) -> None:
        self._count = itertools.count()
        self._turn = asyncio.Lock()
        self._async: AsyncIterator[Item] | None = None
        self._plain: Iterator[Item] | None = None
        self.failure: BaseException | None = None
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
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self.failure = error
            return None
        except Exception as error:  # noqa: BLE001 - the reader hears of it when all is done
            self.failure = error
            return None

    async def close(self) -> None:
        close = getattr(self._async, "aclose", None)
        if close is not None:
            await close()
