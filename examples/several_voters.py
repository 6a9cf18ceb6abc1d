"""One question, several voters: asked no oftener than it takes to decide, or judged by another agent.

You will see a majority of five that is decided by three, and a vote of three models with a judge. Costs less
than $0.02 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import vote

QUESTION = "Does the clause 'delivery within a reasonable time' name a date by which the goods must be there?"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def said(answer: dict[str, str]) -> str:
    """What counts of an answer when they are compared."""
    return answer["answer"]


juror = Agent(name="juror", model="claude-haiku-5-5", output=SCHEMA, max_tokens=300)
judge = Agent(
    name="judge",
    model="claude-sonnet-5-5",
    system="You read several answers to a question and give the one that is best founded.",
    max_tokens=400,
)


async def work(options: dict[str, str]) -> None:
    async with Run("jury", cap="0.10", ledger=Ledger(), client=options) as run:
        jury = await vote(run, juror, QUESTION, n=5, key=said)
        print(
            f"majority: {jury.value} ({len(jury.parts)} of 5 were asked, "
            f"agreement {jury.agreement:.0%}, ${jury.cost:.5f})"
        )
        models = ["claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5"]
        panel = await vote(run, juror, QUESTION, models=models, judge=judge, key=said, name="panel")
        print(f"counts: {panel.counts}; the judge: {str(panel.value)[:60]}")
        print(panel)


def main() -> None:
    with api("several_voters") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
