"""Delegation: those whom a lead can give tasks to, and the tasks of a round done at once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from budgets.scopes import scope
from orchestrator.agent import Agent
from orchestrator.errors import ConfigError
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.prefixes import sharing
from orchestrator.run import Run

from .crew import work_through
from .node import Node
from .parts import Own, Part, Worker, is_performer, perform
from .prompts import in_two_blocks, shared_beginning
from .tasks import Task, brief

#: What workers may be: one for all tasks, several by name, or a function of the task, which returns an agent
#: for it or does it itself (async).
Workers = Performer | Mapping[str, Worker] | Callable[[Task], Performer | Awaitable[Any]]
#: What is wrong with a part's finding; None if nothing is. May be async.
Check = Callable[[Part[Task]], str | Awaitable[str | None] | None]


class Staff:
    """Those whom a lead can give tasks to.

    Args:
        pattern: for messages.
        workers: see ``Workers``.

    Raises:
        ConfigError: nobody, or something that can't work.
    """

    def __init__(self, pattern: str, workers: Workers) -> None:
        named = dict(workers) if isinstance(workers, Mapping) else {"": workers}
        for name, one in named.items():
            if not is_performer(one) and not callable(one):
                who = f"worker {name!r}" if name else "the worker"
                raise ConfigError(f"{pattern}: {who} can't work; give an agent or a function")
        if not named:
            raise ConfigError(f"{pattern}: there are no workers; give at least one")
        self.workers: dict[str, Any] = named
        self.tools = sorted({tool for one in named.values() for tool in _tools_of(one)})

    @property
    def names(self) -> list[str]:
        """Whom a plan can choose from; empty where there is no choice."""
        return list(self.workers) if len(self.workers) > 1 else []

    def told(self) -> str:
        """Who there is, as the lead reads it."""
        lines = []
        for name, one in self.workers.items():
            tools = ", ".join(_tools_of(one)) or "no tools of its own"
            lines.append(f"- {name or getattr(one, 'name', 'worker')}: {tools}")
        return "\n".join(lines)

    def of(self, task: Task) -> Any:
        """Who does a task."""
        return self.workers[self._name_of(task)]

    def _name_of(self, task: Task) -> str:
        return task.worker if task.worker in self.workers else next(iter(self.workers))

    def sharing(self, tasks: Sequence[Task], shared: str) -> AbstractContextManager[None]:
        """What these tasks have in common for the prompt cache; nothing where a function does one of them."""
        doers = [self.of(task) for task in tasks]
        if not doers or not all(is_performer(one) for one in doers):
            return contextlib.nullcontext()
        return sharing(uses=max(Counter(map(id, doers)).values()), shared=shared)

    async def work(
        self, run: Run, task: Task, prompt: Any, *, index: int, absorbs: Callable[[], bool]
    ) -> Part[Task]:
        """Have the right one do a task; the rest as for ``perform``."""
        worker = self.of(task)
        does = partial(perform, run, index=index, absorbs=absorbs)

        async def itself(_: Task) -> Any:
            return await given

        with scope(f"task-{task.id}", kind="part"):
            if is_performer(worker):
                return await does(_with_tools(worker, task.tools), task, prompt=prompt)
            given: Any = worker(task)
            if is_performer(given):
                return await does(given, task, prompt=prompt)
            if not inspect.isawaitable(given):
                raise ConfigError(
                    f"the worker returned {type(given).__name__} for a task; return an agent, or make it async"
                )
            return await does(itself, task, name=self._name_of(task))


def _tools_of(worker: object) -> list[str]:
    """Names of the tools that an agent has."""
    if not isinstance(worker, Agent):
        return []
    names = [getattr(tool, "name", "") for tool in worker.tools]
    names += [str(tool.get("name", "")) for tool in worker.extra.get("tools", ())]
    return [name for name in names if isinstance(name, str) and name]


def _with_tools(worker: Performer, names: Sequence[str]) -> Performer:
    """The agent with only these of its tools; with all, if none is named or it has none of them."""
    if not isinstance(worker, Agent) or not set(names) & set(_tools_of(worker)):
        return worker
    extra = dict(worker.extra)
    if "tools" in extra:
        extra["tools"] = [tool for tool in extra["tools"] if tool.get("name") in names]
    tools = [tool for tool in worker.tools if getattr(tool, "name", None) in (*names, None)]
    return replace(worker, tools=tools, extra=extra)


# ---- work ---------------------------------------------------------------------------------------------


async def work_on(
    run: Run,
    at: Node,
    staff: Staff,
    tasks: Sequence[Task],
    whole: str,
    *,
    first: int = 0,
    check: Check | None = None,
    on_part: Callable[[Part[Task]], Any] | None = None,
) -> list[Part[Task]]:
    """Have all tasks done at once, and their findings checked.

    Args:
        run, at: whose client and caps are used, and where it is noted.
        staff: who does them.
        tasks, whole: the tasks, and the whole that they are parts of.
        first: index of the first part.
        check: see ``Check``; what it finds wrong makes a part ``invalid``.
        on_part: called with each part as it finishes.

    Returns:
        One part per task, in their order, whatever became of it.
    """
    briefs = [brief(task, whole) for task in tasks]
    shared = shared_beginning(briefs)
    prompts = {
        task.id: in_two_blocks(text, shared) if shared else text
        for task, text in zip(tasks, briefs, strict=True)
    }

    async def one(index: int, task: Task, absorbs: Callable[[], bool]) -> Part[Task]:
        prompt = prompts[task.id]
        done = await staff.work(run, task, prompt, index=first + index, absorbs=absorbs)
        return await _checked(done, check)

    with staff.sharing(tasks, shared):
        return await work_through(
            run, Own(one), tasks, on_part=at.hears(on_part), width=max(len(tasks), 1)
        )


async def _checked(part: Part[Task], check: Check | None) -> Part[Task]:
    if check is None or not part.ok:
        return part
    try:
        found = check(part)
        problem = await found if inspect.isawaitable(found) else found
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - a check that fails has not found it good
        outcome, reason = outcome_of(error)
        return replace(part, outcome=outcome, reason=f"its check failed: {reason}", value=None)
    if not problem:
        return part
    return replace(part, outcome=Outcome.INVALID, reason=f"its check says: {problem}", value=None)
