"""The gateway: the Anthropic API on loopback, every billable request of which is held for before it is passed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from budgets.ledger import Ledger
from budgets.prices import PriceBook
from budgets.records import Ending
from budgets.scopes import Kind, join_scope, place_of_call, scope
from orchestrator.attempt import Attempt
from orchestrator.errors import ConfigError
from orchestrator.gate import Gate
from orchestrator.listener import Listener
from orchestrator.metering import Metering
from orchestrator.wire import Allowances

from .blotting import Blot
from .clients import Clients
from .counters import Counters
from .door import Door, check_host, is_loopback
from .drains import Drains
from .exchange import Exchange
from .lease import Account, Ears, Figures, Lease
from .limits import Limits
from .listening import Listening
from .serving import Serving
from .tokens import Token, Tokens
from .upstream import Line, Upstream

logger = logging.getLogger("earmark")

_SWEEP_S = 0.25


class Gateway:
    """The Anthropic API on loopback, metered. Use as ``async with Gateway(...) as gateway``.

    Args:
        ledger: where money is set aside and charged; stays open.
        upstream: where requests are passed on to, and the key.
        gate: limits of concurrency and rate, shared with whoever shares the key.
        prices: a price book; the pinned list prices by default.
        allow: the operator's words about costs that have no bound of their own. That no Priority Tier
            applies is always one of them: requests are not changed, and clients do not say it.
        host, port: where to listen; port 0 takes a free one.
        door: in place of those, an address that is taken already.
        tokens: of clients, each with a scope; looked at again while it runs.
        anonymous: the scope of clients without a token, on loopback and while there are no tokens; ``""``
            lets none in.
        also: a scope whose caps everything with a token must fit under, besides those of its own scope.
        top: what the scopes of tokens hang below, such as ``simulated``.
        files: pass the Files API on, which all clients would share.
        limits: how patient and how large it is.

    Raises:
        ConfigError: not loopback and no tokens, or an allowance that would change requests.
        OSError: the port is taken (when entered).
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        upstream: Upstream,
        gate: Gate | None = None,
        prices: PriceBook | None = None,
        allow: Allowances | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        door: Door | None = None,
        tokens: Tokens | None = None,
        anonymous: str = "",
        also: str = "",
        top: str = "",
        files: bool = False,
        limits: Limits | None = None,
    ) -> None:
        words = allow or Allowances()
        if words.web_max_uses is not None:
            raise ConfigError(
                "gateway: web_max_uses would change requests, and a gateway changes none; clients set max_uses"
            )
        host = host if door is None else door.host
        check_host(host, tokens)
        self.ledger = ledger
        self.upstream = upstream
        self.limits = limits or Limits()
        self._allow = replace(words, set_service_tier=False)
        self._template = Metering(ledger, gate=gate, prices=prices, allow=self._allow)
        self._also = (also,) if also else ()
        self._top = top
        self._tokens = tokens
        self._stamp: tuple[object, ...] | None = None
        self._fault = ""
        self._is_garbled = False
        self.clients = Clients()
        self.drains = Drains(most=self.limits.drains, within_s=self.limits.drain_s)
        self.counters = Counters(
            under_way=lambda: len(self.exchanges),
            waiting=lambda: ledger.waiting,
            drains=lambda: len(self.drains),
            connections=lambda: self._listening.connections,
        )
        self.line = Line(upstream)
        self.blot = Blot(upstream.secret)
        self.exchanges: set[Exchange] = set()
        self._by_connection: dict[object, Exchange] = {}
        self.is_stopping = False
        self._totals = Account()
        self._anonymous = anonymous if is_loopback(host) else ""
        self._listening = Listening(
            Serving(self, files=files),
            host,
            port,
            self.limits,
            lost=self._connection_lost,
            garbled=self._no_http,
            door=door,
        )
        self._sweeper: asyncio.Task[None] | None = None

    # ---- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
            ConfigError: the upstream is this very gateway, or a token's file can't be read.
        """
        try:
            self._listening.take().check_upstream(self.upstream.url)
            await self.line.open()
            if self._anonymous:
                self.clients.anonymous = self._standing(self._anonymous, identity="anonymous")
            self._look_at_tokens()
            # In an empty context: a request belongs to its lease, not to whoever started the gateway.
            await asyncio.create_task(self._listening.start(), context=Context())
        except BaseException:
            await self.stop()
            raise
        self._sweeper = asyncio.create_task(self._sweep(), context=Context())

    async def stop(self, within_s: float | None = None) -> None:
        """Take nothing new, let what is under way end, within bounds, and leave no port and no connection open.

        What was not sent is declined; what is not done in time is in doubt.

        Args:
            within_s: seconds for what is under way; None takes those of its limits.
        """
        self.is_stopping = True
        bound_s = self.limits.stop_s if within_s is None else within_s
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._listening.close_door()
        tasks = []
        for exchange in list(self.exchanges):
            if exchange.task is not None:
                tasks.append(exchange.task)
                if not exchange.is_sent:
                    exchange.task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=bound_s)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self.drains.close()
        self.clients.close_all()
        await self._listening.stop()
        await self.line.close()

    def give_up(self) -> None:
        """What is under way is in doubt from now on, so that nobody waits for it: neither a client nor ``stop``."""
        for exchange in list(self.exchanges):
            exchange.give_up()

    @property
    def url(self) -> str:
        """Its base URL."""
        return self._listening.url

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listening.port

    def __repr__(self) -> str:
        return f"Gateway({self.url!r}, upstream={self.upstream.url!r})"

    # ---- leases -----------------------------------------------------------------------------------

    def lease(
        self,
        scope_name: str = "",
        *,
        under: str = "",
        cap: object = None,
        per: str | None = None,
        tz: str = "UTC",
        kind: Kind = "agent",
        ends: datetime | None = None,
        allow: Allowances | None = None,
        listener: Listener | None = None,
    ) -> Lease:
        """Let one client spend, in the context of whoever calls this: its scopes, tallies and reserve.

        Args:
            scope_name: the client's scope, below the surrounding ``scope`` blocks; ``""`` is theirs.
            under: the scope that the outermost of those hangs below, as of a meter (``run.scope``).
            cap, per, tz, kind: as for ``budgets.scope``.
            ends: when it ends by itself (aware).
            allow: words about costs for this client, in place of the gateway's.
            listener: hears of its holds and their ends.

        Returns:
            The lease. Give ``base_url`` and ``key`` to the client, and ``close`` it when its work is done.

        Raises:
            ConfigError: a cap without a scope to set it on, or a time without a zone.
            InvalidScope, InvalidAmount, InvalidCap: the caller's mistake.
        """
        if cap is not None and not scope_name:
            raise ConfigError("lease: a cap needs a scope of its own; name one")
        if ends is not None and ends.tzinfo is None:
            raise ConfigError(f"lease: ends={ends!r} has no time zone; say datetime.now(UTC) + ...")
        context = copy_context()
        if scope_name:
            context.run(scope(scope_name, cap, per=per, tz=tz, kind=kind).__enter__)
        return self._admit(context, under=under, ends=ends, allow=allow, listener=listener)

    def _standing(self, path: str, *, identity: str, token: Token | None = None) -> Lease:
        """The lease of a token, or of all who have none: nobody's context, and each session counts as a run."""
        context = Context()
        context.run(scope(path, kind="part").__enter__)
        return self._admit(
            context,
            identity=identity,
            ends=None if token is None else token.ends,
            digest=b"-" if token is None else bytes.fromhex(token.digest),
            is_admin=token is not None and token.is_admin,
            session_kind="run",
            also=self._also,
        )

    def _admit(
        self,
        context: Context,
        *,
        under: str = "",
        ends: datetime | None = None,
        allow: Allowances | None = None,
        listener: Listener | None = None,
        identity: str = "",
        digest: bytes = b"",
        is_admin: bool = False,
        session_kind: Kind = "part",
        also: tuple[str, ...] = (),
    ) -> Lease:
        def ended(attempt: Attempt, ending: Ending) -> None:
            self.counters.ended(attempt, ending)
            if attempt.hold is not None:
                made.released(attempt.hold)

        common = self._template
        metering = Metering(
            self.ledger,
            under,
            gate=common.gate,
            prices=common.prices,
            allow=self._allow if allow is None else replace(allow, set_service_tier=False),
            listener=Ears(listener, ended),
            also=also,
        )
        made = Lease(
            scope=context.run(place_of_call, metering.scope, self.ledger.number).scopes[0],
            metering=metering,
            context=context,
            url=self.url,
            ends=ends,
            identity=identity,
            digest=digest,
            places=self.limits.places,
            session_kind=session_kind,
            is_admin=is_admin,
            totals=self._totals,
            closed=self.clients.forget,
        )
        if identity != "anonymous":
            self.clients.add(made)
        return made

    def figures(self) -> Figures:
        """What everything that came through has come to until now."""
        return self._totals.figures()

    # ---- looking after ----------------------------------------------------------------------------

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._look_at_tokens_again()
            wall = datetime.now(UTC)
            for lease in self.clients.all():
                if lease.ends is not None and lease.ends <= wall:
                    lease.close()
            now = loop.time()
            for exchange in list(self.exchanges):
                if 0 < exchange.writing_since < now - self.limits.write_s:
                    exchange.drop_client()
                if 0 < exchange.waits_until < now:
                    exchange.wait_no_longer()

    def _look_at_tokens_again(self) -> None:
        fault = ""
        try:
            self._look_at_tokens()
        except (ConfigError, OSError) as error:
            fault = str(error)
        if fault and fault != self._fault:  # said once, not four times a second
            logger.error("gateway: %s", fault)
        self._fault = fault

    def _look_at_tokens(self) -> None:
        """Let in clients whose tokens are new, and shut out those whose tokens were taken back."""
        if self._tokens is None:
            return
        stamp = self._tokens.stamp()
        if stamp == self._stamp:
            return
        tokens = {token.id: token for token in self._tokens.all()}
        self._stamp = stamp
        standing = {one.id: one for one in self.clients.all() if one.session_kind == "run"}
        for identity, lease in standing.items():
            if identity not in tokens:
                lease.close()
        for identity, token in tokens.items():
            if identity not in standing:
                self._standing(join_scope(self._top, token.scope), identity=identity, token=token)
        # Once a key was needed it is: taking the last token back must not let everybody in.
        self.clients.needs_key = self.clients.needs_key or bool(tokens)

    @contextmanager
    def under_way(self, exchange: Exchange, connection: object) -> Iterator[None]:
        """While a request is worked on, whoever looks after the gateway knows it."""
        self.exchanges.add(exchange)
        self._by_connection[connection] = exchange
        try:
            yield
        finally:
            self.exchanges.discard(exchange)
            if self._by_connection.get(connection) is exchange:
                del self._by_connection[connection]

    def _no_http(self) -> None:
        """Counted each time, said once: anybody who can connect could fill a log with it."""
        self.counters.refused("bad_http")
        if not self._is_garbled:
            self._is_garbled = True
            logger.warning(
                "gateway: a client sent what is no HTTP request, and got 400 (this is said once; the metric "
                'earmark_gateway_refused_total{reason="bad_http"} counts them)'
            )

    def _connection_lost(self, connection: object) -> None:
        exchange = self._by_connection.pop(connection, None)
        if exchange is not None:
            exchange.client_left()
