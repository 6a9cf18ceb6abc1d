"""Looking up a batch whose answer was lost: was it made? Nothing is sent again before that is known.

The API's batches carry nothing of ours but the ids of their requests, and those show only in results. So the
batches made since then with as many requests are looked at: one that has ended shows by a single id whose it is,
one that has not is waited for.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress

from orchestrator.wire.batches import BatchState, read_result

from .ids import digest_of
from .provider import NoAnswer, Refused
from .tables import BatchRow
from .work import JobFault, Work

logger = logging.getLogger("earmark")

#: Our clock and the provider's may differ by so much.
_SKEW_S = 15 * 60.0
_TROUBLES_MAX = 20


async def find_batch(work: Work, row: BatchRow) -> BatchState | str | None:
    """The batch that was made when this one was sent.

    Returns:
        The batch; None if it certainly was not made (or the job was detached meanwhile); a sentence why that
        can't be decided.

    Raises:
        JobFault: the provider's list can't be read.
    """
    polling = work.settings.polling
    since = (row.sending_at or work.now()) - _SKEW_S
    known = {other.id for other in work.store.batches() if other.id}
    excluded: set[str] = set()
    wait = polling.first_s
    troubles = 0
    while not work.control.is_detached:
        try:
            listed = await work.provider.recent(since)
            others = known | excluded
            alike = [b for b in listed if b.requests == row.items and b.id not in others]
            is_open = False
            for batch in alike:
                verdict = await _is_ours(work, row, batch)
                if verdict is True:
                    return batch
                if verdict is False:
                    excluded.add(batch.id)
                elif batch.ended:
                    return f"batch {batch.id} may be it, but its results are gone"
                is_open |= verdict is None
            left = (row.sending_at or 0) + work.settings.grace_s - work.now()
            if not is_open and left <= 0:
                return None
            nap = wait if is_open else min(wait, max(left, 0.01))
        except (Refused, NoAnswer) as error:
            troubles += 1
            if troubles > _TROUBLES_MAX or (
                isinstance(error, Refused) and not error.kind.retryable
            ):
                raise JobFault(
                    f"run {work.run.id}: the answer to batch {row.n} was lost, and the provider's list of batches "
                    f"can't be read ({error}); its hold stays, and nothing is sent again"
                ) from error
            nap = wait
        if work.now() - (row.sending_at or 0) > polling.give_up_s:
            return "its answer was lost, and a batch that may be it has not ended"
        await work.control.nap(nap)
        wait = min(wait * (100 + polling.growth_percent) / 100, polling.longest_s)
    return None


async def _is_ours(work: Work, row: BatchRow, batch: BatchState) -> bool | None:
    """Whether a batch has one of our ids; None if that does not show (yet)."""
    if not batch.ended or not batch.has_results:
        return None
    async with aclosing(work.provider.lines(batch.id)) as lines:
        async for line in lines:
            with suppress(ValueError):  # a line that can't be read tells nothing; the next one may
                digest = digest_of(read_result(line).custom_id, row.n)
                return digest is not None and work.store.belongs(row.n, digest)
    return False
