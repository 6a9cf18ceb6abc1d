"""Where the documents of a job come from: a folder or a table, as the command line names it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

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

from .bulk_request import Request
from .bulk_wanted import read_words
from .failures import Mistake


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
                include=tuple(request.include or ()),
                exclude=tuple(request.exclude or ()),
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
                template = Template.of(template_text(str(request.template)))
            table = Table(
                request.source, template=template, key=request.key, max_bytes=request.max_bytes
            )
            if request.key is not None:
                deque(table, maxlen=0)  # says now that a key is there twice
            return table
        except DocumentError as error:
            raise _mistake(error) from None


def template_text(given: str) -> str:
    """A template as it was written, or out of a file."""
    if "{" in given:
        return given.replace("\\n", "\n").replace("\\t", "\t")
    if not Path(given).is_file():
        raise Mistake(f"--template {given}: it has no field such as {{title}}, and is no file")
    return read_words(Path(given), "template")


def _mistake(error: DocumentError) -> Mistake:
    return Mistake(str(error))
