"""What a worker hands back besides its answer: figures of the gateway, the program's own, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from budgets.money import to_decimal
from orchestrator.performer import AgentResult


class Figures(Protocol):
    """What the calls of a lease came to, as the gateway counts them."""

    @property
    def calls(self) -> int: ...
    @property
    def declined(self) -> int: ...
    @property
    def posted_nanos(self) -> int: ...
    @property
    def in_doubt_nanos(self) -> int: ...
    @property
    def tokens(self) -> Mapping[str, int]: ...
    @property
    def agents(self) -> Mapping[str, Any]: ...


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

    @property
    def cost(self) -> Decimal:
        """Dollars posted."""
        return to_decimal(self.posted_nanos)


def shares_of(figures: Figures, names: Mapping[str, str]) -> tuple[Share, ...]:
    """Spend by agent.

    Args:
        figures: of the lease.
        names: the names of subagents by their ids.
    """
    shares = []
    for path, one in figures.agents.items():
        last = path.rpartition("/")[2]
        shares.append(
            Share(
                agent=names.get(last.removeprefix("agent-"), last),
                path=path,
                calls=one.calls,
                declined=one.declined,
                posted_nanos=one.posted_nanos,
                in_doubt_nanos=one.in_doubt_nanos,
                tokens=dict(one.tokens),
            )
        )
    return tuple(shares)


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
    def cli_cost(self) -> Decimal | None:
        """What the program says itself, in dollars; None if it said nothing."""
        return None if self.cli_nanos is None else to_decimal(self.cli_nanos)

    @property
    def difference_nanos(self) -> int | None:
        """The program's own figure less the gateway's; None if it said nothing."""
        return None if self.cli_nanos is None else self.cli_nanos - self.posted_nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult(AgentResult):
    """An agent's result, with the report of the worker's program."""

    report: WorkerReport
