"""Vote: the same question several times, or to several models, and one answer that they agree on.

When: one answer may be wrong by chance and being wrong is dear. When not: the mistake is the same each time
(give it better material), or a check by code can tell (refine, pipeline). It costs as many calls as it takes
to decide, at most one per voter and one for the judge; voters that can't change the outcome are not asked.

    jury = await vote(run, juror, "Is this clause enforceable? ...", n=5)
    jury.value      # the answer of the majority
    jury.counts     # {'yes': 3, 'no': 1}
    jury.agreement  # 0.75; the fifth was not asked: three had said the same
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic_core import to_json

from orchestrator.agent import Agent
from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.prefixes import sharing
from orchestrator.run import Run
from orchestrator.trips import Policy

from .crew import work_through
from .estimates import steps_of
from .node import Node, check_run, node
from .parts import Own, Part, Prompt, Worker, as_prompt, is_performer, perform
from .plan import combined, plan_for
from .prompts import as_text, reports
from .result import Result

Rule = Literal["majority", "unanimous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResult(Result[Any]):
    """What the voters said. ``value`` is the answer that won; the parts are the voters who were asked.

    Attributes:
        counts: how many gave which answer (by the key that answers are compared by).
        agreement: the share of the answers given that are the winner's.
        verdict: the judge's own part, if there was a judge.
    """

    counts: dict[str, int] = field(default_factory=dict)
    agreement: float = 0.0
    verdict: Part[Any] | None = None


async def vote(
    run: Run,
    voters: Worker | Sequence[Worker],
    question: Any,
    *,
    n: int | None = None,
    models: Sequence[str] = (),
    rule: Rule = "majority",
    judge: Worker | None = None,
    key: Callable[[Any], Any] | None = None,
    width: int | None = None,
    name: str = "vote",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> VoteResult:
    """Ask, and decide.

    Args:
        run: whose client and caps the work draws on.
        voters: an agent or function that is asked ``n`` times (or with each of ``models``), or a list of
            several that are asked once each.
        question: what they are asked: a prompt, or what a function takes.
        n: how often; 3 by default. Only for one voter.
        models: ask one agent once with each of these models.
        rule: ``majority``: more than half of all voters; ``unanimous``: all. Without a judge, the most
            frequent answer of a finished vote is not enough: then there is no decision.
        judge: reads all answers and decides, in place of the rule; an agent is given them as text, a
            function the list of parts. All voters are asked.
        key: what of an answer counts for the comparison; by default the whole, text without regard to case
            and surrounding space. An answer for which it raises has no vote: its part is ``invalid``.
        width: voters asked at once at most; never more than could still decide it.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Returns:
        ``value`` is the first answer of the winning kind, or the judge's; the outcome is ``invalid`` if nothing
        won. A voter who failed has no vote.

    Raises:
        ConfigError: no voters, or arguments that don't go together.
    """
    check_run("vote", run)
    if width is not None:
        check_whole("vote", width=width)
    asked = _voters(voters, n, models)
    if plan_only:
        steps = [steps_of(run, worker, [question]) for worker in asked]
        if judge is not None:
            steps.append(steps_of(run, judge, [question]))
        plan = plan_for(run, combined(name, "vote", tuple(steps), cap=cap)).shown()
        return VoteResult(plan=plan, **plan.verdict())
    with node(run, "vote", name=name, cap=cap, on_trip=on_trip, items=len(asked)) as at:
        count = _Count(len(asked), rule, key or _same_text, has_judge=judge is not None)
        width = width or run.gate.statistics().width
        parts = await _ask(run, at, asked, question, count, width=width)
        if judge is not None:
            return await _judged(run, at, parts, count, judge=judge, question=question)
        outcome, reason = count.end(parts)
        return VoteResult(
            parts=tuple(parts),
            value=count.value,
            counts=dict(count.counts),
            agreement=count.agreement,
            **at.ends(outcome, reason),
        )


def _voters(
    voters: Worker | Sequence[Worker], n: int | None, models: Sequence[str]
) -> list[Worker]:
    if n is not None:
        check_whole("vote", n=n)
    if isinstance(voters, Sequence):
        if n is not None or models:
            raise ConfigError("vote: n and models are for one voter; leave them out with a list")
        asked = list(voters)
    elif models:
        if not isinstance(voters, Agent) or n is not None:
            raise ConfigError("vote: models needs one Agent, and no n")
        asked = [replace(voters, model=model) for model in models]
    else:
        asked = [voters] * (3 if n is None else n)
    if not asked:
        raise ConfigError("vote: there are no voters; give at least one")
    return asked


async def _ask(
    run: Run, at: Node, asked: list[Worker], question: Any, count: _Count, *, width: int
) -> list[Part[Any]]:
    """The voters' parts. Only as many are asked at once as could decide it: an asked one is paid for."""
    parts: list[Part[Any]] = []
    # One agent asked several times says the same beginning each time, several agents don't.
    same = asked[0] if all(worker is asked[0] for worker in asked) else None
    shared = as_prompt(question) if same is not None and is_performer(same) else ""
    with sharing(uses=1 if same is None else len(asked), shared=shared):
        while count.wants and len(parts) < len(asked):  # each round asks one at least
            begun = len(parts)
            next_ones = asked[begun:][: min(width, count.wants)]

            async def one(
                index: int, worker: Worker, absorbs: Callable[[], bool], begun: int = begun
            ) -> Part[Any]:
                index += begun
                return await perform(run, worker, question, index=index, absorbs=absorbs)

            def heard(outer: Part[Any]) -> None:
                part = count.hear(outer)
                at.note(part)
                parts.append(part)

            await work_through(run, Own(one), next_ones, on_part=heard, width=len(next_ones))
    return sorted(parts, key=lambda part: part.index)


class _Count:
    """The count of the votes."""

    def __init__(
        self, voters: int, rule: Rule, key: Callable[[Any], Any], *, has_judge: bool
    ) -> None:
        if rule not in {"majority", "unanimous"}:
            raise ConfigError(f"vote: rule is {rule!r}; write 'majority' or 'unanimous'")
        self._voters = voters
        self._needed = voters if rule == "unanimous" else voters // 2 + 1
        self._rule = rule
        self.has_judge = has_judge
        self._key = key
        self._first: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self._heard = 0

    def hear(self, part: Part[Any]) -> Part[Any]:
        """Count a vote; who failed has none. Returns the part, ``invalid`` if its answer can't be compared."""
        self._heard += 1
        if not part.ok:
            return part
        try:
            said = self._key(part.value)
            shown = said if isinstance(said, str) else to_json(said, fallback=str).decode()
        except Exception as error:  # noqa: BLE001 - the user's function: this voter has no vote, the others do
            reason = f"key could not tell what it says ({type(error).__name__}: {error})"
            return replace(part, outcome=Outcome.INVALID, reason=reason)
        self.counts[shown] += 1
        self._first.setdefault(shown, part.value)
        return part

    @property
    def wants(self) -> int:
        """How many further votes could decide it; 0 once it is decided, or can't be any more."""
        left = self._voters - self._heard
        if self.has_judge:
            return left
        missing = self._needed - self._most
        return 0 if missing > left else max(missing, 0)

    @property
    def _most(self) -> int:
        return max(self.counts.values(), default=0)

    @property
    def is_won(self) -> bool:
        return self._most >= self._needed

    @property
    def value(self) -> Any:
        return self._first[self.counts.most_common(1)[0][0]] if self.is_won else None

    @property
    def agreement(self) -> float:
        return self._most / self.counts.total() if self.counts else 0.0

    def end(self, parts: list[Part[Any]]) -> tuple[Outcome, str]:
        if self.is_won:
            return Outcome.OK, ""
        if not self.counts:
            first = parts[0]
            return first.outcome, f"no voter gave an answer; the first: {first.reason}"
        told = ", ".join(f"{n} for {answer[:60]!r}" for answer, n in self.counts.most_common(5))
        return Outcome.INVALID, f"no {self._rule} of {self._voters} voters: {told}"


async def _judged(
    run: Run, at: Node, parts: list[Part[Any]], count: _Count, *, judge: Worker, question: Any
) -> VoteResult:
    fields: dict[str, Any] = {"counts": dict(count.counts), "agreement": count.agreement}
    if not count.counts:
        return VoteResult(parts=tuple(parts), **fields, **at.ends(*count.end(parts)))
    prompt: Prompt | None = None
    if is_performer(judge):
        prompt = f"{as_text(as_prompt(question))}\n\n{reports(parts, label='answer')}"
    verdict = await perform(run, judge, parts, prompt=prompt)
    return VoteResult(
        parts=tuple(parts),
        value=verdict.value,
        verdict=verdict,
        **fields,
        **at.ends(verdict.outcome, verdict.reason and f"the judge: {verdict.reason}"),
    )


def _same_text(value: Any) -> Any:
    return value.strip().casefold() if isinstance(value, str) else value
