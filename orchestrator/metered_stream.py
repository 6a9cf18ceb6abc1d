"""Streams that settle: a response body that watches its own bytes for the final usage.

Whatever reads the response (the SDK's streams, ``iter_lines``, a class of the caller's) reads this body, so
nothing gets past it. Settled when the final usage arrives; in doubt when a stream is cut, cancelled, dropped
or ends early.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import httpx2

from budgets.records import Ending

from .attempt import Attempt
from .encodings import Decoder, Unreadable, decoder_of
from .wire import SseReader

#: What is asked of the server for streams: the encodings that can be watched.
ENCODINGS = "gzip, deflate"


def watch(attempt: Attempt, response: httpx2.Response) -> Ending | None:
    """Put a watched body in place of a stream's own.

    Returns:
        The ending, where the body has been read already (a client that loads whole bodies).
    """
    try:
        loaded = response.content
    except httpx2.ResponseNotRead:
        pass
    else:
        eye = Eye(attempt, "identity")
        return eye.take(loaded) or eye.last()
    eye = Eye(attempt, response.headers.get("content-encoding", ""))
    body = response.stream
    if isinstance(body, httpx2.AsyncByteStream):
        response.stream = WatchedAsyncBody(body, attempt, eye)
    else:
        assert isinstance(body, httpx2.SyncByteStream)
        response.stream = WatchedBody(body, attempt, eye)
    return None


class Eye:
    """Reads the bytes that pass by, and says when they decide how the hold ends."""

    __slots__ = ("_attempt", "_decoder", "_sse")

    def __init__(self, attempt: Attempt, encoding: str) -> None:
        assert attempt.reader is not None
        self._attempt = attempt
        self._sse = SseReader(attempt.reader)
        #: In an encoding of its own nothing can be read: the stream ends in doubt.
        self._decoder: Decoder | None = None
        with contextlib.suppress(Unreadable):
            self._decoder = decoder_of(encoding)

    def take(self, chunk: bytes) -> Ending | None:
        """Look at the next bytes; returns the ending if they decide it."""
        if self._decoder is None or self._attempt.ended:
            return None
        try:
            data = self._decoder.feed(chunk)
        except Unreadable:
            self._decoder = None
            return None
        self._sse.feed(data)
        return self._attempt.of_events()

    def last(self) -> Ending | None:
        """The body is at its end; returns the ending if there was none before."""
        if self._attempt.ended:
            return None
        self._sse.close()
        return self._attempt.of_stream(None)


class WatchedAsyncBody(httpx2.AsyncByteStream):
    """The body of a stream of ``AsyncAnthropic``."""

    def __init__(self, body: httpx2.AsyncByteStream, attempt: Attempt, eye: Eye) -> None:
        self._body = body
        self._attempt = attempt
        self._eye = eye

    @property
    def elapsed(self) -> timedelta | None:
        """``Response.elapsed`` asks the body for it."""
        return getattr(self._body, "elapsed", None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        attempt, take = self._attempt, self._eye.take
        chunks = self._body.__aiter__()
        try:
            async for chunk in chunks:
                ending = None if attempt.ended else take(chunk)
                if ending is not None:
                    await _end_async(attempt, ending)
                yield chunk
            ending = self._eye.last()
            if ending is not None:
                await _end_async(attempt, ending)
        except BaseException as error:
            # Cancelled, closed or failed: written down without waiting, which may not be possible.
            attempt.abandon(None if isinstance(error, GeneratorExit) else error)
            raise
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def aclose(self) -> None:
        """Close the connection's side; what was not settled by then is in doubt."""
        try:
            self._attempt.abandon(None)
        finally:
            await self._body.aclose()


class WatchedBody(httpx2.SyncByteStream):
    """The body of a stream of ``Anthropic``."""

    def __init__(self, body: httpx2.SyncByteStream, attempt: Attempt, eye: Eye) -> None:
        self._body = body
        self._attempt = attempt
        self._eye = eye

    @property
    def elapsed(self) -> timedelta | None:
        """``Response.elapsed`` asks the body for it."""
        return getattr(self._body, "elapsed", None)

    def __iter__(self) -> Iterator[bytes]:
        attempt, take = self._attempt, self._eye.take
        try:
            for chunk in self._body:
                ending = None if attempt.ended else take(chunk)
                if ending is not None:
                    _end(attempt, ending)
                yield chunk
            ending = self._eye.last()
            if ending is not None:
                _end(attempt, ending)
        except BaseException as error:
            attempt.abandon(None if isinstance(error, GeneratorExit) else error)
            raise

    def close(self) -> None:
        """Close the connection's side; what was not settled by then is in doubt."""
        try:
            self._attempt.abandon(None)
        finally:
            self._body.close()


async def _end_async(attempt: Attempt, ending: Ending) -> None:
    attempt.finish(ending)
    await attempt.meter.write_async(ending)


def _end(attempt: Attempt, ending: Ending) -> None:
    attempt.finish(ending)
    attempt.meter.write(ending)
