"""Bulk: the same task for every document of a folder or table, under the caps of a run.

``task`` says what is asked (``classify``, ``extract``, ``map``), ``quote`` what it will cost, ``job`` does it
over direct calls and ``batched`` over batches; both read answers and write rows by the same ``desk``, and
``results`` and ``export`` write them down.
"""

from .batched import BatchedJob
from .classify import Classify
from .desk import Progress
from .export import Sheet
from .extract import Extract
from .job import answer_all
from .map import Map
from .quote import Quote, quote
from .results import Results
from .row import Row
from .task import Task

__all__ = [
    "BatchedJob",
    "Classify",
    "Extract",
    "Map",
    "Progress",
    "Quote",
    "Results",
    "Row",
    "Sheet",
    "Task",
    "answer_all",
    "quote",
]
