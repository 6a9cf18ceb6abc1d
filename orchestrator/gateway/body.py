"""Bodies of requests: read within limits, and as JSON that can be read in one way only.

What is priced here must be what the upstream reads: a key that stands twice in one object, of which one
reader takes the first and another the last, is refused.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from .replies import Refusal

#: Larger bodies are read in a thread, so that nobody else waits for it.
LARGE = 256 * 1024


async def read_body(http: web.BaseRequest, *, limit: int, within_s: float) -> bytes:
    """The body of a request, as it came.

    Args:
        http: the request.
        limit: the most bytes.
        within_s: seconds in which it must have arrived.

    Raises:
        Refusal: too large, too slow, or packed.
    """
    codings = http.headers.getall("content-encoding", ())  # a second line counts, too
    if any(coding.strip().lower() != "identity" for coding in codings):
        raise Refusal(
            400, "content-encoding: send the body as it is, packed ones are not read", reason="body"
        )
    too_large = Refusal(
        413, f"the body is larger than {limit >> 20} MB; nothing was sent", reason="body"
    )
    if (http.content_length or 0) > limit:
        raise too_large
    if http.headers.get("expect", "").lower() == "100-continue":
        transport = http.transport
        if transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if http.content.is_eof():  # it came together with its head: no timer is needed
            return await http.read()
        async with asyncio.timeout(within_s):
            return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        raise Refusal(
            400, f"the body did not arrive within {within_s:.0f} s; nothing was sent", reason="body"
        ) from None


def read_json(raw: bytes) -> dict[str, Any]:
    """The body as the object that it says.

    Raises:
        Refusal: not one JSON object in UTF-8, or one in which a key stands twice.
    """
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_once)
    except _TwiceError as error:
        raise Refusal(
            400, f"the body has the key {str(error)!r} twice in one object", reason="invalid"
        ) from None
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON in UTF-8", reason="invalid") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object", reason="invalid")
    return value


class _TwiceError(ValueError):
    """A key stands twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _TwiceError(name[:80])
            seen.add(name)
    return found
