"""Three read-only subagents over a repository at once: one Claude Code session, under a cap that it can't pass.

You will see what each of them cost by the ledger, what Claude Code itself says that it cost, and that nothing was
written. Needs `pip install 'earmark[agents]'`. Costs about $0.50 on the real API.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from stand_in import api

from budgets import Ledger
from orchestrator import Run
from orchestrator.workers import AgentSdkWorker, Subagent

REPOSITORY = Path(__file__).resolve().parents[1]


def subagent(what: str) -> Subagent:
    told = f"You look for {what}."
    return Subagent(description=f"finds {what}", prompt=told, tools=("Read", "Grep", "Glob"))


reviewer = AgentSdkWorker(
    name="reviewer",
    model="claude-sonnet-5-5",
    cwd=REPOSITORY,
    system="You review repositories. Give each subagent its task in the same turn, then merge what they report.",
    agents={
        "errors": subagent("errors that are swallowed"),
        "names": subagent("names that mislead"),
        "tests": subagent("code without a test"),
    },
    max_tokens=4_000,
    cap="2",
)


async def work(options: dict[str, str]) -> None:
    async with Run("review", cap="3", ledger=Ledger(), client=options) as run:
        done = await reviewer.run(run, "Review this repository.")
        print(f"{done.outcome}: {done.text[:100]}{done.reason}")
        for share in done.report.shares:
            print(f"  {share.agent}: {share.calls} calls, ${share.cost:.6f}")
        own = "nothing said" if done.report.cli_cost is None else f"${done.report.cli_cost:.6f}"
        print(f"by the ledger ${done.cost:.6f}, by Claude Code itself {own}")
        print(f"held ${run.balance.held:.2f}, denied: {', '.join(done.report.denied) or 'nothing'}")


def main() -> None:
    with api("three_subagents") as options:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
