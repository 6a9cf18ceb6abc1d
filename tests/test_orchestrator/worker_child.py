"""Processes with several workers, to be killed: a run on a file, and programs that spend and have children.

For each line on standard input, a folder and the simulator's URL, it forks one (imports are made once) and prints
its pid when it begins to work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from budgets.caps import Cap
from budgets.ledger import Ledger
from orchestrator.run import Run
from orchestrator.workers import ShellWorker

from .test_workers_shell import CALLS
from .working import TAG, worker

#: Calls again and again, and has a child that is deaf.
SPENDS = f"""
import subprocess, sys, io
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-S", "-c", deaf], start_new_session=True)
while True:
    sys.stdin = io.StringIO("Hello [[sim:output=40]] [[sim:delay=30]]")
    exec({CALLS!r})
"""


async def work(folder: Path, url: str) -> None:
    """Work until killed."""
    with Ledger(folder / "ledger.db", caps=[Cap("100", owner="the test")]) as ledger:
        run = Run("work", ledger=ledger, cap="50", client={"base_url": url, "api_key": "k"})
        async with run, asyncio.TaskGroup() as group:
            for number in range(2):
                spender = ShellWorker(
                    name=f"spender-{number}",
                    command=[sys.executable, "-S", "-c", SPENDS],
                    cwd=folder,
                    env={TAG: str(folder)},
                )
                group.create_task(spender.run(run, "x"))
            group.create_task(worker(folder, "children_hang").run(run, "x"))
            print(os.getpid(), flush=True)


def main() -> None:
    """Fork for each line."""
    for line in sys.stdin:
        folder, url = line.split()
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                asyncio.run(work(Path(folder), url))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        print("ended", flush=True)


main()
