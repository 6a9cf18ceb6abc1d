"""A stream has a usage only if it came to its proper end, however its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import BetaRawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from budgets.shape import Shape
from orchestrator.wire import SseReader, StreamReader, read_usage

MODEL = "claude-sonnet-5-5"
ASKED = Shape(model=MODEL, input_tokens=1, output_tokens=1, cache_ttl="1h")

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 100,
            "cache_creation_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
            "cache_read_input_tokens": 7,
            "output_tokens": 1,
            "service_tier": "standard",
            "inference_geo": "us",
        },
    },
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "event: message_stop\n\ndata: {}\n\r naïve 文"},
}
BLOCK_STOP = {"type": "content_block_stop", "index": 0}
DELTA: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 250, "cache_creation_input_tokens": 110},
}
STOP = {"type": "message_stop"}
WHOLE = [START, BLOCK, TEXT, {"type": "ping"}, BLOCK_STOP, DELTA, STOP]
FINAL = {
    **START["message"],
    "stop_reason": "end_turn",
    "usage": {**START["message"]["usage"], **DELTA["usage"]},
}


def _feed(events: list[Any]) -> StreamReader:
    reader = StreamReader(ASKED)
    for event in events:
        reader.feed(event)
    return reader


@pytest.mark.parametrize("union", [None, RawMessageStreamEvent, BetaRawMessageStreamEvent])
def test_a_stream_and_a_plain_answer_have_the_same_usage(union: Any) -> None:
    """C-09: raw events, the SDK's events and the same answer unstreamed read alike."""
    events = [event for event in WHOLE if event["type"] != "ping"]
    if union is not None:
        adapter = TypeAdapter(union)
        events = [adapter.validate_python(event) for event in events]
    reader = _feed(events)
    assert reader.usage == read_usage(FINAL, requested=ASKED)
    assert reader.usage is not None
    # The delta is cumulative and has no split: the split of the start stays, the rest is unsplit.
    assert (reader.usage.cache_write_5m, reader.usage.cache_write_1h) == (60, 40)
    assert reader.usage.cache_write_unsplit == 10
    assert (reader.usage.output_tokens, reader.usage.geo) == (250, "us")
    assert (reader.begun, reader.finished, reader.error) == (True, True, None)
    assert (reader.message_id, reader.stop_reason) == ("msg_1", "end_turn")


@pytest.mark.parametrize("seen", range(len(WHOLE)))
def test_a_stream_that_is_cut_has_no_usage(seen: int) -> None:
    """C-19, S-01: before the final delta the output count is a placeholder, never a usage."""
    reader = _feed(WHOLE[:seen])
    assert (reader.usage is not None) == (DELTA in WHOLE[:seen])
    assert reader.begun == (seen > 0)


def test_a_delta_without_a_stop_reason_is_not_the_end() -> None:
    """Only a stop reason or the stop event ends a response; the last delta wins."""
    early = {**DELTA, "delta": {"stop_reason": None}, "usage": {"output_tokens": 9}}
    reader = _feed([START, early])
    assert reader.usage is None
    reader.feed(STOP)
    assert reader.usage is not None
    assert reader.usage.output_tokens == 9
    again = _feed([START, early, DELTA])
    assert again.usage is not None
    assert again.usage.output_tokens == 250


def test_an_end_without_counts_is_no_usage() -> None:
    """A stop without a final count leaves only the placeholder, which is not believed."""
    assert _feed([START, STOP]).usage is None
    assert _feed([START, {**DELTA, "usage": {}}, STOP]).usage is None


def test_an_error_inside_a_stream_is_kept() -> None:
    """S-05: an overload that comes inside a 200 stream is seen, and there is no usage."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    reader = _feed([START, TEXT, error])
    assert reader.error == {"type": "overloaded_error", "message": "Overloaded"}
    assert reader.usage is None
    assert reader.begun


def test_a_repeated_delta_is_not_added_up() -> None:
    """C-17: counts are cumulative; the last record wins."""
    reader = _feed([START, DELTA, DELTA, DELTA, STOP])
    assert reader.usage is not None
    assert reader.usage.output_tokens == 250


@pytest.mark.parametrize("counts", [(250, 9), (9, 250)])
def test_of_two_deltas_the_larger_count_is_taken(counts: tuple[int, int]) -> None:
    """Counts are cumulative, so a smaller one contradicts; no statement makes a bill smaller than another."""
    deltas = [
        {
            **DELTA,
            "usage": {"output_tokens": count, "server_tool_use": {"web_search_requests": count}},
        }
        for count in counts
    ]
    usage = _feed([START, *deltas, STOP]).usage
    assert usage is not None
    assert (usage.output_tokens, usage.web_searches) == (250, 250)


def test_a_count_that_turns_negative_is_not_believed() -> None:
    """An impossible count is not mended by a possible one before it."""
    reader = _feed([START, DELTA, {**DELTA, "usage": {"output_tokens": -1}}, STOP])
    assert reader.finished
    assert reader.usage is None


def test_two_whole_messages_have_no_usage() -> None:
    """Which of them is billed, or both, nobody knows: neither is believed."""
    reader = _feed([START, DELTA, STOP, START, {**DELTA, "usage": {"output_tokens": 1}}, STOP])
    assert reader.finished
    assert reader.usage is None


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (b'"usage": {"output_tokens"', b'"usage": {"output_tokens": 1, "output_tokens"'),
        (b'"usage": {"output', b'"usage": {"output_tokens": 1}, "usage": {"output'),
        (b'"usage": {"output', b'"us\\u0061ge": {"output_tokens": 1}, "usage": {"output'),
        (b'"model"', b'"model": "claude-haiku-5-5", "model"'),
    ],
)
def test_a_key_twice_in_an_event_is_no_usage(there: bytes, here: bytes) -> None:
    """One reader takes the first, another the last: what was billed is not known."""
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in WHOLE)
    told, read = SseReader(StreamReader(ASKED)), SseReader(StreamReader(ASKED))
    told.feed(body.replace(there, here))
    read.feed(body)
    assert read.reader.usage is not None
    assert told.reader.finished
    assert told.reader.usage is None


def test_a_second_start_changes_nothing() -> None:
    """One reader is one response: a stray start does not swap its model or its input."""
    other = {"type": "message_start", "message": {"id": "msg_2", "model": "x", "usage": {}}}
    reader = _feed([START, other, DELTA, STOP])
    assert reader.message_id == "msg_1"
    assert reader.usage is not None
    assert reader.usage.model == MODEL


def test_the_iterations_of_a_delta_are_parts() -> None:
    """Compaction inside a stream is billed as it is without one."""
    compaction = {"type": "compaction", "input_tokens": 900, "output_tokens": 40}
    message = {
        "type": "message",
        "input_tokens": 100,
        "cache_creation_input_tokens": 110,
        "cache_read_input_tokens": 7,
        "output_tokens": 250,
    }
    usage = {**DELTA["usage"], "iterations": [compaction, message]}
    reader = _feed([START, {**DELTA, "usage": usage}, STOP])
    assert reader.usage is not None
    assert [part.output_tokens for part in reader.usage.parts] == [40, 250]


def test_a_fallback_inside_a_stream_names_the_model_that_served() -> None:
    """The model of the start has declined; the block says who goes on."""
    block = {"type": "fallback", "from": {"model": MODEL}, "to": {"model": "claude-opus-5"}}
    hop = {"type": "content_block_start", "index": 0, "content_block": block}
    reader = _feed([START, hop, DELTA, STOP])
    assert reader.usage is not None
    assert reader.usage.model == "claude-opus-5"


@pytest.mark.parametrize(
    "event",
    [
        None,
        7,
        "message_stop",
        {},
        {"type": 3},
        {"type": ["message_start"]},
        {"type": "message_start"},
        {"type": "message_start", "message": 3},
        {"type": "message_delta", "delta": None, "usage": [1]},
        {"type": "error"},
        {"type": "a_new_kind"},
    ],
    ids=repr,
)
def test_nothing_makes_a_reader_fail(event: Any) -> None:
    """What can't be read leaves the usage unknown; it never breaks the caller's stream."""
    reader = _feed([event, STOP])
    assert reader.usage is None


def _sse(event: dict[str, Any], end: str, *, named: bool = True) -> str:
    lines = [f"event: {event['type']}"] if named else []
    # Multi-line data is joined by line breaks, which JSON does not mind between its tokens.
    text = json.dumps(event, ensure_ascii=False, indent=1)
    lines += [f"data: {line}" for line in text.split("\n")]
    return end.join([*lines, "", ""])


def _read_bytes(body: bytes, cuts: list[int]) -> SseReader:
    sse = SseReader(StreamReader(ASKED))
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(edges):
        sse.feed(body[begin:end])
    sse.close()
    return sse


@given(
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=40),
    named=st.booleans(),
    mark=st.booleans(),
)
def test_bytes_read_the_same_however_they_are_cut(
    end: str, cuts: list[int], named: bool, mark: bool
) -> None:
    """Chunk borders, line endings, comments, pings and a byte order mark change nothing."""
    text = f": hello{end}{end}" + "".join(_sse(event, end, named=named) for event in WHOLE)
    body = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    sse = _read_bytes(body, cuts)
    assert sse.reader.usage == read_usage(FINAL, requested=ASKED)
    assert sse.malformed == 0


def test_bytes_one_by_one() -> None:
    """The smallest chunks read like the largest."""
    body = "".join(_sse(event, "\r\n") for event in WHOLE).encode()
    sse = _read_bytes(body, list(range(len(body))))
    assert sse.reader.usage == read_usage(FINAL, requested=ASKED)


def test_bytes_without_a_final_end_are_cut() -> None:
    """An event whose blank line never came is not an event."""
    body = "".join(_sse(event, "\n") for event in WHOLE[:-2]) + _sse(DELTA, "\n").rstrip("\n")
    assert _read_bytes(body.encode(), []).reader.usage is None


@pytest.mark.parametrize("data", ["{", "[1]", "7", "<html>"])
def test_data_that_is_no_event_is_counted_and_passed_over(data: str) -> None:
    """A mangled event is noticed, and the stream goes on."""
    text = f"event: message_delta\ndata: {data}\n\n"
    body = _sse(START, "\n") + text + _sse(DELTA, "\n") + _sse(STOP, "\n")
    sse = _read_bytes(body.encode(), [])
    assert sse.malformed == 1
    assert sse.reader.usage is not None


def test_a_body_that_is_no_stream_has_no_usage() -> None:
    """An error page in place of a stream is not a response."""
    sse = _read_bytes(b"<html><body>502</body></html>", [3])
    assert sse.reader.usage is None
    assert not sse.reader.begun


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line longer than any event can't fill the memory."""
    monkeypatch.setattr("orchestrator.wire.streams._LONGEST_LINE", 1_000)
    sse = SseReader(StreamReader(ASKED))
    for _ in range(100):
        sse.feed(b"x" * 100)
    assert sse.malformed > 0
    sse.feed(("\n" + "".join(_sse(event, "\n") for event in WHOLE)).encode())
    assert sse.reader.usage is not None
