"""The provider's side of batches: making, looking at, listing, cancelling and reading them by a run's client."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx2
from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIError,
    APIStatusError,
    AsyncAnthropic,
)
from pydantic_core import from_json

from budgets.records import Hold
from orchestrator.attempt import never_connected
from orchestrator.errors import OrchestratorError
from orchestrator.transport import HOLD_HEADER, Passes
from orchestrator.wire import ErrorKind, classify
from orchestrator.wire.batches import BatchState, read_batch
from orchestrator.wire.counts import read_count
from orchestrator.wire.prefixes import to_json

_PATH = "/v1/messages/batches"
_PAGE = 100
#: A list is looked through no further than this; the API keeps batches for 29 days.
_PAGES_MAX = 200
#: A body of 256 MB on a slow line.
_CREATE_TIMEOUT_S = 3600.0


class Refused(OrchestratorError):
    """The provider answered with an error.

    Attributes:
        kind: what it means.
    """

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(kind.message or f"HTTP {kind.status}")
        self.kind = kind


class NoAnswer(OrchestratorError):
    """There was no answer that can be read.

    Attributes:
        was_sent: False if it is certain that the request never left.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Sending:
    """A batch about to leave, for the guard in the client's transport.

    Attributes:
        hold: its hold.
        ended: it is not on its way any more.
        was_sent: whether its first byte can have left; None where nobody can tell.
    """

    __slots__ = ("__weakref__", "ended", "hold", "was_sent")

    def __init__(self, hold: Hold) -> None:
        self.hold: Hold | None = hold
        self.ended = False
        self.was_sent: bool | None = None

    @property
    def is_batch(self) -> bool:
        """It makes a batch."""
        return True


class Provider:
    """Batches at the provider.

    Args:
        client: a run's client; its own retries are off.
        passes: shared with the guard in that client's transport.
    """

    def __init__(self, client: AsyncAnthropic, passes: Passes) -> None:
        self._client = client
        self._passes = passes
        #: The workspace of the latest reply, ``""`` if it did not say.
        self.workspace = ""

    @property
    def key_label(self) -> str:
        """Tells keys apart without naming them."""
        key = self._client.api_key or self._client.auth_token or ""
        return hashlib.blake2b(key.encode(), digest_size=4).hexdigest() if key else ""

    async def create(
        self, hold: Hold, pieces: Callable[[], Iterator[bytes]], size: int
    ) -> BatchState:
        """Make a batch.

        Args:
            hold: its hold, which is durable.
            pieces: makes the request's body, in pieces.
            size: their bytes together.

        Raises:
            Refused: an error reply.
            NoAnswer: whether it was made is not known, unless ``was_sent`` is False.
        """
        sending = Sending(hold)

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces():
                yield piece

        headers = {
            "content-type": "application/json",
            "content-length": str(size),
            HOLD_HEADER: self._passes.issue(sending),
        }
        try:
            answer = await self._client.post(
                _PATH,
                cast_to=httpx2.Response,
                content=body(),
                options={"headers": headers, "timeout": _CREATE_TIMEOUT_S},
            )
            self._note_workspace(answer)
            _raise_if_refused(answer)
            return read_batch(from_json(answer.content))
        except (APIError, httpx2.HTTPError) as error:
            sent = not (never_connected(error) or sending.was_sent is False)
            raise NoAnswer(_why(error), was_sent=sent) from error
        except ValueError as error:
            raise NoAnswer(f"its answer can't be read ({error})", was_sent=True) from error
        finally:
            sending.ended = True

    async def retrieve(self, batch: str) -> BatchState:
        """Look at one batch. Raises as ``create``."""
        return await self._state("GET", f"{_PATH}/{batch}")

    async def cancel(self, batch: str) -> BatchState:
        """Ask for its end: what was not begun is neither done nor billed. Raises as ``create``."""
        return await self._state("POST", f"{_PATH}/{batch}/cancel")

    async def recent(self, since: float) -> list[BatchState]:
        """Batches made since then (seconds since 1970), the latest first. Raises as ``create``."""
        found: list[BatchState] = []
        after = ""
        for _ in range(_PAGES_MAX):
            page = await self._json("GET", f"{_PATH}?limit={_PAGE}{after}")
            batches = _batches_of(page)
            found += [batch for batch in batches if batch.created_at.timestamp() >= since]
            is_past = any(batch.created_at.timestamp() < since for batch in batches)
            if is_past or not batches or not page.get("has_more"):
                break
            after = f"&after_id={batches[-1].id}"
        return found

    async def lines(self, batch: str) -> AsyncGenerator[bytes]:
        """The lines of an ended batch's results, in whatever order they come.

        Raises:
            Refused, NoAnswer: at any line; what came before it is good.
        """
        rest = b""
        try:
            async with self._client.messages.batches.with_streaming_response.results(
                batch
            ) as reply:
                async for part in reply.iter_bytes():
                    # Only at line feeds: texts may hold other characters that look like the end of a line.
                    *whole, rest = (rest + part).split(b"\n")
                    for line in whole:
                        if line.strip():
                            yield line
        except APIStatusError as error:
            raise Refused(_kind(error)) from error
        except (AnthropicError, httpx2.HTTPError) as error:
            raise NoAnswer(_why(error), was_sent=True) from error
        if rest.strip():
            yield rest

    async def count(self, body: Mapping[str, Any]) -> int:
        """Input tokens of a request, by the free counter.

        Raises:
            Refused: the API does not take such a request.
            NoAnswer: the counter could not be reached.
        """
        answer = await self._json("POST", "/v1/messages/count_tokens", body)
        count = read_count(200, to_json(answer))
        if count is None:
            raise NoAnswer("the token counter's answer can't be read", was_sent=True)
        return count

    async def _state(self, method: str, path: str) -> BatchState:
        try:
            return read_batch(await self._json(method, path))
        except ValueError as error:
            raise NoAnswer(str(error), was_sent=True) from error

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            if method == "GET":
                answer = await self._client.get(path, cast_to=httpx2.Response)
            else:
                answer = await self._client.post(path, cast_to=httpx2.Response, body=body)
            self._note_workspace(answer)
            _raise_if_refused(answer)
            value = from_json(answer.content)
        except (APIError, httpx2.HTTPError) as error:
            raise NoAnswer(_why(error), was_sent=not never_connected(error)) from error
        except ValueError as error:
            raise NoAnswer(f"its answer can't be read ({error})", was_sent=True) from error
        if not isinstance(value, dict):
            raise NoAnswer("its answer is not a JSON object", was_sent=True)
        return value

    def _note_workspace(self, answer: httpx2.Response) -> None:
        self.workspace = answer.headers.get("anthropic-workspace-id", self.workspace)


def _batches_of(page: Mapping[str, Any]) -> list[BatchState]:
    try:
        return [read_batch(each) for each in page["data"]]
    except (KeyError, TypeError, ValueError) as error:
        raise NoAnswer(f"a page of batches can't be read ({error!r})", was_sent=True) from error


def refusal_of(answer: httpx2.Response) -> ErrorKind | None:
    """What an answer's error means; None if it is none. The SDK hands out raw answers whatever their status."""
    if answer.status_code < 400:
        return None
    try:
        body = from_json(answer.content)
    except ValueError:
        body = None
    return classify(answer.status_code, body if isinstance(body, dict) else None, answer.headers)


def _raise_if_refused(answer: httpx2.Response) -> None:
    kind = refusal_of(answer)
    if kind is not None:
        raise Refused(kind)


def _kind(error: APIStatusError) -> ErrorKind:
    body = error.body if isinstance(error.body, Mapping) else None
    return classify(error.status_code, body, error.response.headers)


def _why(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, APIConnectionError) else None
    return f"{type(cause or error).__name__}: {cause or error}".removesuffix(": ")
