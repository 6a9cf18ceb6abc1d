"""Orchestrator and workers: a lead plans at run time, workers do the tasks at once, a report ends it.

When: what has to be done shows only when somebody has looked at the task (research). When not: the parts are
known beforehand (fan_out), or they follow on one another (pipeline). It costs one call of the lead a round, at
most ``workers_max`` workers a round, and the report at the end, whose money is set aside first: a run that hits
its cap still hands back what it has.

    done = await orchestrate(run, lead, researcher, "Which heat pump for a house of 1930?", cap="2")
    done.value    # the report
    done.sources  # numbered, with who found each
    done.plans    # the tasks of each round
    done.partial  # whether something is missing in it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from budgets.errors import Declined
from orchestrator.agent import Agent
from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError, RunStopped, SpendLimit
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.run import Run
from orchestrator.trips import Policy, policy_here

from .closing import REPORT_BYTES, Closing, Writer, default_writer, told
from .delegation import Check, Staff, Workers, work_on
from .delegation_costs import affordable, steps_of_delegation
from .node import Node, check_run, node
from .parts import Part, perform
from .plan import plan_for
from .prompts import as_text
from .references import Reference, References
from .result import Result, outcome_of_parts
from .tasks import Task, missing_of, planner, tasks_of

#: Ends of parts that are told even where the lead was content: there is more where the money is.
_MONEY = frozenset({Outcome.BUDGET, Outcome.SPEND_LIMIT})
_AGAIN = " A task that does a failed one again names it (instead_of)."


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestrateResult(Result[Task]):
    """What came of it. ``value`` is the report; the parts are the tasks of all rounds.

    Attributes:
        plans: the tasks that the lead gave out, for each round.
        sources: each source once, by the number that the report cites, with who found it.
        partial: whether something is missing: a part failed and no later one made it good, or money or time
            ended it early.
    """

    plans: tuple[tuple[Task, ...], ...] = ()
    sources: tuple[Reference, ...] = ()
    partial: bool = False

    @property
    def rounds(self) -> int:
        """Rounds that were worked."""
        return len(self.plans)


async def orchestrate(
    run: Run,
    lead: Agent,
    workers: Workers,
    task: Any,
    *,
    workers_max: int = 5,
    rounds: int = 2,
    synthesizer: Writer | None = None,
    check: Check | None = None,
    report_bytes: int = REPORT_BYTES,
    on_part: Callable[[Part[Task]], Any] | None = None,
    name: str = "orchestrate",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> OrchestrateResult:
    """Plan, work, look, and write the report.

    Args:
        run: whose client and caps the work draws on.
        lead: plans and looks at the reports; its ``output`` and ``check`` are replaced by those of a plan.
        workers: an agent for every task (each with a scope, and so a cap, of its own), several by name that
            the plan chooses from, or a function of the ``Task`` that returns an agent for it or is async and
            does it.
        task: the whole.
        workers_max: tasks in one round at most, all at the same time. A plan with more is sent back once.
        rounds: how often tasks are given out at most.
        synthesizer: writes the report: an agent, or a function of the parts; by default the lead, without tools.
            What it costs at worst is set aside, so give it tools only if it needs them.
        check: looks at each finding before anybody builds on it; what it returns is what is wrong with it.
        report_bytes: of all reports together, as the lead and the writer read them; each is cut to its share.
        on_part: called with each part as it finishes.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        ``ok`` if the lead was content (and no part lacked money), or the last round had no failure; else what
        ended it, with a report of what there is. ``budget`` without any part if the report alone does not
        fit under the caps.

    Raises:
        ConfigError: arguments that don't go together.
        CancelledError: cancelled; its workers are cancelled and settled first.
    """
    check_run("orchestrate", run)
    check_whole("orchestrate", workers_max=workers_max, rounds=rounds, report_bytes=report_bytes)
    if not isinstance(lead, Agent):
        raise ConfigError(
            f"orchestrate: the lead is {lead!r}; give an Agent, since it is told in which form to answer"
        )
    staff = Staff("orchestrate", workers)
    writer = default_writer(lead) if synthesizer is None else synthesizer
    whole = as_text(task)
    if plan_only:
        root = steps_of_delegation(
            run, name, lead, staff, writer, whole=whole,
            most=workers_max, rounds=rounds, size=report_bytes, cap=cap,
        )  # fmt: skip
        plan = plan_for(run, root).shown()
        return OrchestrateResult(plan=plan, **plan.verdict())
    with node(run, "orchestrate", name=name, cap=cap, on_trip=on_trip, rounds=rounds) as at:
        try:
            closing = await Closing.opened(run, writer, whole, size=report_bytes)
        except (Declined, RunStopped, SpendLimit) as error:
            outcome, reason = outcome_of(error)
            return OrchestrateResult(**at.ends(outcome, f"nothing was started: {reason}"))
        async with closing:
            loop = _Loop(run, at, lead, staff, whole=whole, size=report_bytes)
            outcome, reason = await loop.go(rounds, workers_max, check=check, on_part=on_part)
            return await loop.closed(closing, outcome, reason)


class _Loop:
    """The rounds of one piece of work."""

    def __init__(
        self, run: Run, at: Node, lead: Agent, staff: Staff, *, whole: str, size: int
    ) -> None:
        self._run = run
        self._at = at
        self._lead = lead
        self._staff = staff
        self._whole = whole
        self._size = size
        self._references = References()
        self._parts: list[Part[Task]] = []
        self._plans: list[tuple[Task, ...]] = []

    async def go(
        self,
        rounds: int,
        most: int,
        *,
        check: Check | None,
        on_part: Callable[[Part[Task]], Any] | None,
    ) -> tuple[Outcome, str]:
        """Rounds until the lead is content, or nothing further can go better."""
        latest: list[Part[Task]] = []
        for number in range(1, rounds + 1):
            planned = await self._plan(number, rounds, most)
            if not planned.ok:
                return planned.outcome, f"round {number}, the lead: {planned.reason}"
            tasks = tasks_of(planned.value, number)
            if not tasks:
                lacking = [part for part in missing_of(self._parts) if part.outcome in _MONEY]
                return outcome_of_parts(lacking)
            self._plans.append(tuple(tasks))
            self._run.journal.write(
                "plan", scope=self._at.scope, agent=self._lead.name, round=number, tasks=len(tasks)
            )
            latest = await self._work(tasks, check, on_part)
            self._parts += latest
            for part in latest:
                self._references.add(part)
            if self._run.stopped:
                break
        return outcome_of_parts(latest)

    async def _work(
        self, tasks: list[Task], check: Check | None, on_part: Callable[[Part[Task]], Any] | None
    ) -> list[Part[Task]]:
        first = len(self._parts)
        refused: list[Part[Task]] = []
        if (
            policy_here(self._run.on_trip) == "decline"
        ):  # else there may be more money than is there now
            tasks, refused = affordable(self._run, self._staff, tasks, self._whole, first=first)
        for part in refused:
            self._at.note(part)
        done = await work_on(
            self._run, self._at, self._staff, tasks, self._whole,
            first=first, check=check, on_part=on_part,
        )  # fmt: skip
        return sorted([*done, *refused], key=lambda part: part.index)

    async def _plan(self, number: int, rounds: int, most: int) -> Part[Any]:
        taken = [part.item for part in self._parts]
        failed = [part.item for part in missing_of(self._parts)]
        names, tools = self._staff.names, self._staff.tools
        asked = planner(self._lead, names=names, tools=tools, most=most, taken=taken, failed=failed)
        return await perform(
            self._run, asked, self._whole, prompt=self._question(number, rounds, most)
        )

    def _question(self, number: int, rounds: int, most: int) -> str:
        lines = [f"<whole>\n{self._whole}\n</whole>"]
        if self._parts:
            again = _AGAIN if missing_of(self._parts) else ""
            lines.append(told(self._parts, self._references, self._size))
            lines.append(
                f"You lead this work; round {number - 1} of {rounds} is over, and these are the reports. If they are "
                f"enough, say done. Else give out at most {most} further tasks for what is missing or failed.{again}"
            )
        else:
            lines.append(
                f"You lead this work. Divide it into at most {most} tasks, no more than it needs."
            )
        lines.append(
            "The workers work at the same time, don't see each other, and know only what you write: give each an "
            "objective that overlaps with no other, the format of its report, and its boundaries.\n"
            f"Workers and their tools:\n{self._staff.told()}"
        )
        return "\n\n".join(lines)

    async def closed(self, closing: Closing, outcome: Outcome, reason: str) -> OrchestrateResult:
        """The result, with the report if there is anything to report."""
        value = None
        if any(part.ok or part.value is not None for part in self._parts):
            report = await closing.write(self._parts, self._references)
            value = report.value
            if not report.ok and outcome is Outcome.OK:
                outcome, reason = report.outcome, f"the report: {report.reason}"
        return OrchestrateResult(
            parts=tuple(self._parts),
            value=value,
            plans=tuple(self._plans),
            sources=self._references.all,
            partial=outcome is not Outcome.OK or bool(missing_of(self._parts)),
            **self._at.ends(outcome, reason),
        )
