"""A lease: one client's right to spend through the gateway, in its scope, under its caps, until it ends."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from budgets.errors import BudgetError
from budgets.records import DollarSums, Ending, Hold
from budgets.scopes import Kind
from orchestrator.attempt import Attempt
from orchestrator.context import TOKENS, Tally
from orchestrator.listener import Listener
from orchestrator.metering import Metering
from orchestrator.wire import ErrorKind

from .attribution import Caller, Family

if TYPE_CHECKING:
    from .exchange import Exchange

#: So that a key can be told from others, in a log of somebody else, say.
KEY_MARK = "earmark-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(DollarSums):
    """What the calls of a lease, or of one agent below it, came to.

    Attributes:
        calls: requests that were held for.
        declined: requests that were declined by a cap, for want of a bound, or in any other way.
        posted_nanos, held_nanos, in_doubt_nanos: nano-dollars; disjoint.
        tokens: the four disjoint classes of tokens that were billed.
        agents: the same for each place below it, by path (``session-1/main``); empty for an agent.
    """

    calls: int
    declined: int
    posted_nanos: int
    held_nanos: int
    in_doubt_nanos: int
    tokens: Mapping[str, int]
    agents: Mapping[str, Figures] = field(default_factory=dict)


class Account:
    """The running figures of one place."""

    __slots__ = ("declined", "held_nanos", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.held_nanos = 0
        self.declined = 0

    def figures(self, agents: Mapping[str, Figures] | None = None) -> Figures:
        """As they stand now."""
        tally = self.tally
        return Figures(
            calls=tally.calls,
            declined=self.declined,
            posted_nanos=tally.posted_nanos,
            held_nanos=self.held_nanos,
            in_doubt_nanos=tally.in_doubt_nanos,
            tokens={name: tally.tokens[name] for name in TOKENS},
            agents=agents or {},
        )


class Lease:
    """One client's right to spend. Made by ``Gateway.lease``, or for a token.

    Attributes:
        id: names it; no secret.
        scope: where its charges are reported.
        base_url: what the client takes as ``ANTHROPIC_BASE_URL``.
        key: what the client takes as ``ANTHROPIC_API_KEY``; ``""`` for that of a token, which nobody here knows.
        ends: when it ends by itself; None if it does not.
        is_admin: may see the figures of all.
    """

    def __init__(
        self,
        *,
        scope: str,
        metering: Metering,
        context: Context,
        url: str,
        ends: datetime | None = None,
        identity: str = "",
        digest: bytes = b"",
        places: int = 10_000,
        session_kind: Kind = "part",
        is_admin: bool = False,
        totals: Account | None = None,
        closed: Callable[[Lease], None] | None = None,
    ) -> None:
        self.id = identity or f"L{secrets.token_hex(6)}"
        self.key = "" if digest else f"{KEY_MARK}{secrets.token_urlsafe(32)}"
        self.digest = digest or digest_of(self.key)
        self.scope = scope
        self.ends = ends
        self.is_admin = is_admin
        self.session_kind = session_kind
        self.base_url = f"{url}/lease/{self.id}"
        self.metering = metering
        self.context = context
        self.family = Family(places)
        self.account = Account()
        self._totals = () if totals is None else (totals,)
        self._accounts: dict[str, Account] = {}
        self._holding: dict[str, tuple[Account, ...]] = {}
        self._under_way: set[Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = closed
        self.is_open = True

    def __repr__(self) -> str:
        return f"Lease({self.id!r}, scope={self.scope!r})"

    @property
    def is_live(self) -> bool:
        """It can still spend."""
        return self.is_open and (self.ends is None or datetime.now(UTC) < self.ends)

    def account_of(self, caller: Caller) -> Account:
        """The figures of a place below this lease."""
        if not caller.path:
            return self.account
        found = self._accounts.get(caller.path)
        if found is None:
            found = self._accounts[caller.path] = Account()
        return found

    def accounts_of(self, caller: Caller) -> tuple[Account, ...]:
        """Everyone whose figures a request of this caller changes."""
        own = self.account_of(caller)
        mine = (self.account,) if own is self.account else (self.account, own)
        return (*self._totals, *mine)

    def held(self, hold: Hold, accounts: tuple[Account, ...]) -> None:
        """A request of these accounts has a hold."""
        self._holding[hold.id] = accounts
        for one in accounts:
            one.held_nanos += hold.nanos

    def released(self, hold: Hold) -> None:
        """Its hold has ended, one way or the other."""
        for one in self._holding.pop(hold.id, ()):
            one.held_nanos -= hold.nanos

    def figures(self) -> Figures:
        """What its calls came to until now."""
        return self.account.figures({path: one.figures() for path, one in self._accounts.items()})

    def close(self) -> None:
        """End it, at once: what waits is given up, what streams is cut for the client and drained for the ledger."""
        if not self.is_open:
            return
        self.is_open = False
        for exchange in list(self._under_way):
            exchange.drop_client()
        if self._closed is not None:
            self._closed(self)

    async def settled(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing of it is under way, so that its figures are final; False if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def give_up(self) -> None:
        """What of it is under way is in doubt from now on; nobody waits for its answers any more."""
        for exchange in list(self._under_way):
            exchange.give_up()

    def begin(self, exchange: Exchange) -> None:
        """A request is under way."""
        self._under_way.add(exchange)
        self._idle.clear()

    def end(self, exchange: Exchange) -> None:
        """It is not any more."""
        self._under_way.discard(exchange)
        if not self._under_way:
            self._idle.set()

    @property
    def under_way(self) -> frozenset[Exchange]:
        """Its requests that are under way."""
        return frozenset(self._under_way)


class Ears:
    """Hears what becomes of a lease's requests, for the gateway's counters and for a listener of the caller's."""

    def __init__(self, inner: Listener | None, ended: Callable[[Attempt, Ending], None]) -> None:
        self._inner = inner
        self._ended = ended

    def before_call(self) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.before_call()

    def held(self, attempt: Attempt) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.held(attempt)

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        """Counted and passed on."""
        self._ended(attempt, ending)
        if self._inner is not None:
            self._inner.ended(attempt, ending)

    def declined(self, error: BudgetError) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.declined(error)

    def retrying(self, error: ErrorKind | None, tries: int, wait_s: float) -> None:
        """A gateway never retries."""


def digest_of(key: str) -> bytes:
    """What is kept of a key: keys are 256 random bits, so a plain digest can't be turned back."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
