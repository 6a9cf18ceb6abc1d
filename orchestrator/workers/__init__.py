"""Workers: programs that do a task under a run as an agent does, each attempt ending in exactly one outcome.

``AgentSdkWorker`` is a Claude Code session, ``ShellWorker`` any other program. Both spend through the gateway of
their run; ``attempt`` is what they share, ``supervisor`` the reason why nothing of them survives.
"""

from .agent_sdk import READING, AgentSdkWorker
from .processes import sweep
from .report import Share, WorkerReport, WorkerResult
from .session_options import Subagent
from .shell import ShellWorker

__all__ = [
    "READING",
    "AgentSdkWorker",
    "Share",
    "ShellWorker",
    "Subagent",
    "WorkerReport",
    "WorkerResult",
    "sweep",
]
