"""Names in the journal: what a worker's requests are written down as, by worker and subagent and not by ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.attempt import Attempt
from orchestrator.run import Run
from orchestrator.run_listener import RunListener

_ID, _MAIN = "agent-", "main"


class Named(RunListener):
    """The run's listener, for calls that a gateway knows by session and by the ids of subagents only.

    Args:
        run: whose journal is written.
        worker: its name stands for the session, and before those of its subagents (``worker/reader``).
        names: of subagents by their ids; they become known while it runs.
    """

    def __init__(self, run: Run, worker: str, names: Mapping[str, str]) -> None:
        super().__init__(run)
        self._worker = worker
        self._names = names

    def held(self, attempt: Attempt) -> None:
        """Named before anything is written of it."""
        call = attempt.call
        agent, parent = self._named(call.agent), self._named(call.parent)
        outer = call.parent if agent == self._worker else parent
        attempt.call = replace(call, agent=agent, parent=outer)
        super().held(attempt)

    def _named(self, agent: str) -> str:
        if agent == _MAIN:
            return self._worker
        if not agent.startswith(_ID):
            return agent
        return f"{self._worker}/{self._names.get(agent.removeprefix(_ID), 'subagent')}"
