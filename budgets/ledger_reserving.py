"""The reserves of a ledger: set aside for a closing call, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .admission import Rules
from .answer import Answer, set_result
from .counter import Operation
from .records import Hold, HoldRequest
from .reserves import Reserve, reserve_here


class Reserving:
    """The part of ``Ledger`` that sets money aside for later (rule 15)."""

    number: int
    _rules: Rules

    request: Callable[..., HoldRequest]
    hold: Callable[..., Hold]
    hold_async: Callable[..., Awaitable[Hold]]
    _submit: Callable[..., None]

    def reserve(
        self,
        nanos: int,
        *,
        scope: str = "",
        note: Mapping[str, Any] | None = None,
        wait: bool = True,
        tied: int = 0,
        timeout_s: float | None = None,
    ) -> Reserve:
        """Set money aside, in the surrounding context below ``scope``, for calls made later in that place.

        It is admitted like a call of this bound. Calls that only it keeps out are declined rather than made to
        wait; they don't shut their scope. Metered calls inside ``drawing_on(reserve)`` draw on it: even where
        the cap is used up or shut, they are admitted up to what is left of it, and a call that ends void puts
        back what it took. What a settled call did not use is free, as ever. It lasts until ``release``, at the
        longest until this process closes the ledger or dies.

        Args:
            nanos: how much, nano-dollars.
            scope, note, wait, tied: as for ``request``.
            timeout_s: as for ``hold``.

        Raises:
            BudgetExceeded, LedgerUnavailable, TimeoutError: as for ``hold``; nothing is reserved, and no scope
                is shut by it.
        """
        request = self._reserve_request(nanos, scope, note, wait, tied)
        return self._reserved(self.hold(request, timeout_s=timeout_s))

    async def reserve_async(
        self,
        nanos: int,
        *,
        scope: str = "",
        note: Mapping[str, Any] | None = None,
        wait: bool = True,
        tied: int = 0,
    ) -> Reserve:
        """As ``reserve``; cancelling it leaves nothing reserved."""
        request = self._reserve_request(nanos, scope, note, wait, tied)
        return self._reserved(await self.hold_async(request))

    @property
    def draws_here(self) -> bool:
        """Whether a call made here and now draws on a reserve of this ledger."""
        return reserve_here(self.number) is not None

    def release(self, reserve: Reserve | str) -> int:
        """Give back what is left of a reserve; may be called twice.

        Calls under way that drew on it keep their holds, but put nothing back any more.

        Returns:
            Nano-dollars that were given back.
        """
        answer = Answer()
        self._submit(self._release_operation(reserve, answer.set))
        released: int = answer.get(None)
        return released

    async def release_async(self, reserve: Reserve | str) -> int:
        """As ``release``. Once begun it is done, even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def land(result: Any) -> None:
            if not future.done():
                set_result(future, result)

        self._submit(self._release_operation(reserve, land, loop))
        released: int = await future
        return released

    def _reserve_request(
        self, nanos: int, scope: str, note: Mapping[str, Any] | None, wait: bool, tied: int
    ) -> HoldRequest:
        # A precaution that can't be afforded is no reason to shut the scope: hence no latch.
        return self.request(
            nanos,
            scope=scope,
            note=note,
            wait=wait,
            tied=tied,
            latch=False,
            reserve=True,
        )

    def _reserved(self, hold: Hold) -> Reserve:
        return Reserve(id=hold.id, nanos=hold.nanos, scope=hold.scope, ledger=self.number)

    def _release_operation(
        self,
        reserve: Reserve | str,
        deliver: Any,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Operation:
        name = reserve if isinstance(reserve, str) else reserve.id
        return Operation(
            lambda txn, at_us: self._rules.release(txn, name, at_us), deliver, must=True, loop=loop
        )


__all__ = ["Reserving"]
