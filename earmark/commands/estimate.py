"""``earmark estimate``: what a plan of agents, turns and tokens will cost, with and without caching."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import ConfigOption, JsonOption, PricesOption, book_of, moment, settings_of

if TYPE_CHECKING:
    from budgets.estimate import Estimate, Spend

app = typer.Typer(help="Price a plan of agents, turns and tokens.")

SPANS = ("run", "day", "week", "month", "year")
#: Decimals of a run's cost, and of everything longer.
_RUN_PLACES, _PLACES = 4, 2


@app.command()
def estimate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan, a TOML file.")],
    *,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="DAY", help="Prices of this day (UTC); today if left out."),
    ] = None,
    prices: PricesOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Price a plan: per agent, and per run, day, week, month and year, with and without caching.

    An estimate limits nothing; caps do. examples/research-plan.toml is a plan to start from.
    """
    from budgets.estimate import estimate as price
    from budgets.estimate import load_plan

    book = book_of(prices, settings_of(config))
    when = moment(at, "UTC", option="--at") or datetime.now(UTC)
    result = price(load_plan(file), book, when)
    if json:
        output.print_json(_as_json(result, file))
    else:
        _people(result)


def _as_json(result: Estimate, file: Path) -> dict[str, Any]:
    plan = result.plan
    return {
        "file": str(file),
        "at": output.instant(result.at),
        "runs_per_day": plan.runs_per_day,
        "days_per_week": plan.days_per_week,
        "days_per_month": plan.days_per_month,
        "calls_per_run": result.calls,
        "agents": [
            {
                "name": line.agent.name,
                "model": line.agent.model,
                "count": line.agent.count,
                "turns": line.agent.turns,
                "calls": line.calls,
                **output.money("with_caching", line.with_caching),
                **output.money("without_caching", line.without_caching),
                **output.money("searches", line.searches),
            }
            for line in result.agents
        ],
        "with_caching": _spend_json(result.with_caching),
        "without_caching": _spend_json(result.without_caching),
        "notes": list(result.notes),
    }


def _spend_json(spend: Spend) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for span in SPANS:
        document.update(output.money(span, getattr(spend, span)))
    return document


def _people(result: Estimate) -> None:
    from budgets.money import format_usd

    def run(nanos: int) -> str:
        return format_usd(nanos, places=_RUN_PLACES)

    output.print_table(
        (
            "agent",
            "model",
            *map(output.right, ("count", "turns", "calls")),
            *map(output.right, ("with caching", "without", "of it searches")),
        ),
        [
            (
                line.agent.name,
                line.agent.model,
                line.agent.count,
                line.agent.turns,
                line.calls,
                run(line.with_caching),
                run(line.without_caching),
                run(line.searches) if line.searches else "",
            )
            for line in result.agents
        ],
    )
    output.say()
    plan = result.plan
    spans = {
        "run": "one run",
        "day": f"a day of {plan.runs_per_day} runs",
        "week": f"a week of {plan.days_per_week} days",
        "month": f"a month of {plan.days_per_month} days",
        "year": "a year of 12 months",
    }
    rows = []
    for span, text in spans.items():
        places = _RUN_PLACES if span == "run" else _PLACES
        both = (getattr(result.with_caching, span), getattr(result.without_caching, span))
        rows.append((text, *(format_usd(nanos, places=places) for nanos in both)))
    output.print_table(("", output.right("with caching"), output.right("without")), rows)
    for note in result.notes:
        output.say(f"note: {note}")
