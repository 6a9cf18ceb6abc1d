"""Foreign logs: JSON lines of calls that somebody else wrote, with the four usage fields, priced by our book.

A line counts if it has a usage: at its top, or under ``usage``, ``message``, ``response`` (its ``body``, too) or
``result``; so transcripts of Claude Code and results of batches can be read as they are. Lines about the same message
count once, as the last of them says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from budgets.errors import BudgetError, UnknownPrice
from budgets.prices import PriceBook
from budgets.pricing import cost
from budgets.records import to_us
from budgets.usage import Usage
from orchestrator.wire import read_usage

from .chronicle import Chronicle, OpenCall, instant, text
from .lines import numbered_lines
from .reconciling import points_of_calls, thin_out
from .records import Story, Tokens, Unpriced
from .telling import POINTS_MAX, add_up, shares

#: Where the message may be inside a line; the first one with a usage counts.
_PLACES = (
    ("message",),
    ("response", "body"),
    ("response",),
    ("result", "message"),
    ("result", "response", "body"),
    ("result",),
    ("body",),
    (),
)
_TOKENS = ("input_tokens", "output_tokens")
_AGENTS = ("agent", "agent_name", "agentName", "agentId", "agent_id")
_SESSIONS = ("session", "session_id", "sessionId", "run", "run_id")
_TIMES = ("timestamp", "time", "at", "ts", "created_at", "created", "date")
_UNITS = ("custom_id", "unit", "task", "item")
#: What Claude Code calls a message that no model wrote.
_NOBODY = "<synthetic>"
_LINES_NAMED = 10


@dataclass(slots=True)
class _Counts:
    """What became of the lines."""

    passed_over: int = 0
    repeated: int = 0
    without_time: int = 0
    unsplit: int = 0


def tell_log(path: Path, *, book: PriceBook) -> Story:
    """The story of a foreign log.

    Args:
        path: a file of JSON lines.
        book: prices. A model that it does not know is listed with its tokens, never counted as $0.

    Raises:
        OSError: the file can't be read.
    """
    chronicle = Chronicle(run=path.name, name=path.name)
    chronicle.root.kind = "log"
    unreadable: list[int] = []
    unpriced: dict[str, Unpriced] = {}
    usages: dict[str, dict[str, Any]] = {}
    counts = _Counts()
    for call, usage in _calls_of(path, chronicle, unreadable, counts):
        if call.began is None:
            counts.without_time += 1
        try:
            # A call without a time is priced as if it were made now.
            call.posted = cost(usage, book, call.began or datetime.now(UTC))
            call.state = "settled"
        except UnknownPrice as error:
            near = ", ".join(error.nearest)
            why = (
                f"no price is known for it{f'; the nearest known names are {near}' if near else ''}"
            )
            _note_unpriced(unpriced, call, why)
        except BudgetError as error:
            _note_unpriced(unpriced, call, str(error))
        chronicle.calls[call.id] = call
        usages[call.id] = _writes_of(usage)
    for call in chronicle.calls.values():
        if call.began is not None:
            chronicle.started = min(chronicle.started or call.began, call.began)
            chronicle.ended = max(chronicle.ended or call.began, call.began)
            call.branch.see(call.began)
    calls, total, cache = add_up(chronicle, book, usages.get)
    points = points_of_calls(chronicle)
    started, ended = chronicle.started, chronicle.ended
    return Story(
        run=path.name,
        name=path.name,
        scope="",
        path=str(path),
        ledger="",
        is_log=True,
        outcome="",
        is_under_way=False,
        started=started,
        ended=ended,
        sum=total,
        caps=(),
        tree=chronicle.root.freeze(is_over=True),
        calls=calls,
        spend=thin_out(points, to_us(started), to_us(ended), POINTS_MAX)
        if points and started and ended
        else (),
        by_agent=shares(calls, lambda call: call.agent),
        by_model=shares(calls, lambda call: call.model),
        cache=cache.use(total.tokens),
        moments=(),
        unpriced=tuple(sorted(unpriced.values(), key=lambda one: (-one.calls, one.model))),
        notes=tuple(_notes(chronicle, unreadable, counts)),
        unreadable=len(unreadable),
    )


def _calls_of(
    path: Path, chronicle: Chronicle, unreadable: list[int], counts: _Counts
) -> Iterator[tuple[OpenCall, Usage]]:
    """One call per message, as its last line says."""
    found: dict[str, tuple[OpenCall, Usage]] = {}
    for number, line in numbered_lines(path, unreadable):
        message = _message_of(line)
        if message is None or message.get("model") == _NOBODY:
            counts.passed_over += 1
            continue
        model = text(message, "model") or text(line, "model")
        usage = read_usage({**message, "model": model or None}, requested=None)
        if usage is None:
            unreadable.append(number)
            continue
        call = _call_of(line, message, usage, number, chronicle)
        counts.repeated += call.id in found
        counts.unsplit += any(part.cache_write_unsplit for part in (usage, *usage.parts))
        found[call.id] = (call, usage)
    unreadable.sort()
    yield from found.values()


def _message_of(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part of a line that has the usage, as a message of the API has it; None if none has."""
    for place in _PLACES:
        inner: Any = line
        for name in place:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping):
            continue
        if isinstance(inner.get("usage"), Mapping):
            return inner
        if any(name in inner for name in _TOKENS):
            return {**inner, "usage": inner}
    return None


def _call_of(
    line: Mapping[str, Any],
    message: Mapping[str, Any],
    usage: Usage,
    number: int,
    chronicle: Chronicle,
) -> OpenCall:
    message_id = text(message, "id") or _first(line, ("message_id", "messageId", "id"))
    request_id = _first(line, ("request_id", "requestId"))
    agent = _first(line, _AGENTS)
    if not agent and "isSidechain" in line:
        agent = "subagent" if line.get("isSidechain") is True else "main"
    session = _first(line, _SESSIONS)
    place = "/".join(part.replace("/", "∕")[:200] for part in (session, agent) if part)
    branch = chronicle.branch(place) if place else chronicle.root
    if agent:
        branch.is_agent()
    at = next((found for name in _TIMES if (found := instant(line.get(name)))), None)
    began = at or instant(message.get("created_at"))
    parts = usage.parts or (usage,)
    return OpenCall(
        id=message_id or request_id or f"line {number}",
        branch=branch,
        agent=agent,
        parent="",
        unit=_first(line, _UNITS),
        model=usage.model,
        state="not priced",
        began=began,
        ended=began,
        bound=0,
        tokens=Tokens(
            sum(part.input_tokens for part in parts),
            sum(
                part.cache_write_5m + part.cache_write_1h + part.cache_write_unsplit
                for part in parts
            ),
            sum(part.cache_read for part in parts),
            sum(part.output_tokens for part in parts),
        ),
        stop_reason=text(message, "stop_reason"),
        request_id=request_id,
    )


def _writes_of(usage: Usage) -> dict[str, Any]:
    """What of a usage decides what caching saved, beside the tokens."""
    parts = usage.parts or (usage,)
    return {
        "cache_write_5m": sum(part.cache_write_5m for part in parts),
        "cache_write_1h": sum(part.cache_write_1h for part in parts),
        "unsplit_ttl": usage.unsplit_ttl,
        "tier": usage.tier,
        "speed": usage.speed,
        "geo": usage.geo,
    }


def _first(line: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := text(line, name))), "")


def _note_unpriced(unpriced: dict[str, Unpriced], call: OpenCall, why: str) -> None:
    before = unpriced.get(call.model)
    unpriced[call.model] = Unpriced(
        model=call.model,
        calls=(before.calls if before else 0) + 1,
        tokens=(before.tokens if before else Tokens()) + call.tokens,
        why=why,
    )


def _notes(chronicle: Chronicle, unreadable: list[int], counts: _Counts) -> Iterator[str]:
    if unreadable:
        which = ", ".join(map(str, unreadable[:_LINES_NAMED]))
        more = ", ..." if len(unreadable) > _LINES_NAMED else ""
        yield (
            f"lines that can't be read and are not counted: {len(unreadable):,} (line {which}{more})"
        )
    if counts.repeated:
        yield (
            f"lines about a message that a later line repeats: {counts.repeated:,}; the last one of each counts"
        )
    if counts.passed_over:
        yield f"lines without a usage (not calls), passed over: {counts.passed_over:,}"
    if counts.without_time:
        yield (
            f"calls without a time: {counts.without_time:,}, priced as of today and in nothing that is drawn over time"
        )
    if counts.unsplit:
        yield (
            f"calls that don't say how long their cache writes live: {counts.unsplit:,}, priced as one-hour writes "
            "(the dearest)"
        )
    if not chronicle.calls:
        yield "no line has a usage: is this a log of calls?"
