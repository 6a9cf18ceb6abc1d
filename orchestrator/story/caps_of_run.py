"""Caps of a run: every cap that it fell under, what it has of each, and what others have."""

from __future__ import annotations

from datetime import datetime

from budgets.cap_table import matching
from budgets.caps import CALENDAR
from budgets.records import to_us
from budgets.scopes import Place
from budgets.stores.protocol import Reader
from budgets.windows import window_of

from .records import CapUse, Sum

_SPANS = ("run", "ever", "day", "week", "month", "year")


def caps_of_run(reader: Reader, scope: str, at: datetime, run: Sum) -> tuple[CapUse, ...]:
    """The caps that apply to a run as a whole, the innermost first; those per call and per agent are left out.

    Args:
        reader: of the ledger.
        scope: the run's.
        at: when the run began: its windows count.
        run: what the run came to.
    """
    matches = [
        match
        for match in matching(reader.caps(), Place(scopes=(scope,), kinds=((scope, "run"),)))
        if match.entry.cap.per not in {"call", "agent"}
        and (match.entry.cap.per != "run" or match.subject == scope)
    ]
    said = [match for match in matches if not match.entry.fallback] or matches
    # The run's own first, then by how long they last.
    said.sort(key=lambda match: (-len(match.subject), _SPANS.index(match.entry.cap.per or "ever")))
    found = []
    for match in said:
        cap = match.entry.cap
        window = window_of(cap.per, cap.tz, at) if cap.per in CALENDAR else None
        key = "ever" if window is None else window.key
        account = reader.account((cap.key, match.subject, key))
        if match.subject == scope and window is None:
            counted = run.counted_nanos
        elif account is not None:  # kept beside the lines: no need to add them up
            counted = account.posted + account.held + account.in_doubt
        else:
            starts = window.starts if window else None
            ends = window.ends if window else None
            counted = reader.sums(
                match.subject,
                None if starts is None else to_us(starts),
                None if ends is None else to_us(ends),
            ).total
        found.append(
            CapUse(
                scope=cap.scope,
                per=cap.per or "ever",
                owner=cap.owner,
                window="" if window is None else window.key,
                cap_nanos=cap.nanos,
                run=run,
                counted_nanos=counted,
            )
        )
    return tuple(found)
