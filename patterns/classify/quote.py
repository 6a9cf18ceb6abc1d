"""The quote: what a classification costs at worst and probably, before anything is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from budgets.prices import PriceBook
from budgets.pricing import bound, cost
from budgets.usage import Usage
from orchestrator.documents import Document, Problem
from orchestrator.wire import Allowances, read_request

from .task import Task

#: Likely output: a short JSON object; and some thinking where the model always thinks.
_LIKELY_ANSWER, _LIKELY_THINKING = 20, 300


@dataclass(slots=True)
class Quote:
    """What a classification would cost.

    Attributes:
        documents: how many would be sent.
        worst_nanos: the sum of all bounds, a corrective second call for each included: it can't cost more.
        first_nanos: the sum of the bounds of the first calls alone.
        likely_nanos: an estimate at about 3.5 bytes a token, with the prompt cache.
        largest_nanos: the largest bound of one call.
        likely_tokens: input and output together.
        problems: files that won't be sent, by outcome.
        reused: documents whose answer is there already.
    """

    documents: int = 0
    worst_nanos: int = 0
    first_nanos: int = 0
    likely_nanos: int = 0
    largest_nanos: int = 0
    likely_tokens: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    reused: int = 0

    @property
    def files(self) -> int:
        """All files that were looked at."""
        return self.documents + self.reused + sum(self.problems.values())


def quote(
    task: Task,
    documents: Iterable[Document | Problem],
    prices: PriceBook,
    *,
    allow: Allowances | None = None,
    prefix_tokens: int | None = None,
    is_done: Callable[[Document], bool] = lambda _: False,
) -> Quote:
    """Look at every document and add up.

    Args:
        task: what is asked; ``cached`` must be settled.
        documents: read, or not readable.
        prices: the price book.
        allow: as for the meter.
        prefix_tokens: tokens of the cached prefix, for the likely cost; None guesses from its bytes.
        is_done: True for a document that needn't be sent.

    Raises:
        UnknownPrice: the model has no price.
    """
    result = Quote()
    now = datetime.now(UTC)
    window = prices.context_window(task.model)
    prefix = prefix_tokens if prefix_tokens is not None else likely_tokens(task.system_text)
    thinking = _LIKELY_THINKING if task.max_tokens > _LIKELY_THINKING else 0
    for document in documents:
        if isinstance(document, Problem):
            result.problems[document.outcome] += 1
            continue
        if is_done(document):
            result.reused += 1
            continue
        reading = read_request(
            task.body(document), allow=allow or Allowances(), context_window=window
        )
        nanos = bound(reading.shape, prices, now)
        rest = max(reading.estimate_input - prefix, 1)
        written = prefix if task.cached and result.documents == 0 else 0
        usage = Usage(
            model=task.model,
            input_tokens=rest if task.cached else reading.estimate_input,
            cache_write_5m=written,
            cache_read=prefix - written if task.cached else 0,
            output_tokens=_LIKELY_ANSWER + thinking,
        )
        result.documents += 1
        result.first_nanos += nanos
        result.worst_nanos += 2 * nanos
        result.largest_nanos = max(result.largest_nanos, nanos)
        result.likely_nanos += cost(usage, prices, now)
        result.likely_tokens += reading.estimate_input + usage.output_tokens
    return result


def likely_tokens(text: str) -> int:
    """Tokens of a text, guessed low: about 4 bytes each, so that caching is not promised too soon."""
    return len(text.encode()) // 4
