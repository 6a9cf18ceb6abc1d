"""Snapshots of a gate: frozen records for the command line and dashboards, which only draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """One change of a limit, with its reason.

    Attributes:
        at_s: when, in seconds since 1970.
        kind: ``requests``, ``input_tokens`` or ``output_tokens`` (a minute), ``width`` or
            ``share``.
        before, after: the values; None means no limit known.
        reason: why, in a few words.
    """

    at_s: float
    kind: str
    before: float | None
    after: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """One group of models that share limits, at one moment.

    Attributes:
        group: its name.
        width: how many calls it may have on the way now.
        width_max: how many at most.
        in_use: slots taken now.
        waiting_for_slot, waiting_for_rate: callers in each queue.
        paused_s: seconds until a pause ends; 0 when it is not paused.
        limits: per kind, how many a minute; a kind without a limit is missing.
        share: the part of those limits that is used (below 1 for a while after a 429).
        admitted: calls let through since the start.
        throttled: answers of status 429 since the start.
        history: the last changes of limits, oldest first.
    """

    group: str
    width: int
    width_max: int
    in_use: int
    waiting_for_slot: int
    waiting_for_rate: int
    paused_s: float
    limits: Mapping[str, int]
    share: float
    admitted: int
    throttled: int
    history: tuple[LimitChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatistics:
    """A whole gate at one moment.

    Attributes:
        width: how many calls may be on the way over all groups.
        in_use: slots taken now, overflow included.
        overflow: slots lent to calls nested in an open stream, beyond the width.
        waiting: callers in all queues.
        dropped: tickets that were never closed and came back by garbage collection.
        groups: by name.
    """

    width: int
    in_use: int
    overflow: int
    waiting: int
    dropped: int
    groups: Mapping[str, GroupStatistics]
