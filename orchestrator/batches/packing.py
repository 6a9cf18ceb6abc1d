"""Packing: which waiting items make the next batch, by count, by bytes and by money."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from orchestrator.wire.batches import request_size
from orchestrator.wire.prefixes import joined_size

from .ids import custom_id
from .job_store import JobStore
from .settings import BatchSettings
from .tables import BatchLife, BatchRow, PrefixRow, Waiting

#: Looked at behind an item that does not fit: a smaller one may.
_MISSES_MAX = 1_000
_PREFIXES_CACHED = 2_000


@dataclass(slots=True, kw_only=True)
class Pack:
    """A batch in the making."""

    row: BatchRow
    items: list[int]


@dataclass(slots=True)
class Packing:
    """What a look at the waiting items came to.

    Attributes:
        pack: the batch; None if nothing fits.
        least_nanos: the smallest bound that did not fit for lack of money; None if money was no matter.
        is_full: the batch is as large as it may be, or holds all that waits.
    """

    pack: Pack | None = None
    least_nanos: int | None = None
    is_full: bool = True


@dataclass(slots=True)
class _Load:
    model: str = ""
    items: list[int] = field(default_factory=list)
    bytes: int = 0
    bound_nanos: int = 0
    largest_nanos: int = 0
    marked: bool = False
    words: set[str] = field(default_factory=set)


def pack(
    store: JobStore,
    settings: BatchSettings,
    *,
    bytes_max: int,
    room_nanos: int | None,
    leave_out: frozenset[int] = frozenset(),
    one_of: frozenset[int] = frozenset(),
) -> Packing:
    """Choose the next batch; nothing is written.

    Args:
        store: the job's.
        settings: its limits.
        bytes_max: of one batch.
        room_nanos: money that may be held for it; None if no cap says.
        leave_out: prefixes that are being primed, or will be.
        one_of: if any, only one item of each of these prefixes: a batch that primes.
    """
    number = store.next_batch()
    prefixes: dict[int, PrefixRow] = {}
    load, found = _Load(), Packing()
    misses = 0
    wanted = set(one_of)
    for item in store.waiting():
        if item.prefix in leave_out or (one_of and item.prefix not in wanted):
            continue
        prefix = _prefix(store, prefixes, item.prefix)
        with_mark = prefix.choice == "mark"
        nanos = item.bound_marked_nanos if with_mark else item.bound_nanos
        params = joined_size(prefix.bytes_for(with_mark=with_mark), item.length)
        size = request_size(custom_id(item.digest, number), params)
        if load.items and (
            len(load.items) >= settings.requests_max or load.bytes + size > bytes_max
        ):
            break
        if room_nanos is not None and load.bound_nanos + nanos > room_nanos:
            found.is_full = False
            found.least_nanos = min(nanos, found.least_nanos or nanos)
            misses += 1
            if misses > _MISSES_MAX:
                break
            continue
        _add(load, item, prefix.model, size, nanos, with_mark=with_mark)
        wanted.discard(item.prefix)
        if one_of and not wanted:
            break
    if load.items:
        found.pack = Pack(row=_row(number, load, primes=bool(one_of)), items=load.items)
    return found


def _prefix(store: JobStore, known: dict[int, PrefixRow], number: int) -> PrefixRow:
    if number not in known:
        if len(known) >= _PREFIXES_CACHED:
            known.clear()
        known.update(store.prefixes([number]))
    return known[number]


def _add(load: _Load, item: Waiting, model: str, size: int, nanos: int, *, with_mark: bool) -> None:
    load.model = model
    load.items.append(item.n)
    load.bytes += size
    load.bound_nanos += nanos
    load.largest_nanos = max(load.largest_nanos, nanos)
    load.marked |= with_mark
    load.words.update(item.word.split())


def _row(number: int, load: _Load, *, primes: bool) -> BatchRow:
    return BatchRow(
        n=number,
        state=BatchLife.PACKED,
        hold=f"batch-{secrets.token_hex(12)}",
        model=load.model,
        items=len(load.items),
        bytes=load.bytes,
        bound_nanos=load.bound_nanos,
        largest_nanos=load.largest_nanos,
        marked=load.marked,
        primes=primes,
        key_label="",
        workspace="",
        sending_at=None,
        id=None,
        created_at=None,
        ended_at=None,
        posted_nanos=0,
        without_cache_nanos=0,
        direct_nanos=0,
        direct_without_nanos=0,
        results=0,
        billed=0,
        hits=0,
        unpriced=0,
        over=0,
        usage="{}",
        word=" ".join(sorted(load.words)),
        reason="",
    )
