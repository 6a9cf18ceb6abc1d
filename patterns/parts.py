"""Parts: what became of one unit of a pattern's work, and the one way in which a unit is worked on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from inspect import isawaitable, isroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import to_json

from budgets.money import to_decimal
from orchestrator.agent import Agent, AgentResult
from orchestrator.context import TOKENS, Tally, calling_as
from orchestrator.errors import ConfigError
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.performer import Performer
from orchestrator.run import Run

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Item = TypeVar("Item")
#: Who works on an item: an agent (or anything that works like one), or a function of the item. A function is
#: async where it calls anything; a plain one holds up all others while it runs.
Worker = Performer | Callable[[Any], Any]
#: A prompt: text, or content blocks.
Prompt = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What some work came to.

    Attributes:
        posted_nanos, in_doubt_nanos: nano-dollars charged, and in doubt.
        calls: HTTP attempts.
        tokens: the four disjoint classes of tokens that were billed.
        saved_nanos: what reads from the prompt cache saved over plain input.
        wasted_nanos: what writes to the prompt cache cost over plain input and never brought back.
        seconds: from start to end.
    """

    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    calls: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    saved_nanos: int = 0
    wasted_nanos: int = 0
    seconds: float = 0.0

    @property
    def cost(self) -> Decimal:
        """Dollars posted."""
        return to_decimal(self.posted_nanos)

    @property
    def usage(self) -> dict[str, int]:
        """The same as ``tokens``."""
        return self.tokens


def figures_of(tally: Tally, begun: float) -> dict[str, Any]:
    """The fields of ``Figures`` for work that began at ``begun`` (``time.monotonic``) and ends now."""
    return {
        "posted_nanos": tally.posted_nanos,
        "in_doubt_nanos": tally.in_doubt_nanos,
        "calls": tally.calls,
        "tokens": {name: tally.tokens[name] for name in TOKENS},
        "saved_nanos": tally.saved_nanos,
        "wasted_nanos": tally.wasted_nanos,
        "seconds": time.monotonic() - begun,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Figures, Generic[Item]):
    """What became of one unit of work.

    Attributes:
        index: its place among its siblings, from 0.
        item: what was worked on.
        outcome: one word of the closed set.
        reason: one sentence, empty for ``ok``.
        name: who worked on it; empty for a plain function.
        value: what the worker returned, or an agent's parsed value (its text if it has no output); None
            for an agent that is not ``ok``.
        answer: the agent's own result, with its text, conversation and sources; None for a function.
    """

    index: int = 0
    item: Item
    outcome: Outcome
    reason: str = ""
    name: str = ""
    value: Any = None
    answer: AgentResult | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True, slots=True)
class Own:
    """A worker of a pattern's own, which makes the part itself: no second one is made around it.

    Attributes:
        make: takes the index, the item, and what absorbs a cancellation, as for ``perform``; returns the part.
    """

    make: Callable[[int, Any, Callable[[], bool]], Awaitable[Part[Any]]]


async def performed(
    run: Run, worker: Own, item: Any, *, index: int, absorbs: Callable[[], bool]
) -> Part[Any]:
    """Have a worker of a pattern's own make a part; what it raises is the part's outcome, as for ``perform``."""
    try:
        run.check()
        return await worker.make(index, item, absorbs)
    except asyncio.CancelledError:
        if not absorbs():
            raise
        outcome, reason = Outcome.CANCELLED, run.stopped or "it was cancelled"
    except Exception as error:  # noqa: BLE001 - a failed unit is a row, the others go on
        outcome, reason = outcome_of(error)
    return Part(index=index, item=item, outcome=outcome, reason=reason)


async def perform(
    run: Run,
    worker: Worker,
    item: Item,
    *,
    index: int = 0,
    name: str = "",
    prompt: Prompt | None = None,
    absorbs: Callable[[], bool] | None = None,
) -> Part[Item]:
    """Have a worker work on one item. Failures are the part's outcome.

    Args:
        run: whose client, caps and journal are used.
        worker: an agent, or a function of the item, async or not.
        item: what is worked on; an agent's prompt (other than text or content blocks, it is given as JSON).
        index, name: of the part; an agent's own name by default.
        prompt: what an agent is given in place of the item.
        absorbs: asked when the work was cancelled: True makes that the part's outcome, False passes the
            cancellation on. By default, what ``Run.cancel`` has cancelled is the part's outcome.

    Raises:
        CancelledError: cancelled, and not absorbed.
    """
    begun = time.monotonic()
    outcome, reason, value, answer = Outcome.CANCELLED, "", None, None
    agent = worker if is_performer(worker) else None
    tally = Tally()
    counts_itself = type(worker) is Agent
    with nullcontext() if counts_itself else calling_as(tally=tally):
        try:
            run.check()
            if agent is not None:
                given = as_prompt(item) if prompt is None else prompt
                answer = await agent.run(run, given)
                outcome, reason, value = _read(answer)
                if counts_itself:
                    tally = answer.tally
            else:
                done = worker(item)  # type: ignore[operator]
                outcome, reason, value = _read(await done if isawaitable(done) else done)
        except asyncio.CancelledError as error:
            if not (absorbs or run.absorbs_cancel)():
                raise
            reason = run.stopped or "it was cancelled"
            if counts_itself:
                tally = getattr(error, "tally", tally)
        except Exception as error:  # noqa: BLE001 - a failed unit is a row, the others go on
            outcome, reason = outcome_of(error)
    return Part(
        index=index,
        item=item,
        outcome=outcome,
        reason=reason,
        name=name or (agent.name if agent is not None else ""),
        value=value,
        answer=answer,
        **figures_of(tally, begun),
    )


def is_performer(worker: object) -> TypeIs[Performer]:
    """Whether a worker works like an agent; a function does not."""
    if isinstance(worker, Agent):  # asking a protocol takes far longer, and is asked for each item
        return True
    return not isroutine(worker) and isinstance(worker, Performer)


def name_of(pattern: str, worker: object) -> str:
    """The name of one who is an agent, or works like one.

    Raises:
        ConfigError: it is something else.
    """
    if not is_performer(worker):
        raise ConfigError(
            f"{pattern}: {worker!r} can't work; give an agent, or what works like one"
        )
    return worker.name


def as_prompt(item: object) -> Prompt:
    """An item as an agent is given it: text and content blocks as they are, anything else as JSON."""
    if isinstance(item, str):
        return item
    if _is_blocks(item):
        return item  # type: ignore[return-value]
    return to_json(item, fallback=str).decode(errors="replace")


def _is_blocks(item: object) -> bool:
    return (
        isinstance(item, (list, tuple))
        and bool(item)
        and all(isinstance(block, Mapping) and "type" in block for block in item)
    )


def _read(result: Any) -> tuple[Outcome, str, Any]:
    """A worker may hand on an agent's result, or any record with an outcome: it is then the part's."""
    if isinstance(result, AgentResult):
        value = result.value if result.value is not None else result.text
        return result.outcome, result.reason, value if result.outcome is Outcome.OK else None
    outcome = getattr(result, "outcome", None)
    if isinstance(outcome, Outcome):
        return outcome, str(getattr(result, "reason", "")), result
    return Outcome.OK, "", result
