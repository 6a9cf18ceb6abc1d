"""Performers: anything that does a task under a run as an agent does, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

from budgets.money import to_decimal

from .context import Tally
from .outcomes import Outcome
from .run import Run
from .sources import Source

#: A task: text, or content blocks.
Prompt = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an agent's work ended.

    Attributes:
        outcome: one word of the closed set; only ``ok`` is success.
        reason: one sentence, empty for ``ok``.
        text: the text of the last answer.
        value: the parsed output, if the agent has an ``output``; None unless ``ok``.
        turns: model calls that were answered.
        tally: calls, cost and tokens, nested calls of its tools included.
        messages: the conversation, for going on with it.
        model: that gave the last answer, as the provider names it; empty if there was none.
        stop_reason: of the last answer.
        sources: what its answers cite, and what its web tools found.
        seconds: from its start to its end.
    """

    outcome: Outcome
    reason: str
    text: str
    value: Any
    turns: int
    tally: Tally
    messages: tuple[Mapping[str, Any], ...] = ()
    model: str = ""
    stop_reason: str = ""
    sources: tuple[Source, ...] = ()
    seconds: float = 0.0

    @property
    def cost(self) -> Decimal:
        """Dollars posted."""
        return to_decimal(self.tally.posted_nanos)


@runtime_checkable
class Performer(Protocol):
    """Whatever patterns can give a task: an ``Agent``, or a worker of another kind."""

    @property
    def name(self) -> str:
        """Part of its scope and of every report."""
        ...

    async def run(
        self,
        run: Run,
        prompt: Prompt,
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> AgentResult:
        """Do the task under the run's caps. Failures are outcomes; only cancellation is raised."""
        ...
