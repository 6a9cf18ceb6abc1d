"""What the tests of patterns with a lead share: plans as the simulated lead is told to make them, and a stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.simulator import Cue

#: What each kind of prompt of a lead has that the others don't (as it stands in JSON).
FIRST, LATER, REPORT = (
    "You lead this work. Divide",
    "You lead this work; round",
    "Write the result of the whole",
)


def task(objective: str, **fields: Any) -> dict[str, Any]:
    """One task of a plan."""
    return {
        "title": objective[:20],
        "objective": objective,
        "output_format": "three lines",
        "boundaries": "nothing else",
        **fields,
    }


def planned(*objectives: str | dict[str, Any], done: bool | None = None) -> str:
    """A directive: answer with this plan."""
    tasks = [task(one) if isinstance(one, str) else one for one in objectives]
    plan: dict[str, Any] = {"tasks": tasks}
    if done is not None:
        plan["done"] = done
    return answer(plan)


def answer(value: object) -> str:
    """A directive: answer with this JSON."""
    return f"[[sim:text={json.dumps(value).replace(']]', '] ]')}]]"


def cues(*pairs: tuple[str, str], times: int = 1) -> tuple[Cue, ...]:
    """Cues by what their requests contain."""
    return tuple(Cue(match=match, say=say, times=times) for match, say in pairs)


def names(count: int) -> Sequence[str]:
    """Objectives."""
    return [f"Find out matter number {number}" for number in range(count)]
