"""Exit codes: the one place where they are named and explained."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the program tells the shell."""

    OK = 0
    FAILED = 1
    MISTAKE = 2
    CAP = 3
    SPEND_LIMIT = 4
    FAULT = 70
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "all ok",
    Exit.FAILED: "finished, with failed units (or a check found something)",
    Exit.MISTAKE: "the user's mistake, or a ledger that can't be used; one sentence says what",
    Exit.CAP: "stopped by a cap",
    Exit.SPEND_LIMIT: "stopped by the provider's limit",
    Exit.FAULT: "a fault in Earmark itself; please report it",
    Exit.INTERRUPTED: "interrupted",
}

#: The foot of ``earmark --help``.
EPILOG = "Exit codes: " + "; ".join(f"{code.value} {text}" for code, text in MEANINGS.items()) + "."
