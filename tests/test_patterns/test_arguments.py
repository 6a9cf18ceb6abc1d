"""Arguments that can't be: one sentence that names the pattern and the argument, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from patterns import (
    Board,
    Team,
    board,
    fan_out,
    handoff,
    hierarchy,
    orchestrate,
    pipeline,
    refine,
    route,
    stream_out,
    vote,
)
from tests.test_orchestrator.running import helper, stage

NO_NUMBERS = [0, -1, 1.5, "3", True, [1]]


async def _stream(run: Any, **fields: Any) -> None:
    async for _ in stream_out(run, helper(), ["a"], **fields):
        pass


def _teams(run: Any, **fields: Any) -> Any:
    return hierarchy(run, Team("t", helper(), [helper(name="m")]), "Work", **fields)


#: Each pattern, and its arguments that are whole numbers; those that may be None are marked by a star.
CALLS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "fan_out": (lambda run, **f: fan_out(run, helper(), ["a"], **f), ("width*",)),
    "stream_out": (_stream, ("width*",)),
    "vote": (lambda run, **f: vote(run, helper(), "q", **f), ("n*", "width*")),
    "pipeline": (lambda run, **f: pipeline(run, [helper()], ["a"], **f), ("width*",)),
    "refine": (lambda run, **f: refine(run, helper(), helper(), "q", **f), ("rounds",)),
    "board": (lambda run, **f: board(run, [helper()], "q", **f), ("rounds",)),
    "handoff": (lambda run, **f: handoff(run, [helper()], "q", **f), ("handoffs_max",)),
    "orchestrate": (
        lambda run, **f: orchestrate(run, helper(), helper(name="w"), "q", **f),
        ("rounds", "workers_max", "report_bytes"),
    ),
    "hierarchy": (_teams, ("workers_max", "report_bytes")),
    "route": (lambda run, **f: route(run, lambda _: "a", {"a": helper()}, "q", **f), ()),
}


@pytest.mark.parametrize(
    ("pattern", "argument"),
    [(name, one) for name, (_, arguments) in CALLS.items() for one in arguments],
)
async def test_a_number_that_can_not_be_is_said(pattern: str, argument: str) -> None:
    """Not a whole number, or too small: said by its name, and nothing was sent."""
    name = argument.rstrip("*")
    bad = [*NO_NUMBERS, *([] if argument.endswith("*") else [None])]
    async with stage() as st:
        for value in bad if name != "handoffs_max" else bad[1:]:
            told = "fan_out" if pattern == "stream_out" else pattern
            with pytest.raises(ConfigError, match=f"^{told}: {name} is .* whole number"):
                await CALLS[pattern][0](st.run, **{name: value})
        assert st.sim.stats.arrived == 0


@pytest.mark.parametrize("pattern", sorted(CALLS))
@pytest.mark.parametrize("run", [None, "run"])
async def test_what_is_no_run_is_said(pattern: str, run: Any) -> None:
    """It names the pattern and says what to write."""
    told = "fan_out" if pattern == "stream_out" else pattern
    with pytest.raises(ConfigError, match=f"^{told}: run is {run!r}; give a Run"):
        await CALLS[pattern][0](run)


@pytest.mark.parametrize("value", [*NO_NUMBERS, None])
async def test_numbers_of_records_are_looked_at_too(value: Any) -> None:
    """Of teams, boards and agents."""
    with pytest.raises(ConfigError, match="team t: rounds"):
        Team("t", helper(), [helper(name="m")], rounds=value)
    with pytest.raises(ConfigError, match="agent helper: max_turns"):
        helper(max_turns=value)
    async with stage() as st:
        with pytest.raises(ConfigError, match="findings_max"):
            Board(st.run, findings_max=value)


@pytest.mark.parametrize(
    ("routes", "fallback", "said"),
    [({}, None, "no routes"), ({}, "a", "no routes"), ({"a": helper()}, "b", "none of the routes")],
)
async def test_routes_that_are_none_are_said_as_they_are(
    routes: Any, fallback: Any, said: str
) -> None:
    """A fallback is blamed only if there is one."""
    async with stage() as st:
        with pytest.raises(ConfigError, match=said):
            await route(st.run, lambda _: "a", routes, "q", fallback=fallback)
