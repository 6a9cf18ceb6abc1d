"""Failures: what the program says, and which code it leaves with, when a command can't go on.

A user's mistake and a ledger in trouble get one sentence; only a fault of Earmark's own shows a traceback.
"""

from __future__ import annotations

import sys
import traceback

from .exits import Exit
from .output import forget, json_begun, print_json, remark


class Mistake(Exception):
    """The user's mistake; the message says what, where and what to do."""


def report_failure(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong on standard error (and as the one document, if asked), and which code it is.

    Args:
        error: what a command raised.
        as_json: whether ``--json`` was given.
    """
    code = code_of(error)
    sentence = _sentence(error)
    if code is Exit.FAULT:
        traceback.print_exception(error, file=sys.stderr)
        sentence = f"a fault in Earmark itself: {type(error).__name__}: {sentence}"
    if sentence:
        remark(f"earmark: {sentence}")
    if as_json and not json_begun():
        print_json({"error": sentence, "kind": type(error).__name__, "exit_code": int(code)})
    forget()
    return int(code)


def code_of(error: BaseException) -> Exit:
    """The exit code of what a command raised."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    # By name, so that a command that never touched money does not import it to fail.
    for name, code in _CODES.items():
        if name in names:
            return code
    return Exit.MISTAKE if isinstance(error, (Mistake, OSError)) else Exit.FAULT


_CODES = {
    "budgets.errors.BudgetExceeded": Exit.CAP,
    "orchestrator.errors.SpendLimit": Exit.SPEND_LIMIT,
    "budgets.errors.BudgetError": Exit.MISTAKE,
    "orchestrator.errors.ConfigError": Exit.MISTAKE,
    "orchestrator.batches.work.JobFault": Exit.FAILED,
}


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.strerror and type(error).__module__ == "builtins":
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error)
