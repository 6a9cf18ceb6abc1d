"""What response headers say about limits."""

from email.utils import formatdate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.gate.headers import read_headers

WALL_S = 1_800_000_000.0


def test_limits_and_remainders_are_read_whatever_the_case() -> None:
    """Each of the three kinds gives its limit and what is left."""
    said = read_headers(
        {
            "Anthropic-RateLimit-Requests-Limit": "1000",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-input-tokens-limit": "2000000",
            "anthropic-ratelimit-output-tokens-remaining": "399000",
            "anthropic-ratelimit-tokens-limit": "400000",
        },
        wall_s=WALL_S,
    )
    assert said.limits == {"requests": 1000, "input_tokens": 2_000_000}
    assert said.remaining == {"requests": 0, "output_tokens": 399_000}
    assert said.retry_after_s is None


def test_the_fast_lane_reads_its_own_token_limits() -> None:
    """Fast mode has token limits of its own and shares the names of the requests."""
    headers = {
        "anthropic-fast-input-tokens-limit": "7000",
        "anthropic-ratelimit-input-tokens-limit": "9000",
        "anthropic-ratelimit-requests-limit": "50",
    }
    said = read_headers(headers, wall_s=WALL_S, lane="fast")
    assert said.limits == {"input_tokens": 7000, "requests": 50}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": formatdate(WALL_S + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(WALL_S - 90, usegmt=True)}, 0.0),
        ({"retry-after": "14400"}, 14_400.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_in_every_spelling(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds or a date give the wait from now; nonsense gives none, hours are kept."""
    assert read_headers(headers, wall_s=WALL_S).retry_after_s == seconds


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "retry-after",
                "retry-after-ms",
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-input-tokens-remaining",
            ]
        ),
        st.text(st.characters(max_codepoint=0x3FF), max_size=30)
        | st.sampled_from(["0", "-5", "1e400", "Mon, 99 Foo", "9" * 40]),
    )
)
def test_no_header_raises_or_sets_a_limit_of_nothing(headers: dict[str, str]) -> None:
    """Whatever a server sends is read or ignored, and a limit of zero is never believed."""
    said = read_headers(headers, wall_s=WALL_S)
    assert all(limit >= 1 for limit in said.limits.values())
    assert all(left >= 0 for left in said.remaining.values())
    assert said.retry_after_s is None or said.retry_after_s >= 0
