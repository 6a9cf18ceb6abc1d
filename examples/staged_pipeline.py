"""Stages that feed each other, with a gate between them that sends back once: outline, draft, polish.

You will see the plan with its worst case, each topic's way through the stages, and one that a gate stopped. Costs
about $0.01 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import Halt, Stage, pipeline

TOPICS = ["How a ledger holds money", "Why a cap is never passed", "", "What a retry costs"]

outline = Agent(
    name="outline", model="claude-haiku-5-5", system="Three headings, one per line.", max_tokens=200
)
draft = Agent(
    name="draft", model="claude-haiku-5-5", system="One paragraph for each heading.", max_tokens=600
)
polish = Agent(
    name="polish", model="claude-sonnet-5-5", system="Make it plain English.", max_tokens=700
)


async def topic(title: str) -> str:
    """The first stage is a plain function: it only checks."""
    return title.strip()


def named(title: str) -> Halt | None:
    return None if title else Halt("there is no topic")


def long_enough(text: str) -> str | None:
    """A sentence sends it back once, with that sentence."""
    return None if len(text) > 20 else "It is too short; write at least three sentences."


async def work(options: dict[str, str]) -> None:
    stages = [Stage(topic, gate=named), outline, Stage(draft, gate=long_enough), polish]
    async with Run("notes", cap="0.20", ledger=Ledger(), client=options) as run:
        # Of what it costs: what a plain function calls is not known beforehand.
        await pipeline(run, stages[1:], TOPICS, plan_only=True)
        notes = await pipeline(run, stages, TOPICS, width=3)
        for part in notes.parts:
            way = " > ".join(f"{step.name} {step.outcome}" for step in part.steps)
            print(f"{part.item or '(empty)'}: {part.outcome}, ${part.cost:.5f} ({way})")
            if part.reason:
                print(f"  {part.reason}")
        print(notes)


def main() -> None:
    with api() as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
