"""The team of ``earmark work``: subagents from a file, checked before anything starts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.workers import READING, Subagent

from .failures import Mistake

_WRITING = ("Edit", "Write")
_FIELDS = ("description", "prompt", "tools", "model", "max_turns")


def agents_of(path: Path, *, write: bool) -> dict[str, Subagent]:
    """The subagents in a TOML or JSON file: one table each, by name.

    Args:
        path: the file.
        write: they may change files.

    Raises:
        Mistake: it can't be read, or something in it can't be used; names file, agent and field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise Mistake(f"--agents {path}: {error.strerror}") from None
    except ValueError as error:
        raise Mistake(f"--agents {path}: it can't be read ({error})") from None
    if not isinstance(given, dict) or not given:
        raise Mistake(f"--agents {path}: there is no agent in it; write one table for each")
    return {name: _agent(f"--agents {path}: {name}", one, write) for name, one in given.items()}


def _agent(where: str, given: object, write: bool) -> Subagent:
    if not isinstance(given, Mapping):
        raise Mistake(f"{where}: it is no table; give it a description and a prompt")
    unknown = sorted(given.keys() - set(_FIELDS))
    if unknown:
        raise Mistake(f"{where}: there is no field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    for field in ("description", "prompt"):
        if not isinstance(given.get(field), str) or not given[field].strip():
            raise Mistake(f"{where}: {field} must be a text")
    return Subagent(
        description=given["description"],
        prompt=given["prompt"],
        tools=_tools(where, given.get("tools", []), (*READING, *_WRITING) if write else READING),
        model=_optional(where, given, "model", str),
        max_turns=_optional(where, given, "max_turns", int),
    )


def _tools(where: str, given: object, known: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise Mistake(f"{where}: tools must be a list of names")
    other = sorted(set(given) - set(known))
    if other:
        hint = "; it is read-only without --write" if other[0] in _WRITING else ""
        raise Mistake(f"{where}: the tool {other[0]!r} is none of {', '.join(known)}{hint}")
    return tuple(given)


def _optional(where: str, given: Mapping[str, Any], field: str, kind: type) -> Any:
    value = given.get(field)
    if value is not None and (not isinstance(value, kind) or value in {"", 0} or value is True):
        raise Mistake(f"{where}: {field} must be a {'number' if kind is int else 'name'}")
    return value
