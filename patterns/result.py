"""Results: what every pattern hands back: its parts, how it ended, and what it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic

from budgets.money import format_usd
from orchestrator.outcomes import Outcome

from .parts import Figures, Item, Part
from .plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Figures, Generic[Item]):
    """How a pattern ended. Its own figures count everything inside, parts, judges and reducers alike.

    Attributes:
        parts: one per unit of work, in order; a failed one is here with its reason.
        outcome: one word of the closed set for the whole; only ``ok`` is success.
        reason: one sentence, empty for ``ok``.
        value: what the pattern came to; each pattern says what that is.
        plan: the tree with its prices, where a plan was asked for.
    """

    parts: tuple[Part[Item], ...] = ()
    outcome: Outcome = Outcome.OK
    reason: str = ""
    value: Any = None
    plan: Plan | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return self.outcome is Outcome.OK

    @property
    def outcomes(self) -> dict[str, int]:
        """How many parts ended in which outcome."""
        return dict(Counter(part.outcome.value for part in self.parts))

    @property
    def values(self) -> list[Any]:
        """The values of the parts that are ``ok``, in order."""
        return [part.value for part in self.parts if part.ok]

    @property
    def failed(self) -> tuple[Part[Item], ...]:
        """The parts that are not ``ok``."""
        return tuple(part for part in self.parts if not part.ok)

    def __str__(self) -> str:
        if self.plan is not None:
            return str(self.plan)
        ends = ", ".join(f"{count} {word}" for word, count in self.outcomes.items())
        doubt = f", {format_usd(self.in_doubt_nanos)} in doubt" if self.in_doubt_nanos else ""
        why = f" ({self.reason})" if self.reason else ""
        cache = _cache(self)
        return (
            f"{self.outcome.value}{why}: {format_usd(self.posted_nanos)}{doubt} for {self.calls} calls"
            f"{'; parts: ' + ends if ends else ''}{cache}"
        )


def _cache(result: Figures) -> str:
    if not result.saved_nanos and not result.wasted_nanos:
        return ""
    wasted = f", wasted {format_usd(result.wasted_nanos)}" if result.wasted_nanos else ""
    return f"; caching saved {format_usd(result.saved_nanos)}{wasted}"


def outcome_of_parts(parts: Iterable[Part[Any]], undrawn: str = "") -> tuple[Outcome, str]:
    """One word for many parts: ``ok`` if all are; else money first, then the commonest failure.

    Args:
        parts: all of them.
        undrawn: why the source was not drawn to its end, for the reason.
    """
    counts: Counter[Outcome] = Counter(part.outcome for part in parts)
    total = sum(counts.values())
    failures: dict[Outcome, int] = {word: n for word, n in counts.items() if word is not Outcome.OK}
    if not failures:
        return Outcome.OK, ""
    words = ", ".join(f"{n} {word.value}" for word, n in sorted(failures.items()))
    commonest = max(failures, key=lambda word: failures[word])
    chosen = next((word for word in _TELLING if word in failures), commonest)
    more = f"; {undrawn}" if undrawn else ""
    return chosen, f"{sum(failures.values())} of {total} parts failed ({words}){more}"


#: What stops everything is told before what befell most.
_TELLING = (Outcome.SPEND_LIMIT, Outcome.BUDGET, Outcome.AUTH)
