"""The quote: what a job costs at worst and probably, before anything is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from budgets.prices import PriceBook
from budgets.pricing import bound, cost
from budgets.usage import Usage
from orchestrator.documents import Document, Problem
from orchestrator.wire import Allowances, read_request
from orchestrator.wire.markers import likely_tokens

from .task import Task

#: Likely thinking, where the model always thinks.
_LIKELY_THINKING = 300


@dataclass(slots=True)
class Quote:
    """What a job would cost.

    Attributes:
        documents: how many would be sent.
        worst_nanos: the sum of all bounds, corrective calls included: it can't cost more.
        first_nanos: the sum of the bounds of the first calls alone.
        likely_nanos: an estimate at about 3.5 bytes a token, with the prompt cache.
        batch_worst_nanos, batch_likely_nanos: the same where the first calls go over batches; corrective calls
            are direct ones.
        largest_nanos: the largest bound of one call.
        likely_tokens: input and output together.
        problems: files that won't be sent, by outcome.
        reused: documents whose answer is there already.
        same: documents of the same content as one before, which are not sent either.
    """

    documents: int = 0
    worst_nanos: int = 0
    first_nanos: int = 0
    likely_nanos: int = 0
    batch_worst_nanos: int = 0
    batch_likely_nanos: int = 0
    largest_nanos: int = 0
    likely_tokens: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    reused: int = 0
    same: int = 0

    @property
    def files(self) -> int:
        """All files that were looked at."""
        return self.documents + self.reused + self.same + sum(self.problems.values())


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
    thinking = _LIKELY_THINKING if task.always_thinks else 0
    seen: set[bytes] = set()
    for document in documents:
        if isinstance(document, Problem):
            result.problems[document.outcome] += 1
            continue
        digest = bytes.fromhex(document.sha256)[:12]
        if is_done(document):
            result.reused += 1
            continue
        if digest in seen:
            result.same += 1
            continue
        seen.add(digest)
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
            output_tokens=task.likely_tokens + thinking,
        )
        result.documents += 1
        result.first_nanos += nanos
        result.worst_nanos += (1 + task.repairs) * nanos
        batched = bound(replace(reading.shape, tier="batch"), prices, now)
        result.batch_worst_nanos += batched + task.repairs * nanos
        result.largest_nanos = max(result.largest_nanos, nanos)
        result.likely_nanos += cost(usage, prices, now)
        result.batch_likely_nanos += cost(replace(usage, tier="batch"), prices, now)
        result.likely_tokens += reading.estimate_input + usage.output_tokens
    return result
