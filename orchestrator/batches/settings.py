"""Settings of a job: limits of its batches, when it looks, what is tried again, and who is told at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.wire.batches import BYTES_MAX, REQUESTS_MAX

#: A tenth below the provider's limit: what is between us and it may count differently.
_MARGIN = 10


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """When a batch is looked at: soon at first, then ever less often.

    Attributes:
        first_s: seconds until the first look.
        longest_s: the longest wait between two looks.
        growth_percent: how much longer each wait is than the one before.
        give_up_s: seconds after which a batch that has not ended is a matter for a person; the API ends
            each within 24 hours.
    """

    first_s: float = 5.0
    longest_s: float = 300.0
    growth_percent: int = 30
    give_up_s: float = 30 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Who is told when a job has ended: once, when ``BatchJob`` is left, with the figures of then.

    The same end is not told again when the job is taken up again, unless a kill came between telling and writing
    that down (``notice.json`` in the run's folder), or it was not taken (a code other than 0, an HTTP error).

    Also if it ended by a cap or a fault (``end`` is ``fault``); not if it was left to be taken up again. Both get
    counts and dollars only, never content.

    Attributes:
        command: a program and its arguments; the JSON comes on its standard input.
        webhook: a URL; the JSON is posted to it.
        timeout_s: how long either may take.
    """

    command: tuple[str, ...] = ()
    webhook: str = ""
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How a job is done.

    Attributes:
        requests_max, bytes_max: of one batch.
        item_bytes_max: of one request; the API's limit for a message.
        nanos_max: the most money that one batch may hold; None leaves that to the caps.
        open_max: batches under way at once.
        tries: batches that an item is sent in before its failure is final.
        failed_direct: finish what failed in a batch by direct calls instead of a further batch.
        cache: mark shared prefixes for an hour, and prime them, where that pays.
        hits_permille: the share of reads, of a thousand, that a primed cache is expected to give.
        trial: count one request of each shape for free before thousands are sent.
        polling: when batches are looked at.
        grace_s: how long a batch whose answer was lost may take to show up in the provider's list.
        notify: who is told at the end.
        now: the time (aware); for tests.
    """

    requests_max: int = REQUESTS_MAX
    bytes_max: int = BYTES_MAX - BYTES_MAX // _MARGIN
    item_bytes_max: int = 32_000_000
    nanos_max: int | None = None
    open_max: int = 20
    tries: int = 3
    failed_direct: bool = False
    cache: bool = True
    hits_permille: int = 900
    trial: bool = True
    polling: Polling = field(default_factory=Polling)
    grace_s: float = 30.0
    notify: Notify = field(default_factory=Notify)
    now: Callable[[], datetime] = _utc_now
