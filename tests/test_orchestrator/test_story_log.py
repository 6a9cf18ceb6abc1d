"""Foreign logs: the four usage fields wherever they stand, priced by our book, and nothing lost in silence."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from budgets.prices import default_book
from budgets.pricing import cost
from budgets.usage import Usage
from orchestrator.story import Story, is_journal, tell_log

MODEL = "claude-haiku-5-5"
AT = "2026-11-20T10:00:00.000Z"
BOOK = default_book()
USAGE = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 3000,
    "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
    "cache_read_input_tokens": 50_000,
    "output_tokens": 700,
}
PRICE = cost(
    Usage(
        model=MODEL,
        input_tokens=100,
        cache_write_5m=1000,
        cache_write_1h=2000,
        cache_read=50_000,
        output_tokens=700,
    ),
    BOOK,
    datetime(2026, 11, 20, 10, tzinfo=UTC),
)


def told(folder: Path, *lines: Any) -> Story:
    path = folder / "calls.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return tell_log(path, book=BOOK)


def message(**more: Any) -> dict[str, Any]:
    return {"id": "msg_1", "model": MODEL, "usage": USAGE, "stop_reason": "end_turn", **more}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"model": MODEL, "timestamp": AT, **USAGE}, id="top"),
        pytest.param({"model": MODEL, "timestamp": AT, "usage": USAGE}, id="usage"),
        pytest.param({"timestamp": AT, "message": message()}, id="message"),
        pytest.param(
            {"timestamp": AT, "model": MODEL, "message": {"usage": USAGE}}, id="model outside"
        ),
        pytest.param({"time": AT, "response": message()}, id="response"),
        pytest.param({"ts": 1_795_168_800, "response": {"body": message()}}, id="body, epoch"),
        pytest.param({"ts": 1_795_168_800_000, "result": {"message": message()}}, id="batch, ms"),
        pytest.param(
            {
                "type": "assistant",
                "sessionId": "s",
                "timestamp": AT,
                "uuid": "u",
                "message": message(),
            },
            id="Claude Code",
        ),
    ],
)
def test_a_usage_is_found_where_loggers_put_it(tmp_path: Path, line: dict[str, Any]) -> None:
    """And costs what the four classes cost on that day, with writes by their lifetime."""
    story = told(tmp_path, line)
    assert story.is_whole
    assert story.sum.posted_nanos == PRICE
    assert story.started == datetime(2026, 11, 20, 10, tzinfo=UTC)
    tokens = story.sum.tokens
    assert (tokens.input, tokens.cache_write, tokens.cache_read, tokens.output) == (
        *(100, 3000, 50_000, 700),
    )


def test_records_of_one_message_count_once_and_the_last_wins(tmp_path: Path) -> None:
    """C-17: streamed duplicates, whose earlier records have counts that are not final."""
    early = message(usage={**USAGE, "output_tokens": 1})
    story = told(
        tmp_path,
        {"timestamp": AT, "uuid": "1", "message": early},
        {"timestamp": AT, "uuid": "2", "message": early},
        {"timestamp": AT, "uuid": "3", "message": message()},
        {"timestamp": AT, "uuid": "4", "message": message(id="msg_2")},
    )
    assert story.sum.calls == 2
    assert story.sum.posted_nanos == 2 * PRICE
    assert any("repeats: 2" in note for note in story.notes)


def test_calls_without_an_id_are_calls_of_their_own(tmp_path: Path) -> None:
    """Two lines that look alike are two calls."""
    line = {"model": MODEL, "timestamp": AT, "usage": USAGE}
    assert told(tmp_path, line, line).sum.posted_nanos == 2 * PRICE


def test_a_model_without_a_price_is_named_and_never_free(tmp_path: Path) -> None:
    """C-03: a typo in a model's id does not cost $0; the nearest known names are in the sentence."""
    story = told(
        tmp_path,
        {"timestamp": AT, "message": message(id="x", model="claude-haiku-55")},
        {"message": message()},
    )
    assert not story.is_whole
    (one,) = story.unpriced
    assert (one.model, one.calls, one.tokens.output) == ("claude-haiku-55", 1, 700)
    assert MODEL in one.why
    assert (story.sum.calls, story.sum.unpriced, story.sum.posted_nanos) == (2, 1, PRICE)


def test_lines_that_cannot_be_read_are_counted_by_number(tmp_path: Path) -> None:
    """Cut lines, counts that can't be true, and things that are no objects; other lines are only passed over."""
    story = told(
        tmp_path,
        {"type": "user", "message": {"role": "user", "content": "hello"}},
        '{"cut',
        {"message": message()},
        {"message": message(id="x", usage={**USAGE, "input_tokens": -1})},
        "[1, 2]",
        "",
        {"message": message(id="y", model="<synthetic>", usage=dict.fromkeys(USAGE, 0))},
    )
    assert story.sum.calls == 1
    assert story.unreadable == 3
    assert any("3 (line 2, 4, 5)" in note for note in story.notes)
    assert any("passed over: 2" in note for note in story.notes)


def test_writes_of_an_unknown_lifetime_are_priced_at_the_dearest_and_said(tmp_path: Path) -> None:
    """Nobody is told that they spent less than they may have."""
    usage = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 1_000_000}
    story = told(tmp_path, {"model": MODEL, "timestamp": AT, "usage": usage})
    at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    dearest = Usage(model=MODEL, input_tokens=1, output_tokens=1, cache_write_1h=1_000_000)
    assert story.sum.posted_nanos == cost(dearest, BOOK, at)
    assert any("one-hour writes" in note for note in story.notes)


def test_agents_and_sessions_make_the_tree(tmp_path: Path) -> None:
    """Under their common names; a sidechain of Claude Code is a subagent."""
    story = told(
        tmp_path,
        {"sessionId": "s1", "isSidechain": False, "message": message(id="1")},
        {"sessionId": "s1", "isSidechain": True, "message": message(id="2")},
        {"session_id": "s2", "agent": "a/b", "message": message(id="3")},
    )
    assert {share.key for share in story.by_agent} == {"main", "subagent", "a/b"}
    assert [child.name for child in story.tree.children] == ["s1", "s2"]
    assert story.tree.outcome == ""
    assert any("without a time: 3" in note for note in story.notes)


def test_what_was_said_is_not_in_the_story(tmp_path: Path) -> None:
    """A transcript holds prompts and answers; a story of it does not."""
    line = {
        "message": message(content=[{"type": "text", "text": "SECRET"}]),
        "toolUseResult": "SECRET",
    }
    story = told(tmp_path, line)
    assert story.sum.calls == 1
    assert "SECRET" not in repr(story)


@pytest.mark.parametrize("text", ["", "\n\n", "not json\n", '{"a": 1}\n', "\x00\xff"])
def test_a_file_that_is_no_log_says_so(tmp_path: Path, text: str) -> None:
    """It is told as a log without calls, not as one that cost nothing."""
    path = tmp_path / "x"
    path.write_text(text, encoding="utf-8")
    story = tell_log(path, book=BOOK)
    assert not is_journal(path)
    assert (story.sum.calls, story.spend) == (0, ())
    assert any("no line has a usage" in note for note in story.notes)
