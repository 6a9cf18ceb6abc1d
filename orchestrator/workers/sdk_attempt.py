"""One attempt of an Agent SDK worker: its lease, its program, its session, and the one outcome that it ends in."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budgets.errors import BudgetError
from budgets.money import parse_usd, to_decimal
from budgets.scopes import scope
from orchestrator.answers import Answers
from orchestrator.context import Tally, calling_as
from orchestrator.errors import Finished
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.performer import Prompt
from orchestrator.questions import call_async
from orchestrator.run import Run
from orchestrator.tool_calls import ToolCalls

from .cli_costs import CliCost
from .ends import Ending
from .environment import inherited
from .functions import server_of
from .launching import Launch, launch_of
from .leases import Lease, leased, shares_of
from .notes import Notes, with_figures
from .reading import OWN_SERVER, Reading
from .report import WorkerReport, WorkerResult
from .session import Judged, Session
from .session_options import (
    Place,
    find_cli,
    place_of,
    program_env,
    root_env,
    sdk_agents,
    system_of,
    toolbox,
)
from .stopping import stop, stop_whatever_comes
from .watching import Verdict, Watch, out_of_memory

if TYPE_CHECKING:
    from .agent_sdk import AgentSdkWorker

#: Lines of its error output that are kept.
_LINES_KEPT = 40
#: The program's own budget, as a multiple of what the worker could spend at its start: a second fence, above the cap.
_FENCE_TIMES = 2
_PENNY = 10_000_000


class SdkAttempt:
    """One attempt.

    Args:
        worker: what the worker is.
        run: whose caps, gateway and journal are used.
        unit, keep: as for ``AgentSdkWorker.run``.
    """

    def __init__(
        self,
        worker: AgentSdkWorker,
        run: Run,
        *,
        unit: str,
        keep: Callable[[Mapping[str, Any]], Any] | None,
    ) -> None:
        self.worker = worker
        self.run = run
        self._unit = unit
        self._keep = keep
        self._begun = time.monotonic()
        self._errors: deque[str] = deque(maxlen=_LINES_KEPT)
        self._lease: Lease | None = None
        self._launch: Launch | None = None
        self._watch: Watch | None = None
        self._session: Session | None = None
        self._verdict: Verdict | None = None
        self._by_tool: Verdict | None = None
        self._cost = CliCost()
        self._ended: Mapping[str, Any] = {}
        self._pid = 0

    async def carry_out(self, prompt: Prompt, resume: str | None) -> WorkerResult:
        """Do the work; see ``AgentSdkWorker.run``."""
        worker = self.worker
        outcome, reason = Outcome.CANCELLED, ""
        with (
            self.run.tracking(),
            scope(worker.name, worker.cap),
            calling_as(worker.name, unit=self._unit, keep=self._keep) as tally,
            with_figures(worker.name, tally),
        ):
            notes = Notes(self.run, worker.name)
            self._reading = Reading(
                same_calls=worker.same_calls,
                max_turns=worker.max_turns,
                write=notes.write,
                cost=self._cost,
            )
            notes.write("begin", model=worker.model)
            try:
                outcome, reason = await self._leased(prompt, resume, tally)
            except Exception as error:  # noqa: BLE001 - every failure has an outcome
                outcome, reason = outcome_of(error)
            finally:
                report = self._report(tally)
                notes.end(outcome, reason, report, tally, time.monotonic() - self._begun,
                          turns=self._reading.turns, model=self._reading.model or worker.model)  # fmt: skip
        return self._result(prompt, outcome, reason, tally, report)

    # ---- the work ---------------------------------------------------------------------------------

    async def _leased(
        self, prompt: Prompt, resume: str | None, tally: Tally
    ) -> tuple[Outcome, str]:
        worker = self.worker
        program = find_cli(worker.name, worker.cli_path)
        place = place_of(worker.name, resume, worker.sessions)
        self._cost = self._reading.cost = CliCost(place.total_nanos)
        self._reading.session = place.session
        self.run.check()
        async with leased(self.run, worker.gateway) as self._lease:
            with ExitStack() as stack:
                launch = self._launch = self._prepare(program, place, self._lease)
                stack.callback(launch.close)
                stack.callback(place.remember, self._cost.total_nanos)
                stack.pop_all()  # closed below, once nothing runs in it any more
            try:
                return await self._launched(prompt, launch, place, tally)
            finally:
                place.remember(self._cost.total_nanos)
                launch.close()
