"""A planned research run over a folder of files, in which code checks every finding before anybody builds on it.

You will see the lead's plan, what became of each task, a quotation that stands in no file and is refused, the second
round that it makes necessary, and the report with its sources and costs. Costs about $0.10 on the real API.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel, Field
from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from orchestrator.documents import Document, find, read
from orchestrator.folder_tools import folder_tools
from patterns import Part, Task, orchestrate

FOLDER = Path(__file__).parent / "tickets"
QUESTION = "What do our customers say about payments that went wrong?"
FILES = [read(found) for found in find(FOLDER)]
TEXTS = {file.path: " ".join(file.text.split()) for file in FILES if isinstance(file, Document)}


class Finding(BaseModel):
    summary: str
    quote: str = Field(description="The sentence that shows it, word for word.")
    sources: list[str] = Field(description="Paths of the files that were used.")


lead = Agent(name="lead", model="claude-sonnet-5-5", max_tokens=2_000)
reader = Agent(
    name="reader",
    model="claude-haiku-5-5",
    system="You find out what the files say.",
    tools=folder_tools(FOLDER),
    output=Finding,
    max_tokens=800,
    max_turns=4,
)


def check(part: Part[Task]) -> str | None:
    """What is wrong with a finding: its quotation must stand in a file that it names."""
    quote = " ".join(part.value.quote.split())
    is_there = any(quote in TEXTS.get(path, "") for path in part.value.sources)
    return None if quote and is_there else f"none of the files that it names holds {quote!r}"


async def work(options: dict[str, str]) -> None:
    async with Run("research", cap="1", ledger=Ledger(), client=options) as run:
        await orchestrate(run, lead, reader, QUESTION, workers_max=3, plan_only=True)
        done = await orchestrate(run, lead, reader, QUESTION, workers_max=3, check=check)
        for number, tasks in enumerate(done.plans, start=1):
            print(f"round {number}: {', '.join(task.title for task in tasks)}")
        for part in done.parts:
            print(f"  {part.item.id} {part.outcome}: ${part.cost:.5f}  {part.reason}".rstrip())
        print(f"the report:\n  {done.value}\nits sources:")
        for source in done.sources:
            print(f"  {source}, found by {', '.join(source.found_by)}")
        print(done)


def main() -> None:
    with api("planned_research") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
