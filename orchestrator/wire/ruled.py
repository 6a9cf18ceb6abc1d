"""Ruled fields: fallback models, compaction and containers; each causes work of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from budgets.errors import InvalidInput, Unbounded, UnknownPrice
from budgets.shape import Speed

from .allowances import Allowances
from .fields import COMPACTING_EDITS, COMPACTION_TRIGGER, FALLBACK_FIELDS, FREE_EDITS
from .rounds import Compaction, Hop


def read_hops(fallbacks: object, max_tokens: int, speed: Speed) -> tuple[Hop, ...]:
    """The fallback models of a request, in their order.

    Raises:
        Unbounded: the provider chooses the models, or an entry sets something unknown. Nothing was
            sent.
        InvalidInput: not a list of fallback entries. Nothing was sent.
    """
    if fallbacks is None:
        return ()
    if fallbacks == "default":
        msg = (
            "fallbacks: 'default' lets the provider choose models, so no price is known; "
            "list them as [{'model': ...}], or leave the field out"
        )
        raise Unbounded(msg, feature="fallbacks")
    if not isinstance(fallbacks, (list, tuple)):
        msg = f"fallbacks: {type(fallbacks).__name__} is not a list of entries"
        raise InvalidInput(msg)
    return tuple(
        _hop(entry, f"fallbacks[{index}]", max_tokens, speed)
        for index, entry in enumerate(fallbacks)
    )


def _hop(entry: object, where: str, max_tokens: int, speed: Speed) -> Hop:
    model = entry.get("model") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(model, str) or not model:
        msg = f"{where}: an entry needs the name of a model"
        raise InvalidInput(msg)
    for name in entry:
        if name not in FALLBACK_FIELDS:
            msg = f"{where}.{name}: it is not known what this field costs; leave it out"
            raise Unbounded(msg, feature=f"fallbacks.{name}")
    limit = entry.get("max_tokens")
    if limit is None:
        limit = max_tokens
    elif type(limit) is not int or limit < 0:
        msg = f"{where}.max_tokens: {limit!r} is not a whole number of tokens"
        raise InvalidInput(msg)
    # A left-out speed may be the request's; null is standard speed.
    named = entry.get("speed", speed)
    if named not in (None, "standard", "fast"):
        msg = f"{where}.speed: no price is known for {named!r}; use 'standard' or 'fast'"
        raise UnknownPrice(msg, model=model, nearest=("standard", "fast"))
    return Hop(model=model, max_tokens=limit, speed="fast" if named == "fast" else "standard")


def read_compaction(
    body: Mapping[str, Any], allow: Allowances, word: list[str]
) -> Compaction | None:
    """The compaction that a request asks for; ``tokens`` is 0 where the caller gave no word for it.

    Raises:
        Unbounded: an edit or a mode that is not known. Nothing was sent.
    """
    compaction = body.get("compaction")
    management = body.get("context_management")
    if compaction is None and management is None:
        return None
    tokens = allow.compaction_tokens or 0
    found: Compaction | None = None
    if compaction is not None:
        kind = compaction.get("type") if isinstance(compaction, Mapping) else None
        if kind != "summarize":
            raise _unknown(feature="compaction", what=kind)
        found = Compaction(tokens=tokens, trigger=None)
    for kind, edit in _edits(management):
        if isinstance(kind, str) and kind in FREE_EDITS:
            continue
        if not isinstance(kind, str) or kind not in COMPACTING_EDITS:
            raise _unknown(feature="context_management", what=kind)
        trigger = _trigger(edit)
        if found is None or (found.trigger is not None and trigger < found.trigger):
            found = Compaction(tokens=tokens, trigger=trigger)
    if found is not None and tokens:
        word.append("compaction_tokens")
    return found


def _edits(management: object) -> list[tuple[object, Mapping[str, Any]]]:
    if management is None:
        return []
    if not isinstance(management, Mapping) or set(management) - {"edits"}:
        raise _unknown(feature="context_management", what=management)
    edits = management.get("edits") or ()
    if not isinstance(edits, (list, tuple)) or not all(isinstance(one, Mapping) for one in edits):
        msg = "context_management.edits: not a list of edits"
        raise InvalidInput(msg)
    return [(edit.get("type"), edit) for edit in edits]


def _trigger(edit: Mapping[str, Any]) -> int:
    trigger = edit.get("trigger")
    if trigger is None:
        return COMPACTION_TRIGGER
    value = trigger.get("value") if isinstance(trigger, Mapping) else None
    if type(value) is int and trigger.get("type") == "input_tokens":
        return value
    # A trigger of a kind that is not known may fire at once.
    return 0


def _unknown(*, feature: str, what: object) -> Unbounded:
    msg = f"{feature}: it is not known what {what!r} costs; leave it out"
    return Unbounded(msg, feature=feature)


def read_container(container: object, allow: Allowances) -> None:
    """Check that server-side code was allowed where a request names a container.

    Raises:
        Unbounded: no allowance for it. Nothing was sent.
    """
    if container is not None and allow.code_execution is None:
        msg = (
            "container: server-side code has no limit on its runs; "
            "pass Allowances(code_execution=Uses(uses=..., tokens=...))"
        )
        raise Unbounded(msg, feature="container")
