"""Refine, the critic loop: one writes, another judges, until it is accepted or rounds or money end.

When: it can be said what is good, and a second look finds what is wrong. When not: code can check it (an
agent's ``check``, pipeline), or one try is good enough. It costs two calls a round, at most ``rounds`` of them;
a round never carries more than the task, the best draft so far and what is wrong with it.

    memo = await refine(run, writer, critic, "A memo on the outage of 3 May ...", rounds=3, cap="0.30")
    memo.value     # the best draft
    memo.accepted  # whether the critic was content with it
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field

from orchestrator.agent import Agent
from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.run import Run
from orchestrator.trips import Policy

from .estimates import steps_of
from .node import Node, check_run, node
from .parts import Part, Worker, as_prompt, is_performer, perform
from .plan import combined, plan_for
from .prompts import as_text
from .result import Result

#: Characters of a draft, and of all complaints, that a round carries at most.
DRAFT_CHARS, COMPLAINT_CHARS = 60_000, 4_000
#: Ends after which no further round can go better.
_NO_MORE = frozenset(
    {Outcome.BUDGET, Outcome.SPEND_LIMIT, Outcome.CANCELLED, Outcome.AUTH, Outcome.BAD_REQUEST}
)


class Criterion(BaseModel):
    """One thing that a draft is judged by."""

    name: str
    met: bool
    evidence: str = Field(description="Where in the draft this shows, quoted or named.")
    advice: str = Field(default="", description="What to change, if it is not met.")


class Verdict(BaseModel):
    """What a critic says of a draft."""

    accepted: bool
    score: float = Field(description="How good the draft is, from 0 to 1.")
    criteria: list[Criterion]

    @property
    def complaints(self) -> str:
        """What is not met, as the writer is told."""
        open_ones = [one for one in self.criteria if not one.met]
        lines = [f"- {one.name}: {one.advice or one.evidence}" for one in open_ones]
        return "\n".join(lines)[:COMPLAINT_CHARS]


#: A critic is an agent, or a function of a draft: it returns a ``Verdict``, True or None for good, or a
#: sentence that says what is wrong. It may be async.
Critic = Performer | Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineResult(Result[Any]):
    """How the loop ended. ``value`` is the best draft, accepted or not; the parts are all calls in order.

    Attributes:
        accepted: whether the critic accepted it. If not, the outcome says why it ended.
        verdict: what the critic said of the best draft.
        rounds: drafts that were written.
    """

    accepted: bool = False
    verdict: Verdict | None = None
    rounds: int = 0


async def refine(
    run: Run,
    writer: Worker,
    critic: Critic,
    task: Any,
    *,
    rounds: int = 3,
    name: str = "refine",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> RefineResult:
    """Write, judge, mend.

    Args:
        run: whose client and caps the work draws on.
        writer: an agent, or an async function of the prompt of a round.
        critic: an agent (without an ``output`` of its own it is given ``Verdict``), or a function of the draft.
        task: what is to be written: a prompt.
        rounds: drafts at most.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        ``ok`` if a draft was accepted; else ``invalid`` when the rounds were used up, or the outcome that ended it
        (``budget``, say), each with the best draft so far.

    Raises:
        ConfigError: fewer than one round.
    """
    check_run("refine", run)
    check_whole("refine", rounds=rounds)
    if isinstance(critic, Agent) and critic.output is None:
        critic = replace(critic, output=Verdict)
    if plan_only:
        steps = (steps_of(run, writer, [task] * rounds), steps_of(run, critic, [task] * rounds))
        plan = plan_for(run, combined(name, "refine", steps, cap=cap)).shown()
        return RefineResult(plan=plan, **plan.verdict())
    with node(run, "refine", name=name, cap=cap, on_trip=on_trip, rounds=rounds) as at:
        loop = _Loop(run, at, writer, critic, task=task)
        outcome, reason = await loop.go(rounds)
        return RefineResult(
            parts=tuple(loop.parts),
            value=loop.best,
            accepted=outcome is Outcome.OK,
            verdict=loop.verdict,
            rounds=loop.drafts,
            **at.ends(outcome, reason),
        )


class _Loop:
    """The rounds of one refinement, and the best draft so far."""

    def __init__(self, run: Run, at: Node, writer: Worker, critic: Critic, *, task: Any) -> None:
        self._run = run
        self._at = at
        self._writer = writer
        self._critic = critic
        self._task = task
        self._complaint = ""
        self._score = -1.0
        self.parts: list[Part[Any]] = []
        self.drafts = 0
        self.best: Any = None
        self.verdict: Verdict | None = None

    async def go(self, rounds: int) -> tuple[Outcome, str]:
        outcome, reason = Outcome.INVALID, ""
        for number in range(1, rounds + 1):
            index = len(self.parts)
            draft = self._keep(await perform(self._run, self._writer, self._prompt(), index=index))
            if not draft.ok:
                outcome, reason = draft.outcome, f"round {number}, the writer: {draft.reason}"
                self._complaint = f"- the draft could not be used: {draft.reason}"
            else:
                self.drafts += 1
                judged = self._keep(await self._judge(draft.value))
                if not judged.ok:
                    self._consider(draft.value, None)
                    return judged.outcome, f"round {number}, the critic: {judged.reason}"
                verdict = _verdict(judged.value)
                self._consider(draft.value, verdict)
                if verdict.accepted:
                    return Outcome.OK, ""
                outcome, reason = Outcome.INVALID, f"not accepted after {number} rounds"
            if outcome in _NO_MORE:
                break
        return outcome, reason

    def _keep(self, part: Part[Any]) -> Part[Any]:
        self.parts.append(part)
        self._at.note(part)
        return part

    def _prompt(self) -> Any:
        """The task; later with the best draft and what is wrong with the last one: it never grows."""
        if not self._complaint:
            return self._task
        told = f"{as_text(as_prompt(self._task))}\n\n"
        if self.best is not None:
            told += f"<draft>\n{as_text(self.best)[:DRAFT_CHARS]}\n</draft>\n\n"
        return f"{told}What is wrong with the last draft:\n{self._complaint}\n\nWrite it again and mend that."

    async def _judge(self, draft: Any) -> Part[Any]:
        critic, index = self._critic, len(self.parts)
        if is_performer(critic):
            task = as_text(as_prompt(self._task))
            told = as_text(draft)[:DRAFT_CHARS]
            prompt = f"<task>\n{task}\n</task>\n\n<draft>\n{told}\n</draft>\n\nJudge the draft by the task."
            return await perform(self._run, critic, draft, index=index, prompt=prompt)

        async def look(value: Any) -> Any:
            said = critic(value)
            said = await said if inspect.isawaitable(said) else said
            return _verdict(said)

        return await perform(self._run, look, draft, index=index)

    def _consider(self, draft: Any, verdict: Verdict | None) -> None:
        """Keep the better draft; a later one that is as good counts as better."""
        score = -0.5 if verdict is None else verdict.score + verdict.accepted
        if score >= self._score:
            self.best, self.verdict, self._score = draft, verdict, score
        if verdict is not None:
            self._complaint = verdict.complaints or "- the critic did not accept it"


def _verdict(said: Any) -> Verdict:
    """A critic's word as a verdict.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(said, Verdict):
        return said
    if said is None or isinstance(said, bool):
        good = said is not False
        return Verdict(accepted=good, score=float(good), criteria=[])
    if isinstance(said, str):
        wrong = Criterion(name="check", met=False, evidence=said, advice=said)
        return Verdict(accepted=False, score=0.0, criteria=[wrong])
    accepted = said.get("accepted") if isinstance(said, dict) else getattr(said, "accepted", None)
    if not isinstance(accepted, bool):
        raise ConfigError(
            f"refine: the critic returned {type(said).__name__}, which does not say 'accepted'; use refine.Verdict"
        )
    fields = said if isinstance(said, dict) else said.model_dump()
    return Verdict.model_validate(
        {
            "score": float(accepted),
            "criteria": [],
            **{k: fields[k] for k in fields if k in Verdict.model_fields},
        }
    )
