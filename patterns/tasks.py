"""Tasks: what a lead gives out, asked for in structured form, checked before anybody starts, and told to workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from orchestrator.agent import Agent

from .parts import Part

#: Bytes of each text of a task at most, as JSON.
TEXT_BYTES = 4_000
_TEXTS = ("title", "objective", "output_format", "boundaries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one worker is to do.

    Attributes:
        id: round and number, ``1.2``.
        title: in a few words.
        objective: what to find out or to make.
        output_format: what its report must look like.
        boundaries: what is not its matter, and when to stop.
        tools: names of the tools to be used; empty for all that the worker has.
        worker: who does it, by name; empty where there is only one kind.
        instead_of: id of the failed task of an earlier round that this one does again; empty if it does none.
    """

    id: str
    title: str
    objective: str
    output_format: str = ""
    boundaries: str = ""
    tools: tuple[str, ...] = ()
    worker: str = ""
    instead_of: str = ""


def missing_of(parts: Sequence[Part[Any]]) -> list[Part[Any]]:
    """The parts that failed and that nothing made good later: no task with the same objective, or ``instead_of`` it."""
    missing: list[Part[Any]] = []
    made_good: set[str] = set()
    for part in reversed(parts):
        task = part.item if isinstance(part.item, Task) else None
        names = {task.id, _same(task.objective)} if task else set()
        if part.ok or names & made_good:
            made_good |= names | ({task.instead_of} if task else set())
        else:
            missing.append(part)
    return missing[::-1]


def planner(
    lead: Agent,
    *,
    names: Sequence[str],
    tools: Sequence[str],
    most: int,
    taken: Sequence[Task] = (),
    failed: Sequence[Task] = (),
) -> Agent:
    """The lead, asked for tasks: its answer is an object with ``tasks``, and ``done`` once there are reports.

    A plan that can't be used is sent back once, with the reason.

    Args:
        lead: as the user made it.
        names: of the workers that it can choose from; empty where there is no choice.
        tools: names of all tools that workers have.
        most: tasks at most.
        taken: tasks of earlier rounds; with any, the lead may also end.
        failed: those of them that may be given out again.
    """
    again = tuple(task.id for task in failed)
    others = [task for task in taken if task.id not in again]

    def check(given: Any) -> str | None:
        return _fault(given, most=most, others=others, is_first=not taken)

    return replace(
        lead,
        output=_plan_model(tuple(names), tuple(tools), again, may_end=bool(taken)),
        check=check,
        repairs=max(lead.repairs, 1),
    )


@lru_cache(maxsize=64)
def _plan_model(
    names: tuple[str, ...], tools: tuple[str, ...], again: tuple[str, ...], *, may_end: bool
) -> type[BaseModel]:
    """The form of a plan; making one takes longer than a small call."""
    fields: dict[str, Any] = {
        "title": (str, Field(description="In a few words.")),
        "objective": (
            str,
            Field(description="What to find out or to make; no other task's matter."),
        ),
        "output_format": (str, Field(description="What the worker's report must look like.")),
        "boundaries": (str, Field(description="What to leave out, and when to stop.")),
    }
    if tools:
        told = "Tools to be used; empty for all that the worker has."
        fields["tools"] = (list[_one_of(tools)], Field(description=told))  # type: ignore[misc]
    if names:
        fields["worker"] = (_one_of(names), Field(description="Who does it."))
    if again:
        told = "The failed task that this one does again; empty if it does none."
        fields["instead_of"] = (_one_of(("", *again)), Field(default="", description=told))
    one: type[BaseModel] = create_model("PlannedTask", **fields)
    plan: dict[str, Any] = {"tasks": (list[one], Field(description="Empty if nothing is missing."))}  # type: ignore[valid-type]
    if may_end:
        plan["done"] = (bool, Field(description="Whether the reports are enough to end with."))
    return create_model("LeadPlan", **plan)


def _one_of(names: Sequence[str]) -> Any:
    return Literal[tuple(names)]


def _fault(plan: Any, *, most: int, others: Sequence[Task], is_first: bool) -> str | None:
    """Why a plan can't be used; None if it can."""
    if getattr(plan, "done", False):
        return None
    if not plan.tasks and is_first:
        return "the plan has no tasks"
    if len(plan.tasks) > most:
        return f"the plan has {len(plan.tasks)} tasks; {most} is the most"
    seen = {_same(task.objective): f"task {task.id} of an earlier round" for task in others}
    for number, task in enumerate(plan.tasks, start=1):
        problem = _fault_of_task(task, seen)
        if problem:
            return f"task {number} {problem}"
        seen[_same(task.objective)] = f"task {number}"
    return None


def _fault_of_task(task: Any, seen: Mapping[str, str]) -> str:
    if not task.objective.strip():
        return "has no objective"
    before = seen.get(_same(task.objective))
    if before is not None:
        return f"has the objective of {before}; tasks must not overlap"
    long = [name for name in _TEXTS if len(json.dumps(getattr(task, name))) > TEXT_BYTES]
    return f"is too long: its {long[0]} has more than {TEXT_BYTES:,} bytes" if long else ""


def _same(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def tasks_of(plan: Any, round_number: int) -> list[Task]:
    """The tasks of a plan that was checked; none if the lead is done."""
    if getattr(plan, "done", False):
        return []
    return [
        Task(
            id=f"{round_number}.{number}",
            title=task.title,
            objective=task.objective,
            output_format=task.output_format,
            boundaries=task.boundaries,
            tools=tuple(dict.fromkeys(getattr(task, "tools", ()))),
            worker=getattr(task, "worker", ""),
            instead_of=getattr(task, "instead_of", ""),
        )
        for number, task in enumerate(plan.tasks, start=1)
    ]


def brief(task: Task, whole: str) -> str:
    """A task as its worker reads it. What all briefs share comes first, so that it can be cached."""
    lines = [
        f"<whole>\n{whole}\n</whole>",
        "Others work on the rest of this at the same time. Do only your own task:",
        f"<task>\nTitle: {task.title}\nObjective: {task.objective}",
        f"Format of your report: {task.output_format or 'free'}",
        f"Boundaries: {task.boundaries or 'none beyond the objective'}\n</task>",
        "Your report is all that is read of your work. Name the source of each finding.",
    ]
    return "\n".join(lines)
