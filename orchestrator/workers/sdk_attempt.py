"""One attempt of an Agent SDK worker: its program, its session, and the one outcome that it ends in."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budgets.money import parse_usd, to_decimal
from orchestrator.errors import ConfigError, Finished
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.performer import Prompt
from orchestrator.questions import call_async
from orchestrator.run import Run
from orchestrator.tool_calls import ToolCalls

from .attempt import Attempt, Bounds, Keep
from .cli_costs import CliCost
from .ends import Ending
from .environment import inherited
from .functions import server_of
from .launching import Launch, launch_of
from .reading import OWN_SERVER, Reading
from .report import WorkerResult
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
from .watching import Verdict, Watch

if TYPE_CHECKING:
    from .agent_sdk import AgentSdkWorker

#: Lines of its error output that are kept, and how much of them a reason shows.
_LINES_KEPT, _REASON_CHARS = 40, 500
#: The program's own budget as a multiple of what the worker can spend: a second fence, which must stand above the cap.
_FENCE_TIMES = 2
_PENNY = 10_000_000


class SdkAttempt:
    """One attempt.

    Args:
        worker: what the worker is.
        run: whose caps, gateway and journal are used.
        unit, keep: as for ``AgentSdkWorker.run``.
    """

    def __init__(self, worker: AgentSdkWorker, run: Run, *, unit: str, keep: Keep) -> None:
        self._worker = worker
        self._attempt = Attempt(
            run,
            worker.name,
            cap=worker.cap,
            folder=Path(worker.cwd),
            bounds=Bounds(
                start_s=worker.start_s,
                timeout_s=worker.timeout_s,
                stall_s=worker.stall_s,
                memory_mb=worker.memory_mb,
            ),
            lender=worker.gateway,
            unit=unit,
            keep=keep,
        )
        self._reading = Reading(
            same_calls=worker.same_calls,
            max_turns=worker.max_turns,
            write=self._attempt.write,
            cost=CliCost(),
            names=self._attempt.names,
        )
        self._errors: deque[str] = deque(maxlen=_LINES_KEPT)
        self._by_tool: Verdict | None = None
        self._judged: Judged | None = None
        self._repairs = 0

    async def carry_out(self, prompt: Prompt, resume: str | None) -> WorkerResult:
        """Do the work; see ``AgentSdkWorker.run``."""
        attempt, reading = self._attempt, self._reading

        async def work() -> Verdict:
            return await self._work(prompt, resume)

        outcome, reason = await attempt.carry_out(
            work, begins={"model": self._worker.model, "kind": "agent_sdk"}, ends=self._facts
        )
        judged = self._judged
        # Where it had to stop, what it had said until then is handed back.
        text = (judged.ending.text if judged is not None else "") or reading.text
        return WorkerResult(
            outcome=outcome,
            reason=reason,
            text=text,
            value=judged.value if judged is not None and outcome is Outcome.OK else None,
            turns=reading.turns,
            tally=attempt.tally,
            messages=({"role": "user", "content": prompt}, {"role": "assistant", "content": text}),
            model=reading.model,
            stop_reason="" if judged is None else judged.ending.stop_reason,
            seconds=attempt.seconds,
            report=attempt.report(
                session=reading.session,
                repairs=self._repairs,
                cli_nanos=reading.cost.nanos,
                denied=tuple(reading.denied),
                errors="\n".join(self._errors),
            ),
        )

    def _facts(self) -> dict[str, Any]:
        """For the line that it ends with; the program's own figure beside the gateway's."""
        said, reading = self._reading.cost.nanos, self._reading
        difference = None if said is None else said - self._attempt.tally.posted_nanos
        return {
            "turns": reading.turns,
            "model": reading.model or self._worker.model,
            "session": reading.session,
            "repairs": self._repairs or None,
            "cli_nanos": said,
            "cli_difference_nanos": difference,
            "declined": self._attempt.declined or None,
            "exit_code": self._attempt.exit_code or None,
        }

    # ---- the work ---------------------------------------------------------------------------------

    async def _work(self, prompt: Prompt, resume: str | None) -> Verdict:
        worker, attempt = self._worker, self._attempt
        program = find_cli(worker.name, worker.cli_path)
        place = place_of(worker.name, resume, worker.sessions)
        self._reading.session = place.session
        self._reading.cost = CliCost(place.total_nanos)
        launch = self._launch(program, place)
        watch = attempt.watch(launch, self._must_end)
        session = Session(
            self._options(launch, place, watch),
            self._reading,
            watch,
            limits={"max_turns": worker.max_turns, "max_tokens": worker.max_tokens},
        )
        try:
            owner = await attempt.supervised(
                session.own(prompt, self._judge, worker.repairs), lambda: session.interrupt
            )
        finally:
            self._judged, self._repairs = session.judged, session.repairs
            place.leave(self._reading.cost.total_nanos)
        return self._end(owner)

    def _launch(self, program: Path, place: Place) -> Launch:
        worker, lease = self._worker, self._attempt.lease
        env = program_env(
            place=place,
            base_url=lease.base_url,
            key=lease.key,
            max_tokens=worker.max_tokens,
            given={**root_env(worker.permission_mode), **worker.env},
        )
        return launch_of(
            [str(program)],
            env=env,
            inherit=inherited(worker.pass_env),
            as_file=True,
            memory_mb=worker.memory_mb,
        )

    def _options(self, launch: Launch, place: Place, watch: Watch) -> Any:
        from claude_agent_sdk import ClaudeAgentOptions  # the extra

        worker = self._worker
        own = {one.name: f"mcp__{OWN_SERVER}__{one.name}" for one in worker.functions}
        named = [one for one in worker.tools if isinstance(one, str)]
        box = toolbox(named, own, worker.agents, worker.allow)
        given: dict[str, Any] = {
            "cli_path": launch.command[0],
            "env": dict(launch.env),
            "cwd": str(worker.cwd),
            "model": worker.model,
            "setting_sources": [],  # neither the user's settings nor the folder's, hooks among them
            "strict_mcp_config": True,
            "tools": list(box.base),
            "allowed_tools": list(box.allowed),
            "permission_mode": worker.permission_mode,
            "agents": sdk_agents(worker.agents, own),
            "max_turns": worker.max_turns,
            "max_budget_usd": self._fence(),
            "system_prompt": system_of(worker.system, launch.folder),
            "output_format": worker.format,
            "stderr": self._hear_error(watch),
        }
        if own:
            given["mcp_servers"] = {OWN_SERVER: self._server()}
        given["resume" if place.is_resumed else "session_id"] = place.session
        try:
            return ClaudeAgentOptions(**{**worker.options, **given})
        except TypeError as error:
            raise ConfigError(f"worker {worker.name}: options: {error}") from None

    def _fence(self) -> float | None:
        """Dollars for the program's own budget, which is checked after spending: never below what the cap allows."""
        if self._worker.fence is not None:
            nanos = parse_usd(self._worker.fence, what="fence")
        else:
            room = self._attempt.run.room().unheld
            if room is None:
                return None
            nanos = max(_FENCE_TIMES * room.nanos, _PENNY)
        return float(to_decimal(nanos))

    def _hear_error(self, watch: Watch) -> Any:
        def hear(line: str) -> None:
            watch.heard()
            self._errors.append(line)

        return hear

    # ---- its tools, and its answer ----------------------------------------------------------------

    def _server(self) -> Any:
        worker, attempt = self._worker, self._attempt
        calls = ToolCalls(
            attempt.run,
            worker.functions,
            approve=worker.approve,
            same_calls=worker.same_calls,
            tally=attempt.tally,
        )
        return server_of(worker.functions, calls, self._ended_by_tool)

    def _ended_by_tool(self, why: Exception | str) -> None:
        if self._by_tool is None:
            self._by_tool = (Outcome.STALLED, why) if isinstance(why, str) else outcome_of(why)
            if isinstance(why, Finished):
                self._by_tool = (Outcome.OK, "")

    def _must_end(self) -> Verdict | None:
        if self._by_tool is not None:
            return self._by_tool
        return (Outcome.STALLED, self._reading.repeated) if self._reading.repeated else None

    async def _judge(self, ending: Ending) -> Judged:
        """Look at an answer: its schema, and then the worker's own check."""
        outcome, reason, value = ending.outcome, ending.reason, None
        if outcome is Outcome.OK:
            value, problem = self._worker.read(ending.text, ending.structured)
            try:
                if not problem and self._worker.check is not None:
                    problem = await call_async(self._worker.check, value) or ""
            except Exception as error:  # noqa: BLE001 - the user's callback; it is no answer's fault
                outcome, reason = outcome_of(error)
                reason, value, problem = f"its check failed: {reason}", None, ""
            if problem:
                outcome, reason, value = Outcome.INVALID, str(problem), None
        return Judged(outcome=outcome, reason=reason, value=value, ending=ending)

    def _end(self, owner: asyncio.Task[Any]) -> Verdict:
        """The outcome. A good answer beats whatever the program did afterwards, its exit code included."""
        judged, attempt = self._judged, self._attempt
        if judged is not None and judged.outcome is Outcome.OK:
            return Outcome.OK, ""
        if self._by_tool is not None:
            return self._by_tool
        if attempt.verdict is not None:
            return attempt.verdict
        if attempt.ended_by is not None:
            return attempt.ended_by
        if judged is not None:
            return judged.outcome, judged.reason
        return self._failed(owner)

    def _failed(self, owner: asyncio.Task[Any]) -> Verdict:
        """No answer at all: by its error output, or by what the SDK says of it."""
        if not owner.done() or owner.cancelled():
            return Outcome.INFRA, "its session could not be closed"
        error = owner.exception()
        said = next((line for line in reversed(self._errors) if line.strip()), "")
        code = self._attempt.exit_code
        ended = "" if code is None else f"; exit code {code}"
        why = f"{(said or str(error))[:_REASON_CHARS]}{ended}"
        if not self._attempt.is_started:
            return Outcome.SPAWN_FAILURE, f"it could not be started: {why}"
        return Outcome.INFRA, f"it ended without an answer: {why}"
