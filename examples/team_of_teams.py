"""A director, two teams and their workers: caps nest, so no team spends what is another's.

You will see the tree with its prices, what became of each team's tasks, and that a team whose cap carries one of its
two workers still hands up a report. Costs less than $0.05 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import Team, hierarchy

QUESTION = "Is our house of 1930 ready for a heat pump?"


def lead(name: str) -> Agent:
    told = f"You are the {name}."
    return Agent(name=name, model="claude-sonnet-5-5", system=told, max_tokens=700)


def worker(name: str, long: bool = False) -> Agent:
    told = f"You are the {name}. {'Go into detail.' if long else 'Five sentences at most.'}"
    most = 12_000 if long else 300
    return Agent(
        name=name, model="claude-haiku-5-5", system=told, max_tokens=most, likely_output=most
    )


heating = Team("heating", lead("engineer"), [worker("plumber"), worker("electrician")], cap="0.10")
# A team's report is set aside first; what is left of this cap carries one long answer, not two.
walls = Team(
    "walls", lead("architect"), [worker("mason", True), worker("roofer", True)], cap="0.031"
)
house = Team("house", lead("director"), [heating, walls])


async def work(options: dict[str, str]) -> None:
    async with Run("house", cap="0.50", ledger=Ledger(), client=options) as run:
        await hierarchy(run, house, QUESTION, workers_max=2, report_bytes=3_000, plan_only=True)
        done = await hierarchy(run, house, QUESTION, workers_max=2, report_bytes=3_000, cap="0.20")
        for path, team in done.teams.items():
            print(f"{path}: {team.outcome}, ${team.cost:.5f}")
            for part in team.parts:
                print(f"  {part.name}: {part.outcome}  {part.reason}".rstrip())
        print(f"the director: {done.value}")
        print(done)


def main() -> None:
    with api("team_of_teams") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
