"""Prompts that patterns write: the reports of parts, and items that begin alike as two blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.prefixes import split_shared

from .parts import Part, Prompt, as_prompt


def reports(parts: Iterable[Part[Any]], *, label: str = "part") -> str:
    """What parts came to, as a reducer, a judge or a lead reads it; failed ones are named as such."""
    told = []
    for part in parts:
        name = f' by="{part.name}"' if part.name else ""
        head = f'<{label} number="{part.index + 1}"{name} outcome="{part.outcome.value}">'
        body = as_text(part.value) if part.ok else part.reason
        told.append(f"{head}\n{body}\n</{label}>")
    return "\n\n".join(told)


def as_text(value: object) -> str:
    """A value as text in a prompt."""
    given = as_prompt(value)
    if isinstance(given, str):
        return given
    return "\n".join(str(block.get("text", "")) for block in given)


def shared_beginning(items: Sequence[Any] | None) -> str:
    """The long text with which all items begin, if there is one: it can be cached for all of them."""
    if not items or len(items) < 2 or not all(isinstance(item, str) for item in items):
        return ""
    return str(items[0][: split_shared(items)])


def in_two_blocks(item: str, beginning: str) -> Prompt:
    """A prompt whose beginning is a block of its own."""
    return [
        {"type": "text", "text": beginning},
        {"type": "text", "text": item[len(beginning) :]},
    ]
