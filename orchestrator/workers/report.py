"""What a worker hands back besides its answer: figures of the gateway, the program's own, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.performer import AgentResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one agent below a worker came to, by the gateway's figures.

    Attributes:
        agent: its name: ``main`` for the worker itself, the subagent's type where it is known, else its id.
        path: its place below the worker's scope.
        calls, posted_nanos, in_doubt_nanos: requests, and nano-dollars.
        declined: requests that a cap declined.
        tokens: the four classes that were billed.
    """

    agent: str
    path: str
    calls: int
    declined: int
    posted_nanos: int
    in_doubt_nanos: int
    tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """How a worker's program fared.

    Attributes:
        attempt: id of the attempt.
        session: id to go on with (``run(..., resume=)``); empty where there is none.
        pid: of its supervisor; 0 if it never started.
        exit_code: of the program; 128 and the signal if it was killed, None if it is not known.
        spawn_s: seconds until it was ready.
        peak_mb: the most resident memory of all its processes that was seen, in MiB.
        repairs: corrective rounds.
        shares: spend by agent, the gateway's figures.
        declined: requests that a cap declined.
        posted_nanos: what the gateway's ledger says.
        cli_nanos: what the program says itself, an estimate by its own price list; None if it said nothing.
        denied: tools that it was not allowed to use.
        errors: the end of its error output.
        verified: the end of the verifier's output.
        log: where its output was written.
    """

    attempt: str
    session: str = ""
    pid: int = 0
    exit_code: int | None = None
    spawn_s: float = 0.0
    peak_mb: int = 0
    repairs: int = 0
    shares: tuple[Share, ...] = ()
    declined: int = 0
    posted_nanos: int = 0
    cli_nanos: int | None = None
    denied: tuple[str, ...] = ()
    errors: str = ""
    verified: str = ""
    log: Path | None = None

    @property
    def difference_nanos(self) -> int | None:
        """The program's own figure less the gateway's; None if it said nothing."""
        return None if self.cli_nanos is None else self.cli_nanos - self.posted_nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult(AgentResult):
    """An agent's result, with the report of the worker's program."""

    report: WorkerReport
