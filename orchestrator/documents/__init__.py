"""Documents: a folder of files, or the rows of a table, become texts to send; each ends in exactly one row.

``find`` walks a folder lazily; ``read`` turns one found file into a ``Document`` (text) or a
``Problem`` (unreadable, binary, empty or too large), with an ``Extractor`` also what is PDF, Word,
HTML or e-mail. ``Table`` does the same for each row of a CSV, JSON Lines or Parquet file. None of
them raises for what a document holds, and none knows of calls or money.

Rooms: ``record`` (what comes out); of folders ``walk`` (which files), ``globs`` (--include, --exclude),
``names`` (paths as printable text), ``reading`` (bytes of one file), ``signatures`` and ``kinds`` (what
formats look like), ``decoding`` and ``codepages`` (bytes to text), ``extractor`` and
``extraction_child`` (text out of other formats); of tables ``table``, ``table_rows``, ``template``.
"""

from .extractor import MAX_PAGES, Extractor
from .reading import MAX_BYTES, read
from .record import Document, DocumentError, Found, Problem, ProblemOutcome, Skipped
from .table import Table, is_table
from .template import Template
from .walk import Walk, find

__all__ = [
    "MAX_BYTES",
    "MAX_PAGES",
    "Document",
    "DocumentError",
    "Extractor",
    "Found",
    "Problem",
    "ProblemOutcome",
    "Skipped",
    "Table",
    "Template",
    "Walk",
    "find",
    "is_table",
    "read",
]
