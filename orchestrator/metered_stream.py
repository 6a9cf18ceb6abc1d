"""Streams that settle: the SDK's stream classes with an eye on the final usage.

Settled when the final usage arrives; in doubt when a stream is cut, cancelled, dropped or ends early.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from anthropic import AsyncStream, Stream

from .attempt import Attempt

_T = TypeVar("_T")

#: Where the meter leaves the attempt on a response, for the stream that is made of it.
ATTEMPT = "earmark.attempt"


class MeteredAsyncStream(AsyncStream[_T]):
    """What ``AsyncAnthropic`` hands out for a stream under a meter."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._attempt: Attempt | None = self.response.extensions.get(ATTEMPT)

    async def __stream__(self) -> AsyncIterator[_T]:
        attempt = self._attempt
        if attempt is None or attempt.reader is None:
            async for item in super().__stream__():
                yield item
            return
        feed = attempt.reader.feed
        try:
            async for item in super().__stream__():
                feed(item)
                if attempt.reader.finished and not attempt.ended:
                    await _settle_async(attempt, None)
                yield item
        except GeneratorExit:
            attempt.abandon(None)
            raise
        except BaseException as error:
            # Cancelled or failed: written down without waiting, since waiting may not be possible.
            attempt.abandon(error)
            raise
        if not attempt.ended:
            await _settle_async(attempt, None)

    async def close(self) -> None:
        """Close the response; what was not settled by then is in doubt."""
        try:
            await super().close()
        finally:
            if self._attempt is not None:
                self._attempt.abandon(None)


class MeteredStream(Stream[_T]):
    """What ``Anthropic`` hands out for a stream under a meter."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._attempt: Attempt | None = self.response.extensions.get(ATTEMPT)

    def __stream__(self) -> Iterator[_T]:
        attempt = self._attempt
        if attempt is None or attempt.reader is None:
            yield from super().__stream__()
            return
        feed = attempt.reader.feed
        try:
            for item in super().__stream__():
                feed(item)
                if attempt.reader.finished and not attempt.ended:
                    _settle(attempt, None)
                yield item
        except GeneratorExit:
            attempt.abandon(None)
            raise
        except BaseException as error:
            attempt.abandon(error)
            raise
        if not attempt.ended:
            _settle(attempt, None)

    def close(self) -> None:
        """Close the response; what was not settled by then is in doubt."""
        try:
            super().close()
        finally:
            if self._attempt is not None:
                self._attempt.abandon(None)


async def _settle_async(attempt: Attempt, error: BaseException | None) -> None:
    ending = attempt.of_stream(error)
    attempt.finish(ending)
    # Handed over before the first await: a cancellation of the reader can't tear it.
    await attempt.meter.write_async(ending)


def _settle(attempt: Attempt, error: BaseException | None) -> None:
    ending = attempt.of_stream(error)
    attempt.finish(ending)
    attempt.meter.write(ending)
