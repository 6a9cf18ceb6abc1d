"""Lines of JSON from a file that may be cut, foreign or broken: what can be read, and the numbers of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json


def read_lines(path: Path, unreadable: list[int]) -> Iterator[dict[str, Any]]:
    """Every line that is a JSON object, in order.

    Args:
        path: the file.
        unreadable: gets the numbers (from 1) of lines that are none; blank lines are passed over.

    Raises:
        OSError: the file can't be read.
    """
    for _, event in numbered_lines(path, unreadable):
        yield event


def numbered_lines(path: Path, unreadable: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """As ``read_lines``, with the number of each line."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                event = from_json(line)  # several times faster than the standard library's
            except ValueError:
                event = None
            if isinstance(event, dict):
                yield number, event
            else:
                unreadable.append(number)


def is_journal(path: Path) -> bool:
    """Whether a file is the journal of a run: its first readable line is an event of one.

    Raises:
        OSError: the file can't be read.
    """
    for event in read_lines(path, []):
        return isinstance(event.get("event"), str) and "run" in event and "at" in event
    return False
