"""Pipeline: fixed stages, each fed by the one before, with a gate of yours between them.

When: the work splits into the same few stages each time, and each is easier than the whole. When not: the
stages depend on the input (orchestrate, route). It costs the sum of the stages for each input; an input ends
at its last stage, at the first that fails, or at a gate that stops it. Inputs don't wait for each other.

    notes = await pipeline(run, [outline, Stage(draft, gate=long_enough), polish], topics)
    notes.values             # the polished texts
    notes.parts[0].steps     # what each stage made of the first topic
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from budgets.errors import Declined
from orchestrator.arguments import check_whole
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.outcomes import Outcome
from orchestrator.prefixes import sharing
from orchestrator.run import Run
from orchestrator.trips import Policy

from .crew import work_through
from .estimates import steps_of
from .items import Items, known_items
from .node import check_run, node
from .parts import Figures, Item, Part, Prompt, Worker, is_performer, perform
from .plan import combined, plan_for
from .prompts import as_text
from .result import Result, outcome_of_parts
from .stops import Stop


@dataclass(frozen=True, slots=True)
class Halt:
    """What a gate returns to stop an input for good."""

    reason: str


#: A gate looks at a stage's value: True or None lets it pass, False or ``Halt`` stops it, a sentence sends
#: it back to its stage, once, with that sentence. It may be async.
Gate = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        worker: an agent, or an async function of the value before.
        gate: looks at what the stage made, before the next one gets it.
        prompt: makes an agent's prompt out of the value before; by default the value itself.
        name: in results and plans; the worker's own by default.
    """

    worker: Worker
    gate: Gate | None = None
    prompt: Callable[[Any], Prompt] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage(Part[Item], Generic[Item]):
    """What became of one input: a part whose ``value`` is the last stage's.

    Attributes:
        steps: what each stage made of it; a stage that was sent back is there twice.
    """

    steps: tuple[Part[Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult(Result[Item], Generic[Item]):
    """What became of all inputs. ``value`` is the list of the passages' values."""

    parts: tuple[Passage[Item], ...] = ()


async def pipeline(
    run: Run,
    stages: Sequence[Worker | Stage],
    inputs: Items[Item],
    *,
    width: int | None = None,
    on_part: Callable[[Part[Item]], Any] | None = None,
    name: str = "pipeline",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> PipelineResult[Item]:
    """Send inputs through the stages, many at once: stage 2 of one beside stage 1 of another.

    Args:
        run: whose client and caps the work draws on.
        stages: workers, or ``Stage`` records where there is a gate or a prompt to be made.
        inputs: drawn as they are needed; a list, a generator or an async generator.
        width: inputs under way at once; by default the gate's width. Where money may not last for all,
            a small width finishes what it begins.
        on_part: called with each passage as it ends, in any order.
        name, cap, on_trip, plan_only: as for ``fan_out``.

    Raises:
        ConfigError: no stages, or inputs that are a single text.
        SourceFailed: drawing the inputs raised; the passages that were done are in it.
    """
    check_run("pipeline", run)
    if width is not None:
        check_whole("pipeline", width=width)
    if not stages:
        raise ConfigError("pipeline: there are no stages; give at least one")
    line = [one if isinstance(one, Stage) else Stage(one) for one in stages]
    known = known_items("pipeline", inputs)
    if plan_only:
        steps = (
            steps_of(
                run, stage.worker, known if number == 0 or known is None else [""] * len(known)
            )
            for number, stage in enumerate(line)
        )
        plan = plan_for(run, combined(name, "pipeline", tuple(steps), cap=cap)).shown()
        return PipelineResult(plan=plan, **plan.verdict())
    count = None if known is None else len(known)
    with node(run, "pipeline", name=name, cap=cap, on_trip=on_trip, items=count) as at:

        async def through(item: Item) -> _Journey:
            journey = _Journey(run, item)
            for stage in line:
                if not await journey.enter(stage):
                    break
            return journey

        stop = Stop()
        with sharing(uses=None if count is None else max(count, 1)):
            given = inputs if known is None else known
            parts = await work_through(
                run, through, given,
                on_part=at.hears(on_part), made=_passage, width=width, stop=stop, leaves=known is None,
            )  # fmt: skip
        return PipelineResult(
            parts=tuple(parts),
            value=[part.value for part in parts if part.ok],
            **at.ends(*outcome_of_parts(parts, stop.undrawn)),
        )


class _Journey:
    """One input on its way. It is a record with an outcome, so that it becomes its part's."""

    def __init__(self, run: Run, item: Any) -> None:
        self._run = run
        self.value = item
        self.outcome = Outcome.OK
        self.reason = ""
        self.steps: list[Part[Any]] = []

    async def enter(self, stage: Stage) -> bool:
        """Pass a stage and its gate; whether the way goes on."""
        value, note = self.value, ""
        for last in (False, True):
            part = await self._at(stage, value, note)
            self.steps.append(part)
            if not part.ok:
                return self._ends(part.outcome, f"{part.name}: {part.reason}")
            self.value = part.value
            verdict = await _ask(stage.gate, part.value)
            if verdict is None or verdict is True:
                return True
            reason = verdict.reason if isinstance(verdict, Halt) else str(verdict or "it said no")
            if last or not isinstance(verdict, str):
                return self._ends(Outcome.INVALID, f"the gate after {part.name}: {reason}")
            note = verdict
        return False

    async def _at(self, stage: Stage, value: Any, note: str) -> Part[Any]:
        prompt = stage.prompt(value) if stage.prompt is not None else None
        if note:
            # The task again, with what was wrong; not with the answer that was, so that it doesn't grow.
            told = f"A first answer was sent back: {note[:500]} Answer again and mend that."
            prompt = f"{as_text(value if prompt is None else prompt)}\n\n{told}"
        worker, name = stage.worker, stage.name
        if not name and not is_performer(worker):
            name = getattr(worker, "__name__", "stage")
        return await perform(
            self._run, worker, value, index=len(self.steps), name=name, prompt=prompt
        )

    def _ends(self, outcome: Outcome, reason: str) -> bool:
        self.outcome, self.reason = outcome, reason
        return False


async def _ask(gate: Gate | None, value: Any) -> Any:
    """What a gate says. A gate that fails stops the input; our own declines stay what they are."""
    if gate is None:
        return True
    try:
        verdict = gate(value)
        return await verdict if inspect.isawaitable(verdict) else verdict
    except (Declined, OrchestratorError):
        raise
    except Exception as error:  # noqa: BLE001 - its input ends here, the others go on
        return Halt(f"{type(error).__name__}: {error}")


def _passage(outer: Part[Any]) -> Passage[Any]:
    """The part of a whole journey, with its last value in place of the journey."""
    journey = outer.value
    fields = {name: getattr(outer, name) for name in (*Figures.__dataclass_fields__, *_KEPT)}
    if not isinstance(journey, _Journey):
        return Passage(**fields)
    return Passage(**fields, value=journey.value, steps=tuple(journey.steps))


_KEPT = ("index", "item", "outcome", "reason", "name")
