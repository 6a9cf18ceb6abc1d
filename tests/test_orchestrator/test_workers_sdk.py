"""The real Claude Code in front of the simulator: its requests are paid from the run's caps, to the nano-dollar."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.workers import AgentSdkWorker, Subagent

from .running import MODEL, stage
from .working import TAG, alive, none_alive

pytest.importorskip("claude_agent_sdk")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LOOK = Subagent(description="reads files", prompt="You read files.", tools=["Read"])


class Counted(BaseModel):
    """What a structured answer must look like."""

    files: int
    names: str


def use(tool: str, **given: Any) -> str:
    """A directive for the simulated model: call this tool."""
    return f"[[sim:tool={tool} {json.dumps(given)}]]"


def real(folder: Path, **fields: Any) -> AgentSdkWorker:
    """A worker with the real program, in a folder with two files."""
    cwd = folder / "work"
    cwd.mkdir(exist_ok=True)
    (cwd / "a.txt").write_text("the first file")
    (cwd / "b.txt").write_text("the second file")
    given = {"name": "reader", "model": MODEL, "cwd": cwd, "max_tokens": 2_000, **fields}
    return AgentSdkWorker(env={TAG: str(folder)}, **given)


async def test_subagents_are_paid_by_name_and_a_session_goes_on(tmp_path: Path) -> None:
    """Ledger, gateway and bill agree; each subagent has its share; a resumed session costs its difference (C-21)."""
    # C-16, C-18, C-22
    prompt = "".join(
        use(
            "Agent",
            description=f"look at {name}",
            subagent_type="look",
            prompt=f"Read {name} {use('Read', file_path=str(tmp_path / 'work' / name))}",
        )
        for name in ("a.txt", "b.txt")
    )
    worker = real(tmp_path, agents={"look": LOOK})
    async with stage(folder=tmp_path / "ledger") as at:
        first = await worker.run(at.run, f"Look at both {prompt}")
        second = await worker.run(
            at.run, "And now? [[sim:text=as before]]", resume=first.report.session
        )
        at.prove_exact()
        calls = at.sim.bill.requests

    assert (first.outcome, first.reason) == (Outcome.OK, "")
    assert sorted(one.agent for one in first.report.shares) == ["look", "look", "main"]
    assert sum(one.posted_nanos for one in first.report.shares) == first.tally.posted_nanos
    assert (second.outcome, second.text) == (Outcome.OK, "as before")
    assert second.report.session == first.report.session
    assert calls == first.tally.calls + second.tally.calls == 7
    for result in (first, second):
        assert abs(result.report.difference_nanos or 0) < 10
        assert result.report.errors == ""
    journal = next((tmp_path / "ledger").rglob("journal.jsonl"))
    lines = list(read_journal(journal))
    assert {e["agent"] for e in lines if e["event"] == "settle"} == {"reader", "reader/look"}
    assert {e.get("parent") for e in lines if e.get("agent") == "reader/look"} == {"reader"}
    events = [e for e in lines if e["event"] in {"tool", "subagent", "outcome"}]
    assert [e.get("tool") for e in events if e["event"] == "tool"].count("Read") == 2
    assert sum(e.get("cli_difference_nanos", 0) for e in events) < 20


async def test_its_folder_is_the_limit_and_its_settings_are_its_own(tmp_path: Path) -> None:
    """It reads inside its folder only, writes nothing, and no setting, hook or note of the folder touches it."""
    worker = real(tmp_path)
    secret, mark = tmp_path / "secret.txt", tmp_path / "hook-was-here"
    secret.write_text("hush")
    settings = tmp_path / "work" / ".claude"
    settings.mkdir()
    hook = {"hooks": [{"type": "command", "command": f"touch {mark}"}]}
    (settings / "settings.json").write_text(json.dumps({"hooks": {"UserPromptSubmit": [hook]}}))
    prompt = (
        use("Read", file_path=str(tmp_path / "work" / "a.txt"))
        + use("Read", file_path=str(secret))
        + use("Grep", pattern="hush", path=str(tmp_path))
    )
    async with stage(folder=tmp_path / "ledger") as at:
        result = await worker.run(at.run, f"Read all {prompt}")
        at.prove_exact()

    assert result.outcome is Outcome.OK
    assert sorted(result.report.denied) == ["Grep", "Read"]
    assert not mark.exists()
    assert sorted(one.name for one in (tmp_path / "work").iterdir()) == [
        ".claude",
        "a.txt",
        "b.txt",
    ]


async def test_functions_of_ours_and_an_answer_by_schema(tmp_path: Path) -> None:
    """It calls Python functions in this process, in its own scope, and its answer is a record."""
    heard: list[str] = []

    async def note(text: str) -> str:
        """Note something down."""
        heard.append(text)
        return f"noted as number {len(heard)}"

    worker = real(tmp_path, tools=["Read", note], output=Counted)
    async with stage(folder=tmp_path / "ledger") as at:
        result = await worker.run(at.run, f"Note it {use('mcp__earmark__note', text='two files')}")
        at.prove_exact()

    assert heard == ["two files"]
    assert result.outcome is Outcome.OK
    assert isinstance(result.value, Counted)


async def test_out_of_money_in_the_middle(tmp_path: Path) -> None:
    """A cap that pays for some of the turns is never passed by the bill; the outcome says so, with the cap (O-09)."""
    worker = real(tmp_path, cap="0.004", same_calls=50)
    loop = f"Again and again {use('Glob', pattern='*')} [[sim:turns=40]] [[sim:output=300]]"
    async with stage(folder=tmp_path / "ledger") as at:
        result = await worker.run(at.run, loop)
        at.prove_exact()
        bill = at.sim.bill.nanos

    assert result.outcome is Outcome.BUDGET
    assert "the cap of $0.004" in result.reason
    assert result.turns > 1
    assert 0 < bill <= 4_000_000
    assert result.report.declined >= 1


async def test_interrupted_in_mid_stream(tmp_path: Path) -> None:
    """A worker that takes too long is interrupted at once; what it was billed for is in the ledger."""
    worker = real(tmp_path, timeout_s=4.0)
    async with stage(folder=tmp_path / "ledger") as at:
        result = await worker.run(at.run, "Tell a long story [[sim:output=700]] [[sim:pace=100]]")
        at.prove()

    assert result.outcome is Outcome.TIMEOUT
    assert none_alive(tmp_path, within_s=0)
    assert result.seconds < 20


async def test_several_at_once_against_one_cap(tmp_path: Path) -> None:
    """Workers with subagents share a cap that pays for about half: nothing over, and nothing is left alive."""
    prompt = use(
        "Agent",
        description="look",
        subagent_type="look",
        prompt=f"Read {use('Read', file_path=str(tmp_path / 'work' / 'a.txt'))} [[sim:output=900]]",
    )
    async with stage(folder=tmp_path / "ledger", cap="0.0075") as at:
        tasks = [
            real(tmp_path, agents={"look": LOOK}).run(at.run, f"Go {prompt}") for _ in range(4)
        ]
        results = await asyncio.gather(*tasks)
        at.prove_exact()
        bill = at.sim.bill.nanos

    assert bill <= 7_500_000
    assert sum(one.report.declined for one in results) > 0
    assert sum(one.tally.posted_nanos for one in results) == bill
    assert {one.outcome for one in results} <= {Outcome.OK, Outcome.BUDGET}
    assert alive(tmp_path) == []
