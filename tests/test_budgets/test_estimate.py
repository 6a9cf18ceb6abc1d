"""What a planned set of agents will cost."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest

from budgets import estimate as estimating
from budgets.errors import InvalidSettings, UnknownPrice
from budgets.estimate import Plan, PlannedAgent, estimate, load_plan
from budgets.money import format_usd
from budgets.prices import default_book

NOW = datetime(2026, 11, 29, tzinfo=UTC)
BOOK = default_book()
EXAMPLE = Path(__file__).parents[2] / "examples" / "research-plan.toml"


def plan_of(folder: Path, text: str) -> Plan:
    """A plan from a file with this text."""
    path = folder / "plan.toml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_plan(path)


def test_the_public_example_costs_what_it_says() -> None:
    """One lead and four workers: $1.4568 a run with caching, $2.204 without, and what follows."""
    found = estimate(load_plan(EXAMPLE), BOOK, NOW)

    assert format_usd(found.with_caching.run) == "$1.4568"
    assert format_usd(found.without_caching.run) == "$2.204"
    assert format_usd(found.with_caching.day, places=2) == "$29.14"
    assert format_usd(found.with_caching.week, places=2) == "$145.68"
    assert format_usd(found.with_caching.month, places=2) == "$640.99"
    assert format_usd(found.with_caching.year, places=2) == "$7,691.90"
    assert found.calls == 46
    assert found.notes == ()


def test_each_line_of_the_example_is_worked_by_hand() -> None:
    """The lead: 6 turns, one write; a worker: 10 turns, one write, 5 searches of a cent each."""
    lead, workers = estimate(load_plan(EXAMPLE), BOOK, NOW).agents

    # 12,000 x $5 + 5 x 12,000 x $0.20 + 6 x 4,000 x $4 + 6 x 1,500 x $20, per million
    assert (lead.calls, lead.with_caching) == (6, 348_000_000)
    # 6 x 16,000 x $4 + 6 x 1,500 x $20, per million
    assert lead.without_caching == 564_000_000
    # 4 x (8,000 x $2.50 + 9 x 8,000 x $0.10 + 10 x 6,000 x $2 + 10 x 800 x $10) + $0.20
    assert (workers.calls, workers.with_caching) == (40, 1_108_800_000)
    assert (workers.without_caching, workers.searches) == (1_640_000_000, 200_000_000)


AGENT = PlannedAgent(
    name="worker",
    model="claude-sonnet-5-5",
    count=10,
    turns=1,
    cached_prefix=100_000,
    new_input=1_000,
    output=1_000,
)


def run(agent: PlannedAgent) -> tuple[int, int]:
    """Nano-dollars of one run with and without caching."""
    found = estimate(Plan(agents=(agent,)), BOOK, NOW)
    return found.with_caching.run, found.without_caching.run


def test_a_shared_prefix_is_written_once_for_all() -> None:
    """Ten workers of one turn: ten writes when each has its own prefix, one when they share it."""
    own, plain = run(AGENT)
    shared, _ = run(replace(AGENT, shared_prefix=True))

    assert plain == 10 * (101_000 * 2_000 + 1_000 * 10_000)
    assert own - shared == 9 * 100_000 * (2_500 - 100)


def test_caching_that_never_pays_is_said() -> None:
    """One turn and no shared prefix only writes: it is dearer and a note says why (P-04)."""
    found = estimate(Plan(agents=(AGENT,)), BOOK, NOW)

    assert found.with_caching.run > found.without_caching.run
    assert "written and never read" in found.notes[0]
    assert estimate(Plan(agents=(replace(AGENT, shared_prefix=True),)), BOOK, NOW).notes == ()


def test_a_prefix_under_the_minimum_is_not_claimed_as_cached() -> None:
    """Below the model's minimum a marker does nothing, and the estimate says so (P-04)."""
    short = replace(AGENT, turns=5, cached_prefix=1_023)
    found = estimate(Plan(agents=(short,)), BOOK, NOW)

    assert found.with_caching == found.without_caching
    assert "1,023 tokens is not cached; claude-sonnet-5-5 needs 1,024" in found.notes[0]
    enough = estimate(Plan(agents=(replace(short, cached_prefix=1_024),)), BOOK, NOW)
    assert enough.with_caching.run < enough.without_caching.run
    assert enough.notes == ()


def test_every_way_of_running_has_its_price() -> None:
    """Batch halves tokens, the US costs 1.1 times, an hour's cache twice the input."""
    plain = replace(AGENT, cached_prefix=0)
    _, standard = run(plain)

    assert run(replace(plain, tier="batch"))[1] * 2 == standard
    assert run(replace(plain, inference_geo="us"))[1] * 10 == standard * 11
    assert run(replace(AGENT, cache_ttl="1h"))[0] - run(AGENT)[0] == 10 * 100_000 * 1_500
    opus = replace(plain, model="claude-opus-5-5")
    assert run(replace(opus, speed="fast"))[0] == 2 * run(opus)[0]


def test_searches_are_counted_per_agent_or_per_turn() -> None:
    """Both ways of planning them add up, at a cent each."""
    plain = replace(AGENT, turns=3)

    per_agent = run(replace(plain, web_searches=6))[0] - run(plain)[0]
    per_turn = run(replace(plain, web_searches_per_turn=2))[0] - run(plain)[0]

    assert per_agent == per_turn == 60 * 10_000_000


def test_long_prompts_pay_their_tier() -> None:
    """Each call's own prompt decides the tier, prefix included."""
    haiku = PlannedAgent(
        name="reader", model="claude-haiku-5-5", turns=2, cached_prefix=60_000, new_input=40_000
    )

    assert run(haiku)[1] == 2 * 100_000 * 100
    assert run(replace(haiku, new_input=40_001))[1] == 2 * 100_001 * 500


def test_an_unknown_model_is_declined() -> None:
    """A plan with a mistyped model has no price, rather than a low one."""
    with pytest.raises(UnknownPrice, match="claude-sonnet-5-5"):
        run(replace(AGENT, model="claude-sonet-5-5"))


def test_the_spans_follow_the_plan(tmp_path: Path) -> None:
    """Runs a day, days a week and days a month are the plan's; a year has twelve months."""
    plan = plan_of(
        tmp_path,
        """
        runs_per_day = 3
        days_per_week = 7
        days_per_month = 30
        [[agent]]
        model = "claude-sonnet-5-5"
        turns = 1
        output = 100
        """,
    )
    spend = estimate(plan, BOOK, NOW).with_caching

    assert (spend.run, spend.day, spend.week, spend.month, spend.year) == tuple(
        1_000_000 * times for times in (1, 3, 21, 90, 1080)
    )
    assert plan.agents[0].name == "agent 1"


GOOD = '[[agent]]\nmodel = "claude-sonnet-5-5"\nturns = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "at least one entry headed", id="empty"),
        pytest.param("agent = 3", "at least one entry headed", id="no list"),
        pytest.param("agent = [3]", r"number 1: agent: write a table", id="no table"),
        pytest.param("[[agent]\n", "not valid TOML", id="broken"),
        pytest.param("runs_day = 3\n" + GOOD, "did you mean 'runs_per_day'", id="unknown span"),
        pytest.param("runs_per_day = 0\n" + GOOD, "from 1 to", id="no runs"),
        pytest.param("days_per_week = 8\n" + GOOD, "from 1 to 7", id="long week"),
        pytest.param("days_per_month = 32\n" + GOOD, "from 1 to 31", id="long month"),
        pytest.param("[[agent]]\nturns = 1", "model: is missing", id="no model"),
        pytest.param('[[agent]]\nmodel = "x"', "turns: is missing", id="no turns"),
        pytest.param(GOOD + "count = 1.5", "count: 1.5 is not a whole number", id="float"),
        pytest.param(GOOD + "output = true", "output: True is not", id="bool"),
        pytest.param(GOOD + "output = -1", "output: -1 is not", id="negative"),
        pytest.param(GOOD + 'name = ""', "name: '' is not a name", id="no name"),
        pytest.param(GOOD + 'cache_ttl = "2h"', "not one of 5m, 1h", id="ttl"),
        pytest.param(GOOD + 'tier = "priority"', "not one of standard, batch", id="tier"),
        pytest.param(GOOD + 'shared_prefix = "yes"', "neither true nor false", id="shared"),
        pytest.param(GOOD + "outputs = 3", "did you mean 'output'", id="typo"),
    ],
)
def test_a_plan_that_can_not_be_used_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """The message names the file, the agent and the field."""
    with pytest.raises(InvalidSettings, match=says) as refused:
        plan_of(tmp_path, text)

    assert "plan.toml" in str(refused.value)


def test_a_plan_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(InvalidSettings, match=r"gone\.toml can't be read"):
        load_plan(tmp_path / "gone.toml")


def test_the_example_in_the_module_is_valid(tmp_path: Path) -> None:
    """The format that the module documents is the one that it reads, with the defaults it names."""
    text = (estimating.__doc__ or "").split("::\n", 1)[1]
    plan = plan_of(tmp_path, text)

    assert plan.agents[0] == replace(
        AGENT,
        name="lead",
        model="claude-opus-5-5",
        count=1,
        turns=6,
        cached_prefix=12_000,
        new_input=4_000,
        output=1_500,
        web_searches=5,
    )
