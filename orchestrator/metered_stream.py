"""Streams that settle: a response body that watches its own bytes for the final usage.

Whatever reads the response (the SDK's streams, ``iter_lines``, a class of the caller's) reads this body, so
nothing gets past it. Settled when the final usage arrives; in doubt when a stream is cut, cancelled, dropped
or ends early.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import httpx2

from budgets.records import Ending

from .attempt import Attempt
from .wire import SseReader

#: What is asked of the server for streams: the encodings that can be watched.
ENCODINGS = "gzip, deflate"
_PLAIN = frozenset({"", "identity"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
#: Lets zlib tell gzip and deflate apart by themselves.
_EITHER = zlib.MAX_WBITS | 32


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
        eye = _Eye(attempt, "identity")
        return eye.take(loaded) or eye.last()
    eye = _Eye(attempt, response.headers.get("content-encoding", ""))
    body = response.stream
    if isinstance(body, httpx2.AsyncByteStream):
        response.stream = WatchedAsyncBody(body, attempt, eye)
    else:
        assert isinstance(body, httpx2.SyncByteStream)
        response.stream = WatchedBody(body, attempt, eye)
    return None


class _Eye:
    """Reads the bytes that pass by, and says when they decide how the hold ends."""

    def __init__(self, attempt: Attempt, encoding: str) -> None:
        assert attempt.reader is not None
        self._attempt = attempt
        self._sse = SseReader(attempt.reader)
        named = encoding.strip().lower()
        self._inflate: Any = zlib.decompressobj(_EITHER) if named in _PACKED else None
        #: In an encoding of its own nothing can be read: the stream ends in doubt.
        self._blind = named not in _PLAIN and named not in _PACKED

    def take(self, chunk: bytes) -> Ending | None:
        """Look at the next bytes; returns the ending if they decide it."""
        if self._blind or self._attempt.ended:
            return None
        try:
            data = chunk if self._inflate is None else self._inflated(chunk)
        except zlib.error:
            self._blind = True
            return None
        self._sse.feed(data)
        return self._attempt.of_events()

    def last(self) -> Ending | None:
        """The body is at its end; returns the ending if there was none before."""
        if self._attempt.ended:
            return None
        self._sse.close()
        return self._attempt.of_stream(None)

    def _inflated(self, chunk: bytes) -> bytes:
        data: bytes = self._inflate.decompress(chunk)
        while self._inflate.eof and self._inflate.unused_data:
            rest = self._inflate.unused_data
            self._inflate = zlib.decompressobj(_EITHER)
            data += self._inflate.decompress(rest)
        return data


class WatchedAsyncBody(httpx2.AsyncByteStream):
    """The body of a stream of ``AsyncAnthropic``."""

    def __init__(self, body: httpx2.AsyncByteStream, attempt: Attempt, eye: _Eye) -> None:
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

    def __init__(self, body: httpx2.SyncByteStream, attempt: Attempt, eye: _Eye) -> None:
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
