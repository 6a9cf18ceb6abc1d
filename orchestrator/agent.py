"""An agent: a model with a task, tools and a cap, run as a loop of calls until it ends in one outcome.

How one call is made is the meter's matter; how agents work together, that of ``patterns``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from anthropic import AnthropicError, APIConnectionError
from anthropic.types import Message
from pydantic import BaseModel

from budgets.errors import BudgetError
from budgets.scopes import scope

from .answers import Answers
from .approvals import Approve
from .arguments import check_whole
from .context import Tally, calling_as, carry_figures, current_call
from .errors import ConfigError, OrchestratorError, UnreadableAnswer
from .failures import outcome_of
from .outcomes import Outcome
from .performer import AgentResult, Performer, Prompt
from .prefixes import sharing
from .replies import Reply, reply_of
from .run import Run
from .server_tools import ServerTool
from .sources import Source, sources_of
from .time_limits import within
from .tool_calls import ToolCalls
from .tools import Tool, tool
from .trips import Policy, steps_of
from .trips import on_trip as tripping
from .vouching import vouching
from .wire import Allowances

Output = type[BaseModel] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What an agent is; it keeps no state and may run many times at once.

    Attributes:
        name: part of its scope and of every report.
        model: a model id.
        system: the system prompt: a string, or text blocks (with cache markers, say).
        tools: plain functions (see ``tools.tool``), ``Tool`` records (also those of ``mcp_tools``), and the
            provider's own (``server_tools``).
        output: a pydantic model or a JSON schema; the answer must fit it.
        check: takes the parsed output (or the text) and returns what is wrong with it, None if nothing is.
        repairs: corrective tries after an answer that is ``invalid``. They don't grow: the broken answer is
            not pasted back, and a tool loop starts from the task again.
        max_turns: model calls at most.
        max_tokens: output tokens of one call at most, thinking included.
        cap: dollars that this agent may spend in a run, ever; None sets none of its own.
        same_calls: so many identical tool calls with identical results end the loop as ``stalled``.
        timeout_s: seconds for all of its work; over it the outcome is ``timeout``, and what was on its way is
            in doubt. None is no limit.
        approve: asked before a tool that needs approval is called, in place of the run's.
        on_trip: what to do when a cap declines a call, in place of what is in force around it.
        extra: further request fields (``thinking``, ``output_config``, ``inference_geo``, server tools as
            ``tools``, ...).
        likely_turns, likely_output: for estimates only: calls that one task will probably take, and output
            tokens of each; guessed where they are None.

    Raises:
        ConfigError, InvalidScope, InvalidAmount: something here can't be used.
    """

    name: str
    model: str
    system: str | Sequence[Mapping[str, Any]] = ""
    tools: Sequence[Callable[..., Any] | Tool | ServerTool] = ()
    output: Output | None = None
    check: Callable[[Any], str | None] | None = None
    repairs: int = 0
    max_turns: int = 10
    max_tokens: int = 4096
    cap: object = None
    same_calls: int = 3
    timeout_s: float | None = None
    approve: Approve | None = None
    on_trip: Policy | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    likely_turns: int | None = None
    likely_output: int | None = None
    _answers: Answers = field(init=False, repr=False, compare=False)
    _definitions: list[Mapping[str, Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"agent {self.name}"
        check_whole(where, max_turns=self.max_turns, max_tokens=self.max_tokens)
        check_whole(where, least=2, same_calls=self.same_calls)
        check_whole(where, least=0, repairs=self.repairs)
        limit: object = self.timeout_s
        if limit is not None and not (isinstance(limit, int | float) and limit > 0):
            raise ConfigError(f"agent {self.name}: timeout_s must be more than 0, or None")
        if self.on_trip is not None:
            steps_of(self.on_trip)
        made = [one if isinstance(one, ServerTool) else tool(one) for one in self.tools]
        self._take_tools(made)
        scope(self.name, self.cap)  # says now, not at the first call, that they can't be used
        object.__setattr__(self, "_answers", Answers(self.output, self.check))

    def _take_tools(self, tools: Sequence[Tool | ServerTool]) -> None:
        names = Counter([one.name for one in tools])
        if len(names) < len(tools):
            twice = next(name for name, count in names.items() if count > 1)
            raise ConfigError(f"agent {self.name}: the tool {twice} is given twice; rename one")
        object.__setattr__(self, "tools", tuple(tools))
        object.__setattr__(self, "_definitions", [one.definition for one in tools])

    def with_tools(self, tools: Sequence[Tool]) -> Agent:
        """The same agent with further tools; quicker than making one anew, for patterns that bring their own.

        Raises:
            ConfigError: it has a tool of that name.
        """
        armed = copy(self)
        armed._take_tools([*self.tools, *tools])  # type: ignore[list-item]
        return armed

    @property
    def words(self) -> tuple[Allowances, ...]:
        """What its server tools say about their cost, for pricing its requests (see ``vouching``)."""
        return tuple(one.allow for one in self.tools if isinstance(one, ServerTool))

    def body(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The request for the next turn of a conversation, as it is given to ``messages.create``."""
        body: dict[str, Any] = {**self.extra}
        if self.system:
            body["system"] = self.system
        if self._definitions:
            body["tools"] = [*self._definitions, *self.extra.get("tools", ())]
        if self._answers.format is not None:
            body["output_config"] = {
                **body.get("output_config", {}),
                "format": self._answers.format,
            }
        return {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "messages": messages,
            **body,
        }

    async def run(
        self,
        run: Run,
        prompt: Prompt,
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> AgentResult:
        """Do the work. Failures are outcomes of the result; nothing is raised but cancellation.

        Args:
            run: whose client, caps and journal are used.
            prompt: the task: text, or content blocks.
            unit: what it is about, for the journal and the ledger's lines.
            keep: what of each answer the ledger should keep; see ``context.CallContext``.
            messages: an earlier conversation (``AgentResult.messages``, also another agent's) to go on with.

        Raises:
            CancelledError: with what was spent so far as its ``tally``.
        """
        begun = time.monotonic()
        outcome, reason = Outcome.CANCELLED, ""
        with (
            run.tracking(),
            scope(self.name, self.cap),
            calling_as(self.name, unit=unit, keep=keep) as tally,
            _NOTHING if self.on_trip is None else tripping(self.on_trip),
        ):
            loop = _Loop(self, run, tally, messages)
            loop.note("begin", model=self.model)
            try:
                if self.timeout_s is None:
                    outcome, reason = await loop.work(prompt)
                else:
                    outcome, reason = await self._in_time(loop, prompt, self.timeout_s)
            except Exception as error:  # noqa: BLE001 - every failure has an outcome
                outcome, reason = outcome_of(error)
            except BaseException as error:
                carry_figures(error, f"agent {self.name}", tally)
                raise
            finally:
                seconds = time.monotonic() - begun
                loop.note_end(outcome, reason, seconds)
        return AgentResult(
            outcome=outcome,
            reason=reason,
            text=loop.text,
            value=loop.value if outcome is Outcome.OK else None,
            turns=loop.turns,
            tally=tally,
            messages=tuple(loop.messages),
            model=loop.model,
            stop_reason=loop.stop_reason,
            sources=tuple(loop.sources),
            seconds=seconds,
        )

    async def _in_time(self, loop: _Loop, prompt: Prompt, seconds: float) -> tuple[Outcome, str]:
        """The work, ended when its time is over."""
        limit = asyncio.timeout(seconds)
        try:
            with within(seconds):
                async with limit:
                    return await loop.work(prompt)
        except Exception:
            if not limit.expired():
                raise
            return Outcome.TIMEOUT, f"it took longer than {seconds:g} s (timeout_s)"


#: In place of a context that changes nothing.
_NOTHING: AbstractContextManager[None] = nullcontext()


class _Loop:
    """One run of an agent."""

    def __init__(
        self, agent: Agent, run: Run, tally: Tally, history: Sequence[Mapping[str, Any]]
    ) -> None:
        self.agent = agent
        self.run = run
        self.tally = tally
        self.history = history
        self.answers = agent._answers
        self._calls: ToolCalls | None = None
        self.messages: list[Any] = list(history)
        self.sources: dict[Source, None] = {}
        self.turns = 0
        self.text = ""
        self.value: Any = None
        self.model = ""
        self.stop_reason = ""
        self._container: str | None = None
        self.scope = run.here

    @property
    def calls(self) -> ToolCalls:
        """Who answers its calls of tools; most agents make none."""
        if self._calls is None:
            self._calls = ToolCalls(
                self.run,
                [one for one in self.agent.tools if isinstance(one, Tool)],
                approve=self.agent.approve,
                same_calls=self.agent.same_calls,
                tally=self.tally,
            )
        return self._calls

    def note(self, event: str, **facts: Any) -> None:
        """Write an event of this agent into the journal."""
        made_by = current_call()
        self.run.journal.write(
            event,
            agent=self.agent.name,
            parent=made_by.parent,
            unit=made_by.unit,
            scope=self.scope,
            **facts,
        )

    def note_end(self, outcome: Outcome, reason: str, seconds: float) -> None:
        """Write its outcome, with what it came to."""
        self.note(
            "outcome",
            outcome=outcome.value,
            reason=reason,
            turns=self.turns,
            model=self.model or self.agent.model,
            stop_reason=self.stop_reason,
            calls=self.tally.calls,
            posted_nanos=self.tally.posted_nanos,
            in_doubt_nanos=self.tally.in_doubt_nanos,
            seconds=round(seconds, 3),
            **self.tally.tokens,
        )

    async def work(self, prompt: Prompt) -> tuple[Outcome, str]:
        """The task, and its repairs."""
        outcome, reason = await self._converse(prompt)
        for _ in range(self.agent.repairs):
            if outcome is not Outcome.INVALID:
                break
            outcome, reason = await self._converse(corrected(prompt, reason))
        return outcome, reason

    async def _converse(self, prompt: Prompt) -> tuple[Outcome, str]:
        self.messages = [*self.history, _opening(self.history, prompt)]
        self.sources.clear()
        self._calls = None
        for turn in range(1, self.agent.max_turns + 1):
            reply = await self._call(may_follow=self.agent.max_turns - turn)
            self._take(reply)
            uses = reply.uses
            if reply.stop_reason in _PAUSED:
                continue  # it goes back as it is, for the provider to go on with
            if reply.stop_reason != "tool_use" or not uses:
                outcome, reason, self.value = self.answers.end(
                    reply.stop_reason, self.text, self.agent.max_tokens
                )
                if outcome is Outcome.OK and not self.text and reply.strange:
                    told = ", ".join(reply.strange)[:200]
                    return (
                        Outcome.INVALID,
                        f"nothing in the answer is of a kind known here ({told})",
                    )
                return outcome, reason
            answered = await self.calls.answer(uses)
            self.messages.append(answered.message)
            if answered.error is not None:
                raise answered.error
            if answered.repeated:
                return Outcome.STALLED, answered.repeated
        return (
            Outcome.STALLED,
            f"it did not come to an end in {self.agent.max_turns} model calls (max_turns)",
        )

    def _take(self, reply: Reply) -> None:
        """Keep what a reply says."""
        self.turns += 1
        self.model = reply.model
        self.stop_reason = reply.stop_reason or ""
        self.text = reply.text
        self.messages.append({"role": "assistant", "content": reply.content})
        self.sources.update(dict.fromkeys(sources_of(reply.content)))
        self._container = reply.container or self._container

    async def _call(self, *, may_follow: int) -> Reply:
        """The next turn, after which so many may follow."""
        # An explicit time limit: the SDK refuses long answers without streaming otherwise.
        asked = {**self.agent.body(self.messages), "timeout": self.run.client.timeout}
        if self._container is not None:
            asked.setdefault("container", self._container)
        before = self.tally.posted_nanos, self.tally.in_doubt_nanos
        is_loop = bool(self.agent.tools)
        try:
            with (
                vouching(*words) if (words := self.agent.words) else _NOTHING,
                sharing(turns=may_follow) if is_loop else _NOTHING,
            ):
                if self.run.prefixes.should_stream(asked):
                    return await reply_of(await self._streamed(asked))
                return await reply_of(
                    await self.run.client.messages.with_raw_response.create(**asked)
                )
        except (AnthropicError, BudgetError, OrchestratorError):
            raise
        except UnicodeEncodeError as error:
            raise ConfigError(
                "the request has a lone surrogate, half a character, which can't be sent "
                f"({error.reason}); clean the text first (text.encode(errors='replace').decode())"
            ) from error
        except Exception as error:
            if isinstance(error, ValueError) and "not JSON compliant" in str(error):
                raise ConfigError(
                    "the request has a number that JSON does not know (infinite, or none), which can't be sent"
                ) from error
            if (self.tally.posted_nanos, self.tally.in_doubt_nanos) == before:
                raise
            raise UnreadableAnswer(f"the answer can't be read ({type(error).__name__})") from error

    async def _streamed(self, asked: Mapping[str, Any]) -> Message:
        """The same by a stream: others wait for the begin of the answer, and need not wait for its end."""
        async with self.run.client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
            if message.stop_reason is None:
                raise APIConnectionError(
                    message="the answer ended before it was whole", request=stream.response.request
                )
            return message


#: Stop reasons of a turn that is not finished: it is sent back unchanged.
_PAUSED = frozenset({"pause_turn", "compaction"})


def _opening(history: Sequence[Mapping[str, Any]], prompt: Prompt) -> dict[str, Any]:
    """The user's message that a conversation goes on with. Calls that nobody answered are answered in it."""
    content = history[-1].get("content") if history and history[-1]["role"] == "assistant" else None
    open_calls = [
        {
            "type": "tool_result",
            "tool_use_id": block["id"],
            "content": "it was not called",
            "is_error": True,
        }
        for block in (content if isinstance(content, list) else ())
        if block.get("type") == "tool_use"
    ]
    if not open_calls:
        return {"role": "user", "content": prompt}
    asked = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else prompt
    return {"role": "user", "content": [*open_calls, *asked]}


def corrected(prompt: Prompt, problem: str) -> Prompt:
    """The prompt of a corrective try: with what was wrong; not with the broken answer, so that it doesn't grow."""
    note = (
        f"A first answer to this could not be used: {problem[:300]}. Answer again and avoid that."
    )
    if isinstance(prompt, str):
        return f"{prompt}\n\n{note}"
    return [*prompt, {"type": "text", "text": note}]


__all__ = ["Agent", "AgentResult", "Output", "Performer", "Prompt"]
