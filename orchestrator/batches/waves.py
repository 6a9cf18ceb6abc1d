"""Waves: what is sent next, as much as the money allows, after a trial of each shape and a look at the cache.

Where the worst case of all that waits does not fit under the caps, as much as fits is sent; when it has been
settled at its real price the next wave goes, until all is done or posted money is in the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from budgets.errors import BudgetExceeded
from budgets.records import Hold, HoldRequest
from orchestrator.outcomes import Outcome
from orchestrator.wire.fields import COUNTABLE_FIELDS
from orchestrator.wire.prefixes import counting_body, join, of_json

from .packing import Pack, Packing, pack
from .priming import WARM_S, choose
from .provider import NoAnswer, Refused
from .repricing import reprice
from .tables import BatchLife, PrefixRow
from .work import Work

logger = logging.getLogger("earmark")

#: While others are under way, a wave smaller than this share of what waits is not worth its day.
_WORTHWHILE_PERCENT = 10
_SHAPES_TRIED = 50
_PREFIXES_LOOKED_AT = 50
_HOLDS_TRIED = 6
_PRIMES_MAX = 2
_MANY = 1_000_000
_LOOK_S = 0.25


class Waves:
    """Decides what is sent next, and holds the money for it.

    Attributes:
        choices: what was decided about prefixes, one sentence each.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.choices: list[str] = []
        self._priming: dict[int, frozenset[int]] = {}
        #: Batches that went ahead for a prefix in vain.
        self._vain: Counter[int] = Counter()
        self._trials = 0

    async def send(self, under_way: int) -> list[int]:
        """Hold for as many batches as fit; their numbers, each in state ``held``.

        Args:
            under_way: batches that are followed already.
        """
        work = self._work
        waiting = work.store.waiting_size()[0]
        if not waiting or under_way >= work.settings.open_max:
            return []
        await reprice(work)
        await self._try_shapes()
        await self._choose_prefixes()
        held: list[int] = []
        while under_way + len(held) < work.settings.open_max and not work.refusal[0]:
            n = await self._next(under_way + len(held))
            if n is None:
                break
            held.append(n)
        return held

    def over(self, n: int) -> None:
        """A batch has ended."""
        prefixes = self._priming.pop(n, frozenset())
        if prefixes and not self._work.store.batch(n).billed:
            self._vain.update(prefixes)

    def resume(self, n: int) -> None:
        """A batch that went ahead is under way since an earlier process."""
        self._priming[n] = frozenset(self._work.store.prefixes_of(n))

    # ---- what goes next -----------------------------------------------------------------------------

    async def _next(self, under_way: int) -> int | None:
        """Pack and hold one batch; None if nothing is to be sent now."""
        room = self._room()
        for _ in range(_HOLDS_TRIED):
            cold = self._cold_prefixes()
            cooling = frozenset().union(cold, *self._priming.values())
            packing = await self._pack(room, one_of=cold) if cold else Packing()
            if packing.pack is None and cold and not under_way:
                # Not even the requests that go ahead fit: then nothing is marked.
                for n in cold:
                    self._work.store.choose_prefix(n, "plain", None)
                cooling = frozenset()
            if packing.pack is None:
                packing = await self._pack(room, leave_out=cooling)
            if packing.pack is None:
                if under_way or packing.least_nanos is None:
                    return None
                return await self._wait_for_money(packing.least_nanos)
            if under_way and not packing.is_full and not packing.pack.row.primes:
                waiting = min(self._work.store.waiting_size()[0], self._work.settings.requests_max)
                if len(packing.pack.items) * 100 < waiting * _WORTHWHILE_PERCENT:
                    return None
            hold = await self._hold(packing.pack, wait=False)
            if isinstance(hold, Hold):
                n = packing.pack.row.n
                if packing.pack.row.primes:
                    self._priming[n] = cold
                return n
            # Somebody else was faster, or a cap that is not on this path is in the way.
            room = packing.pack.row.bound_nanos // 2
        return None

    def _room(self) -> int | None:
        """What may be held for a batch now."""
        left = self._work.ledger.balance(self._work.run.here).remaining_nanos
        limits = [one for one in (left, self._work.settings.nanos_max) if one is not None]
        return min(limits) if limits else None

    async def _pack(
        self,
        room: int | None,
        *,
        leave_out: frozenset[int] = frozenset(),
        one_of: frozenset[int] = frozenset(),
    ) -> Packing:
        return await asyncio.to_thread(
            pack,
            self._work.store,
            self._work.settings,
            bytes_max=self._work.bytes_max,
            room_nanos=room,
            leave_out=leave_out,
            one_of=one_of,
        )

    async def _hold(self, made: Pack, *, wait: bool) -> Hold | BudgetExceeded | None:
        """Write the batch down, then hold for it; if that can't be, it never was."""
        work, row = self._work, made.row
        await asyncio.to_thread(work.store.pack, row, made.items)
        try:
            hold = await self._ask(work.hold_request(row, wait=wait))
        except BudgetExceeded as declined:
            work.store.unpack(row.n, BatchLife.VOID, str(declined))
            if declined.cap.per == "call":
                limit = int(declined.cap.amount * 1_000_000_000)
                await work.tell(work.store.end_dearer(limit, Outcome.BUDGET.value, str(declined)))
            return declined
        if hold is None:
            work.store.unpack(row.n, BatchLife.VOID, "it was stopped while it waited for money")
            return None
        work.store.advance(row.n, BatchLife.HELD)
        return hold

    async def _ask(self, request: HoldRequest) -> Hold | None:
        """The hold, waiting its turn; None if the job was told to stop meanwhile."""
        work = self._work
        task = asyncio.ensure_future(work.ledger.hold_async(request))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_LOOK_S)
                stops = work.control.is_detached or work.control.is_cancelled or work.run.stopped
                if stops and not task.done():
                    return None
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _wait_for_money(self, least_nanos: int) -> int | None:
        """Nothing of ours is under way, and not even the cheapest item fits: wait for others, or end."""
        packing = await self._pack(least_nanos)
        if packing.pack is None:
            return None
        hold = await self._hold(packing.pack, wait=True)
        if isinstance(hold, Hold):
            return packing.pack.row.n
        if isinstance(hold, BudgetExceeded) and hold.cap.per != "call":
            self._work.refuse_rest(Outcome.BUDGET.value, str(hold))
        return None

    # ---- one of each shape --------------------------------------------------------------------------

    async def _try_shapes(self) -> None:
        """Have one request of each shape counted, for free: mistakes show before thousands are sent."""
        work = self._work
        if not work.settings.trial:
            return
        for shape, item in work.store.untried_shapes(_SHAPES_TRIED):
            if self._trials >= _SHAPES_TRIED:
                return
            self._trials += 1
            body = self._body(item)
            countable = {name: body[name] for name in body if name in COUNTABLE_FIELDS}
            try:
                await work.provider.count(countable)
            except Refused as refused:
                if refused.kind.word == "bad_request":
                    reason = f"the API does not take such a request: {refused}"
                    refusal = (Outcome.BAD_REQUEST.value, reason)
                    await work.tell(work.store.judge_shape(shape, reason, refused=refusal))
                    continue
                if not refused.kind.retryable:
                    work.run.note_failure(refused.kind)
                    work.refuse_rest(refused.kind.word, str(refused))
                    return
                logger.warning("a request could not be tried before its batch (%s)", refused)
            except NoAnswer as error:
                logger.warning("a request could not be tried before its batch (%s)", error)
            work.store.judge_shape(shape, "tried", refused=None)

    def _body(self, item: int) -> dict[str, object]:
        _, prefix, at, length = self._work.store.bodies([item])[0]
        plain = self._work.store.prefixes([prefix])[prefix].plain
        body: dict[str, object] = of_json(join(plain, self._work.spool.get(at, length)))
        return body

    # ---- prefixes -----------------------------------------------------------------------------------

    async def _choose_prefixes(self) -> None:
        """Decide which shared prefixes are marked."""
        work = self._work
        if not work.settings.cache:
            return
        shared = {n: count for n, count in work.store.prefix_counts().items() if count > 1}
        looked = 0
        for n, row in work.store.prefixes(list(shared)[: 10 * _PREFIXES_LOOKED_AT]).items():
            if row.choice or row.marked is None or looked >= _PREFIXES_LOOKED_AT:
                continue
            looked += 1
            await self._choose(row, shared[n])

    async def _choose(self, row: PrefixRow, items: int) -> None:
        work, prices = self._work, self._work.run.prices
        minimum = prices.cache_minimum(row.model)
        tokens = len(row.plain)  # never more tokens than bytes
        if tokens >= minimum:
            try:
                tokens = await work.provider.count(counting_body(row.plain))
            except (Refused, NoAnswer) as error:
                logger.warning(
                    "the shared prefix could not be counted (%s); it is not cached", error
                )
                tokens = 0
        rates = prices.rates(row.model, work.settings.now(), tier="batch", prompt_tokens=tokens)
        choice = choose(
            tokens=tokens,
            items=items,
            minimum=minimum,
            rates=rates,
            hits_permille=work.settings.hits_permille,
        )
        work.store.choose_prefix(row.n, "mark" if choice.pays else "plain", tokens)
        self.choices.append(choice.reason)
        work.run.journal.write("cache_choice", pays=choice.pays, reason=choice.reason)

    def _cold_prefixes(self) -> frozenset[int]:
        """Marked prefixes that have to be primed first; where marks don't pay (any more) they are dropped."""
        work = self._work
        counts = work.store.prefix_counts()
        being_primed = frozenset().union(*self._priming.values())
        seen = work.store.hits_seen()
        expected = work.settings.hits_permille
        cold = set()
        for n, row in work.store.prefixes(list(counts)[: 10 * _PREFIXES_LOOKED_AT]).items():
            if row.choice != "mark" or n in being_primed:
                continue
            is_warm = row.warm_at is not None and work.now() - row.warm_at < WARM_S
            hits = expected if seen is None else min(expected, seen)
            # The write that warms it is paid for already while it is warm.
            pays = self._would_pay(row, _MANY if is_warm else counts[n], hits)
            if not pays or self._vain[n] >= _PRIMES_MAX:
                work.store.choose_prefix(n, "plain", row.tokens)
            elif not is_warm:
                cold.add(n)
        return frozenset(cold)

    def _would_pay(self, row: PrefixRow, items: int, hits_permille: int) -> bool:
        tokens = row.tokens or 0
        rates = self._work.run.prices.rates(
            row.model, self._work.settings.now(), tier="batch", prompt_tokens=tokens
        )
        choice = choose(
            tokens=tokens, items=items, minimum=0, rates=rates, hits_permille=hits_permille
        )
        return choice.pays
