"""Telling: the story of a run from its journal and, where there is one, its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.records import to_us
from budgets.stores.protocol import Reader

from .caching import CacheCount
from .caps_of_run import caps_of_run
from .chronicle import Chronicle, instant
from .lines import read_lines
from .reconciling import LedgerSide, ledger_side, points_of_calls, reconcile, thin_out
from .records import Call, CapUse, Share, SpendPoint, Story, Sum

#: Points of the curve of spend: more than a screen has columns for.
POINTS_MAX = 600


def tell_run(
    journal: Path,
    *,
    ledger: Ledger | None = None,
    record: Mapping[str, Any] | None = None,
    is_under_way: bool = False,
    book: PriceBook | None = None,
) -> Story:
    """The story of a run.

    Args:
        journal: its ``journal.jsonl``; may be missing or torn, then the ledger's word is all there is.
        ledger: the ledger that it drew on; None takes the journal's figures.
        record: its ``run.json``, which says scope and outcome where the journal was cut.
        is_under_way: its process is alive.
        book: prices, for what caching saved; None leaves that out.

    Raises:
        OSError: the journal is there and can't be read.
    """
    said = record or {}
    chronicle = Chronicle(
        run=str(said.get("run") or ""),
        name=str(said.get("name") or ""),
        scope=str(said.get("scope") or ""),
    )
    torn: list[int] = []
    if journal.exists():
        for event in read_lines(journal, torn):
            chronicle.hear(event)
    notes = [*_torn(torn), *_sessions(chronicle)]
    side = LedgerSide()
    if ledger is not None and chronicle.scope:
        side = ledger_side(ledger.lines(chronicle.scope))
        differences = reconcile(chronicle, side)
        if not is_under_way:  # the two are read one after the other, and it goes on meanwhile
            notes += differences
    elif ledger is None:
        notes.append("there is no ledger to ask: all amounts are the journal's word")
    started = chronicle.started or instant(said.get("started"))
    ended = chronicle.ended or instant(said.get("ended"))
    calls, total, cache = add_up(chronicle, book, side.usage_of, reserved_nanos=side.reserved_nanos)
    caps: tuple[CapUse, ...] = ()
    if ledger is not None and chronicle.scope:
        reader: Reader
        with ledger.reader() as reader:
            caps = caps_of_run(reader, chronicle.scope, started or datetime.now(UTC), total)
    return Story(
        run=chronicle.run or journal.parent.name,
        name=chronicle.name,
        scope=chronicle.scope,
        path=str(journal),
        ledger="" if ledger is None else ledger.name,
        is_log=False,
        outcome=chronicle.outcome or str(said.get("outcome") or "") or "not ended",
        is_under_way=is_under_way,
        started=started,
        ended=ended,
        sum=total,
        caps=caps,
        tree=chronicle.root.freeze(is_over=not is_under_way, units=_units(calls)),
        calls=calls,
        spend=_spend(chronicle, side, started, ended),
        by_agent=shares(calls, lambda call: call.agent),
        by_model=shares(calls, lambda call: call.model),
        cache=cache.use(total.tokens),
        moments=tuple(chronicle.moments),
        unpriced=(),
        notes=tuple(notes),
    )


def _torn(lines: list[int]) -> list[str]:
    if not lines:
        return []
    which = ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")
    word = "line" if len(lines) == 1 else "lines"
    return [
        f"the journal has {len(lines):,} {word} that can't be read ({word} {which}): it was cut"
    ]


def _sessions(chronicle: Chronicle) -> list[str]:
    if chronicle.sessions < 2:
        return []
    return [f"the run was gone on with: its journal was begun {chronicle.sessions} times"]


def add_up(
    chronicle: Chronicle,
    book: PriceBook | None,
    usage_of: Callable[[str], Mapping[str, Any] | None],
    *,
    reserved_nanos: int = 0,
) -> tuple[tuple[Call, ...], Sum, CacheCount]:
    """Count every call at its branch, and all of them together; hands them back frozen, in order.

    Args:
        chronicle: with its calls.
        book: prices, for what caching saved.
        usage_of: the usage of a call as a ledger's line has it, by its id; None where there is none.
        reserved_nanos: held by reserves, which are no calls.
    """
    cache = CacheCount(book)
    total = Sum(held_nanos=reserved_nanos)
    chronicle.root.count("", total)
    calls = []
    for call in chronicle.calls.values():
        frozen = call.freeze()
        calls.append(frozen)
        call.branch.count(call.model, frozen.sum)
        cache.add(call.model, call.tokens, call.began, usage_of(call.id))
        total = total + frozen.sum
    last = datetime.max.replace(tzinfo=UTC)  # those without a time come last
    calls.sort(key=lambda call: call.began or last)
    return tuple(calls), total, cache


def _units(calls: Iterable[Call]) -> dict[str, dict[str, Sum]]:
    """What each unit of each scope came to."""
    found: dict[str, dict[str, Sum]] = {}
    for call in calls:
        if call.unit:
            of_scope = found.setdefault(call.scope, {})
            before = of_scope.get(call.unit)
            of_scope[call.unit] = call.sum if before is None else before + call.sum
    return found


def shares(calls: Iterable[Call], key: Callable[[Call], str]) -> tuple[Share, ...]:
    """What each agent or model came to, the dearest first."""
    sums: dict[str, Sum] = {}
    for call in calls:
        name = key(call) or "(none)"
        before = sums.get(name)
        sums[name] = call.sum if before is None else before + call.sum
    found = [Share(key=name, sum=one) for name, one in sums.items()]
    return tuple(sorted(found, key=lambda one: -one.sum.counted_nanos))


def _spend(
    chronicle: Chronicle, side: LedgerSide, started: datetime | None, ended: datetime | None
) -> tuple[SpendPoint, ...]:
    points = side.points or points_of_calls(chronicle)
    if not points or started is None or ended is None:
        return ()
    return thin_out(points, to_us(started), to_us(ended), POINTS_MAX)
