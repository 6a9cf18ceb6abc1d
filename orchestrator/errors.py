"""What the orchestrator raises beside the money layer's own errors, as one tree.

OrchestratorError
    Unmetered        a request that can bill and that nothing here can price; nothing was sent
    RunStopped       the run was told to stop; nothing was sent
    OutOfTime        the time limit of the work was as good as over; nothing was sent
    SpendLimit       the provider's own limit is reached: the run ends, it can be resumed
    UnreadableAnswer a successful answer that is no message: it may have been billed
    Finished         raised by a tool: the work of the agent that called it is done
    ConfigError      the caller's mistake in a run, an agent or a tool (also a ValueError)
        RunTaken     a run that was to be gone on with is under way in another process
"""

from __future__ import annotations

from datetime import datetime


class OrchestratorError(Exception):
    """Root of everything raised by ``orchestrator``."""


class Unmetered(OrchestratorError):
    """A request that can bill and that nothing here can price. Nothing was sent."""


class RunStopped(OrchestratorError):
    """The run was told to stop, so nothing new leaves. Nothing was sent."""


class OutOfTime(OrchestratorError):
    """The time limit of the work was as good as over before a call could be made. Nothing was sent."""


class SpendLimit(OrchestratorError):
    """The provider says that the money is out. Nothing was billed; the run can be resumed.

    Attributes:
        reason: which limit: ``enforced_spend_limit_reached``, ``billing``, ``own_limit``, ...
        reopens_at: when it ends, None if that is not known.
    """

    def __init__(
        self, message: str, *, reason: str = "", reopens_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.reopens_at = reopens_at


class UnreadableAnswer(OrchestratorError):
    """An answer came with success and is no message. It may have been billed, so its hold is in doubt."""


class Finished(OrchestratorError):
    """Raised by a tool: the work of the agent that called it is done, and ends as ``ok``."""


class ConfigError(OrchestratorError, ValueError):
    """The caller's mistake; the message says what, where and what to do."""


class RunTaken(ConfigError):
    """A run that was to be gone on with is under way in another process."""
