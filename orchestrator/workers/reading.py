"""Reading: what the messages of an Agent SDK session say, kept as figures and events; the unknown is passed over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .cli_costs import CliCost

#: Tools of ours: they write down their calls themselves.
OWN_SERVER = "earmark"
_OWN_TOOLS = f"mcp__{OWN_SERVER}__"
#: What the program calls the model of words of its own, such as an error.
_NO_MODEL = "<synthetic>"
_ENDED_TASKS = frozenset({"completed", "failed", "stopped", "killed"})


@dataclass(slots=True)
class _Use:
    """A call of a tool that has no result yet."""

    tool: str
    given: str
    agent: str
    begun: float


@dataclass(kw_only=True)
class Reading:
    """What a session has said so far.

    Attributes:
        same_calls: so many identical calls with identical results are too many.
        max_turns: model calls of the main loop at most.
        write: takes an event for the journal.
        cost: what the program says that it costs.
        names: subagents by their ids, filled in as they begin.
        turns: model calls of the main loop that were answered.
        repeated: why it must end, empty if it goes on.
        result: the last result message.
        session: id of the session.
        model: that gave the last answer.
        text: of the last answer.
        denied: tools that it was not allowed to use.
        unread: messages that could not be read.
    """

    same_calls: int
    max_turns: int
    write: Callable[..., None]
    cost: CliCost
    names: dict[str, str]
    turns: int = 0
    repeated: str = ""
    result: Any = None
    session: str = ""
    model: str = ""
    text: str = ""
    denied: list[str] = field(default_factory=list)
    unread: int = 0
    _uses: dict[str, _Use] = field(default_factory=dict)
    _seen: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    _answers: set[str] = field(default_factory=set)
    _agents: dict[str, str] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)

    @property
    def is_answered(self) -> bool:
        """There is a result, and no task in the background that would bring another one."""
        return self.result is not None and not self._running

    def begin(self) -> None:
        """A new prompt goes out: its turns and its repetitions count anew."""
        self.result, self.turns, self.text = None, 0, ""
        self._seen.clear()
        self._answers.clear()
        self._running.clear()

    def take(self, message: Any) -> None:
        """The next message, of any kind."""
        known = _KINDS.get(type(message).__name__)
        if known is not None:
            known(self, message)

    def _assistant(self, message: Any) -> None:
        parent = message.parent_tool_use_id
        if message.model == _NO_MODEL:
            return
        if parent is None:
            self.model = message.model or self.model
            self.text = (
                "".join(getattr(block, "text", "") for block in message.content) or self.text
            )
            # One answer comes in several messages, one for each block.
            self._answers.add(message.message_id or message.uuid or str(len(self._answers)))
            self.turns = len(self._answers)
            if self.turns > self.max_turns and not self.repeated:
                # The program has this limit itself; it is not left to it alone.
                self.repeated = (
                    f"it did not come to an end in {self.max_turns} model calls (max_turns)"
                )
        for block in message.content:
            if type(block).__name__ == "ToolUseBlock":
                self._uses[block.id] = _Use(
                    tool=block.name,
                    given=json.dumps(block.input, sort_keys=True, default=str),
                    agent=self._agents.get(parent or "", ""),
                    begun=time.monotonic(),
                )

    def _user(self, message: Any) -> None:
        if isinstance(message.content, str):
            return
        for block in message.content:
            if type(block).__name__ != "ToolResultBlock":
                continue
            use = self._uses.pop(block.tool_use_id, None)
            if use is not None:
                self._used(use, block)

    def _used(self, use: _Use, block: Any) -> None:
        if not use.tool.startswith(_OWN_TOOLS):
            self.write(
                "tool",
                tool=use.tool,
                subagent=use.agent,
                failed=bool(block.is_error) or None,
                seconds=round(time.monotonic() - use.begun, 3),
            )
        told = json.dumps(block.content, sort_keys=True, default=str)
        key = (use.agent, use.tool, use.given, told)
        self._seen[key] = count = self._seen.get(key, 0) + 1
        if count >= self.same_calls and not self.repeated:
            self.repeated = (
                f"the tool {use.tool} was called {count} times alike, with the same result"
            )

    def _task_started(self, message: Any) -> None:
        data = _data(message)
        name = str(data.get("subagent_type") or "subagent")
        self.names[message.task_id] = name
        self._running.add(message.task_id)
        if message.tool_use_id:
            self._agents[message.tool_use_id] = name
        self.write("subagent", subagent=name, id=message.task_id, state="begun")

    def _task_ended(self, message: Any) -> None:
        if message.status not in _ENDED_TASKS:
            return
        if message.task_id in self._running:
            self._running.discard(message.task_id)
            name = self.names.get(message.task_id, "subagent")
            self.write("subagent", subagent=name, id=message.task_id, state=message.status)

    def _system(self, message: Any) -> None:
        data = _data(message)
        self.session = str(data.get("session_id") or self.session)
        if message.subtype == "api_retry":
            self.write(
                "retry",
                reason=str(data.get("error") or data.get("error_status") or ""),
                tries=data.get("attempt"),
                wait_s=round(float(data.get("retry_delay_ms") or 0) / 1000, 3),
            )

    def _result(self, message: Any) -> None:
        self.result = message
        self.session = message.session_id or self.session
        if message.total_cost_usd is not None:
            self.cost.hear(message.total_cost_usd)
        for one in message.permission_denials or ():
            tool = str(one.get("tool_name", "")) if isinstance(one, Mapping) else ""
            if tool:
                self.denied.append(tool)


def _data(message: Any) -> Mapping[str, Any]:
    data = getattr(message, "data", None)
    return data if isinstance(data, Mapping) else {}


_KINDS: Mapping[str, Callable[[Reading, Any], None]] = {
    "AssistantMessage": Reading._assistant,
    "UserMessage": Reading._user,
    "TaskStartedMessage": Reading._task_started,
    "TaskUpdatedMessage": Reading._task_ended,
    "TaskNotificationMessage": Reading._task_ended,
    "SystemMessage": Reading._system,
    "ResultMessage": Reading._result,
}
