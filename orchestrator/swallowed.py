"""Swallowed declines: ends a tool loop that turned one of our declines into a tool result.

A tool runner catches what a tool raises and sends it to the model. Every decline carries an id, so the next
turn gives it away, whichever meter of this process it came from.
"""

from __future__ import annotations

import copy
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from budgets.errors import BudgetExceeded

_ID = re.compile(r"decline-[0-9a-f]{12}")
_MOST = 1_000

_lock = threading.Lock()
_declines: OrderedDict[str, BudgetExceeded] = OrderedDict()
_raised: weakref.WeakSet[BudgetExceeded] = weakref.WeakSet()


def remember_decline(error: BudgetExceeded) -> None:
    """Keep a decline for the loop that may swallow it."""
    # A copy: the original's traceback would keep request bodies alive.
    kept = copy.copy(error)
    with _lock:
        _declines[error.id] = kept
        while len(_declines) > _MOST:
            _declines.popitem(last=False)


def raise_swallowed(body: Mapping[str, Any]) -> None:
    """Raise the decline that the last message reports as the error of a tool; once for each decline.

    A conversation that goes on later, when its cap was raised, is for the ledger to judge.

    Raises:
        BudgetExceeded: the swallowed decline. Nothing was sent.
    """
    if not _declines:
        return
    for text in _failed_tools(body):
        for found in _ID.findall(text):
            with _lock:
                error = _declines.pop(found, None)
            if error is not None:
                _raised.add(error)
                raise error


def was_swallowed(error: BudgetExceeded) -> bool:
    """Whether it was raised here: the end of a loop, not the decline of the call that brought it to light."""
    return error in _raised


def _failed_tools(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, Mapping) else None
    for block in content if isinstance(content, list) else ():
        if (
            isinstance(block, Mapping)
            and block.get("type") == "tool_result"
            and block.get("is_error")
        ):
            yield str(block.get("content"))
