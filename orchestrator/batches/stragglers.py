"""Stragglers: items that failed in a batch are finished by direct calls, at the direct price.

What an answer said is written into the ledger's line with its money, so that a paid one survives a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2

from budgets.records import Line
from orchestrator.answers import item_ended_by
from orchestrator.context import Tally, calling_as
from orchestrator.failures import outcome_of
from orchestrator.outcomes import Outcome
from orchestrator.wire.prefixes import join, of_json, to_json

from .item_store import Judged
from .provider import refusal_of
from .work import Work

_WIDTH = 16
#: Longer answers are not kept in the ledger; after a crash they would be paid again.
_KEPT_BYTES = 64 * 1024


async def finish_directly(work: Work) -> None:
    """Call for every item in state ``direct``; each has ended when this returns, unless it was stopped."""
    items = work.store.direct_items()
    if not items:
        return
    paid = await asyncio.to_thread(_paid_before, work, {item[1] for item in items})
    queue = iter(items)
    prefixes = work.store.prefixes(item[2] for item in items)

    async def worker() -> None:
        for n, identity, prefix, at, length in queue:
            if work.control.is_detached or work.control.is_cancelled or work.run.stopped:
                return
            body = of_json(join(prefixes[prefix].plain, work.spool.get(at, length)))
            known = paid.get(identity)
            judged, calls = known or await _call(work, n, identity, body)
            work.store.end_direct(judged, calls)
            await work.tell([n])

    width = min(_WIDTH, work.run.gate.statistics().width, len(items))
    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(worker())


async def _call(work: Work, n: int, identity: str, body: Mapping[str, Any]) -> tuple[Judged, int]:
    """One direct call; how it ended, and how many attempts it took."""
    with calling_as(unit=identity, keep=_kept) as tally:
        try:
            answer = await work.run.client.post(
                "/v1/messages", cast_to=httpx2.Response, body=dict(body)
            )
            refused = refusal_of(answer)
            if refused is not None:
                too_large = refused.reason in {"too_large", "prompt_too_long"}
                outcome = Outcome.TOO_LARGE if too_large else Outcome(refused.word)
                reason = refused.message or f"HTTP {refused.status}"
                return _judged(n, outcome, reason, None, tally), max(tally.calls, 1)
            message = of_json(answer.content)
        except Exception as error:  # every end of a call is an outcome  # noqa: BLE001
            outcome, reason = outcome_of(error)
            return _judged(n, outcome, reason, None, tally), max(tally.calls, 1)
    outcome, reason = item_ended_by(message)
    return _judged(n, outcome, reason, message, tally), max(tally.calls, 1)


def _judged(
    n: int, outcome: Outcome, reason: str, message: Mapping[str, Any] | None, tally: Tally
) -> Judged:
    return Judged(
        n=n,
        state="done",
        outcome=outcome.value,
        reason=reason,
        message=None if message is None else to_json(message).decode(),
        posted_nanos=tally.posted_nanos,
        in_doubt_nanos=tally.in_doubt_nanos,
        usage=to_json(tally.tokens).decode(),
    )


def _kept(message: Mapping[str, Any]) -> Any:
    return dict(message) if len(to_json(message)) <= _KEPT_BYTES else None


def _paid_before(work: Work, identities: set[str]) -> dict[str, tuple[Judged, int]]:
    """What calls before a crash came to that never were written down here, by the ledger's lines.

    An answer that was paid for is in its line. A call that was cut off may have been billed: it is not made again.
    """
    paid: dict[str, list[Line]] = {}
    open_doubts: dict[str, Line] = {}
    for line in work.ledger.lines(work.run.scope):
        unit = str(line.note.get("unit", ""))
        if unit not in identities:
            continue
        if line.kind == "doubt":
            open_doubts[line.hold] = line
        elif line.kind == "resolve":
            open_doubts.pop(line.hold, None)
        if line.kind in {"settle", "resolve"} and line.note.get("kept"):
            paid.setdefault(unit, []).append(line)
    numbers = {item[1]: item[0] for item in work.store.direct_items()}
    found = {}
    for line in open_doubts.values():
        unit = str(line.note["unit"])
        reason = "a direct call for it was cut off and may have been billed (earmark ledger holds)"
        found[unit] = (
            _judged(
                numbers[unit], Outcome.IN_DOUBT, reason, None, Tally(in_doubt_nanos=line.nanos)
            ),
            1,
        )
    for unit, lines in paid.items():
        message = lines[-1].note["kept"]
        tally = Tally(posted_nanos=sum(line.posted for line in lines))
        for line in lines:
            for name in tally.tokens:
                tally.tokens[name] += int((line.usage or {}).get(name, 0))
        outcome, reason = item_ended_by(message)
        found[unit] = (_judged(numbers[unit], outcome, reason, message, tally), len(lines))
    return found
