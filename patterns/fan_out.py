"""Fan-out, fan-in: the same work for many items at once, one result per item, in order.

When: items don't depend on each other. When not: a later item needs an earlier one's result (pipeline).
At worst it costs the sum of what the workers may cost; the run's caps hold over all of them, and items
beyond them end as ``budget``. A failed item is a row with its reason; the others go on.

    reviews = await fan_out(run, reviewer, chapters, reduce=editor, cap="0.50")
    reviews.value       # what the editor made of them
    reviews.outcomes    # {'ok': 11, 'refusal': 1}
    reviews.cost        # Decimal('0.31'), the editor's included
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal

from orchestrator.errors import ConfigError
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.prefixes import sharing
from orchestrator.run import Run
from orchestrator.trips import Policy

from .crew import work_through
from .estimates import steps_of, worst_of_each
from .items import Items, known_items
from .node import Node, check_run, node
from .parts import Item, Part, Worker, is_performer, perform
from .plan import combined, plan_for, room_here
from .prompts import in_two_blocks, reports, shared_beginning
from .result import Result, outcome_of_parts
from .stops import Stop

Reducer = Performer | Callable[[list[Part[Any]]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutResult(Result[Item], Generic[Item]):
    """What became of all items. ``value`` is what the reducer made of them, without one the list of values.

    Attributes:
        reduced: what ``reduce`` made of the parts; None without one.
        reduce_outcome, reduce_reason: how the reducer ended; ``ok`` without one.
    """

    reduced: Any = None
    reduce_outcome: Outcome = Outcome.OK
    reduce_reason: str = ""


async def fan_out(
    run: Run,
    worker: Worker,
    items: Items[Item],
    *,
    split: Callable[[Any], Any] | None = None,
    width: int | None = None,
    reduce: Reducer | None = None,
    stop_when: Stop | Callable[[list[Part[Any]]], Any] | float | None = None,
    admit: Literal["each", "trim", "all"] = "each",
    on_part: Callable[[Part[Item]], Any] | None = None,
    name: str = "fan_out",
    cap: object = None,
    on_trip: Policy | None = None,
    plan_only: bool = False,
) -> FanOutResult[Item]:
    """Work on every item, at most ``width`` at once, and collect the parts in order.

    Args:
        run: whose client and caps the work draws on.
        worker: an agent (each item is its prompt; other than text or blocks it is given as JSON), or an
            async function of one item.
        items: drawn as they are needed; a list, a generator or an async generator.
        split: makes the items out of ``items`` (a text into sections, say); may be async.
        width: items under way at once; by default the gate's width.
        reduce: makes one value of all parts when they are there: a function of the list of parts, async or
            not, or an agent, which is given their values. Its failure is an outcome of the result.
        stop_when: start nothing new once this share of at least ten parts has failed (0.5), or once a
            function of the parts so far says so; what is under way is finished.
        admit: ``each`` item asks for its own money; ``trim`` starts only as many as the caps carry at
            worst, ``all`` none unless they carry all. Both need an agent and a list.
        on_part: called with each part as it finishes, in any order.
        name, cap: of its scope; the cap, in dollars, is for everything inside.
        on_trip: what a decline inside does; see ``orchestrator.on_trip``.
        plan_only: spend nothing: print the tree with its prices, and return it as ``plan``.

    Returns:
        One part per item. Items that could not start because the run was stopped or its money is out are
        parts, too; a source without a length is not drawn further once ``width`` + 100 of them in a row could
        not, and the reason says so.

    Raises:
        ConfigError: a width below 1, or arguments that don't go together.
        SourceFailed: drawing the items raised; the parts that were done are in it.
        CancelledError: cancelled; its workers are cancelled and settled first.
        Whatever ``on_part`` and ``stop_when`` raise, with the parts that had ended as its ``parts``.
    """
    check_run("fan_out", run)
    if split is not None:
        items = split(items)
        items = await items if inspect.isawaitable(items) else items
    known = known_items("fan_out", items)
    if plan_only:
        steps = [steps_of(run, worker, known)]
        if reduce is not None:
            steps.append(steps_of(run, reduce, [""]))
        plan = plan_for(run, combined(name, "fan_out", tuple(steps), cap=cap)).shown()
        return FanOutResult(plan=plan, **plan.verdict())
    stop = Stop.of(stop_when)
    limit = _limit(run, worker, known, admit, cap)
    count = None if known is None else len(known)
    with node(run, "fan_out", name=name, cap=cap, on_trip=on_trip, items=count) as at:
        shared = "" if not is_performer(worker) else shared_beginning(known)
        prompt_of = partial(in_two_blocks, beginning=shared) if shared else None
        with sharing(uses=None if count is None else max(count, 1), shared=shared):
            parts: list[Part[Item]] = await work_through(
                run, worker, items if known is None else known, on_part=at.hears(on_part),
                width=width, stop=stop, limit=limit, prompt_of=prompt_of, leaves=known is None,
            )  # fmt: skip
        return await _finished(run, at, parts, reduce, undrawn=stop.undrawn)


def _limit(
    run: Run, worker: Worker, items: Sequence[Any] | None, admit: str, cap: object
) -> int | None:
    """How many items may start, where the set is admitted as one; None for all."""
    if admit == "each":
        return None
    if admit not in {"trim", "all"}:
        raise ConfigError(f"fan_out: admit is {admit!r}; write 'each', 'trim' or 'all'")
    if items is None or not is_performer(worker):
        raise ConfigError(
            f"fan_out: admit={admit!r} needs an agent and a list of items, whose worst case can be known"
        )
    room = room_here(run, cap)
    fits, total = 0, 0
    for nanos in worst_of_each(run, worker, items):
        total += nanos
        if room is not None and total > room:
            break
        fits += 1
    return 0 if admit == "all" and fits < len(items) else fits


async def _finished(
    run: Run, at: Node, parts: list[Part[Any]], reduce: Reducer | None, *, undrawn: str
) -> FanOutResult[Any]:
    outcome, reason = outcome_of_parts(parts, undrawn)
    values = [part.value for part in parts if part.ok]
    if reduce is None:
        return FanOutResult(parts=tuple(parts), value=values, **at.ends(outcome, reason))
    reduced, how, why = await _reduce(run, parts, reduce)
    if outcome is Outcome.OK and how is not Outcome.OK:
        outcome, reason = how, f"the reducer: {why}"
    return FanOutResult(
        parts=tuple(parts),
        value=reduced,
        reduced=reduced,
        reduce_outcome=how,
        reduce_reason=why,
        **at.ends(outcome, reason),
    )


async def _reduce(run: Run, parts: list[Part[Any]], reduce: Reducer) -> tuple[Any, Outcome, str]:
    """One value of all parts; they are paid for, whatever the reducer does."""
    if is_performer(reduce):
        part = await perform(run, reduce, reports(parts))
        return part.value, part.outcome, part.reason
    try:
        reduced = reduce(parts)
        return (await reduced if inspect.isawaitable(reduced) else reduced), Outcome.OK, ""
    except Exception as error:  # noqa: BLE001 - a failed reducer is an outcome
        return None, *outcome_of(error)
