"""Intake: items are drawn, checked, priced and put on disk, a thousand at a time and never twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from budgets.errors import BudgetError, Declined
from budgets.prices import PriceBook
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.wire import Allowances, read_request
from orchestrator.wire.prefixes import is_marked, marked, split_prefix

from .checking import problem_of, shape_digest
from .ids import item_digest
from .item_store import NewItem
from .items import Item
from .job_store import JobStore
from .repricing import bounds_of
from .settings import BatchSettings
from .spool import Spool

_CHUNK = 1_000
#: Prefixes and shapes that are remembered; beyond it the file is asked again.
_REMEMBERED = 1_000
_TOO_LARGE = Outcome.TOO_LARGE.value
#: Ends that another try might better, but that were paid for, or may have been: nothing is paid twice knowingly.
_PAID = frozenset({Outcome.IN_DOUBT, Outcome.STALLED})


@dataclass(slots=True)
class Draw:
    """What one draw brought.

    Attributes:
        drawn: how many items; fewer than asked for means that there are no more.
        added, added_bytes: those of them that wait to be sent now, and the bytes of their bodies.
        ended: numbers of items that need no sending: they ended before, or can't be sent.
        fresh: those of them that ended just now.
    """

    drawn: int = 0
    added: int = 0
    added_bytes: int = 0
    ended: list[int] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)


class Intake:
    """Draws the items of one job. Used from one thread at a time.

    Args:
        store, spool: where they go.
        items: where they come from; drawn as needed.
        session: number of this process's go at the job.
        told: numbers of items whose end was handed out in it.
        prices, allow, settings: how they are priced, and what is too large.
    """

    def __init__(
        self,
        store: JobStore,
        spool: Spool,
        items: Iterable[Item],
        *,
        session: int,
        told: AbstractSet[int],
        prices: PriceBook,
        allow: Allowances,
        settings: BatchSettings,
    ) -> None:
        self._store = store
        self._spool = spool
        self._items: Iterator[Item] = iter(items)
        self._session = session
        self._told = told
        self._prices = prices
        self._allow = allow
        self._settings = settings
        self._job = store.fact("job")
        self._prefixes: dict[bytes, int] = {}
        self._shapes: dict[bytes, int] = {}
        self.exhausted = False

    def draw(self) -> Draw:
        """Take in the next thousand items.

        Raises:
            ConfigError: an identity came twice. Nothing of this draw is kept.
            ConfigError: it can't be written: the disk is full, say.
        """
        items = list(islice(self._items, _CHUNK))
        self.exhausted = len(items) < _CHUNK
        draw = Draw(drawn=len(items))
        if not items:
            return draw
        known = self._store.known([item.identity for item in items])
        self._refuse_twins(items, known)
        new: list[_Priced] = []
        ended: list[tuple[str, str, str, str]] = []
        seen, waited = [], 0
        reopened: list[tuple[int, _Priced]] = []
        refused: list[tuple[str, str, int]] = []
        for item in items:
            before = known.get(item.identity)
            if before is None:
                taken = self._take_in(item)
                new.append(taken) if isinstance(taken, _Priced) else ended.append(taken)
                continue
            n, state, outcome, _, length = before
            seen.append(n)
            # A cut answer is an end, until there may be more of it.
            cut = outcome == Outcome.TRUNCATED and length < int(item.body.get("max_tokens") or 0)
            if state == "done" and outcome and Outcome(outcome).is_final and not cut:
                draw.ended.append(n)
            elif state == "done" and (outcome in _PAID or n in self._told):
                draw.ended.append(n)  # it was or may have been paid for, or it has failed just now
            elif state == "done":
                taken = self._take_in(item)
                if isinstance(taken, _Priced):
                    reopened.append((n, taken))
                else:
                    refused.append((*taken[2:], n))
                    draw.ended.append(n)
                    draw.fresh.add(n)
            waited += state == "waiting"
        draw.added = len(new) + len(reopened) + waited
        draw.added_bytes = sum(one.item.length for one in (*new, *(two for _, two in reopened)))
        self._spool.flush()
        with self._store.step():
            self._store.add(
                [self._numbered(one) for one in new],
                ended,
                seen=seen,
                reopened=[(n, self._numbered(one)) for n, one in reopened],
                refused=refused,
                session=self._session,
            )
        if ended:
            numbers = [n for n, *_ in self._store.known([each[0] for each in ended]).values()]
            draw.ended += numbers
            draw.fresh.update(numbers)
        return draw

    def _refuse_twins(self, items: list[Item], known: dict[str, Any]) -> None:
        here: set[str] = set()
        for item in items:
            before = known.get(item.identity)
            if item.identity in here or (before is not None and before[3] == self._session):
                raise ConfigError(
                    f"item {item.identity!r}: this identity came twice in one job; give each item one of its own "
                    "(path and row, say, beside the hash of its content)"
                )
            here.add(item.identity)

    def _take_in(self, item: Item) -> _Priced | tuple[str, str, str, str]:
        """The item as it is put on record; or why it never will be sent."""
        digest = item_digest(self._job, item.identity)
        body = dict(item.body)
        try:
            problem = problem_of(body, frozenset(self._allow.fields))
            if problem:
                return (item.identity, digest, Outcome.BAD_REQUEST.value, problem)
            reading = read_request(
                body,
                allow=self._allow,
                context_window=self._prices.context_window(str(body["model"])),
                tier="batch",
            )
            body.update(reading.changes)
            now = self._settings.now()
            prefix, rest = split_prefix(body)
            shape = reading.shape
            nanos, marked_nanos = bounds_of(shape, self._prices, now)
        except (Declined, BudgetError, TypeError, ValueError, RecursionError) as error:
            return (item.identity, digest, Outcome.BAD_REQUEST.value, str(error))
        if len(prefix) + len(rest) > self._settings.item_bytes_max:
            size = len(prefix) + len(rest)
            reason = (
                f"the request has {size:,} bytes, the API takes {self._settings.item_bytes_max:,}"
            )
            return (item.identity, digest, _TOO_LARGE, reason)
        priced = NewItem(
            identity=item.identity,
            digest=digest,
            model=reading.model,
            prefix=0,
            shape=0,
            at=self._spool.put(rest),
            length=len(rest),
            bound_nanos=nanos,
            bound_marked_nanos=marked_nanos,
            ttl=shape.cache_ttl,
            geo=shape.geo,
            word=" ".join(shape.word),
        )
        return _Priced(priced, prefix, can_mark=not is_marked(rest), shape=shape_digest(body))

    def _numbered(self, priced: _Priced) -> NewItem:
        return replace(priced.item, prefix=self._prefix(priced), shape=self._shape(priced))

    def _prefix(self, priced: _Priced) -> int:
        key = b"m" if priced.can_mark else b"p"
        digest = hashlib.blake2b(priced.prefix, digest_size=16, key=key).digest()
        known = self._prefixes.get(digest)
        if known is None:
            can_mark = priced.can_mark and not is_marked(priced.prefix)
            with_mark = marked(priced.prefix) if can_mark else None
            known = self._store.prefix(digest, priced.item.model, priced.prefix, with_mark)
            if len(self._prefixes) < _REMEMBERED:
                self._prefixes[digest] = known
        return known

    def _shape(self, priced: _Priced) -> int:
        known = self._shapes.get(priced.shape)
        if known is None:
            known = self._store.shape(priced.shape)
            if len(self._shapes) < _REMEMBERED:
                self._shapes[priced.shape] = known
        return known


@dataclass(frozen=True, slots=True)
class _Priced:
    """An item whose prefix and shape have no number yet."""

    item: NewItem
    prefix: bytes
    can_mark: bool = field(kw_only=True)
    shape: bytes = field(kw_only=True)
