"""What a run has paid so far, for each document: read from its ledger when it is resumed.

The ledger knows more than the results: an answer is paid before its row is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from budgets.records import Line
from orchestrator.context import TOKENS
from orchestrator.run import Run

from .results import Results
from .row import Row

_TEXT_MAX = 500
_STOP, _FILED = "stopped", "filed"
#: In place of a stop reason: the answer ended well, and was of no use.
UNUSABLE = "unusable"


@dataclass(slots=True, kw_only=True)
class Spent:
    """Calls, nano-dollars and tokens."""

    calls: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))

    @classmethod
    def of(cls, calls: int, posted: int, in_doubt: int, tokens: Mapping[str, Any]) -> Spent:
        """From its parts."""
        spent = cls()
        spent.add(calls, posted, in_doubt, tokens)
        return spent

    def add(
        self, calls: int, posted: int, in_doubt: int, tokens: Mapping[str, Any], sign: int = 1
    ) -> None:
        """Add so much; with ``sign`` -1 take it away."""
        self.calls += sign * calls
        self.posted_nanos += sign * posted
        self.in_doubt_nanos += sign * in_doubt
        for name in TOKENS:
            self.tokens[name] += sign * int(tokens.get(name, 0))

    @classmethod
    def of_row(cls, row: Row) -> Spent:
        """What a row says that its document cost."""
        return cls.of(row.calls, row.posted_nanos, row.in_doubt_nanos, row.tokens)

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> Spent:
        """From what ``to_counts`` made."""
        posted, doubt = counts.get("posted_nanos", 0), counts.get("in_doubt_nanos", 0)
        return cls.of(counts.get("calls", 0), posted, doubt, counts)

    def to_counts(self) -> dict[str, int]:
        """As a part of a row: calls, nano-dollars and tokens by name; what is 0 is left out."""
        money = {"posted_nanos": self.posted_nanos, "in_doubt_nanos": self.in_doubt_nanos}
        counts = {"calls": self.calls, **money, **self.tokens}
        return {name: count for name, count in counts.items() if count}

    def plus(self, other: Spent, sign: int = 1) -> Self:
        """With all of another one; with ``sign`` -1 without it."""
        self.add(other.calls, other.posted_nanos, other.in_doubt_nanos, other.tokens, sign)
        return self


@dataclass(slots=True)
class PaidAnswer:
    """An answer as the ledger kept it.

    Attributes:
        text: its text, of the last answer.
        stop_reason: why there is no text, ``""`` if there is one.
        answers: how many answers there were.
        output_tokens: of the last answer.
    """

    text: str = ""
    stop_reason: str = ""
    answers: int = 0
    output_tokens: int = 0


class Spending:
    """What the ledger has for each identity, and which part of it no row has yet.

    Args:
        run: its scope's lines are read, if it has any.
        results: rows from before; their cost is not to be counted twice.
        agent: whose direct calls are meant. What came through batches, a batch's engine accounts for.
    """

    def __init__(self, run: Run, results: Results, agent: str) -> None:
        self._results = results
        self._answers: dict[str, PaidAnswer] = {}
        self._open: dict[str, Spent] = {}
        balance = run.balance
        if not (len(results) or balance.posted_nanos or balance.in_doubt_nanos):
            return
        for line in run.ledger.lines(run.scope):
            unit = line.note.get("unit")
            if unit and line.kind != "hold" and line.note.get("agent") == agent:
                self._read(str(unit), line)
        for row in results.rows():
            if (spent := self._open.get(row.identity)) is not None:
                spent.plus(Spent.of_row(row), -1)
                spent.plus(Spent.of_counts(row.batch)).plus(Spent.of_counts(row.earlier))

    def _read(self, unit: str, line: Line) -> None:
        is_call = line.kind in {"settle", "void", "doubt"}
        spent = self._open.setdefault(unit, Spent())
        spent.add(int(is_call), line.posted, line.in_doubt, line.usage or {} if is_call else {})
        text = str(line.note.get("kept") or "")
        if text:
            answer = self._answers.setdefault(unit, PaidAnswer())
            answer.answers += 1
            answer.output_tokens = int((line.usage or {}).get("output_tokens", 0))
            stopped = json.loads(text)
            reason = stopped.get(_STOP, "") if isinstance(stopped, dict) else ""
            answer.text, answer.stop_reason = ("", str(reason)) if reason else (text, "")

    def answer(self, identity: str) -> PaidAnswer | None:
        """The answer that was paid for a document, whatever its name; None if its text is lost."""
        answer = self._answers.get(identity)
        if answer is None or answer.stop_reason != _FILED:
            return answer
        text = self._results.filed_answer(identity)
        if text is None:
            return None
        return replace(answer, text=text, stop_reason="")

    def differs(self, identity: str) -> bool:
        """Whether the ledger has another sum for a document than the rows."""
        rest = self._open.get(identity)
        return rest is not None and bool(rest.posted_nanos or rest.in_doubt_nanos)

    def take(self, place: str, identity: str) -> Spent:
        """What earlier tries of a document cost: those in its row, and those that have no row yet."""
        spent = Spent()
        row = self._results.get(place)
        if row is not None:
            spent.plus(Spent.of_row(row))
        rest = self._open.pop(identity, None)
        if rest is not None:
            spent.plus(rest)
        return spent


def kept(
    message: Mapping[str, Any], *, is_json: bool = True, file: Callable[[str], None] | None = None
) -> str | None:
    """What of an answer goes into the line that pays for it: its short JSON text, or why it has none.

    Args:
        message: the answer.
        is_json: it must be JSON to be of any use.
        file: takes a text that is too long for the ledger (or is no JSON) and keeps it elsewhere.
    """
    reason = message.get("stop_reason")
    if reason in {"tool_use", "pause_turn", None}:
        return None
    if reason not in {"end_turn", "stop_sequence"}:
        return json.dumps({_STOP: reason})
    blocks = message.get("content") or []
    text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
    if is_json and not _is_json(text):
        return json.dumps({_STOP: UNUSABLE})
    # What begins like our own word for it must not be taken for that.
    if is_json and len(text) <= _TEXT_MAX and _STOP not in text:
        return text
    if file is None:
        return json.dumps({_STOP: UNUSABLE})
    file(text)
    return json.dumps({_STOP: _FILED})


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
