"""Following one batch from its hold to its end, one durable step after the other.

A step is written down before the next one is taken, so that whoever comes after a crash goes on where it
stopped. Which items go into it is decided in ``packing``, what its results mean in ``results``, and whether a
batch whose answer was lost was made, in ``lookup``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

from pydantic_core import from_json

from budgets.errors import AlreadyEnded
from budgets.records import Ending
from orchestrator.errors import RunStopped, SpendLimit
from orchestrator.outcomes import Outcome
from orchestrator.wire import ErrorKind
from orchestrator.wire.batches import CLOSES, OPENS, BatchState

from .lookup import find_batch
from .provider import NoAnswer, Refused
from .results import ResultReader
from .spool import body_pieces
from .tables import BatchLife, BatchRow
from .work import JobFault, Work

logger = logging.getLogger("earmark")

_CHUNK = 1_000
#: A download that broke off is begun again so often; what was read stays.
_DOWNLOADS_MAX = 5
#: Results that seem whole and lack some are read so often: a proxy may end a download early and say nothing.
_WHOLE_TIMES = 3
_TRIES_MAX = 50
_LONGEST_WAIT_S = 120.0
#: Not every server knows at once what another one has made: "not found" is believed when it is said so often.
_MISSES_MAX = 5
#: Results are kept for 29 days; from here on it is said every time.
_WARN_AFTER_S = 26 * 86_400.0
#: Statuses that say for certain that nothing was made.
_NOT_MADE = frozenset({"rate_limited", "overloaded", "spend_limit", "auth", "bad_request"})


class Follower:
    """Takes one batch at a time through its life; several may be followed at once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        #: Results are read one batch after the other: each is held in memory piece by piece.
        self._reading = asyncio.Lock()
        #: Batches that this process has made; others may have ended long ago.
        self._made: set[int] = set()
        #: How often in a row a batch, or its results, were not to be found.
        self._misses: Counter[int] = Counter()

    async def follow(self, n: int) -> None:
        """Until the batch has ended, or nobody wants to wait for it any more.

        Raises:
            JobFault: a person is needed; the batch and its hold stay as they are.
        """
        steps = {
            BatchLife.HELD: self._send,
            BatchLife.SENDING: self._find,
            BatchLife.SUBMITTED: self._await_end,
            BatchLife.READ: self._settle,
        }
        while True:  # ends with the batch's life, which has no way back but one, after a look-up
            row = self._work.store.batch(n)
            step = steps.get(row.state)
            if step is None or not await step(row):
                return

    # ---- sending ------------------------------------------------------------------------------------

    async def _send(self, row: BatchRow) -> bool:
        work = self._work
        why = ""
        for attempt in range(1, _TRIES_MAX + 1):
            if self._stops_before_sending():
                await self._not_made(row, "it was stopped before it was sent")
                return False
            try:
                made = await self._make(row)
            except (RunStopped, SpendLimit):
                work.store.advance(row.n, BatchLife.HELD)
                await self._not_made(row, "the run was stopped before it was sent")
                return False
            except (NoAnswer, Refused) as error:
                if _is_lost(error):
                    logger.warning("batch %d: its answer was lost (%s)", row.n, error)
                    work.journal("batch_lost", row, reason=str(error))
                    return True  # it is in ``sending``: looked up next
                # Certain that it was not made: a crash from here on need not be looked into.
                why = str(error)
                work.store.advance(row.n, BatchLife.HELD, reason=why)
                kind = error.kind if isinstance(error, Refused) else None
                if kind is not None and not kind.retryable:
                    await self._refused(row, kind)
                    return False
                asked = 0.0 if kind is None else kind.retry_after_s or 0.0
                await work.control.nap(self._back_off(attempt, asked))
            else:
                self._submitted(row, made)
                return True
        await self._not_made(row, "the API could not be reached")
        work.refuse_rest(Outcome.INFRA.value, f"the batch could not be sent: {why}")
        return False

    async def _make(self, row: BatchRow) -> BatchState:
        """Send it, once; before its first byte leaves it is on record that it may have been sent."""
        work = self._work
        hold = work.hold_of(row)
        items = await asyncio.to_thread(work.store.of_batch, row.n)
        prefixes = work.store.prefixes(item[2] for item in items)
        work.store.advance(
            row.n, BatchLife.SENDING, sending_at=work.now(), key_label=work.provider.key_label
        )

        def pieces() -> Iterator[bytes]:
            return body_pieces(work.spool, row.n, items, prefixes, with_marks=row.marked)

        return await work.provider.create(hold, pieces, len(OPENS) + row.bytes - 1 + len(CLOSES))

    def _stops_before_sending(self) -> bool:
        work = self._work
        return work.control.is_detached or work.control.is_cancelled or bool(work.refusal[0])

    def _submitted(self, row: BatchRow, made: BatchState) -> None:
        self._made.add(row.n)
        self._work.store.advance(
            row.n,
            BatchLife.SUBMITTED,
            id=made.id,
            created_at=made.created_at.timestamp(),
            workspace=self._work.provider.workspace,
            reason="",
        )
        self._work.journal("batch", self._work.store.batch(row.n), nanos=row.bound_nanos)

    async def _not_made(self, row: BatchRow, reason: str) -> None:
        """Certainly not made: the hold is void, and its items wait again."""
        await self._end(Ending(hold=row.hold, kind="void", note={"reason": reason}))
        self._work.store.unpack(row.n, BatchLife.VOID, reason)
        self._work.journal("batch_void", row, reason=reason)

    async def _refused(self, row: BatchRow, kind: ErrorKind) -> None:
        """The provider does not take the batch, and would not take it later."""
        work = self._work
        reason = kind.message or f"HTTP {kind.status}"
        if kind.reason == "too_large" and row.items > 1:
            work.bytes_max = max(row.bytes // 2, 1)
            logger.warning("batch %d: the API finds it too large; smaller ones are made", row.n)
            await self._not_made(row, reason)
            return
        if kind.word == "bad_request":
            outcome = Outcome.TOO_LARGE if kind.reason == "too_large" else Outcome.BAD_REQUEST
            await self._end(Ending(hold=row.hold, kind="void", note={"reason": reason}))
            ended = work.store.end_batch_items(row.n, outcome.value, reason)
            work.store.advance(row.n, BatchLife.VOID, reason=reason)
            work.journal("batch_void", row, reason=reason)
            await work.tell(ended)
            return
        work.run.note_failure(kind)
        work.refuse_rest(kind.word, reason)
        await self._not_made(row, reason)

    def _back_off(self, attempt: int, asked_s: float) -> float:
        wait: float = min(
            self._work.settings.polling.first_s / 5 * 2 ** (attempt - 1), _LONGEST_WAIT_S
        )
        return max(wait * random.uniform(0.75, 1.0), asked_s)

    # ---- a lost answer ------------------------------------------------------------------------------

    async def _find(self, row: BatchRow) -> bool:
        """Was it made? It is not sent again before that is known."""
        work = self._work
        self._check_key(row)
        found = await find_batch(work, row)
        if work.control.is_detached and found is None:
            return False
        if found is None:
            logger.warning("batch %d: it was not made; it is sent again", row.n)
            work.store.advance(row.n, BatchLife.HELD)
        elif isinstance(found, str):
            await self._doubt(row, found)
        else:
            self._submitted(row, found)
            work.journal("batch_found", row, reason=f"it was made as {found.id}")
        return True

    def _check_key(self, row: BatchRow) -> None:
        label = self._work.provider.key_label
        if row.key_label and row.key_label != label:
            where = f" in workspace {row.workspace}" if row.workspace else ""
            raise JobFault(
                f"run {self._work.run.id}: its batch {row.id or row.n} was made with another API key (label "
                f"{row.key_label}{where}; this one is {label or 'none'}): set that key to go on, or cancel it there"
            )

    # ---- waiting for its end ------------------------------------------------------------------------

    async def _await_end(self, row: BatchRow) -> bool:
        work, polling = self._work, self._work.settings.polling
        assert row.id is not None
        self._warn_of_age(row)
        wait = polling.first_s
        began = row.created_at or work.now()
        is_told = False
        if row.n not in self._made:
            wait = 0.0
        while True:  # the API ends each batch within a day; ``give_up_s`` bounds it
            await work.control.nap(wait * random.uniform(0.9, 1.1))
            if work.control.is_detached:
                return False
            asked = 0.0
            try:
                if work.control.is_cancelled and not is_told:
                    is_told = await self._cancel(row.id)
                state = await work.provider.retrieve(row.id)
            except (Refused, NoAnswer) as error:
                asked = await self._trouble(row, error)
            else:
                if state.ended and (state.has_results or state.archived):
                    return await self._read(row, state)
                if state.ended:
                    self._missed(row, "it has ended, and says of no results where they are")
                else:
                    self._misses.pop(row.n, None)
            if work.now() - began > polling.give_up_s:
                raise JobFault(
                    f"run {work.run.id}: batch {row.id} has not ended in {polling.give_up_s / 3600:g} hours; its hold "
                    "stays; take it up again with 'earmark batches attach'"
                )
            grown = max(wait, polling.first_s) * (100 + polling.growth_percent) / 100
            wait = max(min(grown, polling.longest_s), asked)

    async def _cancel(self, batch: str) -> bool:
        """Ask for its end; True if there is no need to ask again."""
        try:
            await self._work.provider.cancel(batch)
        except Refused as error:  # it may have ended meanwhile: the next look tells
            return not error.kind.retryable
        return True

    async def _trouble(self, row: BatchRow, error: Refused | NoAnswer) -> float:
        """A look that failed: how long to wait at least before the next one.

        Raises:
            JobFault: looking again would not help.
        """
        if isinstance(error, NoAnswer):
            logger.warning("batch %s: could not look at it (%s)", row.id, error)
            return 0.0
        if error.kind.status == 404:
            self._check_key(row)
            age_days = (self._work.now() - (row.created_at or self._work.now())) / 86_400
            if age_days > 29:
                raise Gone(
                    f"its results were kept for 29 days and are gone (it is {age_days:.0f} days old)"
                )
            self._missed(row, "the provider does not know it (any more)")
            return 0.0
        if error.kind.retryable:
            return error.kind.retry_after_s or 0.0
        self._check_key(row)
        raise JobFault(
            f"run {self._work.run.id}: batch {row.id} can't be looked at ({error}); its hold stays"
        )

    def _missed(self, row: BatchRow, what: str) -> None:
        """It was not to be found, this time."""
        self._misses[row.n] += 1
        if self._misses[row.n] >= _MISSES_MAX:
            raise Gone(what)
        logger.warning("batch %s: %s; looked at again", row.id, what)

    def _warn_of_age(self, row: BatchRow) -> None:
        if row.created_at is None:
            return
        age_s = self._work.now() - row.created_at
        if age_s > _WARN_AFTER_S:
            logger.warning(
                "batch %s: it is %.0f days old; the provider drops results after 29 days",
                row.id,
                age_s / 86_400,
            )

    # ---- results ------------------------------------------------------------------------------------

    async def _read(self, row: BatchRow, state: BatchState) -> bool:
        work = self._work
        if state.archived:
            raise Gone("its results were kept for 29 days and are gone")
        held_at = datetime.fromtimestamp(work.hold_of(row).held_at_us / 1e6, UTC)
        reader = ResultReader(
            work.store,
            row,
            held_at=held_at,
            prices=work.run.prices,
            settings=work.settings,
            cancelled=work.control.is_cancelled,
        )
        async with self._reading:
            await self._download(row, reader)
            await work.tell(await asyncio.to_thread(reader.end_missing))
        if reader.is_spent:
            work.refuse_rest(Outcome.SPEND_LIMIT.value, reader.is_spent)
        work.store.advance(row.n, BatchLife.READ, ended_at=work.now())
        return True

    async def _download(self, row: BatchRow, reader: ResultReader) -> None:
        """Every line of the results; what was read before it broke off is not read again in vain."""
        work = self._work
        assert row.id is not None
        why = ""
        for attempt in range(1, _DOWNLOADS_MAX + 1):
            try:
                async for lines in _chunks(work.provider.lines(row.id)):
                    await work.tell(await asyncio.to_thread(reader.apply, lines))
                if attempt >= _WHOLE_TIMES or not work.store.missing(row.n, 1):
                    return  # whole, or as incomplete as all the other times
                why, wait = "some results are missing", 0.0
            except NoAnswer as error:
                why, wait = str(error), 0.0
            except Refused as error:
                wait = await self._trouble(row, error)
                why = str(error)
            if attempt < _DOWNLOADS_MAX:
                logger.warning("batch %s: its results broke off (%s); once more", row.id, why)
                await work.control.nap(self._back_off(attempt, wait))
                if work.control.is_detached:
                    raise asyncio.CancelledError
        raise JobFault(
            f"run {work.run.id}: the results of batch {row.id} can't be read ({why}); its hold stays"
        )

    # ---- the end ------------------------------------------------------------------------------------

    async def _settle(self, row: BatchRow) -> bool:
        """One line with the sum of all results; the rest of the hold is released by it."""
        work = self._work
        usage = from_json(row.usage)
        if row.billed:
            usage["model"], usage["tier"] = row.model, "batch"
        note: dict[str, object] = {
            "provider_batch": row.id,
            "results": row.results,
            "billed": row.billed,
        }
        if row.unpriced:
            note["unpriced"] = f"{row.unpriced} of {row.items} items"
            logger.error(
                "batch %s: %d of %d results could not be priced and are posted at their bounds",
                row.id,
                row.unpriced,
                row.items,
            )
        if row.over:
            note["items_over_their_bound"] = row.over
        ending = Ending(
            hold=row.hold, kind="settle", nanos=row.posted_nanos, usage=usage or None, note=note
        )
        if await self._end(ending):
            work.run.tally.add(work.hold_of(row), ending)
        again = "direct" if work.settings.failed_direct else "waiting"
        work.store.finish(row.n, BatchLife.SETTLED, again=again, ended_at=work.now())
        if row.marked and row.billed:
            work.store.warm_prefixes(row.n, work.now())
        work.journal(
            "batch_settled", row, nanos=row.posted_nanos, results=row.results, billed=row.billed
        )
        return False

    async def _end(self, ending: Ending) -> bool:
        """End the hold; False if that was done before a crash."""
        try:
            await self._work.ledger.end_async(ending)
        except AlreadyEnded:
            return False
        return True

    async def _doubt(self, row: BatchRow, reason: str) -> None:
        """Nobody can say what it cost: it stays charged in full until a person does."""
        logger.error(
            "run %s: batch %s is in doubt (%s); it counts in full until 'earmark ledger resolve %s' says what it cost",
            self._work.run.id,
            row.id or row.n,
            reason,
            row.hold,
        )
        await self._end(Ending(hold=row.hold, kind="doubt", note={"reason": reason}))
        ended = self._work.store.end_batch_items(
            row.n, Outcome.IN_DOUBT.value, reason, in_doubt=True
        )
        self._work.store.finish(row.n, BatchLife.DOUBT, again="waiting", reason=reason)
        self._work.journal("batch_doubt", row, reason=reason)
        await self._work.tell(ended)

    async def give_up(self, n: int, gone: Gone) -> None:
        """The provider does not have it any more."""
        await self._doubt(self._work.store.batch(n), str(gone))


class Gone(Exception):
    """The provider does not have the batch, or its results, any more."""


def _is_lost(error: NoAnswer | Refused) -> bool:
    """Whether the batch may have been made all the same."""
    if isinstance(error, NoAnswer):
        return error.was_sent
    return error.kind.word not in _NOT_MADE


async def _chunks(lines: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    chunk: list[bytes] = []
    async for line in lines:
        chunk.append(line)
        if len(chunk) >= _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
