"""An agent: a model with a task, tools and a cap, run as a loop of calls until it ends in one outcome.

How one call is made is the meter's matter; how agents work together, that of ``patterns``.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from anthropic.types import Message
from pydantic import BaseModel

from budgets.errors import Declined
from budgets.money import to_decimal
from budgets.scopes import scope

from .answers import Answers
from .context import Tally, calling_as
from .errors import ConfigError, OrchestratorError
from .failures import outcome_of
from .outcomes import Outcome
from .run import Run
from .tools import Tool, tool

Output = type[BaseModel] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an agent's work ended.

    Attributes:
        outcome: one word of the closed set; only ``ok`` is success.
        reason: one sentence, empty for ``ok``.
        text: the text of the last answer.
        value: the parsed output, if the agent has an ``output``; None unless ``ok``.
        turns: model calls that were answered.
        tally: calls, cost and tokens, nested calls of its tools included.
        messages: the conversation, for going on with it.
    """

    outcome: Outcome
    reason: str
    text: str
    value: Any
    turns: int
    tally: Tally
    messages: tuple[Mapping[str, Any], ...] = ()

    @property
    def cost(self) -> Decimal:
        """Dollars posted."""
        return to_decimal(self.tally.posted_nanos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What an agent is; it keeps no state and may run many times at once.

    Attributes:
        name: part of its scope and of every report.
        model: a model id.
        system: the system prompt: a string, or text blocks (with cache markers, say).
        tools: plain functions (see ``tools.tool``) or ``Tool`` records.
        output: a pydantic model or a JSON schema; the answer must fit it.
        check: takes the parsed output (or the text) and returns what is wrong with it, None if nothing is.
        repairs: corrective tries after an answer that is ``invalid``. They don't grow: the broken answer is
            not pasted back.
        max_turns: model calls at most.
        max_tokens: output tokens of one call at most, thinking included.
        cap: dollars that this agent may spend in a run, ever; None sets none of its own.
        same_calls: so many identical tool calls with identical results end the loop as ``stalled``.
        extra: further request fields (``thinking``, ``output_config``, ``inference_geo``, server tools as
            ``tools``, ...).

    Raises:
        ConfigError, InvalidScope, InvalidAmount: something here can't be used.
    """

    name: str
    model: str
    system: str | Sequence[Mapping[str, Any]] = ""
    tools: Sequence[Callable[..., Any] | Tool] = ()
    output: Output | None = None
    check: Callable[[Any], str | None] | None = None
    repairs: int = 0
    max_turns: int = 10
    max_tokens: int = 4096
    cap: object = None
    same_calls: int = 3
    extra: Mapping[str, Any] = field(default_factory=dict)
    _answers: Answers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_tokens < 1 or self.same_calls < 2 or self.repairs < 0:
            raise ConfigError(
                f"agent {self.name}: max_turns and max_tokens must be 1 or more, same_calls 2 or more, "
                "repairs 0 or more"
            )
        object.__setattr__(self, "tools", tuple(tool(one) for one in self.tools))
        names = Counter(one.name for one in self.tools if isinstance(one, Tool))
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ConfigError(f"agent {self.name}: the tool {twice[0]} is given twice; rename one")
        scope(self.name, self.cap)  # says now, not at the first call, that they can't be used
        object.__setattr__(self, "_answers", Answers(self.output, self.check))

    async def run(
        self,
        run: Run,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> AgentResult:
        """Do the work. Failures are outcomes of the result; nothing is raised but cancellation.

        Args:
            run: whose client, caps and journal are used.
            prompt: the task: text, or content blocks.
            unit: what it is about, for the journal and the ledger's lines.
            keep: what of each answer the ledger should keep; see ``context.CallContext``.
        """
        loop = _Loop(self, run)
        outcome, reason = Outcome.CANCELLED, ""
        with (
            run.tracking(),
            scope(self.name, self.cap),
            calling_as(self.name, unit=unit, keep=keep) as tally,
        ):
            try:
                outcome, reason = await loop.work(prompt)
            except Exception as error:  # noqa: BLE001 - every failure has an outcome
                outcome, reason = outcome_of(error)
                if outcome is Outcome.INFRA and tally.in_doubt_nanos:
                    # An answer that can't be read: it may well have been billed.
                    outcome = Outcome.IN_DOUBT
            finally:
                run.journal.write(
                    "outcome",
                    agent=self.name,
                    unit=unit,
                    outcome=outcome,
                    reason=reason,
                    turns=loop.turns,
                )
        return AgentResult(
            outcome=outcome,
            reason=reason,
            text=loop.text,
            value=loop.value if outcome is Outcome.OK else None,
            turns=loop.turns,
            tally=tally,
            messages=tuple(loop.messages),
        )


class _Loop:
    """One run of an agent."""

    def __init__(self, agent: Agent, run: Run) -> None:
        self.agent = agent
        self.run = run
        self.answers = agent._answers
        self.tools: dict[str, Tool] = {
            one.name: one for one in agent.tools if isinstance(one, Tool)
        }
        self.messages: list[Any] = []
        self.turns = 0
        self.text = ""
        self.value: Any = None
        self._seen: Counter[str] = Counter()

    async def work(self, prompt: str | Sequence[Mapping[str, Any]]) -> tuple[Outcome, str]:
        outcome, reason = await self._converse(prompt)
        for _ in range(self.agent.repairs):
            if outcome is not Outcome.INVALID:
                break
            outcome, reason = await self._converse(_corrected(prompt, reason))
        return outcome, reason

    async def _converse(self, prompt: str | Sequence[Mapping[str, Any]]) -> tuple[Outcome, str]:
        self.messages = [{"role": "user", "content": prompt}]
        self._seen.clear()
        for _ in range(self.agent.max_turns):
            reply = await self._call()
            self.turns += 1
            self.text = "".join(block.text for block in reply.content if block.type == "text")
            self.messages.append(
                {"role": "assistant", "content": [block.to_dict() for block in reply.content]}
            )
            end = self._end_of(reply)
            if end is not None:
                return end
            if reply.stop_reason == "tool_use":
                repeated = await self._use_tools(reply)
                if repeated:
                    return Outcome.STALLED, repeated
        return (
            Outcome.STALLED,
            f"it did not come to an end in {self.agent.max_turns} model calls (max_turns)",
        )

    async def _call(self) -> Message:
        agent = self.agent
        body: dict[str, Any] = {**agent.extra}
        if agent.system:
            body["system"] = agent.system
        if self.tools:
            own = [one.definition for one in self.tools.values()]
            body["tools"] = [*own, *agent.extra.get("tools", ())]
        if self.answers.format is not None:
            body["output_config"] = {**body.get("output_config", {}), "format": self.answers.format}
        # An explicit time limit: the SDK refuses long answers without streaming otherwise.
        timeout = self.run.client.timeout
        message: Message = await self.run.client.messages.create(
            model=agent.model,
            max_tokens=agent.max_tokens,
            messages=self.messages,
            timeout=timeout,
            **body,
        )
        return message

    def _end_of(self, reply: Message) -> tuple[Outcome, str] | None:
        """The end that a reply makes; None if the loop goes on."""
        reason = reply.stop_reason
        if reason in {"tool_use", "pause_turn"}:
            return None
        if reason == "refusal":
            return Outcome.REFUSAL, "the model refused"
        if reason in {"max_tokens", "model_context_window_exceeded"}:
            return (
                Outcome.TRUNCATED,
                f"the answer was cut ({reason}; max_tokens is {self.agent.max_tokens})",
            )
        self.value, problem = self.answers.read(self.text)
        return (Outcome.INVALID, problem) if problem else (Outcome.OK, "")

    # ---- tools ------------------------------------------------------------------------------------

    async def _use_tools(self, reply: Message) -> str:
        """Answer the tool calls of a reply; returns why the loop must end, empty if it goes on."""
        uses = [block for block in reply.content if block.type == "tool_use"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._use(block.name, block.input)) for block in uses]
        results = [task.result() for task in tasks]
        self.messages.append(
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": text,
                        "is_error": failed,
                    }
                    for block, (text, failed, _) in zip(uses, results, strict=True)
                ],
            }
        )
        for _, _, error in results:
            if error is not None:
                raise error
        for block, (text, _, _) in zip(uses, results, strict=True):
            key = json.dumps([block.name, block.input, text], sort_keys=True, default=str)
            self._seen[key] += 1
            if self._seen[key] >= self.agent.same_calls:
                return f"the tool {block.name} was called {self._seen[key]} times alike, with the same result"
        return ""

    async def _use(self, name: str, given: object) -> tuple[str, bool, Exception | None]:
        """Call one tool: text, whether it failed, and an error that must end the loop."""
        found = self.tools.get(name)
        if found is None:
            return f"there is no tool {name}", True, None
        try:
            text, failed = await found.call(given), False
        except (Declined, OrchestratorError) as error:
            # Money is out, or the run is stopped: no model is asked about that.
            return str(error), True, error
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            text, failed = "the tool was cancelled", True  # by itself: nobody cancelled us
        except Exception as error:  # noqa: BLE001 - the model may mend its call
            text, failed = f"{type(error).__name__}: {error}", True
        self.run.journal.write("tool", agent=self.agent.name, tool=name, failed=failed or None)
        return text, failed, None


def _corrected(
    prompt: str | Sequence[Mapping[str, Any]], problem: str
) -> str | list[Mapping[str, Any]]:
    """The task again, with what was wrong; not with the broken answer, so that it doesn't grow."""
    note = (
        f"A first answer to this could not be used: {problem[:300]}. Answer again and avoid that."
    )
    if isinstance(prompt, str):
        return f"{prompt}\n\n{note}"
    return [*prompt, {"type": "text", "text": note}]
