"""Board, a blackboard: several agents at one task, each adding what it can to findings that all of them see.

When: it is not known beforehand who can find what, and one finding leads to the next. When not: the parts are
known (fan_out), or one agent can plan them (orchestrate). It costs each agent once a round, at most ``rounds``
times; a round in which nothing new was found ends it.

    done = await board(run, [historian, surveyor], "Why is the cellar wet?", rounds=3, cap="0.40")
    done.value         # what an agent concluded, or the findings by topic
    done.findings      # all findings that hold, with author, time and sources
    done.concluded_by  # who said that it is done; empty if nobody did
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.arguments import check_whole
from orchestrator.context import current_call
from orchestrator.errors import ConfigError, Finished
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.run import Run
from orchestrator.tools import BadCall, Tool, tool
from orchestrator.trips import Policy

from .arming import takes_tools, with_tools
from .crew import work_through
from .estimates import steps_of
from .findings import READ_CHARS, Board, Finding
from .node import Node, check_run, node
from .parts import Own, Part, name_of, perform
from .plan import combined, plan_for
from .prompts import as_text
from .result import Result, outcome_of_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardResult(Result[int]):
    """How it ended. The parts are the agents' turns; the item of each is its round, from 1.

    Attributes:
        findings: what holds on the board at the end.
        concluded_by: the agent that called ``conclude``.
        rounds: rounds that were worked.
    """

    findings: tuple[Finding, ...] = ()
    concluded_by: str = ""
    rounds: int = 0


async def board(
    run: Run,
    agents: Sequence[Performer],
    task: Any,
    *,
    on: Board | None = None,
    rounds: int = 3,
    done: Callable[[Board], Any] | None = None,
    on_part: Callable[[Part[int]], Any] | None = None,
    name: str = "board",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> BoardResult:
    """Have agents work around one board.

    Args:
        run: whose client and caps the work draws on.
        agents: each gets the tools of the board, and ``conclude(answer)``, which ends the work with an answer. One
            that can't be given tools (a ``ShellWorker``) is told what is on the board, and its answer is posted
            as its finding.
        task: what it is about.
        on: the board; a new one by default.
        rounds: how often each agent has its turn at most; the turns of a round are at the same time.
        done: looks at the board after each round and says whether it is done; may be async.
        on_part: called with each part as it ends.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        ``ok`` once an agent concluded, ``done`` said so, or a round found nothing new; ``stalled`` if ``done`` never
        said so; else the commonest failure of the last round. ``value`` is the conclusion, or the findings by topic.

    Raises:
        ConfigError: no agents, two of the same name, one that can't work, or no rounds.
        Whatever ``done`` and ``on_part`` raise, with the turns so far as its ``parts``.
    """
    check_run("board", run)
    check_whole("board", rounds=rounds)
    names = [name_of("board", agent) for agent in agents]
    if not agents or len(set(names)) < len(names):
        raise ConfigError("board: give at least one agent, each with a name of its own")
    shared = on or Board(run, name=name)
    table = _Table(run, shared, agents, as_text(task))
    if plan_only:
        longest = table.prompt(1, rounds) + "x" * READ_CHARS
        steps = tuple(steps_of(run, one, [longest] * rounds) for one in table.agents)
        plan = plan_for(run, combined(name, "board", steps, cap=cap)).shown()
        return BoardResult(plan=plan, **plan.verdict())
    with node(run, "board", name=name, cap=cap, on_trip=on_trip, items=len(agents)) as at:
        outcome, reason = await table.work(at, rounds, done, on_part)
        return BoardResult(
            parts=tuple(table.parts),
            value=shared.snapshot()["topics"] if table.answer is None else table.answer,
            findings=tuple(shared.findings()),
            concluded_by=table.by,
            rounds=table.rounds,
            **at.ends(outcome, reason),
        )


class _Table:
    """The agents around one board."""

    def __init__(self, run: Run, on: Board, agents: Sequence[Performer], task: str) -> None:
        self._run = run
        self._board = on
        self._task = task
        self.parts: list[Part[int]] = []
        self.rounds = 0
        self.answer: str | None = None
        self.by = ""
        tools = [*on.tools(), self._conclude()]
        #: With the tools of the board, those that take tools.
        self.agents = [with_tools(one, tools) for one in agents]

    async def work(
        self,
        at: Node,
        rounds: int,
        done: Callable[[Board], Any] | None,
        on_part: Callable[[Part[int]], Any] | None,
    ) -> tuple[Outcome, str]:
        outcome, reason, is_new = Outcome.OK, "", True
        while self.rounds < rounds and is_new:
            before = self._board.version
            self.rounds += 1
            turns = await self._round(at, self.rounds, rounds, on_part)
            if self.answer is not None or await _says(done, self._board):
                return Outcome.OK, ""
            outcome, reason = outcome_of_parts(turns)
            if not any(part.ok for part in turns) or self._run.stopped:
                return outcome, reason
            is_new = self._board.version > before
        if outcome is Outcome.OK and done is not None:
            why = "" if is_new else ", the last of which found nothing new"
            return Outcome.STALLED, f"not done after {self.rounds} rounds{why}"
        return outcome, reason

    async def _round(
        self, at: Node, number: int, rounds: int, on_part: Callable[[Part[int]], Any] | None
    ) -> list[Part[int]]:
        prompt = self.prompt(number, rounds)
        first = len(self.parts)

        async def turn(index: int, agent: Performer, absorbs: Callable[[], bool]) -> Part[int]:
            has_tools = takes_tools(agent)
            part = await perform(
                self._run, agent, number,
                index=first + index, absorbs=absorbs,
                prompt=prompt if has_tools else f"{prompt}\n\n{self._written()}",
            )  # fmt: skip
            if part.ok and not has_tools:
                self._board.post_answer(agent.name, as_text(part.value))
            return part

        turns: list[Part[int]] = await work_through(
            self._run, Own(turn), self.agents, on_part=at.hears(on_part), width=len(self.agents)
        )
        self.parts += turns
        return turns

    def _conclude(self) -> Tool:
        async def conclude(answer: str) -> str:
            """End the work of all with this answer, once the findings on the board are enough for it."""
            if self.answer is not None:
                raise BadCall(f"{self.by} has concluded already")
            self.answer, self.by = answer, current_call().agent
            raise Finished("the work is done")

        return tool(conclude)

    def _written(self) -> str:
        """What whoever has no tools is told besides."""
        return (
            "You have no tools of the board. These are the findings on it (JSON); your answer is posted as yours.\n"
            f"<findings>\n{as_text(self._board.read())}\n</findings>"
        )

    def prompt(self, number: int, rounds: int) -> str:
        """What each agent is given in a round: the task, and which findings there are."""
        topics = {one.topic: 0 for one in self._board.findings()}
        listed = ", ".join(topics) or "none yet"
        return (
            f"<task>\n{self._task}\n</task>\n\nYou work on this with others around a board of findings, "
            f"round {number} of {rounds}. The board is at version {self._board.version}; its topics: "
            f"{listed[:2_000]}. Read what there is, add what you can find and is not there, correct what is wrong. "
            "Call conclude if the findings are enough for an answer; if you have nothing to add, say so and end."
        )


async def _says(done: Callable[[Board], Any] | None, on: Board) -> bool:
    if done is None:
        return False
    said = done(on)
    return bool(await said if inspect.isawaitable(said) else said)
