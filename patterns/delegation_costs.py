"""Costs of delegation: what a lead, its workers and the report at the end will cost, and what can be afforded now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from budgets.errors import Declined
from budgets.money import format_usd
from orchestrator.agent import Agent
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .closing import Writer, longest_prompt
from .delegation import Staff
from .estimates import steps_of
from .parts import Part, is_performer
from .plan import Step, combined, room_here
from .tasks import TEXT_BYTES, Task, brief, planner

#: A guess: bytes of a report, and of each text of a task.
_LIKELY_REPORT, _LIKELY_TEXT = 2_000, 200


def steps_of_delegation(
    run: Run,
    name: str,
    lead: Agent,
    staff: Staff,
    writer: Writer,
    *,
    whole: str,
    most: int,
    rounds: int,
    size: int,
    cap: object = None,
    step_of: Callable[[Any], Step | None] = lambda _: None,
) -> Step:
    """What one lead and all below it will cost: the lead each round, the dearest worker each time, the report.

    Args:
        run, name, lead, staff, writer, whole, cap: as the pattern has them.
        most, rounds: tasks a round, and rounds.
        size: bytes of reports that are read at once.
        step_of: the step of one task of a worker that is more than an agent; None for an agent or a function.
    """
    asked = planner(lead, names=staff.names, tools=staff.tools, most=most)
    likely = min(most * _LIKELY_REPORT, size)
    long, short = longest_prompt(whole, size), longest_prompt(whole, likely)
    each = [step_of(one) or step_of_task(run, one, whole) for one in staff.workers.values()]
    dearest = max(each, key=lambda step: (step.worst_nanos is None, step.worst_nanos or 0))
    note = f"the dearest of {len(each)} kinds" if len(each) > 1 else dearest.note
    children = (
        _step(run, asked, [long] * rounds, [short] * rounds),
        many(replace(dearest, note=note), most * rounds),
        _step(run, writer, [long], [short]),
    )
    return combined(name, "orchestrate", children, cap=cap)


def step_of_task(run: Run, worker: Any, whole: str) -> Step:
    """What one task of one worker will cost."""
    return _step(run, worker, [_brief(whole, TEXT_BYTES)], [_brief(whole, _LIKELY_TEXT)])


def _brief(whole: str, size: int) -> str:
    text = "x" * size
    return brief(
        Task(id="1.1", title=text, objective=text, output_format=text, boundaries=text), whole
    )


def _step(run: Run, worker: Any, longest: list[str], likely: list[str]) -> Step:
    return replace(
        steps_of(run, worker, longest), likely_nanos=steps_of(run, worker, likely).likely_nanos
    )


def many(step: Step, times: int) -> Step:
    """The same so many times, each time with its own cap."""
    return replace(
        step,
        times=times,
        calls=None if step.calls is None else step.calls * times,
        worst_nanos=None if step.worst_nanos is None else step.worst_nanos * times,
        likely_nanos=None if step.likely_nanos is None else step.likely_nanos * times,
    )


def affordable(
    run: Run, staff: Staff, tasks: Sequence[Task], whole: str, *, first: int
) -> tuple[list[Task], list[Part[Task]]]:
    """Which tasks to start, and the parts of those that will probably not be carried by what is left.

    A worker that is stopped halfway was paid for nothing. Workers of which nothing is known are started.

    Args:
        run, staff, tasks, whole: as for ``work_on``.
        first: index of the first task's part.
    """
    room = room_here(run)
    if room is None or not tasks:
        return list(tasks), []
    needs: dict[int, int] = {}
    left = room
    for number, task in enumerate(tasks):
        worker = staff.of(task)
        if (
            id(worker) not in needs
        ):  # what differs between their briefs is little beside the answers
            needs[id(worker)] = _likely(run, worker, brief(task, whole))
        need = needs[id(worker)]
        if need > left:
            reason = f"not started: it will probably need {format_usd(need)}, and {format_usd(left)} can be spent"
            return list(tasks[:number]), [
                Part(index=index, item=one, outcome=Outcome.BUDGET, reason=reason, name=one.worker)
                for index, one in enumerate(tasks[number:], start=first + number)
            ]
        left -= need
    return list(tasks), []


def _likely(run: Run, worker: Any, prompt: str) -> int:
    """What a task will probably cost, nano-dollars; 0 where nothing is known."""
    if not is_performer(worker):
        return 0
    try:
        return steps_of(run, worker, [prompt]).likely_nanos or 0
    except Declined:
        return 0  # no price, or no bound: its own call is declined, and says so
