"""Where the documents of a job come from: a folder or a table, as the command line names it."""

from __future__ import annotations

import importlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.documents import (
    Document,
    DocumentError,
    Extractor,
    Problem,
    Skipped,
    Table,
    Template,
    Walk,
    find,
    is_table,
    read,
)

from .bulk_options import Request
from .failures import Mistake

_WORDS_MAX = 8 * 1024 * 1024
_PYDANTIC = "pydantic:"


class Source:
    """The documents of one request; looked at as often as needed. Close its ``extractor``.

    Attributes:
        is_table: whether documents are rows.
        skipped: what a folder's last walk passed over; None before it ended.

    Raises:
        Mistake: there is no such folder or table, or it has no such column.
    """

    def __init__(self, request: Request, extractor: Extractor) -> None:
        self._request = request
        self._extractor = extractor
        self.skipped: Skipped | None = None
        wanted = [name for name in ("template", "column", "key") if getattr(request, name)]
        self.is_table = is_table(request.source) or (request.source.is_file() and bool(wanted))
        if wanted and not self.is_table and request.source.is_dir():
            raise Mistake(f"--{wanted[0]}: it is for tables; {request.source} is a folder")
        self._table = self._open_table() if self.is_table else None
        if self._table is None:
            self._walk()  # says at once what is wrong with it

    def documents(self, is_own: Callable[[Path], bool]) -> Iterator[Document | Problem]:
        """Every document, in order.

        Args:
            is_own: tells files that this program wrote, which are left out.

        Raises:
            Mistake: a table whose keys are there twice, or that is damaged further in.
        """
        if self._table is not None:
            try:
                yield from self._table
            except DocumentError as error:
                raise _mistake(error) from None
            return
        walk = self._walk()
        for found in walk:
            if not is_own(found.file):
                yield read(found, max_bytes=self._request.max_bytes, extractor=self._extractor)
        self.skipped = walk.skipped

    def _walk(self) -> Walk:
        request = self._request
        try:
            return find(
                request.source,
                include=request.include,
                exclude=request.exclude,
                hidden=request.hidden,
            )
        except DocumentError as error:
            raise _mistake(error) from None

    def _open_table(self) -> Table:
        request = self._request
        if request.include or request.exclude:
            raise Mistake(f"--include, --exclude: they are for folders; {request.source} is a file")
        if (request.template is None) == (request.column is None):
            raise Mistake(
                f"{request.source}: say how a row becomes a text, by --column NAME or by --template"
            )
        try:
            if request.column is not None:
                template = Template.column(request.column)
            else:
                template = Template.of(_template_text(str(request.template)))
            table = Table(
                request.source, template=template, key=request.key, max_bytes=request.max_bytes
            )
            if request.key is not None:
                deque(table, maxlen=0)  # says now that a key is there twice
            return table
        except DocumentError as error:
            raise _mistake(error) from None


def read_words(path: Path | None, what: str) -> str:
    """A rubric or a prompt out of its file; empty without one.

    Raises:
        Mistake, OSError: it can't be read.
    """
    if path is None:
        return ""
    try:
        if path.stat().st_size > _WORDS_MAX:
            raise Mistake(f"{what} {path}: it is larger than {_WORDS_MAX >> 20} MiB; shorten it")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Mistake(f"{what} {path}: it is not UTF-8 text; save it as UTF-8") from None


def read_fields(given: str) -> Mapping[str, Any] | type[BaseModel]:
    """A schema out of its file, or a model out of its module (``pydantic:module:Class``).

    Raises:
        Mistake, OSError: it can't be read.
    """
    if given.startswith(_PYDANTIC):
        return _model(given.removeprefix(_PYDANTIC))
    try:
        schema = json.loads(read_words(Path(given), "schema"))
    except RecursionError:
        raise Mistake(f"schema {given}: it is nested too deeply; flatten it") from None
    except json.JSONDecodeError as error:
        raise Mistake(
            f"schema {given}: it is not JSON (line {error.lineno}: {error.msg}); mend it"
        ) from None
    if not isinstance(schema, dict):
        raise Mistake(f"schema {given}: it is no JSON object; a schema is one")
    return schema


def _model(given: str) -> type[BaseModel]:
    module, _, name = given.partition(":")
    if not module or not name:
        raise Mistake(f"--schema {_PYDANTIC}{given}: write {_PYDANTIC}module:Class")
    sys.path.insert(0, str(Path.cwd()))  # a program does not look in the working folder by itself
    try:
        model = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise Mistake(
            f"--schema: the module {module} can't be imported ({type(error).__name__}: {error})"
        ) from None
    finally:
        sys.path.pop(0)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise Mistake(f"--schema: {module} has no pydantic model that is called {name}")
    return model


def _template_text(given: str) -> str:
    """A template as it was written, or out of a file."""
    if "{" in given:
        return given.replace("\\n", "\n").replace("\\t", "\t")
    if not Path(given).is_file():
        raise Mistake(f"--template {given}: it has no field such as {{title}}, and is no file")
    return read_words(Path(given), "template")


def _mistake(error: DocumentError) -> Mistake:
    return Mistake(str(error))
