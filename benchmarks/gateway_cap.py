"""Gateway's caps: a thousand calls at once through ``earmark gateway``, under a cap that pays for two thirds of them.

The calls' real costs are log-normal, as in ``overshoot.py``. Printed by the server's own bill: what was billed above
the cap, and the share of it that was used; beside the gateway a plain counter that checks first and charges afterwards.
A cap can only be used up to the last call that still fits, so what one call is held for is printed as a share of it.
Run: ``python benchmarks/gateway_cap.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from overshoot import CALLS, fields, server

from budgets import Cap, Ledger
from budgets.money import format_usd, to_decimal

ROOT = Path(__file__).resolve().parents[1]
#: Nano-dollars per token of the model.
INPUT_NANOS, OUTPUT_NANOS = 2_000, 10_000
_SERVED, _DECLINED = 200, frozenset({402, 429})


async def call(session: aiohttp.ClientSession, url: str, seed: int) -> tuple[int, int]:
    """One call; its status, and what it cost."""
    async with session.post(f"{url}/v1/messages", json=fields(seed)) as answer:
        said = await answer.json()
    usage = said.get("usage", {"input_tokens": 0, "output_tokens": 0})
    cost = usage["input_tokens"] * INPUT_NANOS + usage["output_tokens"] * OUTPUT_NANOS
    return answer.status, cost


def talking() -> aiohttp.ClientSession:
    """A client with as many connections as there are calls."""
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers)


async def all_at_once(url: str) -> list[int]:
    """Every call at the same time; their statuses."""
    async with talking() as session:
        done = await asyncio.gather(*(call(session, url, seed) for seed in range(CALLS)))
    return [status for status, _ in done]


async def checked_then_charged(url: str, cap_nanos: int) -> list[int]:
    """The plain way: look at the sum, call, add what it cost. Calls that see room at once all pass."""
    spent = 0

    async def one(session: aiohttp.ClientSession, seed: int) -> int:
        nonlocal spent
        if spent >= cap_nanos:
            return 402
        status, cost = await call(session, url, seed)
        spent += cost
        return status

    async with talking() as session:
        return list(await asyncio.gather(*(one(session, seed) for seed in range(CALLS))))


@contextmanager
def gateway(upstream: str, ledger: Path, cap_nanos: int) -> Iterator[str]:
    """``earmark gateway`` in a process of its own, under a cap; its address."""
    amount = f"{to_decimal(cap_nanos):f}"
    command = ("gateway", "--json", "--port", "0", "--cap", amount, "--ledger", str(ledger))
    process = subprocess.Popen(
        [sys.executable, "-m", "earmark", *command, "--upstream", upstream],
        env={**os.environ, "ANTHROPIC_API_KEY": "key", "PYTHONPATH": str(ROOT)},
        cwd=ledger.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while not said.endswith("\n}\n"):
        said += process.stdout.readline()
    try:
        yield json.loads(said)["url"]
    finally:
        process.terminate()
        process.communicate()


def billed(url: str) -> int:
    """What the server has billed, in nano-dollars."""
    with urllib.request.urlopen(f"{url}/sim/bill?rows=0") as reply:
        return int(json.load(reply)["nanos"])


def show(name: str, statuses: list[int], bill: int, cap_nanos: int, seconds: float) -> None:
    """One line of the result."""
    served = statuses.count(_SERVED)
    assert set(statuses) <= {_SERVED, *_DECLINED}, set(statuses)
    print(
        f"{name:24} served {served:5}   billed {format_usd(bill)} of {format_usd(cap_nanos)}   "
        f"over {format_usd(max(0, bill - cap_nanos))}   used {bill / cap_nanos:8.3%}   {seconds:5.1f} s"
    )


def through(folder: Path, cap_nanos: int) -> None:
    """The gateway, on a fresh server and a fresh ledger."""
    path = folder / "ledger.db"
    with (
        server(0.02) as url,
        Ledger(path, caps=[Cap("1000", per="day"), Cap("1", per="call")]),
        gateway(url, path, cap_nanos) as address,
    ):
        began = time.perf_counter()
        statuses = asyncio.run(all_at_once(address))
        seconds = time.perf_counter() - began
        bill = billed(url)
    show("earmark gateway", statuses, bill, cap_nanos, seconds)
    with Ledger(path) as ledger:
        check, balance = ledger.check(), ledger.balance("gateway")
        bound = max(line.nanos for line in ledger.lines() if line.kind == "hold")
    assert (check.findings, balance.held_nanos, balance.posted_nanos) == ([], 0, bill), check
    print(f"{'':24} one call is held for {format_usd(bound)}, {bound / cap_nanos:.2%} of the cap")


def main() -> None:
    """Both ways, each against a fresh server."""
    with server(0.0) as url:  # what all of them cost, and so the cap
        asyncio.run(all_at_once(url))
        cap_nanos = billed(url) * 2 // 3
    with tempfile.TemporaryDirectory() as folder:
        through(Path(folder), cap_nanos)
    with server(0.02) as url:
        began = time.perf_counter()
        statuses = asyncio.run(checked_then_charged(url, cap_nanos))
        show(
            "check, call, then charge",
            statuses,
            billed(url),
            cap_nanos,
            time.perf_counter() - began,
        )


if __name__ == "__main__":
    main()
