"""A research run of five agents: what the estimator says beforehand, and what the run costs.

You will see the estimate of ``research-plan.toml`` and the same work done: a lead that makes 6 calls, four workers that
make 10 calls and 5 web searches each, every prefix written to the cache once and read after that. The stand-in counts
tokens as the plan does; on the real API (about $1.50) the texts are of other lengths.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from stand_in import api

from budgets import Ledger
from budgets.estimate import PlannedAgent, estimate, load_plan
from orchestrator import Agent, Run, web_search
from orchestrator.prefixes import sharing
from patterns import fan_out

PLAN = load_plan(Path(__file__).parent / "research-plan.toml")


async def text_of(run: Run, model: str, tokens: int) -> str:
    """A text of so many tokens, by the free token counter."""
    made = "fact " * tokens
    asked = [{"role": "user", "content": made}]
    counted = await run.client.messages.count_tokens(model=model, messages=asked)
    return "fact " * (tokens * tokens // counted.input_tokens)


async def work(run: Run, planned: PlannedAgent, number: int) -> None:
    """What one agent does: so many calls, each with the same prefix and new input."""
    prefix = f"You are agent {number}. " + await text_of(run, planned.model, planned.cached_prefix)
    new = await text_of(run, planned.model, planned.new_input)
    searching = planned.web_searches // planned.turns or int(planned.web_searches > 0)
    agent = Agent(
        name=f"{planned.name}-{number}",
        model=planned.model,
        system=prefix,
        tools=[web_search(max_uses=searching)] if searching else [],
        max_tokens=planned.output,
        max_turns=1,
        extra={"inference_geo": "global"},
    )
    with sharing(uses=planned.turns):
        for turn in range(planned.turns):
            searches = searching if turn < planned.web_searches else 0
            steer = f"[[sim:output={planned.output}]] [[sim:searches={searches}]] [[sim:search_tokens=0]]"
            await agent.run(run, f"{new} {turn} {steer}")


async def main_of(options: dict[str, str]) -> None:
    async with Run("research", cap="4", ledger=Ledger(), client=options) as run:
        before = estimate(PLAN, run.prices, datetime.now(UTC))
        print(f"estimated: ${before.with_caching.run / 1e9:.4f} for {before.calls} calls")
        staff = [(one, number) for one in PLAN.agents for number in range(one.count)]
        done = await fan_out(run, lambda who: work(run, *who), staff)
        off = abs(done.posted_nanos - before.with_caching.run) * 100 / before.with_caching.run
        print(f"the run:   ${done.cost:.4f} for {done.calls} calls, {off:.1f} % off")
        print(done)


def main() -> None:
    with api() as options:
        asyncio.run(main_of(options))


if __name__ == "__main__":
    main()
