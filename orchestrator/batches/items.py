"""Items: what goes into a job, and what comes out of it for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from budgets.money import to_decimal
from orchestrator.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request of a job.

    Attributes:
        identity: unique within the job, the same when the job is run again: a hash of content, prompt,
            model and schema, say.
        body: the body of ``POST /v1/messages``, plain JSON values.
    """

    identity: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How one item ended.

    Attributes:
        identity: the item's.
        outcome: its one word. ``ok`` says that an answer is there, not that it is right.
        message: the answer as JSON; also of a refusal and of a truncated answer.
        reason: one sentence, ``""`` if it went well.
        posted_nanos: what it cost in all, nano-dollars.
        in_doubt_nanos: what it may have cost besides; counts against the caps until a person resolves it.
        usage: the counts that the cost was derived from, as the ledger writes them.
        tries: batches and direct calls that it was sent in.
        via: ``batch`` or ``direct``; ``""`` if it was never sent.
        reused: it had ended before this process began.
    """

    identity: str
    outcome: Outcome
    message: Mapping[str, Any] | None = None
    reason: str = ""
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 0
    via: str = ""
    reused: bool = False

    @property
    def posted(self) -> Decimal:
        """Dollars."""
        return to_decimal(self.posted_nanos)
