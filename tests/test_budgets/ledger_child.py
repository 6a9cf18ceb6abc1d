"""What other processes do in tests of the ledger: ``ledger_child.py VERB LEDGER [ARGUMENT ...]``.

Each says on standard output what it has done, one line each, only after it is done.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from budgets.records import Ending
from budgets.reserves import drawing_on


def say(*words: object) -> None:
    """One line, at once."""
    print(*words, flush=True)


def calls(ledger: Ledger, number: str) -> None:
    """So many calls one after the other, begun together with the others; then the longest wait in seconds."""
    say("ready")
    sys.stdin.readline()
    longest = 0.0
    for _ in range(int(number)):
        began = time.perf_counter()
        hold = ledger.hold(ledger.request(10, scope="app"))
        ledger.settle(hold, 7)
        longest = max(longest, time.perf_counter() - began)
    say(json.dumps({"longest_s": longest}))


def grab(ledger: Ledger, nanos: str) -> None:
    """Hold as often as the cap admits, several at a time; then how often that was."""
    say("ready")
    sys.stdin.readline()

    async def one() -> int:
        got = 0
        while True:
            try:
                await ledger.hold_async(ledger.request(int(nanos), scope="app", wait=False))
            except BudgetExceeded:
                return got
            got += 1

    async def many() -> int:
        return sum(await asyncio.gather(*(one() for _ in range(5))))

    say(asyncio.run(many()))
    sys.stdin.readline()  # stay alive: what is held is held by somebody


def flat_out(ledger: Ledger, seconds: str) -> None:
    """As many calls as it gets through in this time; then their number."""
    say("ready")
    sys.stdin.readline()
    end = time.perf_counter() + float(seconds)
    count = 0
    while time.perf_counter() < end:
        ledger.settle(ledger.hold(ledger.request(10, scope="app")), 7)
        count += 1
    say(count)


def churn(ledger: Ledger, seed: str) -> None:
    """Calls of all kinds for ever, several at a time; each step is told after it is done."""
    chance = random.Random(int(seed))

    async def worker() -> None:
        while True:
            hold = await ledger.hold_async(ledger.request(chance.randint(1, 50), scope="app"))
            say("held", hold.id, hold.nanos)
            await asyncio.sleep(chance.random() * 0.003)
            cost = chance.randint(0, hold.nanos)
            roll = chance.random()
            if roll < 0.7:
                await ledger.end_async(Ending(hold=hold.id, kind="settle", nanos=cost))
                say("settled", hold.id, cost)
            elif roll < 0.8:
                await ledger.end_async(Ending(hold=hold.id, kind="void"))
                say("voided", hold.id, 0)
            elif roll < 0.9:
                await ledger.end_async(Ending(hold=hold.id, kind="doubt"))
                say("doubted", hold.id, hold.nanos)

    async def main() -> None:
        await asyncio.gather(*(worker() for _ in range(4)))

    asyncio.run(main())


def keep(ledger: Ledger, nanos: str) -> None:
    """Hold once, and keep it until told to void it."""
    hold = ledger.hold(ledger.request(int(nanos), scope="app"))
    say("held", hold.id)
    sys.stdin.readline()
    ledger.void(hold)
    say("voided")
    sys.stdin.readline()


def queue(ledger: Ledger, nanos: str) -> None:
    """Wait in the queue for money; void it at once when it is there."""

    async def main() -> None:
        task = asyncio.create_task(ledger.hold_async(ledger.request(int(nanos), scope="app")))
        while not ledger.waiting and not task.done():
            await asyncio.sleep(0.001)
        say("waiting")
        hold = await task
        say("held", hold.id)
        await ledger.end_async(Ending(hold=hold.id, kind="void"))

    asyncio.run(main())
    sys.stdin.readline()


def reserve(ledger: Ledger, nanos: str) -> None:
    """Set money aside, draw half of it, and stay alive."""
    kept = ledger.reserve(int(nanos), scope="app")
    with drawing_on(kept):
        hold = ledger.hold(ledger.request(int(nanos) // 2, scope="app"))
    say("reserved", kept.id, hold.id)
    sys.stdin.readline()


VERBS: dict[str, Callable[[Ledger, str], None]] = {
    "calls": calls,
    "grab": grab,
    "flat_out": flat_out,
    "churn": churn,
    "keep": keep,
    "queue": queue,
    "reserve": reserve,
}

if __name__ == "__main__":
    verb, path, cap, argument = sys.argv[1:]
    VERBS[verb](Ledger(path, [Cap(cap, scope="app")], fallback=()), argument)
