"""Which files a folder holds, lazily and in a fixed order. ``reading`` looks into them.

Order: by path, as plain strings compare. Only the names of the folders between the root and the
current file are in memory. Links are never a way out of the folder, nor twice into the same file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from .globs import Globs
from .names import printable
from .reading import why
from .record import DocumentError, Found, Skipped

_Kind = Literal["file", "folder", "link", "other"]
_Entry = tuple[str, _Kind]
_Parts = tuple[str, ...]

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def find(
    folder: Path | str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    hidden: bool = False,
) -> Walk:
    """Walk a folder and the folders in it. Reading from disk happens while it is iterated.

    Args:
        folder: where to start.
        include: patterns (see ``Globs``); when given, only files that match one, or are in a
            folder that does, are found.
        exclude: patterns; files and folders that match one are passed over. Wins over include.
        hidden: also find what begins with a dot (``.git``, ``.env``), which is skipped otherwise.

    Raises:
        DocumentError: the folder does not exist, is no folder or can't be listed, or a pattern
            is empty. Raised by this call, not while iterating.
    """
    return Walk(Path(folder), Globs.of(include), Globs.of(exclude), hidden=hidden)


class Walk(Iterator[Found]):
    """The files of one folder, each found once; made by ``find``. Not for several threads at once.

    What can't be read (a folder without permission, a pipe, a dead link) is found too, with its
    ``trouble``, so that it gets a row. What is passed over on purpose is counted in ``skipped``.
    """

    def __init__(self, folder: Path, include: Globs, exclude: Globs, *, hidden: bool) -> None:
        self._include = include
        self._exclude = exclude
        self._hidden = hidden
        self._counts = {"hidden": 0, "excluded": 0, "linked": 0}
        self._linked: set[str] = set()
        self._root, entries, trouble = _opened(folder)
        self._rows = self._walk(entries, trouble)

    def __next__(self) -> Found:
        return next(self._rows)

    @property
    def skipped(self) -> Skipped:
        """What has been passed over so far; complete once the walk is exhausted."""
        return Skipped(**self._counts)

    def _walk(self, entries: list[_Entry], trouble: str) -> Iterator[Found]:
        """Depth first with a stack of its own, so that no depth of folders can exhaust Python's."""
        if trouble:
            yield self._found((), trouble=trouble, folder=True)
        # Each level: the folder's parts, whether ``include`` took it whole, what is left in it.
        stack: list[tuple[_Parts, bool, Iterator[_Entry]]] = [
            ((), not self._include, iter(entries))
        ]
        while stack:  # bounded by the folder: each turn takes an entry or closes a level
            above, taken, rest = stack[-1]
            entry = next(rest, None)
            if entry is None:
                stack.pop()
                continue
            name, kind = entry
            parts = (*above, name)
            if self._passed_over(parts, kind, taken=taken):
                continue
            if kind != "folder":
                yield from self._rows_of(parts, kind)
                continue
            inner, trouble = _listed(self._on_disk(parts))
            if trouble:
                yield self._found(parts, trouble=trouble, folder=True)
            taken = taken or self._include.fit(parts, folder=True)
            stack.append((parts, taken, iter(inner)))

    def _passed_over(self, parts: _Parts, kind: _Kind, *, taken: bool) -> bool:
        folder = kind == "folder"
        if not self._hidden and parts[-1].startswith("."):
            self._counts["hidden"] += 1
            return True
        excluded = self._exclude.fit(parts, folder=folder) or (
            not folder and not taken and not self._include.fit(parts, folder=False)
        )
        self._counts["excluded"] += excluded
        return excluded

    def _rows_of(self, parts: _Parts, kind: _Kind) -> Iterator[Found]:
        if kind == "file":
            yield self._found(parts)
        elif kind == "link":
            yield from self._link(parts)
        else:
            yield self._found(parts, trouble=_special(self._on_disk(parts)))

    def _link(self, parts: _Parts) -> Iterator[Found]:
        """A link is read where its target has no row of its own, once, and never outside."""
        at = self._on_disk(parts)
        try:
            target = Path(os.path.realpath(at, strict=True))
            folder = target.is_dir()
        except OSError as error:
            yield self._found(parts, trouble=_dead(at, error))
            return
        what = "folder" if folder else "file"
        if not target.is_relative_to(self._root):
            trouble = f"a link to a {what} outside of the folder; copy it in, or run on its folder"
            yield self._found(parts, trouble=trouble)
            return
        inside = target.relative_to(self._root).parts
        if self._has_row(inside, folder=folder) or str(target) in self._linked:
            self._counts["linked"] += 1
        elif folder:
            yield self._found(parts, trouble="a link to a hidden folder; links are not followed")
        else:
            self._linked.add(str(target))
            yield Found(path=printable("/".join(parts)), file=target, trouble=_special(target))

    def _has_row(self, parts: _Parts, *, folder: bool) -> bool:
        """Whether the walk comes by this resolved path anyway (or would, but for ``exclude``)."""
        if not self._hidden and any(name.startswith(".") for name in parts):
            return False
        if folder:
            return True
        above = [parts[:end] for end in range(1, len(parts))]
        if self._exclude.fit(parts, folder=False) or any(
            self._exclude.fit(path, folder=True) for path in above
        ):
            return False
        return (
            not self._include
            or self._include.fit(parts, folder=False)
            or any(self._include.fit(path, folder=True) for path in above)
        )

    def _on_disk(self, parts: _Parts) -> Path:
        return self._root.joinpath(*parts)

    def _found(self, parts: _Parts, *, trouble: str = "", folder: bool = False) -> Found:
        path = printable("/".join(parts) or ".") + ("/" if folder else "")
        return Found(path=path, file=self._on_disk(parts), trouble=trouble)


def _opened(folder: Path) -> tuple[Path, list[_Entry], str]:
    """The resolved root, what is in it, and why that list may be cut short."""
    shown = printable(str(folder))
    try:
        root = Path(os.path.realpath(folder, strict=True))
        with os.scandir(root):  # permission and kind, told apart from a fault further in
            pass
    except FileNotFoundError:
        message = f"the folder {shown} does not exist; check the path."
    except NotADirectoryError:
        message = f"{shown} is a file, not a folder; give the folder that holds it."
    except ValueError:  # a zero byte in the path
        message = f"{shown!r} is not a path; check it."
    except OSError as error:
        message = f"the folder {shown} can't be listed: {why(error)}."
    else:
        return (root, *_listed(root))
    raise DocumentError(message)


def _listed(folder: Path) -> tuple[list[_Entry], str]:
    """The sorted entries of one folder, and why the list is not complete (or ``""``)."""
    entries: list[_Entry] = []
    trouble = ""
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                entries.append((entry.name, _kind(entry)))  # noqa: PERF401 (keep what came before a fault)
    except OSError as error:
        trouble = f"this folder can't be listed: {why(error)}"
        if entries:
            trouble = f"this folder could be listed only in part: {why(error)}"
    # With the slash, all paths of the walk together come in the order of plain strings.
    entries.sort(key=lambda entry: entry[0] + ("/" if entry[1] == "folder" else ""))
    return entries, trouble


def _kind(entry: os.DirEntry[str]) -> _Kind:
    try:
        # A junction is how Windows links folders; Python tells from 3.12 on.
        if entry.is_symlink() or getattr(entry, "is_junction", bool)():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:
        return "other"


def _special(at: Path) -> str:
    """Why this is not a file to read, or ``""`` if it is one. Never opens it: a pipe would wait."""
    try:
        mode = at.lstat().st_mode
    except OSError as error:
        return why(error)
    if stat.S_ISREG(mode):
        return ""
    return f"{_SPECIAL.get(stat.S_IFMT(mode), 'a special file')}, not a file with content"


def _dead(at: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        try:
            target = printable(str(at.readlink()))
        except OSError:
            return why(error)
        return f"a link to something that does not exist: {target}"
    return f"a link that can't be followed: {why(error)}"
