"""Ends: in which outcome an attempt of the Agent SDK ends, read from its result and from its error output.

Never from the transcript: what a model says about errors is not evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orchestrator.answers import ended_by
from orchestrator.outcomes import Outcome
from orchestrator.wire import classify

#: What the program writes before the API's own words.
_LEAD_IN = re.compile(r"^(?:API Error|Failed to authenticate)[^:]*:\s*(?:\d{3}\s+)?")
_BY_SUBTYPE = {
    "error_max_budget_usd": (
        Outcome.BUDGET,
        "the program's own budget is reached (the second fence, above the cap)",
    ),
    "error_max_structured_output_retries": (
        Outcome.INVALID,
        "no answer that fits the schema in as many tries as the program makes",
    ),
}
_ENDS_IT = frozenset({Outcome.REFUSAL, Outcome.TRUNCATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the program's result says.

    Attributes:
        outcome, reason: as for an agent.
        text: the text of its last answer.
        structured: the answer that fits the schema, None if there is none.
        stop_reason: of the last answer.
    """

    outcome: Outcome
    reason: str
    text: str = ""
    structured: Any = None
    stop_reason: str = ""


def ending_of(result: Any, *, max_turns: int, max_tokens: int) -> Ending:
    """What a ``ResultMessage`` means.

    Args:
        result: the message.
        max_turns, max_tokens: what the worker was limited to, for reasons.
    """
    said = str(result.result or "")
    stopped = str(result.stop_reason or "")
    outcome, reason = _meaning(result, said, stopped, max_turns, max_tokens)
    return Ending(
        outcome=outcome,
        reason=reason,
        text=said if outcome is Outcome.OK else "",
        structured=result.structured_output,
        stop_reason=stopped,
    )


def _meaning(
    result: Any, said: str, stopped: str, max_turns: int, max_tokens: int
) -> tuple[Outcome, str]:
    # Not every program says how its last answer stopped; what it does say is read as everywhere.
    by_stop = ended_by(stopped, max_tokens) if stopped else (Outcome.OK, "")
    if by_stop[0] in _ENDS_IT:
        meaning = by_stop
    elif result.subtype == "success" and not result.is_error:
        # The program has gone on with what was not finished (a tool's call); a reason that is not known stays one.
        meaning = by_stop if by_stop[0] is Outcome.INVALID else (Outcome.OK, "")
    elif result.subtype == "error_max_turns":
        reason = f"it did not come to an end in {max_turns} model calls (max_turns)"
        meaning = Outcome.STALLED, reason
    elif result.subtype in _BY_SUBTYPE:
        meaning = _BY_SUBTYPE[result.subtype]
    else:
        meaning = _by_words(result, said, max_tokens)
    return meaning


def _by_words(result: Any, said: str, max_tokens: int) -> tuple[Outcome, str]:
    why = _LEAD_IN.sub("", said).strip() or "; ".join(map(str, result.errors or ()))
    if result.api_error_status is not None:
        return _by_status(int(result.api_error_status), why)
    if "maximum" in why and "output token" in why:
        return Outcome.TRUNCATED, f"the answer was cut (max_tokens is {max_tokens})"
    return Outcome.INFRA, why[:300] or f"the program ended its work ({result.subtype})"


def _by_status(status: int, why: str) -> tuple[Outcome, str]:
    """By the status of the API's answer, or the gateway's, and its own words."""
    kind = classify(status, {"error": {"message": why}}, {})
    return Outcome(kind.word), (why or kind.message or f"HTTP {status}")[:500]
