"""The crew: many workers drawing items from one source, each item ending in one part, as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
)
from typing import Any, Generic, TypeVar

from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .items import Items, Source, SourceFailed, is_cancelled
from .node import check_run
from .parts import Item, Own, Part, Prompt, Worker, is_performer, perform, performed
from .stops import Patience, Stop

Made = TypeVar("Made", bound=Part[Any])


async def stream_out(
    run: Run,
    worker: Worker | Own,
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
    worker: Worker | Own,
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
        leaves: stop drawing after ``stops.DECLINED_MOST`` in a row that could not start, since money or the run
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


class _Work(Generic[Item]):
    """What is done with one item."""

    def __init__(
        self,
        run: Run,
        worker: Worker | Own,
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
        if isinstance(self._worker, Own):
            return await performed(self._run, self._worker, item, index=index, absorbs=absorbs)
        prompt = self._prompt_of(item) if self._prompt_of is not None else None
        return await perform(
            self._run, self._worker, item, index=index, prompt=prompt, absorbs=absorbs
        )


class _Crew(Generic[Item]):
    """The workers of one fan-out."""

    def __init__(
        self,
        run: Run,
        worker: Worker | Own,
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
        if not isinstance(worker, Own) and not is_performer(worker) and not callable(worker):
            raise ConfigError(
                f"fan_out: {worker!r} can't work; give an agent, or an async function of one item"
            )
        self._run = run
        self._stop = stop or Stop()
        self._work_on = _Work(run, worker, self._stop, limit, prompt_of)
        self._source = Source(items)
        self._patience = Patience(run, self._stop, self.width) if leaves else None
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
        if any(not task.done() or task.cancelled() or task.exception() for task in self._tasks):
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
                    if not is_cancelled() or not self._absorbs():
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
