"""Checking a body before it is sent: against the SDK's types, and which shape it has.

Errors in parameters show only when a batch ends, so everything that can be found here is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from orchestrator.wire.batches import not_in_batches
from orchestrator.wire.prefixes import to_json

#: What makes a request of its own shape, beside which fields it has.
_SHAPING = ("model", "tools", "tool_choice", "thinking", "output_config")


@cache
def _params() -> TypeAdapter[Any]:
    return TypeAdapter(MessageCreateParamsNonStreaming)


def problem_of(body: Mapping[str, Any], allowed: frozenset[str] = frozenset()) -> str:
    """What is wrong with a body, in one sentence; ``""`` if it is what the SDK's types say.

    Args:
        body: the parameters of one request.
        allowed: top-level fields that the caller vouches for though the SDK does not know them.
    """
    refused = not_in_batches(body)
    if refused:
        return refused
    plain = {name: value for name, value in body.items() if name not in allowed}
    try:
        back = _params().dump_python(_params().validate_python(plain), mode="json", warnings=False)
    except (ValidationError, ValueError) as error:
        return _first_fault(error, plain)
    if back == plain:
        return ""
    # Tuples and the like come back as lists: only what differs as JSON is lost on the way.
    sent: dict[str, Any] = from_json(to_json(plain))
    return "" if back == sent else _difference(back, sent, "")


def _first_fault(error: ValueError, body: Mapping[str, Any]) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["loc"] and isinstance(first["loc"][0], int):
        where = f"{_list_at_fault(body)}.{where}"
    return f"{where}: {first['msg']} (by the SDK's types)"


def _list_at_fault(body: Mapping[str, Any]) -> str:
    """Lists are looked into one by one, late, and their faults don't say which one it was."""
    for name in ("system", "tools"):
        one: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [], name: body.get(name)}
        if isinstance(body.get(name), list):
            try:
                _params().dump_python(_params().validate_python(one), mode="json", warnings=False)
            except (ValidationError, ValueError):
                return name
    return "messages"


def _difference(back: object, sent: object, where: str) -> str:
    """The first place where the SDK's types drop or change something."""
    if isinstance(sent, dict) and isinstance(back, dict):
        for name, value in sent.items():
            place = f"{where}.{name}" if where else str(name)
            if name not in back:
                return f"{place}: the SDK does not know this field here; take it out"
            if back[name] != value:
                return _difference(back[name], value, place)
    if isinstance(sent, list) and isinstance(back, list):
        for index, (one, other) in enumerate(zip(back, sent, strict=False)):
            if one != other:
                return _difference(one, other, f"{where}.{index}")
    return f"{where}: {_short(sent)} is not of the type that the SDK says"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def shape_digest(body: Mapping[str, Any]) -> bytes:
    """Equal for bodies with the same fields, model, tools and schema: one of them stands for all."""
    shape = {name: body.get(name) for name in _SHAPING}
    kinds = [(name, type(body[name]).__name__) for name in sorted(body)]
    return hashlib.blake2b(to_json([shape, kinds]), digest_size=16).digest()
