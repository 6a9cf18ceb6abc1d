"""The upstream's key reaches no client, no log and no line of the ledger, however the upstream sends it back."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateway.blotting import Blot, Passage

from .gatewaying import REAL_KEY, ask
from .raw_http import BODY, HEAD, MESSAGE, STREAM, exchange, recorded, values, whole

KEY = REAL_KEY.encode()
BLOTTED = b"*" * len(KEY)
ERROR = json.dumps(
    {"type": "error", "error": {"type": "invalid_request_error", "message": f"key {REAL_KEY}?"}}
).encode()
TOLD = STREAM.replace(b"end_turn", b"end_turn " + KEY)
PACKING: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("status", ["400 Bad Request", "200 OK", "500 Internal Server Error"])
async def test_a_body_that_holds_the_key_is_blotted(
    status: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As many asterisks stand in its place; nothing of it is in a header, in the log or in the ledger."""
    body = ERROR if status[0] != "2" else json.dumps({**MESSAGE, "id": REAL_KEY}).encode()
    answer = whole(status, body, x_seen=f"<{REAL_KEY}>", request_id=REAL_KEY)
    async with recorded(answer) as (_, gateway, lease, ledger):
        head, said = await exchange(
            gateway.url, HEAD.format(path="/v1/messages", key=lease.key), BODY
        )
        await asyncio.to_thread(ledger.flush)

        assert said == body.replace(KEY, BLOTTED)
        assert values(head)["x-seen"] == [f"<{BLOTTED.decode()}>"]
        assert REAL_KEY not in head.decode()
        assert REAL_KEY not in str(list(ledger.lines()))
        assert "its own key" in caplog.text
        assert REAL_KEY not in caplog.text


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/models"])
async def test_free_answers_are_blotted_too(path: str, status: str) -> None:
    """Whatever is passed on without a hold goes the same way."""
    async with recorded(whole(status, ERROR)) as (_, gateway, lease, _):
        head = HEAD.format(path=path, key=lease.key)
        method, body = ("GET", b"") if path == "/v1/models" else ("POST", BODY)
        _, said = await exchange(gateway.url, head.replace("POST", method, 1), body)

        assert said == ERROR.replace(KEY, BLOTTED)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_is_blotted_wherever_it_is_cut(size: int) -> None:
    """The key split over chunks of any size is gone, every other byte is there, and the usage is settled."""
    chunks = [TOLD[at : at + size] for at in range(0, len(TOLD), size)]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    async with recorded(answer + sent) as (_, gateway, lease, ledger):
        head = HEAD.format(path="/v1/messages", key=lease.key)
        _, said = await exchange(gateway.url, head, json.dumps(ask(stream=True)).encode())
        await asyncio.to_thread(ledger.flush)

        assert said == TOLD.replace(KEY, BLOTTED)
        assert list(ledger.lines())[-1].kind == "settle"
        assert REAL_KEY not in str(list(ledger.lines()))


@pytest.mark.parametrize("coding", PACKING)
async def test_a_packed_body_comes_unpacked_without_the_key(coding: str) -> None:
    """What can't be blotted where it is packed is sent plain."""
    answer = whole("400 Bad Request", PACKING[coding](ERROR), content_encoding=coding)
    async with recorded(answer) as (_, gateway, lease, _):
        head, said = await exchange(
            gateway.url, HEAD.format(path="/v1/messages", key=lease.key), BODY
        )

        assert said == ERROR.replace(KEY, BLOTTED)
        assert "content-encoding" not in values(head)


@pytest.mark.parametrize("coding", PACKING)
async def test_a_packed_stream_breaks_off_before_the_key(coding: str) -> None:
    """Nothing of the piece that holds it is handed out; the ledger still gets the usage."""
    packed = PACKING[coding](TOLD)
    answer = whole("200 OK", packed, content_type="text/event-stream", content_encoding=coding)
    async with recorded(answer) as (_, gateway, lease, ledger):
        raw = json.dumps(ask(stream=True)).encode()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)) as cut:
            await exchange(gateway.url, HEAD.format(path="/v1/messages", key=lease.key), raw)
        await lease.settled(5)
        await asyncio.to_thread(ledger.flush)

        assert packed[-20:] not in getattr(cut.value, "partial", b"")
        assert list(ledger.lines())[-1].kind == "settle"


_PARTS = st.lists(
    st.sampled_from([KEY, KEY[:3], KEY[:-1], KEY[1:], b"the-", b"\n\n", b"x", KEY[:5] + KEY]),
    max_size=12,
)


@given(parts=_PARTS, cuts=st.lists(st.integers(1, 40), max_size=60))
def test_however_it_is_cut_it_is_what_it_would_be_whole(
    parts: list[bytes], cuts: list[int]
) -> None:
    """Piece by piece gives what all at once gives, and less than one key is kept back at any time."""
    data, passage = b"".join(parts), Passage(Blot(REAL_KEY), "")
    given_out, taken = b"", 0
    for size in [*cuts, len(data)]:
        piece = data[taken : taken + size]
        taken += len(piece)
        given_out += passage.take(piece).client
        assert taken - len(given_out) < len(KEY)

    assert given_out + passage.rest().client == data.replace(KEY, BLOTTED)


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(1, 50), max_size=30))
@pytest.mark.parametrize("coding", PACKING)
def test_packed_pieces_without_the_key_pass_as_they_are(
    coding: str, data: bytes, cuts: list[int]
) -> None:
    """Not a byte of a packed answer changes, and what it says is seen."""
    plain = data + KEY[:-1] + b"\0" + data  # nearly the key
    packed, passage = PACKING[coding](plain), Passage(Blot(REAL_KEY), coding)
    client, seen, taken = b"", b"", 0
    for size in [*cuts, len(packed)]:
        passed = passage.take(packed[taken : taken + size])
        taken += size
        client, seen = client + passed.client, seen + passed.plain
        assert not passed.shows

    assert client + passage.rest().client == packed
    assert seen == plain


def _spelt(ways: list[int]) -> bytes:
    """The key with each of its characters as it is, or as an escape in small or in large digits."""
    spelt = [(one, f"\\u{ord(one):04x}", f"\\u{ord(one):04X}") for one in REAL_KEY]
    return "".join(one[ways[at % len(ways)]] for at, one in enumerate(spelt)).encode()


@given(
    ways=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), max_size=60),
    around=st.lists(
        st.sampled_from([b"\\n", b"\\u00e4", b"the", b"\\", b"\\u0074\\u00"]), max_size=4
    ),
)
def test_escapes_are_read_wherever_they_are_cut(
    ways: list[int], cuts: list[int], around: list[bytes]
) -> None:
    """The key as a JSON string may spell it is gone, length for length; what stands around it is there."""
    spelt, beside = _spelt(ways), b"".join(around)
    data, passage = beside + b'"' + spelt + b'"' + beside, Passage(Blot(REAL_KEY), "")
    given_out, taken = b"", 0
    for size in [*cuts, len(data)]:
        given_out += passage.take(data[taken : taken + size]).client
        taken += size

    blotted = beside + b'"' + b"*" * len(spelt) + b'"' + beside
    assert given_out + passage.rest().client == blotted


@pytest.mark.parametrize("coding", ["", *PACKING])
async def test_a_body_with_the_key_in_escapes_is_blotted(coding: str) -> None:
    """Whoever reads the JSON reads asterisks, packed or not."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in REAL_KEY).encode()
    body = ERROR.replace(KEY, escaped)
    packed = {"content_encoding": coding} if coding else {}
    answer = whole("400 Bad Request", PACKING.get(coding, bytes)(body), **packed)
    async with recorded(answer) as (_, gateway, lease, _):
        _, said = await exchange(gateway.url, HEAD.format(path="/v1/messages", key=lease.key), BODY)

        assert said == body.replace(escaped, b"*" * len(escaped))


def test_a_stand_in_for_a_key_is_no_secret() -> None:
    """A word such as ``simulated`` may be said."""
    assert Blot("simulated").blotted(b"simulated") == b"simulated"
    assert REAL_KEY not in repr(Blot(REAL_KEY))
