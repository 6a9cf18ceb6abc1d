"""The records of a story: what was called, who called, what it cost, and when, frozen for whoever shows it.

Amounts are integer nano-dollars. Prompts and answers are not in a journal, so they are in no story either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

#: How a call stands: ``settled``, ``void``, ``in doubt``, ``resolved`` (by a person's word), ``under way``,
#: or ``not priced`` (of a foreign log: nobody knows what its model costs).
CallState = Literal["settled", "void", "in doubt", "resolved", "under way", "not priced"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that were billed, in four disjoint classes."""

    input: int = 0
    cache_write: int = 0
    cache_read: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        """All input, however it was billed."""
        return self.input + self.cache_write + self.cache_read

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.cache_write + other.cache_write,
            self.cache_read + other.cache_read,
            self.output + other.output,
        )


@dataclass(frozen=True, slots=True)
class Sum:
    """Calls, amounts and tokens, added up.

    Attributes:
        calls: HTTP attempts that were held for.
        posted_nanos, held_nanos, in_doubt_nanos: disjoint sums.
        unpriced: calls among them whose cost nobody knows; they are in no amount.
    """

    calls: int = 0
    posted_nanos: int = 0
    held_nanos: int = 0
    in_doubt_nanos: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    unpriced: int = 0

    @property
    def counted_nanos(self) -> int:
        """What counts against a cap."""
        return self.posted_nanos + self.held_nanos + self.in_doubt_nanos

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            self.calls + other.calls,
            self.posted_nanos + other.posted_nanos,
            self.held_nanos + other.held_nanos,
            self.in_doubt_nanos + other.in_doubt_nanos,
            self.tokens + other.tokens,
            self.unpriced + other.unpriced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP attempt.

    Attributes:
        id: of its hold; of the message, in a foreign log.
        scope, agent, parent, unit, model: who made it, about what, with what.
        state: how it stands now.
        began, ended: when its hold was made, and when the hold ended; None where it is not known.
        bound_nanos: the most that it could cost, set aside before it left.
        sum: what it came to.
        stop_reason, reason, status, request_id, latency_ms: as the journal says; empty or 0 if it does not.
    """

    id: str
    scope: str
    agent: str
    parent: str
    unit: str
    model: str
    state: CallState
    began: datetime | None
    ended: datetime | None
    bound_nanos: int
    sum: Sum
    stop_reason: str = ""
    reason: str = ""
    status: int = 0
    request_id: str = ""
    latency_ms: int = 0

    @property
    def seconds(self) -> float:
        """From its hold to its end; 0 where either is not known."""
        if self.began is None or self.ended is None:
            return 0.0
        return max((self.ended - self.began).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of an agent's or a pattern's work: a document, an item of a fan-out.

    ``sum.calls`` is 0 where the journal gives only the amount.
    """

    label: str
    outcome: str
    reason: str
    sum: Sum
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A place of the tree: the run, a pattern, an agent, or a scope that somebody entered.

    Attributes:
        scope, name: its path, and the last segment of it.
        kind: ``run``, ``agent``, ``scope``, or the name of a pattern (``fan_out``).
        models: that were called here or below, the dearest first.
        outcome: one word of the closed set if all that ended here ended alike; ``mixed`` if not; ``running``;
            ``not ended`` where the run is over without a word about it.
        outcomes: how many ended how.
        reason: of the last one that did not end as ``ok``.
        begun, ended: how often somebody began here, and how many have ended.
        items: how many units a pattern said that it has; None if it did not.
        cap_nanos: a cap of its own; None if the journal names none.
        sum, own: everything here and below; only what was called right here.
        seconds: from the first beginning to the last end.
        tools: calls of tools, by name.
        units: pieces of work with an end of their own, in the order of their ends; ``unit_outcomes`` counts
            them by outcome, also where they were not kept.
        children: what is below, in order of appearance.
    """

    scope: str
    name: str
    kind: str
    models: tuple[str, ...]
    outcome: str
    outcomes: Mapping[str, int]
    reason: str
    begun: int
    ended: int
    items: int | None
    cap_nanos: int | None
    sum: Sum
    own: Sum
    open_calls: int
    seconds: float
    tools: Mapping[str, int]
    units: tuple[Unit, ...]
    unit_outcomes: Mapping[str, int]
    children: tuple[Node, ...]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """This node and all below, with their depth, from the top down."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something worth telling that is no call: a decline, a retry, a trip, an approval, a handoff, a finding.

    Attributes:
        kind: the journal's word for it (``decline``, ``retry``, ``trip``, ``approval``, ``cache_alarm``,
            ``stop``, ``spend_limit``, ``control``, ``finding``).
        at: when.
        who: the agent or scope that it is about, if the journal says so.
        text: the rest, in a sentence.
    """

    kind: str
    at: datetime | None
    who: str
    text: str


class SpendPoint(NamedTuple):
    """What had been posted, and was held and in doubt, so many seconds after the beginning."""

    seconds: float
    posted_nanos: int
    held_nanos: int
    in_doubt_nanos: int

    @property
    def counted_nanos(self) -> int:
        """What counts against a cap."""
        return self.posted_nanos + self.held_nanos + self.in_doubt_nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUse:
    """A cap that the run fell under.

    Attributes:
        scope, per, owner: as it was set; ``per`` is ``ever`` without a period.
        window: the calendar window that the run began in, empty without one.
        cap_nanos: its amount now.
        run: what this run has of it.
        counted_nanos: what counts against it in that window, everybody's.
    """

    scope: str
    per: str
    owner: str
    window: str
    cap_nanos: int
    run: Sum
    counted_nanos: int

    @property
    def others_nanos(self) -> int:
        """What others have of it."""
        return max(self.counted_nanos - self.run.counted_nanos, 0)

    @property
    def label(self) -> str:
        """``run``, ``day``, ..., and of what."""
        period = {"ever": "in all", "run": "per run"}.get(self.per, f"per {self.per}")
        return f"{period} on {self.scope or 'everything'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What the prompt cache did.

    Attributes:
        tokens: all tokens of the run.
        saved_nanos: what reads saved over plain input; None if no price is known.
        surcharge_nanos: what writes cost over plain input.
        is_estimate: some lifetimes of writes were not written down, and were taken as 5 minutes.
    """

    tokens: Tokens
    saved_nanos: int | None = None
    surcharge_nanos: int | None = None
    is_estimate: bool = False

    @property
    def hit_rate(self) -> float:
        """The share of all input tokens that was read from the cache, 0 to 1."""
        return self.tokens.cache_read / self.tokens.prompt if self.tokens.prompt else 0.0

    @property
    def net_nanos(self) -> int | None:
        """Saved less the surcharge; negative where caching cost more than it brought."""
        if self.saved_nanos is None or self.surcharge_nanos is None:
            return None
        return self.saved_nanos - self.surcharge_nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one agent or one model came to."""

    key: str
    sum: Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A model of a foreign log that has no price: how many calls, and why."""

    model: str
    calls: int
    tokens: Tokens
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The whole of a run, or of a foreign log of calls.

    Attributes:
        run, name, scope: of the run; the file's name for a log.
        path, ledger: where it was read from; ``ledger`` is empty if there was none.
        is_log: a foreign log of calls, not a run.
        outcome: of the run; ``not ended`` if it never said one.
        is_under_way: its process is still alive.
        started, ended: the first and the last word.
        sum: everything.
        caps: that applied, the run's own first.
        tree: from the run down.
        calls: in the order in which they began.
        spend: over time, by the ledger's lines; thinned out to a few hundred points.
        by_agent, by_model: the dearest first.
        cache: what the prompt cache did.
        moments: declines, retries and the like, in order.
        unpriced: models without a price (foreign logs only).
        unreadable: lines of a foreign log that can't be read; by their numbers in ``notes``.
        notes: what a reader must know: a torn journal, a ledger that says otherwise, lines that can't be read.
    """

    run: str
    name: str
    scope: str
    path: str
    ledger: str
    is_log: bool
    outcome: str
    is_under_way: bool
    started: datetime | None
    ended: datetime | None
    sum: Sum
    caps: tuple[CapUse, ...]
    tree: Node
    calls: tuple[Call, ...]
    spend: tuple[SpendPoint, ...]
    by_agent: tuple[Share, ...]
    by_model: tuple[Share, ...]
    cache: CacheUse
    moments: tuple[Moment, ...]
    unpriced: tuple[Unpriced, ...]
    notes: tuple[str, ...]
    unreadable: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every call could be read and priced."""
        return not self.unreadable and not self.unpriced

    @property
    def seconds(self) -> float:
        """From the first word to the last."""
        if self.started is None or self.ended is None:
            return 0.0
        return max((self.ended - self.started).total_seconds(), 0.0)

    @property
    def is_simulated(self) -> bool:
        """Whether it is play money."""
        return self.scope == "simulated" or self.scope.startswith("simulated/")

    @property
    def in_doubt(self) -> tuple[Call, ...]:
        """Calls of which nobody knows yet whether they were billed."""
        return tuple(call for call in self.calls if call.state == "in doubt")

    def moments_of(self, *kinds: str) -> tuple[Moment, ...]:
        """Those of some kinds."""
        return tuple(moment for moment in self.moments if moment.kind in kinds)
