"""A small model looks at each request and hands it to a specialist with its own prompt, model and cap.

You will see where each request went, how sure the router was, and what each specialist cost. Costs less than $0.01
on the real API.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import RouteResult, classifier, fan_out, route

REQUESTS = [
    "The invoice of May charges the refund twice.",
    "Nothing loads since this morning: every page is down with error 503.",
    "Please delete my account and all its data.",
]
router = classifier(
    {
        "billing": "invoice, refund, charge, payment",
        "outage": "error, down, slow, nothing loads",
        "person": "anything else: account, data, complaint",
    },
    model="claude-haiku-5-5",
)
specialists = {
    "billing": Agent(
        name="billing",
        model="claude-haiku-5-5",
        system="You answer questions on bills.",
        cap="0.01",
    ),
    "outage": Agent(
        name="outage", model="claude-sonnet-5-5", system="You are on call.", max_tokens=600
    ),
    "person": Agent(
        name="person", model="claude-haiku-5-5", system="Say that a person will answer soon."
    ),
}


async def work(options: dict[str, str]) -> None:
    async with Run("desk", cap="0.10", ledger=Ledger(), client=options) as run:

        async def answer(request: str) -> RouteResult:
            # A router that is less than half sure leaves it to the fallback.
            return await route(run, router, specialists, request, fallback="person")

        desk = await fan_out(run, answer, REQUESTS, width=3)
        for part in desk.parts:
            done: Any = part.value
            how = "by the fallback" if done.fell_back else f"{done.confidence:.0%} sure"
            print(f"{done.route} ({how}), ${part.cost:.5f}: {part.item[:48]}...")
        print(desk)


def main() -> None:
    with api("route_requests") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
