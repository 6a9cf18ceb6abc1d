"""What a run sets aside for its closing call, and gives back at its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from budgets.errors import BudgetError
from budgets.pricing import bound
from budgets.reserves import Reserve

from .attempt import tied_nanos
from .errors import ConfigError
from .journal import Journal
from .meter import Meter
from .vouching import words_here
from .wire import read_request

logger = logging.getLogger("earmark")


class RunReserves:
    """The reserves of one run, below its meter's scope."""

    def __init__(self, meter: Meter, journal: Journal) -> None:
        self._meter = meter
        self._journal = journal
        self._taken: list[Reserve] = []

    async def take(self, nanos: int) -> Reserve:
        """Set nano-dollars aside, in the scope of whoever asks."""
        meter = self._meter
        reserve = await meter.ledger.reserve_async(nanos, scope=meter.scope, tied=tied_nanos())
        self._taken.append(reserve)
        self._journal.write("reserve", reserve=reserve.id, scope=reserve.scope, nanos=nanos)
        return reserve

    def bound_of(self, body: Mapping[str, Any]) -> int:
        """The most that a request can cost as it will be held: its prompt may be marked for the cache on the way."""
        betas = tuple(str(beta) for beta in body.get("betas") or ())
        plain = {name: value for name, value in body.items() if name != "betas"}
        meter = self._meter
        reading = read_request(
            plain,
            betas=betas,
            allow=words_here(meter.allow),
            context_window=meter.prices.context_window(str(body.get("model"))),
        )
        shape = reading.shape
        shape = replace(shape, cache_ttl=shape.cache_ttl or "5m")
        return bound(shape, meter.prices, datetime.now(UTC))

    async def take_for(self, body: Mapping[str, Any], times: int) -> Reserve:
        """Set aside what so many calls of this request can cost."""
        if times < 1:
            raise ConfigError(f"reserve_for: {times} calls can't be reserved for; say 1 or more")
        return await self.take(self.bound_of(body) * times)

    def give_back(self) -> None:
        """Release what is left of them; a fault of the ledger is logged, since the run ends all the same."""
        while self._taken:
            reserve = self._taken.pop()
            try:
                released = self._meter.ledger.release(reserve)
            except BudgetError as error:
                logger.error("%s", error)  # noqa: TRY400
                return
            self._journal.write("release", reserve=reserve.id, nanos=released)
