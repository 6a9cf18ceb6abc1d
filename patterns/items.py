"""Items: where those of a pattern come from, known all at once or drawn one at a time by many workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic

from orchestrator.errors import ConfigError, OrchestratorError

from .parts import Item, Part

Items = Iterable[Item] | AsyncIterable[Item]


class SourceFailed(OrchestratorError):
    """Drawing the items of a fan-out raised; its cause is what was raised.

    Attributes:
        parts: what was done, in order, and is paid for; empty where a stream handed it out already.
    """

    parts: tuple[Part[Any], ...] = ()


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


class Source(Generic[Item]):
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
            if is_cancelled():
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


def is_cancelled() -> bool:
    """Whether a ``CancelledError`` is of this task, not one that a user's callback raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
