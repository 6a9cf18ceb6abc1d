"""Labels for documents: one call each with structured output, under the caps of a run.

``task`` says what is asked, ``quote`` what it will cost, ``job`` does it, ``results`` writes it down.
"""

from .job import Progress, classify
from .quote import Quote, quote
from .results import Results, Row
from .task import Task

__all__ = ["Progress", "Quote", "Results", "Row", "Task", "classify", "quote"]
