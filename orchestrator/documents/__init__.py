"""Documents: a folder of files becomes texts to send, and every file ends in exactly one row.

``find`` walks a folder lazily; ``read`` turns one found file into a ``Document`` (text) or a
``Problem`` (unreadable, binary, empty or too large). Neither raises for what a file holds, and
neither knows of calls or money.

Rooms: ``record`` (what comes out), ``walk`` (which files), ``globs`` (--include, --exclude),
``names`` (paths as printable text), ``reading`` (bytes of one file), ``signatures`` (what binary
formats look like), ``decoding`` (bytes to text).
"""

from .reading import MAX_BYTES, read
from .record import Document, DocumentError, Found, Problem, ProblemOutcome, Skipped
from .walk import Walk, find

__all__ = [
    "MAX_BYTES",
    "Document",
    "DocumentError",
    "Found",
    "Problem",
    "ProblemOutcome",
    "Skipped",
    "Walk",
    "find",
    "read",
]
