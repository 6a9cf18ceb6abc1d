"""Workers: the real Claude Code under its own budget alone, and under a cap of ours, by the server's own bill.

Printed: (1) a session with 20 subagents under ``max_budget_usd`` alone, and the same as a worker under a cap of the
same amount, with very long answers and with short ones; (2) 20 workers at once, each with two subagents, under
one cap that pays for about half of it; (3) with ``--kills N``, N processes with real workers killed by SIGKILL at
random moments. Needs ``pip install 'earmark[agents]'``. Run: ``python benchmarks/workers.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from budgets import Cap, Ledger
from orchestrator import Run
from orchestrator.simulator import Simulator, running_simulator
from orchestrator.workers import AgentSdkWorker, Subagent

MODEL = "claude-opus-5-5"
SUBAGENTS = 20
CAP = "0.25"
CAP_NANOS = 250_000_000
LOOK = Subagent(description="looks at files", prompt="You look at files.")
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
MARK = "EARMARK_BENCHMARK"


def team(count: int, output: int) -> str:
    """A task: give work to so many subagents at once, each of which answers at such length."""
    calls = "".join(
        "[[sim:tool=Agent "
        + json.dumps(
            {
                "description": f"part {number}",
                "subagent_type": "look",
                "prompt": f"Look at part {number} [[sim:output={output}]]",
            }
        )
        + "]]"
        for number in range(count)
    )
    return f"Give out the work {calls}"


async def alone(folder: Path, prompt: str, most: int | None) -> tuple[int, str, float]:
    """Claude Code by the SDK, its own budget and nothing else: bill, how it ended, and its own figure in dollars."""
    import claude_agent_sdk as sdk

    async with Simulator() as simulator:
        env = {
            **QUIET,
            "ANTHROPIC_BASE_URL": simulator.url,
            "ANTHROPIC_API_KEY": "key",
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
        }
        if most is not None:
            env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(most)
        options = sdk.ClaudeAgentOptions(
            model=MODEL,
            cwd=str(folder),
            env=env,
            setting_sources=[],
            max_budget_usd=float(CAP),
            allowed_tools=["Agent"],
            agents={"look": sdk.AgentDefinition(description="looks", prompt="You look.")},
        )
        ended, said = "nothing said", 0.0
        with contextlib.suppress(sdk.ProcessError):
            async for message in sdk.query(prompt=prompt, options=options):
                if isinstance(message, sdk.ResultMessage):
                    ended, said = message.subtype, message.total_cost_usd or 0.0
        return simulator.bill.nanos, ended, said


async def capped(folder: Path, prompt: str, most: int) -> tuple[int, str, float]:
    """The same as a worker, through the gateway, under a cap of the same amount."""
    async with Simulator() as simulator:
        with Ledger(folder / "ledger.db", caps=[Cap("100")]) as ledger:
            options = {"base_url": simulator.url, "api_key": "key"}
            async with Run("bench", cap=CAP, ledger=ledger, client=options) as run:
                worker = AgentSdkWorker(
                    name="lead", model=MODEL, cwd=folder, max_tokens=most, agents={"look": LOOK}
                )
                done = await worker.run(run, prompt)
        said = float(done.report.cli_cost or 0)
        ended = f"{done.outcome}, {done.report.declined} declined"
        return simulator.bill.nanos, ended, said


async def side_by_side(folder: Path) -> None:
    """Both, with answers of 128,000 tokens and of 1,500."""
    print(
        f"one session with {SUBAGENTS} subagents, budget or cap of ${CAP}; by the server's own bill:"
    )
    for output, most in ((128_000, None), (1_500, 2_000)):
        prompt = team(SUBAGENTS, output)
        for way, ran in (
            ("max_budget_usd alone", alone(folder, prompt, most)),
            ("a worker under a cap", capped(folder, prompt, most or 128_000)),
        ):
            bill, ended, said = await ran
            over = max(bill - CAP_NANOS, 0)
            print(
                f"  answers of {output:>7,} tokens, {way}: spent ${bill / 1e9:.4f}, over by ${over / 1e9:.4f}, "
                f"by its own count ${said:.4f}, ended: {ended}"
            )
        with contextlib.suppress(OSError):
            (folder / "ledger.db").unlink()


async def at_once(folder: Path, count: int) -> None:
    """Many workers with subagents under one cap that pays for about half of them."""
    before = _listening()
    begun = time.monotonic()
    async with Simulator() as simulator:
        with Ledger(folder / "many.db", caps=[Cap("100")]) as ledger:
            options = {"base_url": simulator.url, "api_key": "key"}
            cap = 0.016 * count
            async with Run("bench", cap=f"{cap:.4f}", ledger=ledger, client=options) as run:
                worker = AgentSdkWorker(
                    name="lead", model="claude-sonnet-5-5", cwd=folder, max_tokens=1_000,
                    agents={"look": LOOK}, env={MARK: str(os.getpid())}, start_s=240,
                )  # fmt: skip
                tasks = [worker.run(run, team(2, 800)) for _ in range(count)]
                results = await asyncio.gather(*tasks)
            balance, check, bill = run.balance, ledger.check(), simulator.bill.nanos
    over = max(bill - round(cap * 1e9), 0)
    ok = sum(one.outcome == "ok" for one in results)
    budget = sum(one.outcome == "budget" for one in results)
    print(
        f"{count} workers at once, two subagents each, one cap of ${cap:.2f}, {time.monotonic() - begun:.0f} s:"
    )
    print(
        f"  spent ${bill / 1e9:.4f} ({bill / cap / 1e7:.1f} %), over by ${over / 1e9:.4f}; ledger equals bill: "
        f"{balance.posted_nanos == bill}, held {balance.held_nanos}, in doubt {balance.in_doubt_nanos}, "
        f"proven: {check.ok}"
    )
    left = sum(1 for _ in _alive(str(os.getpid())))
    print(
        f"  outcomes: {ok} ok, {budget} budget, {count - ok - budget} other; alive afterwards: {left}; "
        f"ports left open: {len(_listening() - before)}"
    )


def _listening() -> set[int]:
    return {c.laddr.port for c in psutil.Process().net_connections() if c.status == "LISTEN"}


def _alive(mark: str) -> Any:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                yield process


# ---- kills ------------------------------------------------------------------------------------------------


async def victim(folder: Path, url: str) -> None:
    """A process to be killed: three sessions in loops of tools and subagents."""
    with Ledger(folder / "ledger.db", caps=[Cap("100")]) as ledger:
        options = {"base_url": url, "api_key": "key"}
        async with Run("bench", cap="50", ledger=ledger, client=options) as run:
            worker = AgentSdkWorker(
                name="lead", model="claude-haiku-5-5", cwd=folder, max_tokens=1_000, tools=["Glob"],
                agents={"look": LOOK}, same_calls=10**6, max_turns=10**6, env={MARK: str(folder)},
            )  # fmt: skip
            loop = '[[sim:tool=Glob {"pattern": "*"}]] [[sim:turns=100000]] [[sim:delay=20]]'
            print("up", flush=True)
            await asyncio.gather(*(worker.run(run, f"Look {loop}") for _ in range(3)))


def kills(folder: Path, rounds: int) -> None:
    """So many processes killed at random moments."""
    chance, worst_s, wrong, doubted, calls = random.Random(1), 0.0, 0, 0, 0
    with running_simulator() as simulator:
        for number in range(rounds):
            place = folder / f"kill-{number}"
            place.mkdir()
            simulator.reset()
            command = [sys.executable, __file__, "--victim", str(place), simulator.url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(chance.uniform(0, 6))
                process.send_signal(signal.SIGKILL)
                process.wait()
            begun = time.monotonic()
            while any(True for _ in _alive(str(place))) and time.monotonic() - begun < 60:
                time.sleep(0.05)
            worst_s = max(worst_s, time.monotonic() - begun)
            with Ledger(place / "ledger.db") as ledger:
                balance = ledger.balance("")
                is_right = ledger.check().ok and balance.held_nanos == 0
                covered = balance.posted_nanos + balance.in_doubt_nanos >= simulator.bill.nanos
            wrong += not (is_right and covered)
            doubted += balance.in_doubt_nanos > 0
            calls += simulator.bill.requests
    print(f"{rounds} processes with three real workers each, killed by SIGKILL at random moments:")
    print(
        f"  longest until nothing was alive: {worst_s:.2f} s; ledgers wrong: {wrong}; "
        f"with money in doubt: {doubted}; calls billed before the kills: {calls}"
    )


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--workers", type=int, default=20, help="workers at once")
    options.add_argument("--kills", type=int, default=0, help="processes that are killed")
    options.add_argument("--victim", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.victim:
        asyncio.run(victim(Path(given.victim[0]), given.victim[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(side_by_side(Path(folder)))
        if given.workers:
            asyncio.run(at_once(Path(folder), given.workers))
        if given.kills:
            kills(Path(folder), given.kills)


if __name__ == "__main__":
    main()
