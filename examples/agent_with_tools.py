"""An agent with a tool: a loop of calls that ends in exactly one outcome, whatever happens inside.

You will see the tool being called, the answer with its outcome and cost, the run's journal, and the same agent
with a cap that is too small: it ends as ``budget``, no exception is lost in the loop. Costs less than $0.01.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from stand_in import api

from orchestrator import Agent, Run, read_journal

ORDERS = {"4711": "packed on Monday, handed to the carrier on Tuesday"}


def order_status(number: str) -> str:
    """Say where an order is. Takes the order's number."""
    print(f"  the tool was called for order {number!r}")
    return ORDERS.get(number, "no order of this number")


clerk = Agent(
    name="clerk",
    model="claude-haiku-5-5",
    system="You answer customers of a shop, in one sentence.",
    tools=[order_status],
    max_turns=5,
    max_tokens=300,
    cap="0.02",
)


async def work(folder: Path, options: dict[str, str]) -> None:
    # Play money stays apart: what is below the scope "simulated" counts against no real cap.
    top = "simulated" if options else ""
    async with Run(
        "shop", cap="0.05", scope=top, ledger=folder / "ledger.db", client=options
    ) as run:
        question = "Where is order 4711?"
        result = await clerk.run(run, question)
        print(f"{result.outcome}: {result.text} ({result.turns} turns, ${result.cost:.6f})")
        poor = replace(clerk, name="poor-clerk", cap="0.0001")
        result = await poor.run(run, question)
        print(f"{result.outcome}: {result.reason}")
    events = [event["event"] for event in read_journal(run.folder.journal)]
    print("journal:", ", ".join(events))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, api("agent_with_tools") as options:
        asyncio.run(work(Path(folder), options))


if __name__ == "__main__":
    main()
