"""Directives: how a test steers the simulated model, from the prompt or from a header.

A directive stands in the latest user text (tool results don't count as text) as ``[[sim:KEY]]`` or
``[[sim:KEY=VALUE]]``, or in the header ``x-sim`` as the same thing. Several may stand side by side.

=====================  ============================================================================
``output=N``           the answer counts N output tokens (the text is as long, up to a point)
``thinking=N``         N further output tokens of thinking, before the answer
``text=...``           answer exactly this text (also in place of a JSON document)
``refuse``             refuse before any output: reported in usage, not billed
``refuse=N``           refuse after N output tokens: billed
``stop=REASON``        end with this stop reason (``pause_turn``, say)
``tool=NAME {json}``   call this tool, with this input or one that fits its schema; may be repeated
``turns=N``            go on calling a tool (the first one, or ``tool=``) for N turns
``searches=N``         do N web searches (at most the tool's ``max_uses``)
``search_tokens=N``    input tokens that each web search adds; 500 if not said
``compaction=IN,OUT``  a compaction pass, listed in ``usage.iterations`` and not at the top level
``advisor=MODEL,I,O``  an advisor's turn with I input and O output tokens, likewise
``delay=MS``           wait before the first byte
``pace=N``             stream N tokens per second
``fault=KIND``         suffer this fault (see ``faults``), each time it is sent
``batch=WAY``          as an item of a batch: end as ``expired``, ``errored``, ``overloaded``, ``invalid`` or
                       ``billing``; be left out of the results (``missing``), or of usage (``no_usage``),
                       or be charged as a direct call (``standard``); ``WAY,N`` only the first N times
=====================  ============================================================================
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from .api_errors import ApiError

_OPEN = "[[sim:"
_KEY = re.compile(r"([a-z_]+)(=)?")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What the request asked the simulator to do; the module's table says what each one means."""

    output: int | None = None
    thinking: int = 0
    text: str | None = None
    refuse: int | None = None
    stop: str | None = None
    tools: tuple[tuple[str, dict[str, Any] | None], ...] = ()
    turns: int = 0
    searches: int = 0
    search_tokens: int = 500
    compaction: tuple[int, int] | None = None
    advisor: tuple[str, int, int] | None = None
    delay_ms: int = 0
    pace: int | None = None
    fault: str | None = None
    batch: str | None = None


NONE = Directives()


def read_directives(*texts: str) -> Directives:
    """The directives in these texts.

    Raises:
        ApiError: 400 for a directive that isn't in the table or has a bad value.
    """
    found = NONE
    for text in texts:
        at = text.find(_OPEN)
        while at >= 0:
            found, at = _read_one(found, text, at)
            at = text.find(_OPEN, at)
    return found


def strip_directives(text: str) -> str:
    """The text without its directives, so that summaries of it read well."""
    at = text.find(_OPEN)
    kept = []
    start = 0
    while at >= 0:
        kept.append(text[start:at])
        _, start = _read_one(NONE, text, at)
        at = text.find(_OPEN, start)
    return "".join([*kept, text[start:]]).strip() if kept else text


def _read_one(found: Directives, text: str, at: int) -> tuple[Directives, int]:
    key_match = _KEY.match(text, at + len(_OPEN))
    if key_match is None:
        raise ApiError(400, f"simulator: {text[at : at + 40]!r} is not a directive")
    key, start = key_match[1], key_match.end()
    if key == "tool" and key_match[2]:
        call, end = _read_tool(text, start)
        return replace(found, tools=(*found.tools, call)), _closed(text, end)
    end = text.find("]]", start)
    if end < 0:
        raise ApiError(
            400, f"simulator: the directive {text[at : at + 40]!r} lacks its closing ']]'"
        )
    value = text[start:end] if key_match[2] else None
    try:
        return _apply(found, key, value), end + 2
    except ValueError:
        raise ApiError(
            400, f"simulator: bad value in the directive {text[at : end + 2]!r}"
        ) from None


def _read_tool(text: str, start: int) -> tuple[tuple[str, dict[str, Any] | None], int]:
    name_match = re.compile(r"[\w.-]+").match(text, start)
    if name_match is None:
        raise ApiError(400, "simulator: the directive tool= lacks a name")
    end = name_match.end()
    while text[end : end + 1].isspace():
        end += 1
    if text[end : end + 1] != "{":
        return (name_match[0], None), end
    try:
        value, end = _DECODER.raw_decode(text, end)
    except ValueError:
        raise ApiError(400, f"simulator: the input of tool={name_match[0]} is not JSON") from None
    return (name_match[0], value), end


def _closed(text: str, end: int) -> int:
    if text[end : end + 2] != "]]":
        raise ApiError(400, "simulator: a directive tool= lacks its closing ']]'")
    return end + 2


_NUMBERS = {
    "output": "output",
    "thinking": "thinking",
    "turns": "turns",
    "searches": "searches",
    "search_tokens": "search_tokens",
    "delay": "delay_ms",
    "pace": "pace",
}
_WORDS = ("text", "stop", "fault", "batch")


def _apply(found: Directives, key: str, value: str | None) -> Directives:
    if key == "refuse":
        return replace(found, refuse=int(value or 0))
    if value is None:
        raise ValueError(key)
    if key in _NUMBERS:
        number = int(value)
        if number < 0:
            raise ValueError(value)
        return replace(found, **{_NUMBERS[key]: number})  # type: ignore[arg-type]
    if key in _WORDS:
        return replace(found, **{key: value})  # type: ignore[arg-type]
    if key == "compaction":
        first, second = (int(part) for part in value.split(","))
        return replace(found, compaction=(first, second))
    if key == "advisor":
        model, first_text, second_text = value.split(",")
        return replace(found, advisor=(model.strip(), int(first_text), int(second_text)))
    raise ApiError(
        400, f"simulator: there is no directive {key!r}; see orchestrator.simulator.directives"
    )
