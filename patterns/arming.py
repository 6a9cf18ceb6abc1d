"""Arming: workers with the tools of a pattern beside their own, where they are such as can be given tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from orchestrator.agent import Agent
from orchestrator.performer import Performer
from orchestrator.tools import Tool


def takes_tools(worker: Performer) -> bool:
    """Whether further tools can be added to its own: to an ``Agent``, or a worker of the Agent SDK; to no program."""
    if isinstance(worker, Agent):
        return True
    return is_dataclass(worker) and any(one.name == "tools" for one in fields(worker))


def with_tools(worker: Performer, tools: Sequence[Tool]) -> Performer:
    """The same worker with these tools, too; as it is if it takes none."""
    if isinstance(worker, Agent):
        return worker.with_tools(tools)
    if not takes_tools(worker):
        return worker
    armed: Any = worker
    made: Performer = replace(armed, tools=[*armed.tools, *tools])
    return made
