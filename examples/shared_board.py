"""Several agents around one board of findings: each reads what is there, adds what it can, corrects what is wrong.

You will see who posted what and when, a finding that a colleague corrected, and the conclusion that ended the work
before its rounds were used up. Costs about $0.01 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import Board, board

QUESTION = "Why is the cellar of the town hall wet?"


def agent(name: str, knows: str) -> Agent:
    told = f"You are the {name}. You know {knows}."
    return Agent(name=name, model="claude-haiku-5-5", system=told, max_tokens=500)


historian = agent("historian", "the building's papers since 1890")
surveyor = agent("surveyor", "what was measured in the cellar this week")


async def work(options: dict[str, str]) -> None:
    async with Run("cellar", cap="0.20", ledger=Ledger(), client=options) as run:
        shared = Board(run, findings_max=50)
        done = await board(run, [historian, surveyor], QUESTION, on=shared, rounds=5, cap="0.10")
        holding = {finding.version for finding in done.findings}
        for finding in shared.history():
            mark = "" if finding.version in holding else " (corrected since)"
            print(f"{finding.version}. {finding.author}: {finding.topic}: {finding.text}{mark}")
        print(f"{done.concluded_by} concluded in round {done.rounds}: {done.value}")
        for part in done.parts:
            print(f"  round {part.item}, {part.name}: {part.outcome}, ${part.cost:.5f}")
        print(done)


def main() -> None:
    with api("shared_board") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
