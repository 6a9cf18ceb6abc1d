"""Tool calls: the calls of one reply answered, with approvals, breakers and an eye on repetition."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from budgets.errors import Declined
from budgets.money import format_usd, to_decimal

from .approvals import ApprovalRequest, Approve, refusal_of
from .breakers import Breaker
from .context import Tally, current_call
from .errors import Finished, OrchestratorError
from .run import Run
from .tools import BadCall, Result, Tool, sendable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What becomes of one call.

    Attributes:
        content: what the model is told.
        why: for the journal: why it failed, empty if it didn't.
        error: ends the loop: no model is asked about it.
        alike: what tells this result from another one.
    """

    content: Result
    why: str = ""
    error: Exception | None = None
    alike: str = ""


class Turn(NamedTuple):
    """The tool calls of one reply, answered.

    Attributes:
        message: their results, for the model.
        repeated: why the loop must end, empty if it goes on.
        error: money is out, or the run is stopped: no model is asked about that.
    """

    message: dict[str, Any]
    repeated: str
    error: Exception | None


class ToolCalls:
    """Answers the tool calls of one conversation.

    Args:
        run: whose journal, breakers and approvals are used.
        tools: that may be called.
        approve: in place of the run's.
        same_calls: so many identical calls with identical results are too many.
        tally: of the agent, for what repetition has cost.
    """

    def __init__(
        self,
        run: Run,
        tools: Sequence[Tool],
        *,
        approve: Approve | None,
        same_calls: int,
        tally: Tally,
    ) -> None:
        self._run = run
        self._tools = {one.name: one for one in tools}
        self._approve = approve or run.approve
        self._most = same_calls
        self._tally = tally
        self._seen: dict[str, tuple[int, int]] = {}

    async def answer(self, uses: Sequence[Mapping[str, Any]]) -> Turn:
        """Make the calls of one reply, its ``tool_use`` blocks, side by side. What they raise is in the results."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._use(use["name"], use.get("input"))) for use in uses]
        answers = [task.result() for task in tasks]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use["id"],
                "content": sendable(answer.content),
                "is_error": bool(answer.why),
            }
            for use, answer in zip(uses, answers, strict=True)
        ]
        repeated = [self._repeated(use, answer) for use, answer in zip(uses, answers, strict=True)]
        return Turn(
            message={"role": "user", "content": results},
            repeated=next(filter(None, repeated), ""),
            error=next((answer.error for answer in answers if answer.error), None),
        )

    def _repeated(self, use: Mapping[str, Any], answer: _Answer) -> str:
        told = answer.alike or answer.content
        key = json.dumps([use["name"], use.get("input"), told], sort_keys=True, default=str)
        count, before = self._seen.get(key, (0, self._tally.posted_nanos))
        self._seen[key] = (count + 1, before)
        if count + 1 < self._most:
            return ""
        cost = self._tally.posted_nanos - before
        spent = f", and {format_usd(cost)} was spent on it since" if cost else ""
        return f"the tool {use['name']} was called {count + 1} times alike, with the same result{spent}"

    async def _use(self, name: str, given: object) -> _Answer:
        begun = time.monotonic()
        answer = await self._called(name, given)
        made_by = current_call()
        self._run.journal.write(
            "tool",
            agent=made_by.agent,
            parent=made_by.parent,
            unit=made_by.unit,
            scope=self._run.here,
            tool=name,
            failed=bool(answer.why) or None,
            why=answer.why,
            seconds=round(time.monotonic() - begun, 3),
        )
        return answer

    async def _called(self, name: str, given: object) -> _Answer:
        found = self._tools.get(name)
        if found is None:
            return _Answer(content=f"there is no tool {name}", why="no such tool")
        try:
            arguments = found.read(given)
        except BadCall as error:
            return _Answer(content=str(error), why="bad arguments")
        breaker = self._run.breakers.of(found.name, found.function)
        if (left_s := breaker.out_s()) > 0:
            told = (
                f"the tool {name} has failed repeatedly and is out for another {left_s:.0f} s; "
                "go on without it, or try again after that"
            )
            return _Answer(content=told, why="out", alike="out")
        try:
            refusal = await self._refusal(found, arguments)
            if refusal:
                return _Answer(content=refusal, why="refused")
            return await self._invoked(found, arguments, breaker)
        except (Declined, OrchestratorError) as error:
            # Money is out, or the run is stopped: no model is asked about that, and the tool is not at fault.
            why = "" if isinstance(error, Finished) else type(error).__name__
            return _Answer(content=str(error), why=why, error=error)
        finally:
            breaker.gave_up()

    async def _invoked(self, found: Tool, arguments: dict[str, Any], breaker: Breaker) -> _Answer:
        try:
            content = await found.invoke(arguments)
        except (Declined, OrchestratorError):
            raise
        except BadCall as error:
            return _Answer(content=str(error) or "the call can't be made like that", why="bad call")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            told, why = "the tool was cancelled", "cancelled"  # by itself: nobody cancelled us
        except Exception as error:  # noqa: BLE001 - the model may mend its call
            told, why = f"{type(error).__name__}: {error}", type(error).__name__
        else:
            breaker.succeeded()
            return _Answer(content=content)
        breaker.failed()
        return _Answer(content=told, why=why)

    async def _refusal(self, found: Tool, arguments: dict[str, Any]) -> str:
        if not found.needs_approval:
            return ""
        made_by, scope = current_call(), self._run.here
        asked = ApprovalRequest(
            agent=made_by.agent,
            unit=made_by.unit,
            tool=found.name,
            arguments=arguments,
            scope=scope,
            spent=to_decimal(self._tally.posted_nanos),
            run=self._run.id,
        )
        refusal = await refusal_of(self._approve, asked)
        self._run.journal.write(
            "approval",
            agent=made_by.agent,
            parent=made_by.parent,
            unit=made_by.unit,
            scope=scope,
            tool=found.name,
            verdict="refused" if refusal else "approved",
        )
        return refusal
