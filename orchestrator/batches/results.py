"""Results: each line is judged, priced and written down, once, whatever order they come in.

Matched by id only. A line that was read before a crash is known by its item, which is not awaited any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from budgets.errors import BudgetError
from budgets.prices import PriceBook
from budgets.pricing import cost
from budgets.shape import Shape
from budgets.usage import Usage
from orchestrator.answers import item_ended_by
from orchestrator.attempt import usage_record
from orchestrator.outcomes import Outcome
from orchestrator.wire import read_usage
from orchestrator.wire.batches import ResultLine, read_result
from orchestrator.wire.prefixes import to_json

from .bills import other_costs
from .ids import digest_of
from .item_store import Judged
from .job_store import JobStore
from .settings import BatchSettings
from .tables import BatchRow, Sent

logger = logging.getLogger("earmark")

#: Totals of a batch that the ledger's line carries.
_SUMMED = (
    "input_tokens",
    "cache_write_tokens",
    "cache_read_tokens",
    "output_tokens",
    "web_searches",
)


class ResultReader:
    """Reads the results of one batch into the job's file.

    Args:
        store: the job's.
        row: the batch.
        held_at: when its hold was made: prices are those of that moment.
        prices, settings: as for the job.
        cancelled: the job was told to stop for good.
    """

    def __init__(
        self,
        store: JobStore,
        row: BatchRow,
        *,
        held_at: datetime,
        prices: PriceBook,
        settings: BatchSettings,
        cancelled: bool = False,
    ) -> None:
        self._store = store
        self._row = row
        self._held_at = held_at
        self._prices = prices
        self._settings = settings
        self._cancelled = cancelled
        self._sums: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()
        #: The provider's word that the money is out came up in a result.
        self.is_spent = ""

    def apply(self, lines: Sequence[bytes]) -> list[int]:
        """Take in lines; numbers of the items that have ended by them."""
        by_digest: dict[str, ResultLine] = {}
        for line in lines:
            result = self._read(line)
            digest = digest_of(result.custom_id, self._row.n) if result else None
            if result is not None and digest is not None:
                by_digest[digest] = result
            elif result is not None:
                self._stray(result)
        awaited = self._store.awaited(self._row.n, list(by_digest))
        judged = []
        for digest, result in by_digest.items():
            sent = awaited.get(digest)
            if sent is not None:
                judged.append(self._judge(sent, result))
            elif not self._store.belongs(self._row.n, digest):
                self._stray(result)
        return self._write(judged)

    def end_missing(self) -> list[int]:
        """Items that no line was about: charged in full, since nobody knows; not sent again."""
        missing = self._store.missing(self._row.n, self._row.items)
        judged = []
        for sent in missing:
            reason = "the batch ended without a result for it; charged in full"
            judged.append(self._unpriced(sent, Outcome.IN_DOUBT, reason, None))
        if missing:
            logger.error(
                "batch %s: %d of %d requests have no result; they are charged in full",
                self._row.id,
                len(missing),
                self._row.items,
            )
        return self._write(judged)

    def _write(self, judged: list[Judged]) -> list[int]:
        if judged or self._sums:
            self._store.apply(self._row.n, judged, dict(self._sums), dict(self._usage))
        self._sums.clear()
        self._usage.clear()
        return [one.n for one in judged if one.state == "done"]

    def _read(self, line: bytes) -> ResultLine | None:
        try:
            return read_result(line)
        except ValueError as error:
            logger.error("batch %s: a line of its results can't be read (%s)", self._row.id, error)  # noqa: TRY400
            return None

    def _stray(self, result: ResultLine) -> None:
        """A result that belongs to nobody: its money is real all the same."""
        if not self._store.note_stray(self._row.n, result.custom_id):
            return
        logger.error("batch %s: a result of nobody's request: %s", self._row.id, result.custom_id)
        usage = result.message and read_usage(result.message, requested=None)
        if usage:
            try:
                self._price(usage)
            except BudgetError as error:
                logger.error("batch %s: a stray can't be priced (%s)", self._row.id, error)  # noqa: TRY400

    # ---- one result ---------------------------------------------------------------------------------

    def _judge(self, sent: Sent, result: ResultLine) -> Judged:
        self._sums["results"] += 1
        if result.message is not None:
            return self._answered(sent, result)
        if result.kind == "errored":
            assert result.error is not None
            kind = result.error
            if kind.word == "spend_limit":
                self.is_spent = kind.message or kind.reason
            outcome = Outcome(kind.word)
            reason = kind.message or kind.reason or "errored"
            return self._failed(sent, outcome, reason, again=kind.retryable)
        if result.kind == "expired":
            reason = "the batch expired before its turn came"
            return self._failed(sent, Outcome.EXPIRED, reason, again=True)
        if self._cancelled:
            return self._failed(sent, Outcome.CANCELLED, "the job was cancelled", again=False)
        reason = "the batch was cancelled before its turn came"
        return self._failed(sent, Outcome.CANCELLED, reason, again=False)

    def _failed(self, sent: Sent, outcome: Outcome, reason: str, *, again: bool) -> Judged:
        """Not billed. Sent once more, while that can help and tries are left."""
        retry = again and not self._cancelled and self._may_try(sent)
        return Judged(
            n=sent.n, state="again" if retry else "done", outcome=outcome.value, reason=reason
        )

    def _may_try(self, sent: Sent) -> bool:
        return self._settings.failed_direct or sent.tries < self._settings.tries

    def _answered(self, sent: Sent, result: ResultLine) -> Judged:
        message = result.message
        assert message is not None
        outcome, reason = item_ended_by(message)
        text = to_json(message).decode()
        shape = _shape(self._row, sent)
        usage = read_usage(message, requested=shape)
        if usage is None:
            return self._unpriced(sent, outcome, "its usage can't be read", text)
        try:
            nanos = self._price(usage)
        except BudgetError as error:
            return self._unpriced(sent, outcome, str(error), text)
        held = sent.bound_marked_nanos if self._row.marked else sent.bound_nanos
        if nanos > max(held, sent.bound_nanos):
            self._sums["over"] += 1
            logger.error(
                "overrun: item %s of batch %s cost %d nano-dollars more than its bound; it is posted in full",
                sent.identity,
                self._row.id,
                nanos - held,
            )
        return Judged(
            n=sent.n,
            state="done",
            outcome=outcome.value,
            reason=reason,
            message=text,
            posted_nanos=nanos,
            usage=to_json(usage_record(usage)).decode(),
        )

    def _price(self, usage: Usage) -> int:
        nanos = cost(usage, self._prices, self._held_at)
        others = other_costs(usage, self._prices, self._held_at)
        record = usage_record(usage)
        self._sums["posted"] += nanos
        for name, amount in others.items():
            self._sums[name] += amount
        self._sums["billed"] += nanos > 0
        self._sums["hits"] += record.get("cache_read_tokens", 0) > 0
        for name in _SUMMED:
            if record.get(name):
                self._usage[name] += record[name]
        return nanos

    def _unpriced(self, sent: Sent, outcome: Outcome, why: str, text: str | None) -> Judged:
        """Billed, or maybe, and nobody knows how much: its whole bound is posted, and the alarm raised."""
        nanos = sent.bound_marked_nanos if self._row.marked else sent.bound_nanos
        self._sums["posted"] += nanos
        for name in ("without_cache", "direct", "direct_without"):
            self._sums[name] += nanos
        self._sums["unpriced"] += 1
        if text is not None:
            logger.error(
                "item %s of batch %s can't be priced (%s); its whole bound is posted",
                sent.identity,
                self._row.id,
                why,
            )
        return Judged(
            n=sent.n,
            state="done",
            outcome=outcome.value,
            reason=why,
            message=text,
            posted_nanos=nanos,
        )


def _shape(row: BatchRow, sent: Sent) -> Shape:
    """What a usage leaves open is read from what was asked for."""
    ttl = "1h" if row.marked else sent.ttl
    return Shape(
        model=row.model,
        input_tokens=0,
        output_tokens=0,
        cache_ttl=ttl,  # type: ignore[arg-type]
        tier="batch",
        geo=sent.geo,  # type: ignore[arg-type]
    )
