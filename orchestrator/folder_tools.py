"""Tools over a folder: list, read and search its files, confined to it and within bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from .documents import Document, Extractor, Found, find, read
from .tools import Tool, tool

#: Characters that one answer of a tool holds at most: it is paid for again in each further turn.
PAGE_CHARS = 12_000
#: Lines of a list of files, and hits of a search, in one answer.
_LIST_MOST, _HITS_MOST = 200, 40
_HIT_CHARS = 240
#: Files that are known to the tools at most; a larger folder should be narrowed by ``include``.
_FILES_MOST = 20_000


def folder_tools(
    folder: Path | str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    extractor: Extractor | None = None,
) -> list[Tool]:
    """``list_files``, ``read_file`` and ``search_files`` over one folder.

    Only files that walking the folder finds can be named, so neither ``..`` nor a link leads out of it;
    hidden files are left out. Binary files, and those too large to read, say so.

    Args:
        folder: what the tools see.
        include, exclude: patterns, as for ``earmark classify``.
        extractor: takes text out of PDF, Word, HTML and e-mail, if it is given.

    Raises:
        DocumentError: no such folder, or a pattern that can't be used.
    """
    files = _Files(folder, include, exclude, extractor)
    return [tool(files.list_files), tool(files.read_file), tool(files.search_files)]


class _Files:
    """The files of one folder as they were when the tools were made."""

    def __init__(
        self,
        folder: Path | str,
        include: Sequence[str],
        exclude: Sequence[str],
        extractor: Extractor | None,
    ) -> None:
        self._found: dict[str, Found] = {}
        self._extractor = extractor
        self._lock = threading.Lock()
        self.is_cut = False
        for found in find(folder, include=include, exclude=exclude):
            if len(self._found) == _FILES_MOST:
                self.is_cut = True
                break
            if not found.trouble:
                self._found[found.path] = found

    def list_files(self, below: str = "", page: int = 1) -> str:
        """List the files below a folder ("" is all of it), some at a time; page 2 and on has the rest."""
        paths = self._below(below)
        if not paths:
            return f"there are no files below {below!r}"
        page = max(page, 1)
        shown = paths[(page - 1) * _LIST_MOST : page * _LIST_MOST]
        left = len(paths) - page * _LIST_MOST
        more = f"\n({left} more: ask for page {page + 1})" if left > 0 else ""
        cut = "\n(the folder holds more files than these tools list)" if self.is_cut else ""
        return "\n".join(shown) + more + cut if shown else f"there is no page {page}"

    def read_file(self, path: str, from_line: int = 1) -> str:
        """Read a file of the folder, by its path as list_files shows it; a long one in parts, by line."""
        text = self._text(path)
        if text is None:
            return f"there is no file {path!r}; list_files shows what there is"
        if isinstance(text, _Unreadable):
            return f"{path}: {text.reason}"
        lines = text.splitlines()
        first = max(from_line, 1)
        shown: list[str] = []
        size = 0
        for line in lines[first - 1 :]:
            size += len(line) + 1
            if size > PAGE_CHARS and shown:
                break
            shown.append(line[:PAGE_CHARS])
        if not shown:
            return f"{path} has {len(lines)} lines"
        last = first + len(shown) - 1
        more = (
            f"\n({len(lines) - last} more lines: from_line={last + 1})" if last < len(lines) else ""
        )
        return f"{path}, lines {first} to {last}:\n" + "\n".join(shown) + more

    def search_files(self, words: str, below: str = "") -> str:
        """Find lines that hold some words, upper and lower case alike; says path, line number and line."""
        wanted = words.casefold().strip()
        if not wanted:
            return "say which words to look for"
        hits: list[str] = []
        for path in self._below(below):
            text = self._text(path)
            if not isinstance(text, str) or wanted not in text.casefold():
                continue
            for number, line in enumerate(text.splitlines(), start=1):
                if wanted in line.casefold():
                    hits.append(f"{path}:{number}: {line.strip()[:_HIT_CHARS]}")
                if len(hits) >= _HITS_MOST:
                    return "\n".join(hits) + "\n(there may be more: narrow it by below or by words)"
        return "\n".join(hits) if hits else f"no line holds {words!r}"

    def _below(self, below: str) -> list[str]:
        prefix = below.strip().strip("/").removeprefix("./")
        if prefix in {"", "."}:
            return list(self._found)
        return [path for path in self._found if path == prefix or path.startswith(prefix + "/")]

    def _text(self, path: str) -> str | _Unreadable | None:
        found = self._found.get(path.strip().removeprefix("./"))
        if found is None:
            return None
        with self._lock:  # an extractor serves one at a time
            document = read(found, extractor=self._extractor)
        if isinstance(document, Document):
            return document.text
        return _Unreadable(f"{document.outcome}: {document.reason}")


class _Unreadable:
    """Why a file has no text."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
