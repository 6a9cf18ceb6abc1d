"""The wire: the one place that knows the field names of requests, usage and errors.

It turns what goes over the wire into shapes and usages, and imports no SDK. Prices are in
``budgets``, the headers of rate limits are the gate's.
"""

from .allowances import Allowances, Uses
from .errors import ErrorKind, Word, classify
from .paths import PathKind, classify_path
from .requests import History, Reading, read_request
from .streams import SseReader, StreamReader
from .usages import Counted, counted_for_limits, read_usage

__all__ = [
    "Allowances",
    "Counted",
    "ErrorKind",
    "History",
    "PathKind",
    "Reading",
    "SseReader",
    "StreamReader",
    "Uses",
    "Word",
    "classify",
    "classify_path",
    "counted_for_limits",
    "read_request",
    "read_usage",
]
