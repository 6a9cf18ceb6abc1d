"""Hierarchy: a director, team leads, workers: every lead gives tasks to its own members only, results flow up.

When: the work is too much for one lead to plan and to read, and falls into fields. When not: one lead can do
it (orchestrate): every level costs a plan and a report more, and loses detail. A team's cap holds for all
below it, and the report of each team is set aside first, so that every level hands up what it has.

    house = Team("house", director, [Team("heating", lead, [plumber], cap="0.50"), surveyor])
    done = await hierarchy(run, house, "What does this house of 1930 need?", cap="2")
    done.value                  # the director's report
    done.teams                  # {'house': ..., 'house/heating': ...}, each with its parts
    done.teams["house"].parts   # the tasks that the director gave out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.agent import Agent
from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError
from orchestrator.performer import Performer
from orchestrator.run import Run
from orchestrator.trips import Policy

from .closing import REPORT_BYTES, default_writer
from .delegation import Check, Staff
from .delegation_costs import steps_of_delegation
from .node import check_run, node
from .orchestrate import OrchestrateResult, orchestrate
from .parts import Part
from .plan import Step, plan_for
from .prompts import as_text
from .tasks import Task, brief

#: Teams below one another at most: each takes two segments of a scope, which has 32.
DEPTH_MOST = 10


@dataclass(frozen=True, slots=True)
class Team:
    """A lead and those whom it can give tasks to.

    Attributes:
        name: of the team, part of its scope.
        lead: plans for the team, and writes its report.
        members: agents (or anything that works like one) and teams; their names must differ.
        cap: dollars for each task of the team, all below it included.
        rounds: how often the lead gives out tasks at most.

    Raises:
        ConfigError: no members, two of the same name, something that can't be one, or no rounds.
    """

    name: str
    lead: Agent
    members: Sequence[Performer | Team]
    cap: object = None
    rounds: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.lead, Agent):
            raise ConfigError(f"team {self.name}: its lead is {self.lead!r}; give an Agent")
        check_whole(f"team {self.name}", rounds=self.rounds)
        if not self.members:
            raise ConfigError(f"team {self.name}: it has no members; give at least one")
        names = [getattr(member, "name", None) for member in self.members]
        for member, name in zip(self.members, names, strict=True):
            if not isinstance(member, (Performer, Team)):
                raise ConfigError(
                    f"team {self.name}: {member!r} can't work; give an agent or a Team"
                )
            if names.count(name) > 1:
                raise ConfigError(f"team {self.name}: two members are called {name!r}; rename one")

    @property
    def depth(self) -> int:
        """Levels of teams, itself included."""
        return 1 + max((one.depth for one in self.members if isinstance(one, Team)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyResult(OrchestrateResult):
    """What the director's team came to. ``value`` is its report; the parts are the tasks that it gave out.

    The value of a team's part is the ``OrchestrateResult`` of that team, and so on down.
    """

    name: str = ""

    @property
    def teams(self) -> dict[str, OrchestrateResult]:
        """The results of all teams by their path, ``house/heating``; of a team with several tasks ``#2``, ..."""
        found: dict[str, OrchestrateResult] = {}
        _gather(found, self.name, self)
        return found


def _gather(found: dict[str, OrchestrateResult], path: str, result: OrchestrateResult) -> None:
    name, number = path, 1
    while name in found:
        number += 1
        name = f"{path}#{number}"
    found[name] = result
    for part in result.parts:
        if isinstance(part.value, OrchestrateResult):
            _gather(found, f"{name}/{part.name}", part.value)


async def hierarchy(
    run: Run,
    team: Team,
    task: Any,
    *,
    workers_max: int = 5,
    check: Check | None = None,
    report_bytes: int = REPORT_BYTES,
    on_part: Callable[[Part[Task]], Any] | None = None,
    name: str = "hierarchy",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> HierarchyResult:
    """Have a team of teams do a task.

    Args:
        run: whose client and caps the work draws on.
        team: the director's team, with those below it; any depth up to ``DEPTH_MOST``.
        task: the whole.
        workers_max: tasks that one lead gives out in one round at most.
        check, report_bytes: as for ``orchestrate``, in every team; the value of a team's part is its result.
        on_part: called with each part of each team as it finishes.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        As ``orchestrate``, of the director's team.

    Raises:
        ConfigError: teams too deep, or a number below 1.
    """
    check_run("hierarchy", run)
    check_whole("hierarchy", workers_max=workers_max, report_bytes=report_bytes)
    if team.depth > DEPTH_MOST:
        raise ConfigError(f"hierarchy: {team.depth} levels of teams; {DEPTH_MOST} is the most")
    options: dict[str, Any] = {
        "workers_max": workers_max,
        "check": check,
        "report_bytes": report_bytes,
        "on_part": on_part,
    }
    whole = as_text(task)
    if plan_only:
        root = replace(_step(run, team, whole, workers_max, report_bytes).capped(cap), name=name)
        plan = plan_for(run, replace(root, kind="hierarchy")).shown()
        return HierarchyResult(plan=plan, name=team.name, **plan.verdict())
    with node(run, "hierarchy", name=name, cap=cap, on_trip=on_trip, depth=team.depth) as at:
        done = await _Below(run, team, "", options).work(whole)
        given = {field.name: getattr(done, field.name) for field in fields(OrchestrateResult)}
        return HierarchyResult(**{**given, "name": team.name, **at.ends(done.outcome, done.reason)})


class _Below:
    """A team as a worker of the team above it."""

    def __init__(self, run: Run, team: Team, above: str, options: dict[str, Any]) -> None:
        self.name = team.name
        self.team = team
        self._run = run
        self._above = above
        self._options = options

    async def __call__(self, task: Task) -> OrchestrateResult:
        return await self.work(brief(task, self._above))

    async def work(self, whole: str) -> OrchestrateResult:
        team = self.team
        return await orchestrate(
            self._run, team.lead, self.staff(whole), whole,
            rounds=team.rounds, name=team.name, cap=team.cap, **self._options,
        )  # fmt: skip

    def staff(self, whole: str) -> dict[str, Any]:
        """The members by name; a team is a worker like any other."""
        return {
            one.name: _Below(self._run, one, whole, self._options) if isinstance(one, Team) else one
            for one in self.team.members
        }


def _step(run: Run, team: Team, whole: str, most: int, size: int) -> Step:
    """What one task of a team costs."""
    staff = Staff("hierarchy", _Below(run, team, "", {}).staff(whole))

    def below(worker: Any) -> Step | None:
        return _step(run, worker.team, whole, most, size) if isinstance(worker, _Below) else None

    return steps_of_delegation(
        run, team.name, team.lead, staff, default_writer(team.lead),
        whole=whole, most=most, rounds=team.rounds, size=size, cap=team.cap, step_of=below,
    )  # fmt: skip
