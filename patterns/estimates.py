"""Estimates: what an agent, or many of them, will cost at worst and probably, as a step of a plan.

A call's worst case is its bound, as the meter would hold it. A task of an agent with tools is at worst its
first call and then calls with a full context window, up to ``max_turns``; its own cap limits that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from budgets.money import parse_usd
from budgets.prices import PriceBook
from budgets.pricing import bound, cost
from budgets.shape import Shape
from budgets.usage import Usage
from orchestrator.agent import Agent
from orchestrator.errors import ConfigError
from orchestrator.performer import Performer
from orchestrator.run import Run
from orchestrator.vouching import vouching, words_here
from orchestrator.wire import Reading, read_request

from .parts import Prompt, Worker, as_prompt, is_performer
from .plan import Step

#: Guesses for what nobody has said: turns of a task with tools, tokens of an answer, tokens that the
#: results of tools add in a turn.
_LIKELY_TURNS, _LIKELY_OUTPUT, _LIKELY_RESULTS = 4, 400, 800
#: Items of a long list that are read for the estimate; the rest is taken to be like them.
_SAMPLE = 200


def steps_of(run: Run, worker: Worker, items: Sequence[Any] | None, *, shared: bool = True) -> Step:
    """What it costs to have one worker work on many items.

    Args:
        run: whose prices and allowances count.
        worker: an agent, or a function, about whose calls nothing is known.
        items: the items; None if they are not known, then one stands for all.
        shared: the beginning that all calls share will be read from the cache.

    Raises:
        UnknownPrice, Unbounded: the agent's calls have no price or no bound.
    """
    count = 1 if items is None else len(items)
    unknown = "per item: how many there are is not known" if items is None else ""
    if not is_performer(worker):
        name = getattr(worker, "__name__", type(worker).__name__)
        note = unknown or "a function: what it calls is not known"
        return Step(name=name, kind="function", times=count, note=note)
    if not isinstance(worker, Agent):
        return Step(
            name=worker.name, kind="agent", times=count, note=unknown
        ).capped(getattr(worker, "cap", None))  # fmt: skip
    sample = [""] if items is None else list(items[:_SAMPLE])
    reader = _Reader(run, worker)
    read = [reader.read(item) for item in sample]
    prefix = reader.prefix_tokens() if read else 0
    calls = count * (worker.repairs + 1) * (worker.max_turns if _may_go_on(worker) else 1)
    return Step(
        name=worker.name,
        kind="agent",
        model=worker.model,
        times=count,
        calls=calls,
        worst_nanos=_worst(worker, read, count),
        likely_nanos=_likely(run.prices, worker, read, count, prefix, shared=shared),
        note=unknown or ("" if count <= _SAMPLE else f"by the first {_SAMPLE} items"),
    ).capped(worker.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The first call of one task: its bound, its likely input, and the bound of a call with a full window."""

    first_nanos: int
    full_nanos: int
    input_tokens: int


class _Reader:
    """Reads tasks of one agent as money sees them."""

    def __init__(self, run: Run, agent: Agent) -> None:
        self._agent = agent
        self._prices = run.prices
        self._now = datetime.now(UTC)
        with vouching(*agent.words):
            self._allow = words_here(run.meter.allow)

    def read(self, item: object) -> _Reading:
        """One task."""
        reading = self._request(as_prompt(item))
        # Its prompt may be marked for the cache on the way: the write price bounds it then.
        shape = replace(reading.shape, cache_ttl=reading.shape.cache_ttl or "5m")
        full = _with_full_window(shape, self._window())
        return _Reading(
            first_nanos=bound(shape, self._prices, self._now),
            full_nanos=bound(full, self._prices, self._now),
            input_tokens=reading.estimate_input,
        )

    def prefix_tokens(self) -> int:
        """What all tasks begin with: likely tokens of a request without any."""
        return self._request("").estimate_input

    def _request(self, prompt: Prompt) -> Reading:
        body = self._agent.body([{"role": "user", "content": prompt}])
        return read_request(body, allow=self._allow, context_window=self._window())

    def _window(self) -> int:
        return self._prices.context_window(self._agent.model)


def _with_full_window(shape: Shape, window: int) -> Shape:
    """The same request with the longest prompt that the model takes, in each round that it can have."""
    prompt = shape.prompt_tokens or shape.input_tokens
    rounds = max(-(-shape.input_tokens // max(prompt, 1)), 1)
    return replace(
        shape, input_tokens=rounds * max(window, prompt), prompt_tokens=max(window, prompt)
    )


def _may_go_on(agent: Agent) -> bool:
    return bool(agent.tools) or bool(agent.extra.get("tools"))


def _worst(agent: Agent, read: list[_Reading], count: int) -> int:
    further = agent.max_turns - 1 if _may_go_on(agent) else 0
    tries = agent.repairs + 1
    each = [(one.first_nanos + further * one.full_nanos) * tries for one in read]
    # Items beyond the sample are taken to be like the dearest of it.
    return sum(each) + max(each, default=0) * (count - len(each))


def worst_of_each(run: Run, agent: Performer, items: Sequence[Any]) -> list[int]:
    """The worst case of each item, in nano-dollars, in their order.

    Raises:
        ConfigError: nothing bounds a task of this worker.
    """
    if isinstance(agent, Agent):
        reader = _Reader(run, agent)
        return [_worst(agent, [reader.read(item)], 1) for item in items]
    cap = getattr(agent, "cap", None)
    if cap is None:
        raise ConfigError(f"{agent.name}: nothing bounds what a task of it costs; give it a cap")
    return [parse_usd(cap)] * len(items)


def _likely(
    prices: PriceBook,
    agent: Agent,
    read: list[_Reading],
    count: int,
    prefix: int,
    *,
    shared: bool,
) -> int:
    if not read:
        return 0
    turns = agent.likely_turns or (min(agent.max_turns, _LIKELY_TURNS) if _may_go_on(agent) else 1)
    output = min(agent.likely_output or _LIKELY_OUTPUT, agent.max_tokens)
    now = datetime.now(UTC)
    uses = count * turns
    total = 0
    cached = prefix >= prices.cache_minimum(agent.model) and (shared or turns > 1) and uses > 1
    for number, one in enumerate(read):
        for turn in range(turns):
            grown = turn * (output + _LIKELY_RESULTS)
            rest = max(one.input_tokens - prefix, 1) + grown
            writes = number == 0 and turn == 0
            usage = Usage(
                model=agent.model,
                input_tokens=rest if cached else rest + prefix,
                cache_write_5m=prefix if cached and writes else 0,
                cache_read=prefix if cached and not writes else 0,
                output_tokens=output,
            )
            total += cost(usage, prices, now)
    return total * count // len(read)
