"""A director, two team leads with workers of their own, and a board that all of them share, under one cap.

The leads are Claude Code sessions, and their workers are subagents inside them; the director is a plain agent. You
will see what each lead's team cost, what is on the board, and the report. Needs `pip install 'earmark[agents]'`. Costs
about $0.40 on the real API.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from orchestrator.workers import AgentSdkWorker, Subagent
from patterns import Board, Team, hierarchy

FOLDER = Path(__file__).resolve().parent / "tickets"


def lead(name: str, board: Board, *fields: str) -> AgentSdkWorker:
    workers = {
        field: Subagent(description=f"reads {field}", prompt=f"You look for {field}.", tools=("Read", "Grep", "Glob"))
        for field in fields
    }  # fmt: skip
    return AgentSdkWorker(
        name=name,
        model="claude-haiku-5-5",
        cwd=FOLDER,
        system=f"You are the {name}. Have your subagents read, post what they find on the board, then report.",
        tools=("Glob", *board.tools(author=name)),
        agents=workers,
        max_tokens=2_000,
        cap="0.40",
    )


async def work(options: dict[str, str]) -> None:
    async with Run("complaints", cap="1", ledger=Ledger(), client=options) as run:
        board = Board(run)
        director = Agent(
            name="director",
            model="claude-sonnet-5-5",
            system="You are the director.",
            max_tokens=900,
        )
        leads = [
            lead("cashier", board, "refunds", "cards"),
            lead("engineer", board, "outages", "data"),
        ]
        team = Team("complaints", director, leads)
        done = await hierarchy(
            run, team, "What do our customers complain about?", workers_max=2, cap="0.90"
        )
        for part in done.parts:
            shares = ", ".join(f"{one.agent} ${one.cost:.5f}" for one in part.answer.report.shares)
            print(f"{part.name}: {part.outcome}  ({shares})", part.reason)
        for finding in board.findings():
            print(f"on the board by {finding.author}: {finding.topic}: {finding.text}")
        print(f"the director: {done.value}")
        print(f"{done.calls} calls, ${done.cost:.5f} of $1.00")


def main() -> None:
    with api("director_and_leads") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
