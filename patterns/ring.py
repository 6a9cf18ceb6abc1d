"""The ring: agents who may pass control to one another, the tool by which they do, and what they said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from orchestrator.errors import ConfigError, Finished
from orchestrator.performer import Performer
from orchestrator.tools import BadCall, Tool

from .arming import with_tools
from .parts import name_of
from .prompts import as_text

#: Characters of a brief at most; a longer one is sent back to be shortened.
BRIEF_CHARS = 8_000


@dataclass(slots=True)
class Baton:
    """Where control goes; empty while whoever has it keeps it."""

    to: str = ""
    brief: str = ""


class Ring:
    """The agents, and who may hand over to whom."""

    def __init__(
        self,
        agents: Sequence[Performer],
        peers: Mapping[str, Sequence[str]] | None,
        about: Mapping[str, str],
    ) -> None:
        self._agents = {name_of("handoff", one): one for one in agents}
        if not agents or len(self._agents) < len(agents):
            raise ConfigError("handoff: give at least one agent, each with a name of its own")
        everybody = {one: [other for other in self._agents if other != one] for one in self._agents}
        self._peers = everybody if peers is None else {one: list(peers[one]) for one in peers}
        self._about = about
        for one in (*self._peers, *(to for known in self._peers.values() for to in known), *about):
            if one not in self._agents:
                raise ConfigError(f"handoff: {one!r} is no agent's name; known: {self._known}")

    @property
    def _known(self) -> str:
        return ", ".join(self._agents)

    def first(self, start: str) -> Performer:
        if start and start not in self._agents:
            raise ConfigError(f"handoff: start is {start!r}, no agent's name; known: {self._known}")
        return self[start or next(iter(self._agents))]

    def __getitem__(self, name: str) -> Performer:
        return self._agents[name]

    def armed(self, agent: Performer, baton: Baton) -> Performer:
        """The agent with the tool that hands over; as it is if it takes no tools, or has nobody to hand over to."""
        peers = self._peers.get(agent.name, ())
        return with_tools(agent, [self._tool(peers, baton)]) if peers else agent

    def _tool(self, peers: Sequence[str], baton: Baton) -> Tool:
        async def hand_over(to: Any = "", brief: Any = "") -> str:
            if baton.to:
                raise BadCall(f"control went to {baton.to} already")
            if to not in peers:
                raise BadCall(f"to must be one of {', '.join(peers)}")
            if not isinstance(brief, str) or not 0 < len(brief.strip()) <= BRIEF_CHARS:
                raise BadCall(f"the brief must have 1 to {BRIEF_CHARS} characters")
            baton.to, baton.brief = to, brief
            raise Finished(f"control is with {to} now")

        lines = [f"- {peer}: {self._about.get(peer, 'no description')}" for peer in peers]
        description = (
            "Pass control to another agent, for good: your own work ends. It knows the task and reads the brief and "
            "nothing else: write what was found, done and promised, and what is to be done.\n"
            + "\n".join(lines)
        )
        schema = {
            "type": "object",
            "properties": {
                "to": {"type": "string", "enum": list(peers)},
                "brief": {"type": "string"},
            },
            "required": ["to", "brief"],
            "additionalProperties": False,
        }
        # Not made from the signature: the names of the peers are known only now, each time anew.
        return Tool(
            name="hand_over",
            description=description,
            schema=schema,
            function=hand_over,
            arguments=None,
        )


def transcript(name: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """What was said in a conversation after its first message, as text that any model can be given."""
    lines = []
    for message in messages[1:]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            kind = block.get("type")
            if kind == "text":
                lines.append(f"{name}: {block.get('text', '')}")
            elif kind == "tool_use" and block.get("name") != "hand_over":
                given = to_json(block.get("input"), fallback=str).decode()
                lines.append(f"{name} called {block.get('name')}({given})")
            elif kind == "tool_result":
                lines.append(f"result: {as_text(block.get('content') or '')}")
    return "\n".join(lines)
