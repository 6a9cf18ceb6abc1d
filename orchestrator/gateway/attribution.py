"""Attribution: which session, agent and parent agent a request says it is of, as a place below its lease.

What Claude Code sends by itself: ``x-claude-code-session-id`` with every request,
``x-claude-code-agent-id`` with those of subagents, and from the second level on
``x-claude-code-parent-agent-id``. It only says where spend is shown: the lease's caps hold whatever a
client says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 64
#: Agents below agents; Claude Code nests three deep.
_DEEPEST = 8
MAIN = "main"
REST = "further"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request.

    Attributes:
        path: the place below the lease's scope; ``""`` for the lease itself.
        agent: its name, ``""`` if the client names none.
        parent: the agent around it.
        is_subagent: another agent waits for what it says.
    """

    path: str
    agent: str
    parent: str
    is_subagent: bool


NOBODY = Caller(path="", agent="", parent="", is_subagent=False)


class Family:
    """The sessions and agents of one lease that were seen so far.

    Args:
        most: so many places are told apart; what comes later is counted together, under one name.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        #: The agents above each agent of a session, outermost first, itself included.
        self._lines: dict[tuple[str, str], tuple[str, ...]] = {}
        self._callers: dict[tuple[str, str], Caller] = {}

    def place(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Caller:
        """Who makes a request with these headers (names in any case) and this body."""
        session = _clean(headers.get("x-claude-code-session-id") or _session_in(body))
        agent = _clean(headers.get("x-claude-code-agent-id"))
        if not session and not agent:
            return NOBODY
        known = self._callers.get((session, agent))
        if known is not None:
            return known
        if len(self._callers) >= self._most:
            return Caller(path=REST, agent=REST, parent="", is_subagent=bool(agent))
        parent = _clean(headers.get("x-claude-code-parent-agent-id"))
        above = self._lines.get((session, parent), (parent,)) if parent else ()
        line = (*above[-(_DEEPEST - 1) :], agent) if agent else ()
        if agent:
            self._lines[session, agent] = line
        names = [f"agent-{one}" for one in line] or [MAIN]
        top = [f"session-{session}"] if session else []
        caller = Caller(
            path="/".join((*top, *names)),
            agent=names[-1],
            parent=names[-2] if len(names) > 1 else MAIN if agent else "",
            is_subagent=bool(agent),
        )
        self._callers[session, agent] = caller
        return caller


def _clean(said: object) -> str:
    """An id as part of a path: whatever a client sends, it names no other place."""
    return _ODD.sub("-", said)[:_LONGEST].strip("-") if isinstance(said, str) else ""


def _session_in(body: Mapping[str, Any]) -> object:
    """Claude Code says its session in ``metadata.user_id``, too, as JSON."""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or not user.startswith("{"):
        return None
    try:
        said = json.loads(user)
    except (ValueError, RecursionError):
        return None
    return said.get("session_id") if isinstance(said, dict) else None
