"""Forks: no SQLite connection may be open across one, so stores close theirs before and open new ones after.

SQLite keeps its locks per process and remembers them in memory. A forked child believes that it holds what
its parent holds: the parent then deletes the write-ahead log under it when it closes, and lines are lost.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Pausable(Protocol):
    """A store that can be without connections for the moment of a fork."""

    def pause(self) -> bool:
        """Close every connection and let nobody open one; False if some could not be closed."""

    def resume(self) -> None:
        """Connections may be opened again."""

    def inode(self) -> tuple[int, int]:
        """Device and number of the file."""


_stores: weakref.WeakSet[Pausable] = weakref.WeakSet()
_paused: list[Pausable] = []
_still_open: list[Pausable] = []
_tainted: set[tuple[int, int]] = set()


def watch(store: Pausable) -> None:
    """From now on the store is paused at forks."""
    _stores.add(store)


def is_tainted(inode: tuple[int, int]) -> bool:
    """True if this process was forked while the file was in use, so that its locks can't be relied on here."""
    return inode in _tainted


def _before() -> None:
    for store in list(_stores):
        if not store.pause():
            _still_open.append(store)
        _paused.append(store)


def _after() -> None:
    while _paused:
        _paused.pop().resume()
    _still_open.clear()


def _after_in_child() -> None:
    _tainted.update(store.inode() for store in _still_open)
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
