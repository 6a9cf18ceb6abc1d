"""Handoff, peer to peer: whoever is in control does its part, and passes control on with a written brief.

When: one matter at a time passes through several hands, and each knows best who is next (support). When not:
the order is known (pipeline), somebody should see the whole (orchestrate), or it is decided once (route). It
costs what each one in control costs, at most ``handoffs_max`` + 1 times; going in circles ends it.

    done = await handoff(run, [reception, billing, technician], "My invoice is wrong: ...")
    done.value     # the answer of the one who had control last
    done.chain     # ('reception', 'billing')
    done.controls  # for each: who, by whom, the brief, seconds, cost
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.arguments import check_whole
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.run import Run
from orchestrator.trips import Policy

from .estimates import steps_of
from .node import Node, check_run, node
from .parts import Part, perform
from .plan import combined, plan_for
from .prompts import as_text
from .result import Result
from .ring import BRIEF_CHARS, Baton, Ring, transcript

#: One agent may give control to the same other one so many times.
SAME_WAY_MOST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One time in control.

    Attributes:
        agent: who had it.
        given_by: who gave it; empty for the first.
        brief: what it was given with; empty for the first.
        outcome: how this time ended.
        seconds, posted_nanos: how long it was, and what it cost.
    """

    agent: str
    given_by: str
    brief: str
    outcome: Outcome
    seconds: float
    posted_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffResult(Result[str]):
    """How it ended. ``value`` is the answer of the last in control; the parts are the times in control.

    Attributes:
        controls: who had control, in order.
    """

    controls: tuple[Control, ...] = ()

    @property
    def chain(self) -> tuple[str, ...]:
        """Who had control, by name, in order."""
        return tuple(control.agent for control in self.controls)


async def handoff(
    run: Run,
    agents: Sequence[Performer],
    task: Any,
    *,
    start: str = "",
    handoffs_max: int = 8,
    peers: Mapping[str, Sequence[str]] | None = None,
    about: Mapping[str, str] | None = None,
    carry: Literal["brief", "all"] = "brief",
    on_part: Callable[[Part[str]], Any] | None = None,
    name: str = "handoff",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> HandoffResult:
    """Give control to one agent, and let them pass it on until one of them answers.

    Args:
        run: whose client and caps the work draws on.
        agents: each gets the tool ``hand_over(to, brief)``; a cap of its own counts over all its times. One that
            can't be given tools (a ``ShellWorker``) can be handed to, and its answer is the last.
        task: what it is about; each one in control is given it.
        start: name of the first in control; the first of the list by default.
        handoffs_max: how often control is passed on at most.
        peers: to whom each may hand over, by name; who is not in it to nobody. All to all by default.
        about: a line on what each is good for, by name, as the others read it.
        carry: what the next one is given beside the task: the ``brief``, or ``all`` that was said.
        on_part: called with each part as it ends.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        The outcome of the last in control; ``stalled``, with the chain, if control went in circles (the same
        brief the same way again, or the same way more than twice) or was passed on too often.

    Raises:
        ConfigError: no agents, two of the same name, or names that are nobody's.
    """
    check_run("handoff", run)
    check_whole("handoff", least=0, handoffs_max=handoffs_max)
    ring = Ring(agents, peers, about or {})
    first = ring.first(start)
    if plan_only:
        longest = f"{as_text(task)}{'x' * (BRIEF_CHARS + 400)}"
        steps = [
            steps_of(run, ring.armed(one, Baton()), [longest] * (handoffs_max + 1))
            for one in agents
        ]
        dearest = max(steps, key=lambda step: (step.worst_nanos is None, step.worst_nanos or 0))
        note = f"as if the dearest of {len(steps)} were in control each time"
        plan = plan_for(run, combined(name, "handoff", (dearest,), cap=cap, note=note)).shown()
        return HandoffResult(plan=plan, **plan.verdict())
    with node(run, "handoff", name=name, cap=cap, on_trip=on_trip, items=len(agents)) as at:
        way = _Way(run, at, ring, as_text(task), carry=carry, on_part=on_part)
        outcome, reason = await way.go(first, handoffs_max)
        return HandoffResult(
            parts=tuple(way.parts),
            controls=tuple(way.controls),
            value=way.parts[-1].value if outcome is Outcome.OK else None,
            **at.ends(outcome, reason),
        )


class _Way:
    """The way that control takes."""

    def __init__(
        self,
        run: Run,
        at: Node,
        ring: Ring,
        task: str,
        *,
        carry: str,
        on_part: Callable[[Part[str]], Any] | None,
    ) -> None:
        self._run = run
        self._at = at
        self._ring = ring
        self._task = task
        self._carry = carry
        self._on_part = on_part
        self._said: list[str] = []
        self._ways: Counter[tuple[str, str]] = Counter()
        self._briefs: set[tuple[str, str, str]] = set()
        self.parts: list[Part[str]] = []
        self.controls: list[Control] = []

    async def go(self, first: Performer, most: int) -> tuple[Outcome, str]:
        agent, given_by, brief = first, "", ""
        for number in range(most + 1):
            baton = Baton()
            part = await self._control(agent, given_by, brief, baton)
            if not part.ok or not baton.to:
                return part.outcome, part.reason
            circle = self._circle(agent.name, baton)
            if circle:
                return Outcome.STALLED, f"{circle}: {self._chain(baton.to)}"
            if number < most:
                self._run.journal.write(
                    "control",
                    scope=self._at.scope,
                    **{"from": agent.name},
                    to=baton.to,
                    chars=len(baton.brief),
                )
                agent, given_by, brief = self._ring[baton.to], agent.name, baton.brief
        return (
            Outcome.STALLED,
            f"control was passed on {most} times (handoffs_max): {self._chain()}",
        )

    async def _control(
        self, agent: Performer, given_by: str, brief: str, baton: Baton
    ) -> Part[str]:
        index = len(self.parts)
        if not index:
            self._run.journal.write("control", scope=self._at.scope, to=agent.name, chars=0)
        prompt = self._prompt(given_by, brief)
        armed = self._ring.armed(agent, baton)
        part: Part[str] = await perform(self._run, armed, brief, index=index, prompt=prompt)
        self._at.note(part)
        self.parts.append(part)
        self.controls.append(
            Control(
                agent=agent.name,
                given_by=given_by,
                brief=brief,
                outcome=part.outcome,
                seconds=part.seconds,
                posted_nanos=part.posted_nanos,
            )
        )
        if self._carry == "all" and part.answer is not None:
            self._said.append(transcript(agent.name, part.answer.messages))
        if self._on_part is not None:
            self._on_part(part)
        return part

    def _prompt(self, given_by: str, brief: str) -> str:
        if not given_by:
            return self._task
        said = "\n\n".join(self._said)
        before = f"<before>\n{said}\n</before>\n\n" if said else ""
        return (
            f"<task>\n{self._task}\n</task>\n\n{before}You are in control now. {given_by} handed over to you with this "
            f"brief:\n<brief>\n{brief}\n</brief>"
        )

    def _circle(self, giver: str, baton: Baton) -> str:
        """Why control goes in circles; empty if it doesn't."""
        way = (giver, baton.to)
        same = (*way, " ".join(baton.brief.casefold().split()))
        self._ways[way] += 1
        if same in self._briefs:
            return f"{giver} handed over to {baton.to} with the same brief again"
        self._briefs.add(same)
        if self._ways[way] > SAME_WAY_MOST:
            return f"{giver} handed over to {baton.to} {self._ways[way]} times"
        return ""

    def _chain(self, to: str = "") -> str:
        return " -> ".join([*(control.agent for control in self.controls), *([to] if to else [])])
