"""Memory: 20,000 documents classified against the simulator, beside ``asyncio.gather`` over all, 64 at once.

    python benchmarks/memory.py [documents]

The server runs in this process; each candidate in a process of its own, whose peak of resident memory counts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.simulator import running_simulator

LABELS = ("billing", "bug", "feature", "account", "other")
LIMIT_MB = 300
WIDTH = 64
WORDS = ("invoice charge payment", "error crash wrong", "please add wish", "login password")


def main() -> int:
    """Print both figures and their ratio; 1 if the limit is passed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder, running_simulator(keep_rows=1) as server:
        where = Path(folder)
        write_documents(where / "docs", count)
        env = {**os.environ, "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "simulated"}
        ours = ["classify", "docs", "--labels", ",".join(LABELS), "--out", "out"]
        measured = [
            measure(
                "earmark classify", [sys.executable, "-m", "earmark", *ours], where, env, count
            ),
            measure("asyncio.gather", [sys.executable, __file__, "--naive"], where, env, count),
        ]
        bill = server.bill.requests
    print(f"requests {bill:,} for 2 x {count:,} documents")
    print(f"ratio    {measured[0] / measured[1]:.2f} of the naive peak; limit {LIMIT_MB} MB")
    return 0 if measured[0] < LIMIT_MB else 1


def write_documents(folder: Path, count: int) -> None:
    """Small tickets, as a help desk has them."""
    folder.mkdir()
    for number in range(count):
        text = f"Ticket {number}: {WORDS[number % 4]}. " + "Some more words about it. " * 60
        (folder / f"t{number:05d}.txt").write_text(text, encoding="utf-8")


def measure(name: str, line: list[str], where: Path, env: dict[str, str], count: int) -> float:
    """Run a candidate and print its peak in MB."""
    begun = time.monotonic()
    path = os.pathsep.join([str(Path(__file__).parents[1]), env.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        line, cwd=where, env={**env, "PYTHONPATH": path}, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begun
    peak = used.ru_maxrss / 1024
    rate = count / seconds
    print(
        f"{name:18} peak {peak:6.0f} MB  {seconds:6.1f} s  {rate:5.0f}/s  exit {process.returncode}"
    )
    return peak


async def naive() -> None:
    """A task for every document and a semaphore, as first versions have it."""
    from anthropic import AsyncAnthropic

    turns = asyncio.Semaphore(WIDTH)
    async with AsyncAnthropic(max_retries=5) as client:

        async def ask(path: Path) -> str:
            text = path.read_text(encoding="utf-8")
            async with turns:
                message = await client.messages.create(
                    model="claude-haiku-5-5",
                    max_tokens=256,
                    system=f"Answer with one of: {', '.join(LABELS)}",
                    messages=[{"role": "user", "content": text}],
                )
            return str(message.content)

        paths = sorted(Path("docs").iterdir())
        answers = await asyncio.gather(*(ask(path) for path in paths), return_exceptions=True)
    failed = sum(isinstance(answer, BaseException) for answer in answers)
    print(f"naive: {failed} failed", file=sys.stderr)


if __name__ == "__main__":
    if "--naive" in sys.argv:
        asyncio.run(naive())
    else:
        sys.exit(main())
