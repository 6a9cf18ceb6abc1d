"""A run: one piece of work under one cap, with its ledger, gate, client, journal, deadline and kill switch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anthropic import Anthropic, AsyncAnthropic, Middleware

from budgets.caps import Cap
from budgets.errors import BudgetError, LedgerUnavailable
from budgets.ledger import Ledger
from budgets.money import format_usd, parse_usd, to_decimal
from budgets.prices import PriceBook
from budgets.records import Balance
from budgets.reserves import Reserve
from budgets.room import Room
from budgets.scopes import join_scope, normal_scope, place_of_call
from budgets.settings import ledger_path

from .approvals import Approve
from .breakers import Breakers
from .clients import guarded_async_client, guarded_client
from .context import Tally
from .errors import ConfigError, RunStopped, SpendLimit
from .gate import Gate
from .halting import Halt
from .journal import Journal
from .meter import Meter
from .outcomes import Outcome
from .prefixes import CachingReport, Prefixes
from .retry import Retry
from .run_folder import RunFolder
from .run_listener import RunListener
from .run_reserves import RunReserves
from .stopping import KillSwitch
from .transport import Passes
from .trip_middleware import Trips
from .trips import Policy, steps_of
from .wire import Allowances, ErrorKind

logger = logging.getLogger("earmark")

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Connections beyond the gate's width, for the free token counter.
_SPARE_CONNECTIONS = 8
_making = threading.Lock()
_NOTHING_ELSE = contextlib.nullcontext()


class Run:
    """One piece of work that must not cost more than it said.

    Args:
        name: what the run is, part of its id and scope (``classify``).
        cap: dollars for the whole run; None relies on other caps (the defaults, if there are none).
        caps: further caps, set in the ledger as they are.
        ledger: a ledger, or the path of one; None takes ``$EARMARK_HOME/ledger.db`` or ``.earmark/ledger.db``.
        id: of an earlier run to go on with; a new one by default.
        scope: what the run's scope hangs below (``app``); the run's own is ``<scope>/<name>/<id>``.
        gate, prices, allow: as for ``Meter``.
        retry: the retry policy; the client's own retries are off.
        deadline_s: seconds from now after which no call waits any longer.
        cache_settle_s: seconds between the begin of the first answer with a shared prefix and the calls that
            read it from the cache; see ``prefixes``.
        folder: where ``run.json`` and ``journal.jsonl`` go; by default ``runs/<id>`` beside the ledger's
            file, nowhere for a ledger in memory.
        kill_switch: listen for Ctrl-C while entered: once stops new work and settles what is in flight,
            twice leaves at once with holds in doubt.
        on_trip: what to do when a cap declines a call, where neither an agent nor a block says otherwise; see
            ``trips``.
        approve: asked before a tool that needs approval is called (see ``approvals``); without it the answer
            is no.
        breakers: when a tool that keeps failing is taken away; see ``breakers``.
        client: further arguments of the Anthropic client (``api_key``, ``base_url``, ``timeout``, ...).

    Its ``entered`` says which scopes patterns have entered, and whether with a cap of their own.

    Use it as ``async with Run("name", cap="5") as run``.

    Raises:
        ConfigError: a name that can't be used, or a run of this id that is under way.
        LedgerUnavailable, LedgerCorrupt, LedgerTooNew: the ledger can't be used.
    """

    def __init__(
        self,
        name: str = "run",
        *,
        cap: object = None,
        caps: Iterable[Cap] = (),
        ledger: Ledger | str | os.PathLike[str] | None = None,
        id: str | None = None,  # noqa: A002 - the name that users write
        scope: str = "",
        gate: Gate | None = None,
        prices: PriceBook | None = None,
        allow: Allowances | None = None,
        retry: Retry | None = None,
        deadline_s: float | None = None,
        cache_settle_s: float = 0.25,
        folder: Path | None = None,
        kill_switch: bool = True,
        on_trip: Policy = "decline",
        approve: Approve | None = None,
        breakers: Breakers | None = None,
        client: dict[str, Any] | None = None,
    ) -> None:
        _check_names(name, id)
        steps_of(on_trip)
        self.name = name
        self.id = id or new_run_id(name)
        self.scope = join_scope(normal_scope(scope), f"{name}/{self.id}")
        self._owns_ledger = not isinstance(ledger, Ledger)
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger or ledger_path())
        self.gate = gate or Gate()
        self.tally = Tally()
        self.started_at = datetime.now(UTC)
        self._begun = time.monotonic()
        self.deadline = None if deadline_s is None else self._begun + deadline_s
        self.approve = approve
        self.on_trip = on_trip
        self.breakers = breakers or Breakers()
        self._stopped: str | None = None
        self._halt = Halt()
        self._spend_limit: ErrorKind | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancelled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.entered: dict[str, bool] = {}
        self._client_options = dict(client or {})
        self._async_client: AsyncAnthropic | None = None
        self._sync_client: Anthropic | None = None
        self._entered_by: asyncio.Task[Any] | None = None
        self._beside = contextlib.AsyncExitStack()
        self._kill_switch = KillSwitch(self._interrupt, self._leave, self.close)
        self._listens = kill_switch
        self._passes = Passes()
        self.meter = Meter(
            self.ledger,
            self.scope,
            gate=self.gate,
            prices=prices,
            allow=allow,
            retry=retry or Retry(),
            deadline=self.deadline,
            listener=RunListener(self),
            passes=self._passes,
        )
        self.prefixes = self._prefixes(cache_settle_s)
        self._outer: list[Middleware] = [self._trips(on_trip), self.prefixes]
        self.folder = self._open_folder(folder, cap, caps)
        self.journal = Journal(self.folder.journal, self.id)
        self._reserves = RunReserves(self.meter, self.journal)
        self.journal.write("run", name=name, scope=self.scope, ledger=self.ledger.name)
        self._save(None)

    def _prefixes(self, settle_s: float) -> Prefixes:
        return Prefixes(
            prices=self.meter.prices,
            tally=self.tally,
            alarm=lambda **facts: self.journal.write("cache_alarm", **facts),
            settle_s=settle_s,
            deadline=self.deadline,
        )

    def _trips(self, policy: Policy) -> Trips:
        return Trips(
            self.ledger,
            run=self.id,
            policy=policy,
            write=lambda **facts: self.journal.write("trip", **facts),
            spent=lambda: to_decimal(self.tally.posted_nanos),
            check=self.check,
            halt=self._halt,
            deadline=self.deadline,
        )

    def _open_folder(self, folder: Path | None, cap: object, caps: Iterable[Cap]) -> RunFolder:
        """The folder, locked; and then the caps: a run of this id that is under way elsewhere keeps its own."""
        opened: RunFolder | None = None
        try:
            own = () if cap is None else (Cap(cap, scope=self.scope, owner="the run"),)
            opened = RunFolder(self._place(folder), self.id)
            for one in (*own, *caps):
                self.ledger.set_cap(one)
        except BaseException:
            if opened is not None:
                opened.close()
            if self._owns_ledger:
                self.ledger.close()
            raise
        return opened

    def _place(self, folder: Path | None) -> Path | None:
        if folder is not None or self.ledger.path is None:
            return folder
        return self.ledger.path.parent / "runs" / self.id

    # ---- calling ----------------------------------------------------------------------------------

    @property
    def client(self) -> AsyncAnthropic:
        """The official async client, metered and guarded."""
        if self._async_client is None:
            self._async_client = guarded_async_client(
                self.meter,
                self._passes,
                pool=self._pool(),
                outer=self._outer,
                **self._client_options,
            )
            self._passes._prefix = self._async_client.base_url.path.rstrip("/")
        return self._async_client

    @property
    def sync_client(self) -> Anthropic:
        """The official sync client, metered and guarded."""
        with _making:  # threads ask for it at once, and all but one would never be closed
            if self._sync_client is None:
                self._sync_client = guarded_client(
                    self.meter,
                    self._passes,
                    pool=self._pool(),
                    outer=self._outer,
                    **self._client_options,
                )
                self._passes._prefix = self._sync_client.base_url.path.rstrip("/")
            return self._sync_client

    def _pool(self) -> int:
        return self.gate.statistics().width + _SPARE_CONNECTIONS

    @property
    def prices(self) -> PriceBook:
        """The price book that calls are priced by."""
        return self.meter.prices

    @property
    def here(self) -> str:
        """The full path of the scope that a call made here and now draws on."""
        return place_of_call(self.scope, self.ledger.number).scopes[0]

    @property
    def caching(self) -> CachingReport:
        """What prompt caching saved and wasted so far."""
        return self.prefixes.report()

    @property
    def balance(self) -> Balance:
        """What the run has posted, holds, has in doubt, and could still take."""
        return self.ledger.balance(self.scope)

    async def reserve(self, amount: object) -> Reserve:
        """Set dollars aside here and now, for a closing call inside ``with drawing_on(reserve)``.

        What is left of it is given back when the run ends, or by ``ledger.release_async`` before.

        Raises:
            BudgetExceeded, LedgerUnavailable: nothing was set aside.
        """
        return await self._reserves.take(parse_usd(amount, what="reserve"))

    async def reserve_for(self, body: Mapping[str, Any], *, times: int = 1) -> Reserve:
        """As ``reserve``, the most that so many calls with this body (of ``messages.create``) can cost.

        Raises:
            Unbounded, UnknownPrice, InvalidInput: it has no bound. Else as ``reserve``.
        """
        return await self._reserves.take_for(body, times)

    def room(self) -> Room:
        """What calls made here and now could still take."""
        return self.ledger.room(self.scope)

    # ---- stopping ---------------------------------------------------------------------------------

    @property
    def stopped(self) -> str | None:
        """Why nothing new may start; None while it may."""
        return self._stopped

    @property
    def spend_limit(self) -> ErrorKind | None:
        """The provider's word that the money is out, if it was said."""
        return self._spend_limit

    def stop(self, reason: str = "the run was told to stop") -> None:
        """Nothing new leaves from now on; what is in flight settles."""
        if self._stopped is None:
            self._stopped = reason
            self.journal.write("stop", reason=reason)
            self._halt.set()

    def cancel(self) -> None:
        """Stop, and cancel what is in flight: calls that were sent go in doubt."""
        self.stop("the run was cancelled")
        for task in list(self._tasks):
            self._cancelled.add(task)
            task.cancel()

    def absorbs_cancel(self) -> bool:
        """After a ``CancelledError``: whether ``cancel`` of this run made it, for work that goes on by itself.

        If so, the current task counts as not cancelled any more: its work ends as ``cancelled``, and nothing
        new starts.
        """
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        task.uncancel()
        return True

    def tracking(self) -> contextlib.AbstractContextManager[None]:
        """Have ``cancel`` reach the current task while it is inside; for agents and patterns."""
        task = asyncio.current_task()
        if task is None or task in self._tasks:
            return _NOTHING_ELSE
        return self._tracked(task)

    @contextlib.contextmanager
    def _tracked(self, task: asyncio.Task[Any]) -> Iterator[None]:
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def _interrupt(self) -> None:
        self.stop("interrupted")
        logger.warning(
            "interrupted: nothing new starts, calls in flight are waited for; press Ctrl-C again to leave at once"
        )

    def _leave(self) -> None:
        """The second Ctrl-C. Where nothing else can be cancelled, whoever entered the run is."""
        alone = not self._tasks
        self.cancel()
        if alone and self._entered_by is not None:
            self._entered_by.cancel()

    def check(self) -> None:
        """Raise if nothing new may start.

        Raises:
            RunStopped, SpendLimit: nothing was sent.
        """
        if self._stopped is not None:
            raise RunStopped(f"run {self.id}: {self._stopped}")
        limit = self._spend_limit
        if limit is not None:
            when = f"; it opens again at {limit.reopens_at.isoformat()}" if limit.reopens_at else ""
            raise SpendLimit(
                f"run {self.id}: the provider's spend limit is reached ({limit.message or limit.reason}){when}; "
                "the run can be resumed then",
                reason=limit.reason,
                reopens_at=limit.reopens_at,
            )

    def note_failure(self, failure: ErrorKind | None) -> None:
        """Hear of an error reply; one that says that the money is out ends the run."""
        if failure is not None and failure.word == "spend_limit" and self._spend_limit is None:
            self._spend_limit = failure
            self.journal.write("spend_limit", reason=failure.reason, message=failure.message)

    # ---- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.folder.is_closed:
            raise ConfigError(f"run {self.id}: it has ended; make a new Run with this id to go on")
        self._entered_by = asyncio.current_task()
        if self._listens:
            self._kill_switch.__enter__()
        return self

    async def keep(self, thing: contextlib.AbstractAsyncContextManager[T]) -> T:
        """Enter something that lives as long as the run, and is left before the run ends.

        Raises:
            ConfigError: the run has not been entered.
        """
        if self._entered_by is None or self.folder.is_closed:
            raise ConfigError(f"run {self.id}: use it as 'async with Run(...) as run' for this")
        return await self._beside.enter_async_context(thing)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._beside.aclose()
            if self._async_client is not None:
                await self._async_client.close()
            await self.drain()
        finally:
            self._kill_switch.__exit__(kind, error, trace)
            self.close(self._outcome(error))

    def _outcome(self, error: BaseException | None) -> Outcome:
        if error is not None:
            from .failures import (
                outcome_of,
            )  # failures knows gates and clients; only the end needs it

            return outcome_of(error)[0]
        if self._spend_limit is not None:
            return Outcome.SPEND_LIMIT
        return Outcome.CANCELLED if self._stopped else Outcome.OK

    def close(self, outcome: Outcome | None = None) -> None:
        """Write the end of the run down; closes the ledger if the run opened it. May be called twice."""
        if self.folder.is_closed:
            return
        if self._sync_client is not None:
            self._sync_client.close()
        outcome = outcome or self._outcome(None)
        self._reserves.give_back()
        self._save(outcome)
        self.journal.write("end", outcome=outcome, seconds=round(time.monotonic() - self._begun, 3))
        self.journal.close()
        self.folder.close()
        self._stopped = self._stopped or "it has ended"
        self._halt.set()
        if self._owns_ledger:
            self.ledger.close()

    async def drain(self) -> None:
        """Wait until every end of a call so far is written; after a cancellation some are still on their way."""
        self._drain()
        await asyncio.sleep(
            0
        )  # holds that were made for calls given up meanwhile land, and are void
        self._drain()

    def _drain(self) -> None:
        self.journal.flush()
        with contextlib.suppress(LedgerUnavailable):  # closed: all is written
            self.ledger.flush()

    def _save(self, outcome: Outcome | None) -> None:
        balance = None
        try:
            if outcome is not None:
                self._drain()
            balance = self.balance
        except BudgetError as error:
            logger.error("%s", error)  # noqa: TRY400
        self.folder.save(
            {
                "run": self.id,
                "name": self.name,
                "scope": self.scope,
                "ledger": self.ledger.name,
                "pid": os.getpid(),
                "started": self.started_at.isoformat(timespec="seconds"),
                "ended": datetime.now(UTC).isoformat(timespec="seconds") if outcome else None,
                "outcome": outcome.value if outcome else None,
                "calls": self.tally.calls,
                "posted_usd": format_usd(balance.posted_nanos).removeprefix("$")
                if balance
                else None,
                "in_doubt_usd": format_usd(balance.in_doubt_nanos).removeprefix("$")
                if balance
                else None,
            }
        )


def _check_names(name: str, run_id: str | None) -> None:
    for value, what in ((name, "name"), (run_id, "id")):
        if value is not None and not _NAME.fullmatch(value):
            raise ConfigError(
                f"run: the {what} {value!r} can't be used; write letters, digits, '.', '_' and '-', at most 64"
            )


def new_run_id(name: str) -> str:
    """A name for a run that no other run has: name, time (UTC) and a few random digits."""
    return f"{name[:40]}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


__all__ = ["Run", "new_run_id"]
