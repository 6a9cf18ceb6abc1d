"""The directory of groups: finds a model's group, and forgets idle ones when they are many."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.clock import Clock

from .groups import group_of
from .state import GroupState

#: Groups are forgotten beyond this many, idle ones only: names come from callers.
_GROUPS_MAX = 256


class Directory:
    """Groups by name, made when first asked for.

    Args:
        width: the most calls at once of each group.
        configured: per kind, limits a minute of ordinary messages.
    """

    def __init__(self, *, width: int, configured: Mapping[str, int], clock: Clock) -> None:
        self.by_name: dict[str, GroupState] = {}
        self._by_model: dict[tuple[str, str], GroupState] = {}
        self._width = width
        self._configured = dict(configured)
        self._clock = clock

    def find(self, model: str, lane: str, now: float) -> GroupState:
        """The group of a model in a lane."""
        return self._by_model.get((model, lane)) or self._make(model, lane, now)

    def _make(self, model: str, lane: str, now: float) -> GroupState:
        name = group_of(model, lane)
        group = self.by_name.get(name)
        if group is None:
            if len(self.by_name) >= _GROUPS_MAX:
                self._forget_idle(now)
            group = GroupState(
                name=name,
                lane=lane,
                width=self._width,
                # What the caller configured are the limits of messages; other lanes have their own.
                configured={} if lane else self._configured,
                now=now,
                wall_s=self._clock.time(),
            )
            self.by_name[name] = group
        if len(self._by_model) >= 4 * _GROUPS_MAX:
            self._by_model.clear()
        self._by_model[model, lane] = group
        return group

    def _forget_idle(self, now: float) -> None:
        for name, group in list(self.by_name.items()):
            if not (group.in_use or group.for_slot or group.for_rate or group.paused_until > now):
                del self.by_name[name]
        self._by_model.clear()
