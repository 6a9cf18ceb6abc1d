"""One document, three roles at once, one merged review: a fan-out with an agent as its reducer.

You will see each role's part, the merged review with its cost, and that the document was paid in full once and read
from the cache after that. Costs about $0.02 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import fan_out

DOCUMENT = "The parties agree that the goods are delivered on the first Monday of a month. " * 300
ROLES = ("a lawyer", "an accountant", "the manager of the warehouse")

reviewer = Agent(
    name="reviewer",
    model="claude-sonnet-5-5",
    system="You review contracts from the point of view that you are given. Five points at most.",
    max_tokens=600,
)
editor = Agent(
    name="editor",
    model="claude-sonnet-5-5",
    system="You merge reviews into one: no point twice, and say which role each one comes from.",
    max_tokens=900,
)


async def work(options: dict[str, str]) -> None:
    # The document comes first in every prompt, so that all three share it: it is cached without being asked.
    prompts = [f"{DOCUMENT}\n\nReview this contract as {role}." for role in ROLES]
    async with Run("review", cap="0.30", ledger=Ledger(), client=options) as run:
        review = await fan_out(run, reviewer, prompts, reduce=editor, cap="0.25")
        for role, part in zip(ROLES, review.parts, strict=True):
            tokens = part.tokens
            print(
                f"{role}: {part.outcome}, ${part.cost:.4f}, "
                f"{tokens['cache_read_tokens']:,} tokens read from the cache"
            )
        print(f"merged: {str(review.value)[:100]}")
        print(review)


def main() -> None:
    with api() as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
