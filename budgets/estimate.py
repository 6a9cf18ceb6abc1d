"""An estimate: what a planned set of agents will cost, with and without prompt caching.

An estimate is a forecast and limits nothing: limits are ``caps``. It is priced by the same formula
as the bill (``pricing``), one call after the other.

A plan is a TOML file::

    runs_per_day = 20            # left out: 1
    days_per_week = 5            # left out: 5
    days_per_month = 22          # left out: 22; a year is twelve months

    [[agent]]
    name = "lead"
    model = "claude-opus-5-5"
    count = 1                    # agents of this kind in one run; left out: 1
    turns = 6                    # calls that each of them makes
    cached_prefix = 12000        # tokens at the start of every prompt that don't change
    new_input = 4000             # further input tokens of each call
    output = 1500                # output tokens of each call, thinking included
    web_searches = 5             # per agent; or web_searches_per_turn
    cache_ttl = "5m"             # or "1h"
    shared_prefix = false        # true: the prefix is the same for all of them, and written once
    tier = "standard"            # or "batch"
    speed = "standard"           # or "fast"
    inference_geo = "global"     # or "us"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from .errors import InvalidSettings
from .prices import PriceBook
from .pricing import cost
from .shape import Geo, Speed, Tier, Ttl
from .toml_fields import Fields, entries_of, read_toml
from .usage import Usage

MONTHS_PER_YEAR = 12
#: More agents, turns, runs or tokens of one kind than anyone plans.
_COUNT_MAX = 10_000_000

_TTLS: tuple[Ttl, ...] = ("5m", "1h")
_TIERS: tuple[Tier, ...] = ("standard", "batch")
_SPEEDS: tuple[Speed, ...] = ("standard", "fast")
_GEOS: tuple[Geo, ...] = ("global", "us")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgent:
    """One kind of agent in a plan; the fields are those of the file."""

    name: str
    model: str
    turns: int
    count: int = 1
    cached_prefix: int = 0
    new_input: int = 0
    output: int = 0
    web_searches: int = 0
    web_searches_per_turn: int = 0
    cache_ttl: Ttl = "5m"
    shared_prefix: bool = False
    tier: Tier = "standard"
    speed: Speed = "standard"
    inference_geo: Geo = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Agents of one run, and how often the run happens."""

    agents: tuple[PlannedAgent, ...]
    runs_per_day: int = 1
    days_per_week: int = 5
    days_per_month: int = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Nano-dollars over the spans of a plan."""

    run: int
    day: int
    week: int
    month: int
    year: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEstimate:
    """What all agents of one kind cost in one run.

    Attributes:
        agent: as planned.
        calls: calls of all of them together.
        with_caching, without_caching: nano-dollars per run.
        searches: the part of both that is web searches, nano-dollars per run.
    """

    agent: PlannedAgent
    calls: int
    with_caching: int
    without_caching: int
    searches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of a plan.

    Attributes:
        plan: what was priced.
        at: the moment whose prices were used.
        agents: one line per kind of agent, in the order of the plan.
        with_caching, without_caching: the sums over the spans of the plan.
        notes: sentences that a reader of the figures must know (a prefix too short to be cached).
    """

    plan: Plan
    at: datetime
    agents: tuple[AgentEstimate, ...]
    with_caching: Spend
    without_caching: Spend
    notes: tuple[str, ...] = ()

    @property
    def calls(self) -> int:
        """Calls in one run."""
        return sum(line.calls for line in self.agents)


def estimate(plan: Plan, book: PriceBook, at: datetime) -> Estimate:
    """Price a plan.

    With caching, the first call of an agent writes its prefix and all further ones read it; with
    ``shared_prefix`` the first call of the first agent writes for all. A prefix shorter than the
    model's minimum is not cached, and a note says so.

    Raises:
        UnknownPrice: a model or a feature of it has no price.
    """
    lines = tuple(_line(agent, book, at) for agent in plan.agents)
    return Estimate(
        plan=plan,
        at=at,
        agents=lines,
        with_caching=_spend(plan, sum(line.with_caching for line in lines)),
        without_caching=_spend(plan, sum(line.without_caching for line in lines)),
        notes=tuple(note for agent in plan.agents for note in _notes(agent, book)),
    )


def load_plan(path: Path) -> Plan:
    """Read a plan from a TOML file.

    Raises:
        InvalidSettings: not readable, not TOML, or not a plan; names the file, the agent and the
            field.
    """
    data = read_toml(path, what="plan", error=InvalidSettings)
    fields = Fields(where=path.name, table=data, error=InvalidSettings)
    fields.only({"agent", "runs_per_day", "days_per_week", "days_per_month"})
    agents = entries_of(data.get("agent"), where=path.name, heading="agent", error=InvalidSettings)
    return Plan(
        agents=tuple(_agent(number, agent) for number, agent in enumerate(agents, start=1)),
        runs_per_day=fields.count("runs_per_day", default=1, least=1, most=_COUNT_MAX),
        days_per_week=fields.count("days_per_week", default=5, least=1, most=7),
        days_per_month=fields.count("days_per_month", default=22, least=1, most=31),
    )


def _line(agent: PlannedAgent, book: PriceBook, at: datetime) -> AgentEstimate:
    calls = agent.count * agent.turns
    plain = cost(_turn(agent, input_tokens=agent.cached_prefix + agent.new_input), book, at)
    searches = agent.count * (agent.web_searches + agent.turns * agent.web_searches_per_turn)
    searched = cost(_turn(agent, web_searches=searches, output_tokens=0), book, at)
    without = calls * plain + searched
    cached = without
    if _is_cached(agent, book):
        writes = 1 if agent.shared_prefix else agent.count
        write = cost(
            _turn(
                agent,
                input_tokens=agent.new_input,
                cache_write_unsplit=agent.cached_prefix,
            ),
            book,
            at,
        )
        read = cost(
            _turn(agent, input_tokens=agent.new_input, cache_read=agent.cached_prefix), book, at
        )
        cached = writes * write + (calls - writes) * read + searched
    return AgentEstimate(
        agent=agent,
        calls=calls,
        with_caching=cached,
        without_caching=without,
        searches=searched,
    )


def _turn(
    agent: PlannedAgent,
    *,
    input_tokens: int = 0,
    cache_write_unsplit: int = 0,
    cache_read: int = 0,
    output_tokens: int | None = None,
    web_searches: int = 0,
) -> Usage:
    return Usage(
        model=agent.model,
        input_tokens=input_tokens,
        cache_write_unsplit=cache_write_unsplit,
        unsplit_ttl=agent.cache_ttl,
        cache_read=cache_read,
        output_tokens=agent.output if output_tokens is None else output_tokens,
        web_searches=web_searches,
        tier=agent.tier,
        speed=agent.speed,
        geo=agent.inference_geo,
    )


def _is_cached(agent: PlannedAgent, book: PriceBook) -> bool:
    return agent.cached_prefix > 0 and agent.cached_prefix >= book.cache_minimum(agent.model)


def _notes(agent: PlannedAgent, book: PriceBook) -> list[str]:
    notes = []
    if agent.cached_prefix and not _is_cached(agent, book):
        notes.append(
            f"{agent.name}: a prefix of {agent.cached_prefix:,} tokens is not cached; "
            f"{agent.model} needs {book.cache_minimum(agent.model):,}"
        )
    elif agent.cached_prefix and agent.turns == 1 and not agent.shared_prefix:
        notes.append(
            f"{agent.name}: with one turn and no shared prefix the cache is written and never "
            "read, which costs more than no caching"
        )
    if agent.cached_prefix and agent.tier == "batch":
        notes.append(f"{agent.name}: cache hits in a batch are not certain; the truth lies between")
    return notes


def _spend(plan: Plan, run: int) -> Spend:
    day = run * plan.runs_per_day
    month = day * plan.days_per_month
    return Spend(
        run=run,
        day=day,
        week=day * plan.days_per_week,
        month=month,
        year=month * MONTHS_PER_YEAR,
    )


def _agent(number: int, fields: Fields) -> PlannedAgent:
    name = fields.text("name", default=f"agent {number}")
    fields = replace(fields, where=f"{fields.where} ({name})")
    fields.only(PlannedAgent.__dataclass_fields__)

    def count(field: str) -> int:
        return fields.count(field, default=0, most=_COUNT_MAX)

    return PlannedAgent(
        name=name,
        model=fields.text("model"),
        count=fields.count("count", default=1, least=1, most=_COUNT_MAX),
        turns=fields.count("turns", least=1, most=_COUNT_MAX),
        cached_prefix=count("cached_prefix"),
        new_input=count("new_input"),
        output=count("output"),
        web_searches=count("web_searches"),
        web_searches_per_turn=count("web_searches_per_turn"),
        cache_ttl=fields.choice("cache_ttl", _TTLS),
        shared_prefix=fields.yes("shared_prefix"),
        tier=fields.choice("tier", _TIERS),
        speed=fields.choice("speed", _SPEEDS),
        inference_geo=fields.choice("inference_geo", _GEOS),
    )
