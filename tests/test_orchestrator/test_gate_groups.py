"""Which models share a rate limit."""

import pytest

from orchestrator.gate import group_of


@pytest.mark.parametrize(
    ("model", "group"),
    [
        ("claude-opus-4-8", "claude-opus-4"),
        ("claude-opus-4-1-20250805", "claude-opus-4"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-sonnet-4-6", "claude-sonnet-4"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4"),
        ("anthropic/claude-opus-4-8", "claude-opus-4"),
        ("claude-sonnet-4-6[1m]", "claude-sonnet-4"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-opus-5", "claude-opus-5"),
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-opus-5-5-20261001", "claude-opus-5-5"),
        ("Claude-Sonnet-5-5-latest", "claude-sonnet-5-5"),
        ("claude-fable-5-2", "claude-fable-5-2"),
        ("claude-3-5-haiku-20241022", "claude-3-5-haiku"),
        ("something-else", "something-else"),
    ],
)
def test_models_that_share_a_limit_share_a_group(model: str, group: str) -> None:
    """Opus 4.x and Sonnet 4.x are one bucket each; every 5.x model has its own; dates don't matter."""
    assert group_of(model) == group


def test_lanes_are_apart() -> None:
    """Fast mode and token counting have limits of their own on the same model."""
    names = {group_of("claude-opus-5-5", lane) for lane in ("", "fast", "count_tokens")}
    assert names == {"claude-opus-5-5", "claude-opus-5-5 fast", "claude-opus-5-5 count_tokens"}
