"""The middleware that marks shared prefixes and lets one call with each go first.

It stands outside of the meter: what it adds to a request is priced and held for, and a call that waits here
has no slot and no hold. Calls outside of ``sharing`` pass at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from anthropic import APIRequest, Middleware

from budgets.prices import PriceBook
from budgets.pricing import CacheEffect
from budgets.records import Ending
from orchestrator.attempt import tied_nanos
from orchestrator.clock import SYSTEM_CLOCK, Clock
from orchestrator.context import CallContext, Tally, calling_with, current_call
from orchestrator.outgoing import with_fields
from orchestrator.time_limits import left_s
from orchestrator.wire import classify_path
from orchestrator.wire.markers import marked

from .accounts import Accounts, CachingReport
from .plan import Plan, plan_of
from .sharing import ALONE, Sharing, current_sharing
from .warmth import Warmer, Warmth


class Prefixes(Middleware):
    """Caches shared prefixes of one run's calls without being asked.

    Args:
        prices: minimums and rates.
        tally: of all calls of the run.
        alarm: called with facts when a prefix is written to the cache again and again.
        settle_s: seconds that others wait after the answer to the first call has begun. The API says that
            an entry can be read from then on; calls made just then were seen to miss it now and then.
        patience_s: seconds after which another call goes ahead, if the first has no answer. A call whose own
            time is limited (an agent's ``timeout_s``) waits for a third of what is left of it at most.
        deadline: ``clock.monotonic`` seconds after which no call waits.
        clock: where time comes from.
    """

    def __init__(
        self,
        *,
        prices: PriceBook,
        tally: Tally,
        alarm: Callable[..., None],
        settle_s: float = 0.25,
        patience_s: float = 60.0,
        deadline: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._prices = prices
        self._tally = tally
        self._warmth = Warmth(clock, settle_s=settle_s, patience_s=patience_s, deadline=deadline)
        self._accounts = Accounts(clock, alarm)

    # ---- the two clients --------------------------------------------------------------------------

    async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client for each call."""
        plan = self._plan(request)
        if plan is None:
            return await call_next(request)
        warmer = Warmer()
        try:
            if _may_wait():
                for key in plan.shared:
                    await self._warmth.ready_async(key, warmer, left_s=left_s())
            if self._is_idle(plan):
                self._failed(warmer)
                return await call_next(request)
            self._ready(plan, warmer)
            with calling_with(plan.marks):
                response = await call_next(_marked(request, plan))
        except BaseException:
            self._failed(warmer)
            raise
        self._answered(plan, warmer, response)
        return response

    def handle(self, request: APIRequest, call_next: Any) -> Any:
        """Called by the client for each call."""
        plan = self._plan(request)
        if plan is None:
            return call_next(request)
        warmer = Warmer()
        try:
            # A thread that runs an event loop must not wait for what may be a task of that loop.
            if _may_wait() and not _is_in_a_loop():
                for key in plan.shared:
                    self._warmth.ready(key, warmer, left_s=left_s())
            if self._is_idle(plan):
                self._failed(warmer)
                return call_next(request)
            self._ready(plan, warmer)
            with calling_with(plan.marks):
                response = call_next(_marked(request, plan))
        except BaseException:
            self._failed(warmer)
            raise
        self._answered(plan, warmer, response)
        return response

    # ---- steps without waiting --------------------------------------------------------------------

    def _plan(self, request: APIRequest) -> Plan | None:
        sharing = current_sharing()
        if sharing is ALONE or classify_path(request.method, request.url) != "messages":
            return None
        return self._plan_of(request.json, sharing)

    def _plan_of(self, body: object, sharing: Sharing) -> Plan | None:
        if sharing.word.is_refuted and sharing.turns is None:
            return None
        plan = plan_of(body, sharing, self._prices)
        return None if plan is None or self._is_idle(plan) else plan

    def _is_idle(self, plan: Plan) -> bool:
        """Whether its markers were seen to do nothing: perhaps just now, by the call that went first."""
        return self._warmth.is_inert(plan.marks.marked[-1].key)

    def _ready(self, plan: Plan, warmer: Warmer) -> None:
        """It is this call's turn. One that could not wait takes what is free."""
        for key in plan.shared:
            self._warmth.claim_if_free(key, warmer)
        if plan.shared:
            word = current_sharing().word
            warmer.is_alone = set(warmer.keys) == set(plan.shared)
            word.cold += warmer.is_alone
            word.warm += not warmer.is_alone

    def _failed(self, warmer: Warmer) -> None:
        if warmer.is_alone:
            current_sharing().word.cold -= 1  # it says nothing about what is shared
        for key in list(warmer.keys):
            self._warmth.failed(key, warmer)

    def _answered(self, plan: Plan, warmer: Warmer, response: Any) -> None:
        if getattr(response, "status_code", 200) >= 400:
            self._failed(warmer)
            return
        for key in plan.shared:
            self._warmth.began(key, warmer, plan.marks.ttl)

    # ---- for agents and runs ----------------------------------------------------------------------

    def should_stream(self, body: Mapping[str, Any]) -> bool:
        """Whether a call made now warms a prefix that others wait for, so that it had better be streamed.

        Said once for each prefix. False where the JSON of the answer is to be kept (see
        ``context.CallContext``): only whole answers have one.
        """
        sharing = current_sharing()
        if sharing is ALONE or (sharing.uses == 1 and not sharing.leads):
            return False
        if current_call().keep is not None:
            return False
        plan = self._plan_of(body, sharing)
        return plan is not None and any(self._warmth.ask_to_begin(key) for key in plan.shared)

    def settled(self, call: CallContext, ending: Ending, effect: CacheEffect | None) -> None:
        """Count one answered call of the run."""
        if ending.kind != "settle" or ending.usage is None:
            return
        if call.marks is not None and effect is None:
            self._warmth.note_inert(call.marks.marked[-1].key)
        elif effect is not None:
            self._accounts.add(call.marks, ending.usage, effect, (*call.tallies, self._tally))

    def report(self) -> CachingReport:
        """What caching saved and wasted so far."""
        return self._accounts.report(self._tally)


def _may_wait() -> bool:
    """A call nested in an open stream of its caller waits for nobody: the others may wait for that stream."""
    return not tied_nanos()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _marked(request: APIRequest, plan: Plan) -> APIRequest:
    body = request.json
    assert isinstance(body, Mapping)
    return with_fields(request, marked(body, plan.marks.marked, plan.marks.ttl))
