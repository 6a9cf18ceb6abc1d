"""The real Claude Code CLI through the gateway: prompts, subagents, and a budget that ends in the middle.

Needs claude-agent-sdk, which brings the CLI (400 MB); without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from budgets import Cap
from orchestrator.gateway import Lease

from .gatewaying import rig

sdk = pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OUTPUT = "200"


def _options(lease: Lease, folder: Path, **more: Any) -> Any:
    """Isolated settings, no traffic but ours, and the lease as the key."""
    environment = {
        "ANTHROPIC_BASE_URL": lease.base_url,
        "ANTHROPIC_API_KEY": lease.key,
        "ANTHROPIC_AUTH_TOKEN": "",
        "CLAUDE_CONFIG_DIR": str(folder / "config"),
        "CLAUDE_CODE_TMPDIR": str(folder),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": OUTPUT,
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "IS_SANDBOX": "1",
        "HOME": os.environ.get("HOME", str(folder)),
        **more.pop("env", {}),
    }
    return sdk.ClaudeAgentOptions(
        env=environment,
        setting_sources=[],
        cwd=folder,
        model="claude-opus-5-5",
        **more,
    )


async def _ask(prompt: str, options: Any) -> tuple[Any, list[Any]]:
    """The last result and all messages of a prompt; a failed result is no exception here."""
    messages: list[Any] = []
    try:
        async for message in sdk.query(prompt=prompt, options=options):
            messages.append(message)
    except sdk.ResultError:
        pass
    results = [one for one in messages if isinstance(one, sdk.ResultMessage)]
    return results[-1], messages


async def test_a_prompt_goes_through(tmp_path: Path) -> None:
    """One turn of the CLI: an answer, its session in the ledger, the ledger equal to the bill."""
    async with rig(caps=(Cap("5", scope="work"),)) as on:
        lease = on.gateway.lease("work")
        session = str(uuid.uuid4())
        options = _options(lease, tmp_path, session_id=session, tools=[])
        result, _ = await _ask("Say it. [[sim:text=it is said]]", options)
        await lease.settled(10)
        figures = lease.figures()

        assert (result.subtype, result.result) == ("success", "it is said")
        assert list(figures.agents) == [f"session-{session}/main"]
        assert result.total_cost_usd == pytest.approx(float(figures.posted))
        on.prove_exact()


async def test_its_requests_arrive_as_they_left(tmp_path: Path) -> None:
    """A recording of the CLI's requests behind the gateway equals one without it, headers and all."""
    seen: dict[str, Any] = {}
    session = str(uuid.uuid4())
    async with rig(sim={"keep_calls": 10}) as on:
        lease = on.gateway.lease("work")
        for way, base in (("direct", on.sim.url), ("through", lease.base_url)):
            folder = tmp_path / way
            folder.mkdir()
            options = _options(
                lease,
                tmp_path,
                session_id=session,
                tools=["Read"],
                env={"ANTHROPIC_BASE_URL": base, "CLAUDE_CONFIG_DIR": str(folder)},
            )
            await _ask("Say it. [[sim:text=it is said]]", options)
            seen[way] = on.sim.calls[-1]
        direct, through = seen["direct"], seen["through"]

        assert direct.path == through.path == "/v1/messages?beta=true"
        assert _settled(direct.body) == _settled(through.body)
        assert len(through.headers["anthropic-beta"].split(",")) > 3
        assert _of_the_request(through.headers) == _of_the_request(direct.headers)
        assert json.loads(through.body)["max_tokens"] == int(OUTPUT)


def _settled(body: bytes) -> Any:
    """A body without what differs from one start of the CLI to the next."""
    said = json.loads(body)
    said["metadata"] = None
    return said


def _of_the_request(headers: dict[str, str]) -> dict[str, str]:
    own = {"host", "connection", "x-api-key", "authorization", "content-length"}
    return {name: value for name, value in headers.items() if name not in own}


def _agents() -> dict[str, Any]:
    reader = sdk.AgentDefinition(description="reads", prompt="You read.", tools=[])
    return {"reader": reader}


def _spawn(prompt: str) -> str:
    call = {"subagent_type": "reader", "description": "d", "prompt": prompt}
    return f"[[sim:tool=Agent {json.dumps({**call, 'run_in_background': False})}]]"


async def test_a_subagent_shows_in_the_figures(tmp_path: Path) -> None:
    """What a subagent spends is shown beside the main loop's, and all of it is the bill."""
    async with rig(caps=(Cap("5", scope="work"),)) as on:
        lease = on.gateway.lease("work")
        options = _options(lease, tmp_path, agents=_agents(), allowed_tools=["Agent"])
        result, _ = await _ask(_spawn("Read it. [[sim:text=read]]"), options)
        await lease.settled(10)
        places = sorted(path.partition("/")[2] for path in lease.figures().agents)

        assert result.subtype == "success"
        assert len(places) == 2
        assert places[0].startswith("agent-")
        assert places[1] == "main"
        on.prove_exact()


async def test_the_main_loop_hears_402_once(tmp_path: Path) -> None:
    """Out of money the CLI makes one call, ends with our sentence, and nothing was billed."""
    async with rig(caps=(Cap("0.0001", scope="work"),)) as on:
        lease = on.gateway.lease("work")
        result, _ = await _ask("Hello", _options(lease, tmp_path, tools=[]))

        assert result.is_error
        assert result.api_error_status == 402
        assert "cap of $0.0001 on scope 'work'" in str(result.result)
        assert lease.figures().declined == 1
        assert on.sim.bill.requests == 0


async def test_a_subagent_that_runs_out_leaves_its_parent_at_work(tmp_path: Path) -> None:
    """A subagent's second call is declined once, as a 429 that is not tried again; its parent hears it and goes on."""
    async with rig(caps=(Cap("5", scope="work"),)) as on:
        lease = on.gateway.lease("work")
        reader = sdk.AgentDefinition(description="reads", prompt="You read.", tools=["Bash"])
        options = _options(
            lease,
            tmp_path,
            agents={"reader": reader},
            allowed_tools=["Agent", "Bash"],
            max_turns=6,
        )
        slow = json.dumps({"command": "sleep 2"})
        prompt = _spawn(f"Read. [[sim:tool=Bash {slow}]]")
        asking = asyncio.create_task(_ask(prompt, options))
        while not (agent := _agent_with_a_call(lease)):
            await asyncio.sleep(0.05)
        on.ledger.set_cap(Cap("0.000001", scope=f"work/{agent}"))
        result, messages = await asking
        await lease.settled(10)
        heard = "".join(str(one.content) for one in messages if isinstance(one, sdk.UserMessage))

        assert result.subtype == "success"
        assert "cap of $0.000001" in heard
        assert "HTTP 429" in heard
        assert lease.figures().declined == 1
        on.prove_exact()


def _agent_with_a_call(lease: Lease) -> str:
    agents = lease.figures().agents.items()
    return next((path for path, one in agents if "/agent-" in path and one.calls), "")
