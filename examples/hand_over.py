"""Control passes from peer to peer by a tool, each time with a written brief; going in circles is seen.

You will see a complaint go through three hands, what each of them cost and was told, and two agents who send a request
back and forth until that is noticed. Costs less than $0.01 on the real API.
"""

from __future__ import annotations

import asyncio

from stand_in import api

from budgets import Ledger
from orchestrator import Agent, Run
from patterns import handoff

MAIL = "I was charged twice for October, and since then the invoices page is empty."
ABOUT = {
    "reception": "hears what it is about",
    "billing": "can look up payments and send money back",
    "technician": "knows the pages and their faults",
}


def agent(name: str) -> Agent:
    told = f"You are {name}: you {ABOUT[name]}. Do your part, then hand over, or answer if all is done."
    return Agent(name=name, model="claude-haiku-5-5", system=told, max_tokens=400)


reception, billing, technician = (agent(name) for name in ABOUT)


async def work(options: dict[str, str]) -> None:
    async with Run("desk", cap="0.10", ledger=Ledger(), client=options) as run:
        desk = [reception, billing, technician]
        done = await handoff(run, desk, MAIL, about=ABOUT, cap="0.05")
        for control, part in zip(done.controls, done.parts, strict=True):
            told = f"{control.given_by}: {control.brief}" if control.given_by else "the mail"
            print(f"{control.agent} (${part.cost:.5f}) was given {told}")
        print(f"the answer: {done.value}\n{done}")
        # Each may only hand over to the other one: nobody is there who answers.
        peers = {"reception": ["billing"], "billing": ["reception"]}
        lost = await handoff(run, [reception, billing], "Who owns the old server?", peers=peers)
        print(lost)


def main() -> None:
    with api("hand_over") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
