"""A fan-out under a cap: the same work for many items at once, one row for each, and never a cent above the cap.

You will see fifty questions drawn on a cap that does not pay for all of them: some rows end as ``ok``, the
others as ``budget`` with the reason, and what was posted stays below the cap. Costs at most $0.0006.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import Part, fan_out

CAP = "0.0006"
WORDS = ("cap", "scope", "bound", "hold", "decline", "settle", "void", "posted", "meter", "gate")
QUESTIONS = [
    f"Explain the word '{word}' as {role} would."
    for role in ("a banker", "an engineer", "a teacher", "a lawyer", "a child")
    for word in WORDS
]

writer = Agent(
    name="writer",
    model="claude-haiku-5-5",
    system="Answer in five sentences of plain English.",
    max_tokens=400,
)


def count_words(parts: list[Part[str]]) -> int:
    """The reducer: one value of all answers."""
    return sum(len(str(part.value).split()) for part in parts if part.outcome == "ok")


async def work(options: dict[str, str]) -> None:
    async with Run("explain", cap=CAP, ledger=Ledger(), client=options) as run:
        result = await fan_out(run, writer, QUESTIONS, width=8, reduce=count_words)
        print(f"outcomes: {result.outcomes}; words in all answers: {result.reduced}")
        stopped = next((part for part in result.parts if part.outcome == "budget"), None)
        if stopped is not None:
            print(f"item {stopped.index}: {stopped.reason}")
        balance = run.balance
        print(f"posted ${balance.posted:.6f}, held ${balance.held:.2f}, of ${CAP}")
        assert balance.posted + balance.held + balance.in_doubt <= balance.cap.amount


def main() -> None:
    with api() as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
