"""A usage is read into disjoint classes, and what can't be true is no usage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.shape import Shape
from budgets.usage import Usage
from orchestrator.wire import SseReader, StreamReader, counted_for_limits, read_usage
from orchestrator.wire.usages import said_once

MODEL = "claude-sonnet-5-5"
ASKED = Shape(model=MODEL, input_tokens=1, output_tokens=1)


def _message(usage: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "stop_reason": "end_turn", "usage": usage, **more}


def _usage(**more: Any) -> dict[str, Any]:
    return {"input_tokens": 10, "output_tokens": 5, **more}


def _read(usage: Any, requested: Shape | None = ASKED, **more: Any) -> Usage:
    read = read_usage(_message(usage, **more), requested=requested)
    assert read is not None
    return read


def test_every_field_lands_in_its_class() -> None:
    """C-08, C-28: input, writes and reads are disjoint, and no class is lost."""
    read = _read(
        {
            "input_tokens": 10,
            "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 10},
            "cache_read_input_tokens": 40,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 2},
            "server_tool_use": {
                "web_search_requests": 3,
                "web_fetch_requests": 2,
                "code_execution_requests": 1,
            },
            "service_tier": "batch",
            "speed": "fast",
            "inference_geo": "us",
        }
    )
    assert read == Usage(
        model=MODEL,
        input_tokens=10,
        cache_write_5m=20,
        cache_write_1h=10,
        cache_read=40,
        output_tokens=5,
        thinking_tokens=2,
        web_searches=3,
        web_fetches=2,
        code_executions=1,
        tier="batch",
        speed="fast",
        geo="us",
        unsplit_ttl="1h",
    )
    assert read.prompt_tokens == 80


@pytest.mark.parametrize(
    ("total", "split", "expected"),
    [
        (None, None, (0, 0, 0)),
        (100, None, (0, 0, 100)),
        (100, {}, (0, 0, 100)),
        (100, {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}, (60, 40, 0)),
        (110, {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}, (60, 40, 10)),
        (90, {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}, (60, 40, 0)),
        (None, {"ephemeral_5m_input_tokens": 60}, (60, 0, 0)),
    ],
)
def test_a_split_that_does_not_add_up_is_read_as_the_dearer(
    total: Any, split: Any, expected: tuple[int, int, int]
) -> None:
    """C-06, C-12: no written token is dropped, and none is counted twice."""
    read = _read(_usage(cache_creation_input_tokens=total, cache_creation=split))
    assert (read.cache_write_5m, read.cache_write_1h, read.cache_write_unsplit) == expected


@pytest.mark.parametrize(
    ("requested", "ttl"),
    [
        (None, "1h"),
        (ASKED, "1h"),
        (Shape(model=MODEL, input_tokens=1, output_tokens=1, cache_ttl="5m"), "5m"),
        (Shape(model=MODEL, input_tokens=1, output_tokens=1, cache_ttl="1h"), "1h"),
    ],
)
def test_unsplit_writes_get_the_longest_lifetime_asked_for(
    requested: Shape | None, ttl: str
) -> None:
    """An unknown lifetime is the dearest that it can be."""
    assert _read(_usage(cache_creation_input_tokens=9), requested).unsplit_ttl == ttl


@pytest.mark.parametrize(
    ("reported", "asked", "geo"),
    [
        ("us", None, "us"),
        ("global", "us", "global"),
        (None, None, None),
        (None, "us", "us"),
        ("not_available", "global", "global"),
        ("mars", None, "us"),
    ],
)
def test_the_place_is_the_reported_else_the_asked(reported: Any, asked: Any, geo: Any) -> None:
    """What a response leaves open was fixed by the request; a strange place is the dearer one."""
    requested = Shape(model=MODEL, input_tokens=1, output_tokens=1, geo=asked)
    assert _read(_usage(inference_geo=reported), requested).geo == geo


@pytest.mark.parametrize(
    ("reported", "asked", "speed"),
    [(None, "fast", "fast"), ("standard", "fast", "standard"), ("fast", "standard", "fast")],
)
def test_the_speed_is_the_reported_else_the_asked(reported: Any, asked: Any, speed: Any) -> None:
    """A fast request that ran at standard speed is priced at standard speed."""
    requested = Shape(model=MODEL, input_tokens=1, output_tokens=1, speed=asked)
    assert _read(_usage(speed=reported), requested).speed == speed


@pytest.mark.parametrize(
    ("reported", "tier"),
    [(None, "standard"), ("standard", "standard"), ("priority", "standard"), ("batch", "batch")],
)
def test_only_a_reported_batch_is_priced_as_one(reported: Any, tier: str) -> None:
    """B-09: the batch rate must be proven by the result itself."""
    asked = Shape(model=MODEL, input_tokens=1, output_tokens=1, tier="batch")
    assert _read(_usage(service_tier=reported), asked).tier == tier


def test_the_model_is_the_one_that_served() -> None:
    """A response of another model is priced at that model; without a name, at the asked one."""
    assert _read(_usage(), model="claude-opus-5").model == "claude-opus-5"
    assert _read(_usage(), model=None).model == MODEL


BAD: list[Any] = [
    None,
    [],
    "many",
    {},
    {"input_tokens": 10},
    {"output_tokens": 10},
    _usage(input_tokens=None),
    _usage(output_tokens=None),
    _usage(input_tokens=-1),
    _usage(output_tokens=-1),
    _usage(output_tokens=True),
    _usage(output_tokens=1.5),
    _usage(output_tokens="5"),
    _usage(output_tokens=10**12),
    _usage(cache_read_input_tokens=-1),
    _usage(cache_creation_input_tokens="x"),
    _usage(cache_creation=7),
    _usage(cache_creation={"ephemeral_1h_input_tokens": -4}),
    _usage(server_tool_use={"web_search_requests": -1}),
    _usage(server_tool_use=3),
    _usage(iterations=3),
    _usage(iterations=[3]),
    _usage(iterations=[{"type": "message"}]),
    _usage(iterations=[{**_usage(), "type": "advisor_message", "model": 7}]),
    {"input_tokens": 0, "output_tokens": 0},
]


@pytest.mark.parametrize("usage", BAD, ids=lambda usage: repr(usage)[:90])
def test_what_can_not_be_true_is_no_usage(usage: Any) -> None:
    """C-04: a missing, negative or emptied usage leaves the hold in doubt, it never costs $0."""
    assert read_usage(_message(usage), requested=ASKED) is None


def test_a_response_without_any_model_is_no_usage() -> None:
    """Nothing can be priced without a model."""
    assert read_usage({"usage": _usage()}, requested=None) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "input_tokens",
                    "output_tokens",
                    "cache_creation",
                    "cache_creation_input_tokens",
                    "ephemeral_1h_input_tokens",
                    "iterations",
                    "server_tool_use",
                    "type",
                    "model",
                    "inference_geo",
                    "speed",
                    "service_tier",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_no_response_makes_reading_fail(usage: Any, model: Any) -> None:
    """Whatever a response holds, the reading is a usage without negatives or None."""
    read = read_usage({"usage": usage, "model": model}, requested=ASKED)
    if read is not None:
        for one in (read, *read.parts):
            assert min(one.input_tokens, one.output_tokens, one.cache_write_unsplit) >= 0


def _item(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        **more,
    }


def test_iterations_are_the_bill_each_at_its_own_model() -> None:
    """C-13: compaction and advisor tokens are not in the totals above, and are billed all the same."""
    read = _read(
        _usage(
            inference_geo="us",
            server_tool_use={"web_search_requests": 2},
            iterations=[
                _item("compaction", input_tokens=1_000, output_tokens=50),
                _item("message", input_tokens=10, output_tokens=5),
                _item(
                    "advisor_message",
                    model="claude-opus-5-5",
                    input_tokens=700,
                    output_tokens=90,
                    cache_creation={"ephemeral_1h_input_tokens": 30},
                    cache_creation_input_tokens=30,
                ),
            ],
        )
    )
    compaction, message, advisor = read.parts
    assert (compaction.model, compaction.input_tokens, compaction.output_tokens) == (
        MODEL,
        1000,
        50,
    )
    assert (message.model, message.input_tokens, message.output_tokens) == (MODEL, 10, 5)
    assert (advisor.model, advisor.input_tokens, advisor.cache_write_1h) == (
        "claude-opus-5-5",
        700,
        30,
    )
    assert {part.geo for part in read.parts} == {"us"}
    assert [part.web_searches for part in read.parts] == [0, 0, 0]
    assert read.web_searches == 2


def test_a_declined_attempt_is_not_charged_but_one_that_wrote_is() -> None:
    """An attempt that declined before any output is reported and free; a later decline is billed."""
    iterations = [
        _item("message", model="claude-opus-5-5", input_tokens=900),
        _item("message", model="claude-opus-5", input_tokens=900, output_tokens=3),
        _item("fallback_message", model=MODEL, input_tokens=10, output_tokens=5),
    ]
    read = _read(_usage(iterations=iterations))
    assert [(part.model, part.output_tokens) for part in read.parts] == [
        ("claude-opus-5", 3),
        (MODEL, 5),
    ]


def test_without_a_fallback_an_iteration_without_output_is_charged() -> None:
    """Warming the cache writes input and no output, and is billed."""
    usage = _usage(output_tokens=0, iterations=[_item("message", input_tokens=10)])
    assert [part.input_tokens for part in _read(usage).parts] == [10]


@pytest.mark.parametrize("iterations", [None, [_item("message", input_tokens=10)]])
def test_a_refusal_before_any_output_is_not_charged(iterations: Any) -> None:
    """The provider reports its input and does not bill it; its searches it does."""
    usage = _usage(
        output_tokens=0, iterations=iterations, server_tool_use={"web_search_requests": 1}
    )
    read = _read(usage, stop_reason="refusal")
    for one in (read, *read.parts) if not iterations else read.parts:
        assert one.prompt_tokens == one.output_tokens == 0
    assert read.web_searches == 1


def test_a_refusal_after_output_is_charged() -> None:
    """What was written before the refusal is billed with its input."""
    read = _read(_usage(), stop_reason="refusal")
    assert (read.input_tokens, read.output_tokens) == (10, 5)


def test_a_list_of_iterations_with_a_gap_makes_no_bill_smaller() -> None:
    """Tokens of the totals that no iteration has are a part of their own."""
    read = _read(
        _usage(
            input_tokens=100,
            output_tokens=50,
            cache_creation_input_tokens=7,
            iterations=[
                _item("compaction", input_tokens=5_000, output_tokens=5_000),
                _item("message", input_tokens=40, output_tokens=50),
            ],
        )
    )
    assert sum(part.input_tokens for part in read.parts) == 5_100
    assert sum(part.output_tokens for part in read.parts) == 5_050
    assert sum(part.cache_write_unsplit for part in read.parts) == 7


def test_what_counts_against_the_rate_limits() -> None:
    """Cache reads do not count; writes and the tokens of all iterations do."""
    plain = _read(_usage(cache_creation_input_tokens=30, cache_read_input_tokens=1_000))
    assert counted_for_limits(plain) == (40, 5)
    split = _read(
        _usage(
            iterations=[
                _item("compaction", input_tokens=100, output_tokens=20),
                _item("message", input_tokens=10, output_tokens=5, cache_read_input_tokens=9),
            ]
        )
    )
    assert counted_for_limits(split) == (110, 25)


_PLAIN = b'{"content":[{"type":"text","text":"x"}],"model":"m","usage":{"input_tokens":10,"output_tokens":5}}'


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (b'"usage"', b'"usage":{"input_tokens":1,"output_tokens":1},"usage"'),
        (b'"usage"', b'"us\\u0061ge":{"input_tokens":1,"output_tokens":1},"usage"'),
        (b'"model"', b'"model":"n","model"'),
        (b'"model"', b'"stop_reason":"end_turn","stop_reason":"refusal","model"'),
        (b'"output_tokens":5', b'"output_tokens":5,"output_tokens":1'),
        (b'"usage":{', b'"usage":{"iterations":[{"input_tokens":9,"input_tokens":1}],'),
    ],
)
def test_a_body_that_says_it_twice_has_no_usage(there: bytes, here: bytes) -> None:
    """Of a key that stands twice each reader takes another one: the rest of the message stays, its usage goes."""
    once = json.loads(said_once(_PLAIN.replace(there, here)))
    assert once["usage"] is None
    assert once["content"] == [{"type": "text", "text": "x"}]
    assert read_usage(once, requested=ASKED) is None


@pytest.mark.parametrize(
    "body",
    [
        _PLAIN,
        # What an answer is about may say anything as often as it likes.
        _PLAIN.replace(
            b'"x"', b'"x","usage":{"model":1,"model":2},"input_tokens":0,"is":"\\u00e4"'
        ),
        _PLAIN.replace(
            b'"usage":{', b'"usage":{"iterations":[{"input_tokens":9},{"input_tokens":1}],'
        ),
        b'{"usage":{"usage":' * 2_000,
        b'{"usage":1,"usage":' + b"9" * 5_000 + b"}",
        b"[" * 100_000 + b'"usage""usage"',
        b"",
    ],
)
def test_other_bodies_are_the_very_same(body: bytes) -> None:
    """What does not contradict itself, or is no JSON at all, is not touched."""
    assert said_once(body) is body


@pytest.mark.parametrize("depth", [100, 300, 480, 600, 900])
def test_a_nested_usage_is_no_fault(depth: int) -> None:
    """However deep it is, it is read or it is not; nothing is raised."""
    nested = b'{"a":' * depth + b"[1]" + b"}" * depth
    said_once(_PLAIN.replace(b'"usage":{', b'"usage":{"usage":%b,' % nested))
    reader = SseReader(StreamReader(ASKED))
    delta = b'data: {"type":"message_delta","usage":{"output_tokens":1,"x":%b}}\n\n' % nested
    reader.feed(delta + delta)
