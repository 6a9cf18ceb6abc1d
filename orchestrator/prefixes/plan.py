"""The plan for one request: which of its prefixes are marked, how long they live, and which are warmed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from budgets.errors import BudgetError
from budgets.lifetimes import best_lifetime
from budgets.prices import PriceBook
from budgets.shape import Speed, Ttl
from orchestrator.wire.markers import (
    LOOK_BACK,
    MARKERS_MAX,
    Prefix,
    has_markers,
    is_surely_shorter,
    leading,
    prefixes_of,
)

from .accounts import Marks
from .sharing import ALONE, Sharing, most_uses

#: A marker at least this often, so that the last turn's end is within the look-back of one of them.
_STRIDE = LOOK_BACK - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done for one request.

    Attributes:
        marks: what is marked, and with which lifetime.
        shared: keys of the marked prefixes that further calls use, shortest first: these are warmed.
    """

    marks: Marks
    shared: tuple[bytes, ...]


def plan_of(body: object, sharing: Sharing, prices: PriceBook) -> Plan | None:
    """The plan for a request; None if nothing of it should be marked.

    That is so where nobody expects its prefix to be used again, where the caller has placed markers, where
    the model caches nothing so short, and where writing costs more than reading will save.
    """
    if sharing == ALONE or not isinstance(body, Mapping) or not _has_messages(body):
        return None
    model = str(body.get("model", ""))
    turns = sharing.turns if sharing.turns is not None else 0
    expected = most_uses(sharing.uses, turns + 1, *(lead.uses for lead in sharing.leads))
    goes_on = turns > 0 or (sharing.turns is not None and len(body["messages"]) > 1)
    if expected == 1 and not goes_on:
        return None
    try:
        minimum = prices.cache_minimum(model)
        if is_surely_shorter(body, minimum) or has_markers(body):
            return None
        speed: Speed = "fast" if body.get("speed") == "fast" else "standard"
        rates = prices.rates(model, datetime.now(UTC), speed=speed)
    except BudgetError:
        return None  # the meter says why
    uses = expected if expected != 1 else 2
    ttl = best_lifetime(rates, uses=uses, every_s=sharing.every_s)
    if ttl is None:
        return None
    return _planned(body, sharing, minimum, ttl, goes_on=goes_on)


def _has_messages(body: Mapping[str, Any]) -> bool:
    """Whether it has all that it says; of a thread, the server keeps a part."""
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or not messages or "thread" in body:
        return False
    return all(isinstance(one, Mapping) for one in messages)


def _planned(
    body: Mapping[str, Any], sharing: Sharing, minimum: int, ttl: Ttl, *, goes_on: bool
) -> Plan | None:
    ends = {leading(body, lead.blocks): lead.uses for lead in reversed(sharing.leads)}
    ends.pop(None, None)
    looked_at = len(body["messages"]) if goes_on else min(len(ends), 1)
    prefixes = prefixes_of(body, messages=looked_at)
    stable = _last(prefixes, lambda one: one.section != "messages")
    leads = [
        (_last(prefixes, lambda one, end=end: _is_within_first(one, end)), uses)
        for end, uses in sorted(ends.items(), reverse=True)
    ]
    places: list[Prefix | None] = []
    if goes_on:
        places += _ends_of_turns(body, prefixes, may_go_on=bool(sharing.turns))
    places += [lead for lead, _ in leads]
    places.append(stable)
    if goes_on:
        places += _strides(prefixes)
    chosen: dict[bytes, Prefix] = {}
    for place in places:
        if place is not None and place.tokens >= minimum and len(chosen) < MARKERS_MAX:
            chosen.setdefault(place.key, place)
    if not chosen:
        return None
    marked = tuple(sorted(chosen.values(), key=lambda one: one.tokens))
    last = max(index for index, one in enumerate(prefixes) if one.key in chosen)
    shared = [one.key for one, uses in leads if one is not None and uses != 1]
    if stable is not None and sharing.uses != 1:
        shared.append(stable.key)
    marks = Marks(
        prefixes=tuple(prefixes[: last + 1]), marked=marked, ttl=ttl, model=str(body["model"])
    )
    return Plan(marks=marks, shared=tuple(one.key for one in marked if one.key in shared))


def _last(prefixes: Sequence[Prefix], is_wanted: Any) -> Prefix | None:
    """The longest prefix of a kind whose end takes a marker."""
    for prefix in reversed(prefixes):
        if prefix.is_markable and is_wanted(prefix):
            return prefix
    return None


def _is_within_first(prefix: Prefix, end: int) -> bool:
    return prefix.section == "messages" and prefix.message == 0 and prefix.block <= end


def _ends_of_turns(
    body: Mapping[str, Any], prefixes: Sequence[Prefix], *, may_go_on: bool
) -> list[Prefix | None]:
    """The end of the prompt, for the next turn to read; and the end of the last turn's, which this one reads."""
    found: list[Prefix | None] = []
    if may_go_on:
        found.append(_last(prefixes, lambda one: one.section == "messages"))
    roles = [message.get("role") for message in body["messages"]]
    if "assistant" in roles:
        answer = len(roles) - 1 - roles[::-1].index("assistant")
        found.append(_last(prefixes, lambda one: _is_before(one, answer)))
    return found


def _is_before(prefix: Prefix, message: int) -> bool:
    return prefix.section == "messages" and prefix.message < message


def _strides(prefixes: Sequence[Prefix]) -> list[Prefix]:
    """Where a conversation was cut or edited, an older part of it is still found from here."""
    found = []
    next_at = len(prefixes) - 1 - _STRIDE
    for index in range(len(prefixes) - 1, -1, -1):
        one = prefixes[index]
        if index <= next_at and one.is_markable and one.section == "messages":
            found.append(one)
            next_at = index - _STRIDE
    return found
