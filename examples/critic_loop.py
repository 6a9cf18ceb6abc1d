"""A writer and a critic, until the critic accepts or rounds or money end; the best draft is never lost.

You will see a draft that plain code accepts, one that another agent judges by criteria, and a loop that its cap ends
with the best draft so far. Costs less than $0.02 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import Verdict, refine

TASK = "A note of five sentences to our customers about the outage of 3 May."

writer = Agent(name="writer", model="claude-haiku-5-5", max_tokens=400)
critic = Agent(
    name="critic",
    model="claude-sonnet-5-5",
    system="You judge notes to customers: is the cause named, is there an apology, is it plain?",
    max_tokens=900,
)


def is_brief(draft: str) -> bool | str:
    """A critic can be plain code, too: a sentence says what is wrong."""
    return True if 20 < len(draft) < 1_500 else "Between 20 and 1,500 characters, please."


async def work(options: dict[str, str]) -> None:
    async with Run("note", cap="0.10", ledger=Ledger(), client=options) as run:
        by_code = await refine(run, writer, is_brief, TASK, rounds=3)
        print(f"by code: accepted {by_code.accepted}, drafts: {by_code.rounds}")
        by_agent = await refine(run, writer, critic, TASK, rounds=2, name="judged")
        print(f"by an agent: accepted {by_agent.accepted}, drafts: {by_agent.rounds}")
        for part in by_agent.parts:
            if isinstance(part.value, Verdict):
                print(f"  the critic: {part.value.complaints or 'nothing is open'}")
        poor = await refine(run, writer, lambda _: "Better!", TASK, rounds=50, cap="0.0008")
        print(f"{poor.outcome}: drafts: {poor.rounds}, the best is kept: {poor.value[:40]}...")
        print(poor)


def main() -> None:
    with api("critic_loop") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
