"""One line of adoption: the client that you have, with a cap, async and sync.

You will see what each call was held at, what it really cost, and a call that the cap declines before it is
sent. Costs less than $0.002 on the real API.
"""

from __future__ import annotations

import asyncio

from anthropic import Anthropic, AsyncAnthropic
from stand_in import api

from budgets import BudgetExceeded, Cap, Ledger, scope
from orchestrator import Meter

MODEL = "claude-haiku-5-5"
QUESTION = [{"role": "user", "content": "Name one use of a ledger, in one sentence."}]


async def with_async_client(ledger: Ledger, options: dict[str, str]) -> None:
    client = AsyncAnthropic(
        middleware=[Meter(ledger, scope="app/run-1")], **options
    )  # the one line
    async with client:
        reply = await client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION)
    print("async:", reply.content[0].text)


def with_sync_client(ledger: Ledger, options: dict[str, str]) -> None:
    with Anthropic(middleware=[Meter(ledger, scope="app/run-1")], **options) as client:
        reply = client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION)
        print("sync: ", reply.content[0].text)
        with scope("careful", cap="0.00005"):  # a tighter cap for what is called in this block
            try:
                client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION)
            except BudgetExceeded as error:
                print("declined, nothing was sent:", error)


def main() -> None:
    ledger = Ledger(caps=[Cap("0.05", scope="app")])  # in memory; Ledger("ledger.db") is durable
    with ledger, api() as options:
        asyncio.run(with_async_client(ledger, options))
        with_sync_client(ledger, options)
        for line in ledger.lines():
            print(f"{line.kind:7} ${line.amount:.6f}  {line.scope}")
        print(f"posted ${ledger.balance('app').posted:.6f} of $0.05; proven: {ledger.check().ok}")


if __name__ == "__main__":
    main()
