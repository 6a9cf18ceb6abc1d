"""Approvals: tools that ask first. A person or a policy says yes or no to a call before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from budgets.errors import Declined

from .errors import OrchestratorError
from .questions import call_async


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call of a tool that needs approval.

    Attributes:
        agent, unit: who wants to call it, and what about.
        tool: its name.
        arguments: what it would be called with, checked; they may hold secrets, so they are not shown when
            the request is printed, and no journal has them.
        scope: the full path of the agent's scope.
        spent: dollars that the agent has spent so far.
        run: id of the run.
    """

    agent: str
    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    scope: str
    spent: Decimal
    unit: str = ""
    run: str = ""


#: True is yes, False is no, a string is a no with its reason (the model is told it).
Verdict = bool | str
Approve = Callable[[ApprovalRequest], Verdict | Awaitable[Verdict]]


async def refusal_of(approve: Approve | None, request: ApprovalRequest) -> str:
    """Ask; empty if the call may be made, else one sentence for the model.

    Args:
        approve: sync (called in a thread) or async; None is nobody, so that the answer is no.
        request: what is asked.

    Raises:
        Declined, OrchestratorError: a policy that makes calls of its own had its money declined, say.
    """
    if approve is None:
        return (
            f"the tool {request.tool} needs approval and nobody can be asked, so it was not called"
        )
    try:
        verdict = await call_async(approve, request)
    except (Declined, OrchestratorError):
        raise
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        # By itself: nobody has cancelled us.
        return f"the approval of {request.tool} was cancelled, so it was not called"
    except Exception as error:  # noqa: BLE001 - the user's callback; no word is no
        return f"the approval of {request.tool} could not be asked for ({type(error).__name__}), so it was not called"
    if verdict is True:
        return ""
    reason = f": {verdict}" if isinstance(verdict, str) and verdict else ""
    return f"the call of {request.tool} was refused{reason}; do not try it again unchanged"
