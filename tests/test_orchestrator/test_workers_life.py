"""The life of a worker: each way in which its program can misbehave ends in one outcome, and nothing survives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from budgets.ledger import Ledger
from orchestrator.errors import ConfigError
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .running import stage
from .working import alive, none_alive, worker

pytest.importorskip("claude_agent_sdk")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes never react to an interrupt; nothing is learnt by waiting for it."""
    monkeypatch.setattr("orchestrator.workers.stopping.INTERRUPT_S", 0.2)
    monkeypatch.setattr("orchestrator.workers.watching.CLOSE_S", 1.0)


async def outcome_of(folder: Path, way: str, prompt: Any = "Do it", **fields: Any) -> Any:
    """Run a worker whose program behaves in this way; nothing of it may be alive afterwards."""
    async with stage(folder=folder / "ledger") as at:
        result = await worker(folder, way, **fields).run(at.run, prompt)
        assert alive(folder) == []
    return result


async def test_a_good_worker(tmp_path: Path) -> None:
    """The answer is the text and the value; begin and outcome are in the journal."""
    result = await outcome_of(tmp_path, "good")

    assert (result.outcome, result.reason, result.text, result.value) == (
        Outcome.OK,
        "",
        "done",
        "done",
    )
    assert result.turns == 1
    assert result.report.exit_code == 0
    assert result.report.pid > 0
    journal = next((tmp_path / "ledger").rglob("journal.jsonl"))
    assert [e["event"] for e in read_journal(journal) if e.get("agent")] == ["begin", "outcome"]


@pytest.mark.parametrize(
    ("way", "fields", "outcome", "reason"),
    [
        ("never_starts", {"start_s": 0.5}, Outcome.SPAWN_FAILURE, "start_s"),
        ("deaf", {"start_s": 0.5}, Outcome.SPAWN_FAILURE, "start_s"),
        ("dies", {}, Outcome.SPAWN_FAILURE, "this machine has no heart; exit code 9"),
        ("hang", {"stall_s": 0.6}, Outcome.STALLED, "no output and no file written for 0.6 s"),
        ("hang_deaf", {"timeout_s": 1.5}, Outcome.TIMEOUT, "longer than 1.5 s"),
        ("gone", {}, Outcome.INFRA, "out of cheese; exit code 7"),
        ("memory", {"memory_mb": 200}, Outcome.INFRA, "200 is the most (memory_mb)"),
        ("same_calls", {"same_calls": 3}, Outcome.STALLED, "Read was called 3 times alike"),
        ("turns", {"max_turns": 4}, Outcome.STALLED, "4 model calls (max_turns)"),
        ("children_hang", {"stall_s": 0.5}, Outcome.STALLED, "no output"),
        ("never_mends", {"repairs": 2, "check": lambda v: "not good"}, Outcome.INVALID, "not good"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_it_ends_in_one_outcome_with_its_reason(
    tmp_path: Path, way: str, fields: dict[str, Any], outcome: Outcome, reason: str
) -> None:
    """Whatever the program does, the attempt ends in time, says why, and leaves nothing alive (A-03, A-04, A-11)."""
    begun = time.monotonic()

    result = await outcome_of(tmp_path, way, **fields)

    assert result.outcome is outcome
    assert reason in result.reason
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("way", ["exit_1", "garbage", "no_close", "children"])
async def test_a_good_answer_beats_what_comes_after_it(tmp_path: Path, way: str) -> None:
    """Exit codes, unknown messages (A-07), a program that won't close (A-05) and its children change no answer."""
    result = await outcome_of(tmp_path, way)

    assert result.outcome is Outcome.OK
    assert result.text.startswith("done")


async def test_writing_files_is_a_sign_of_life(tmp_path: Path) -> None:
    """A worker that says nothing for long, but writes into its folder, is not stalled."""
    result = await outcome_of(tmp_path, "writes", stall_s=0.7)

    assert (result.outcome, result.text) == (Outcome.OK, "written")


async def test_it_mends_its_answer_in_the_open_session(tmp_path: Path) -> None:
    """An answer that the verdict refuses is asked for again in the same session; costs are differences (C-20)."""
    verdicts: list[str] = []

    def verdict(text: str) -> str | None:
        verdicts.append(text)
        return None if text == "good" else "say good"

    result = await outcome_of(tmp_path, "mends", repairs=2, check=verdict)

    assert (result.outcome, result.text, verdicts) == (Outcome.OK, "good", ["bad", "good"])
    assert result.report.repairs == 1
    assert result.report.cli_nanos == 500_000_000  # totals of 0.25 and 0.50
    assert result.report.difference_nanos == 500_000_000
    assert result.tally.posted_nanos == 0


async def test_a_check_that_raises_is_said(tmp_path: Path) -> None:
    """A fault of the caller's own check is no fault of the answer, and repairs nothing."""

    def check(text: str) -> str | None:
        raise LookupError("no such rule")

    result = await outcome_of(tmp_path, "good", repairs=2, check=check)

    assert result.outcome is Outcome.INFRA
    assert result.reason == "its check failed: LookupError: no such rule"
    assert result.report.repairs == 0


@pytest.mark.parametrize(
    ("status", "says", "outcome"),
    [
        ("401", "Failed to authenticate. API Error: 401 invalid x-api-key", Outcome.AUTH),
        ("402", "API Error: 402 There is a problem with your billing", Outcome.SPEND_LIMIT),
        ("429", "API Error: 429 This would exceed your rate limit", Outcome.RATE_LIMITED),
        ("529", "API Error: 529 Overloaded", Outcome.OVERLOADED),
        ("400", "API Error: 400 prompt is malformed", Outcome.BAD_REQUEST),
        ("400", "API Error: 400 You have reached your specified API usage limits.", Outcome.SPEND_LIMIT),
    ],
)  # fmt: skip
async def test_the_result_says_what_went_wrong(
    tmp_path: Path, status: str, says: str, outcome: Outcome
) -> None:
    """An error of the API is read from the program's result: its status and its words."""
    result = await outcome_of(tmp_path, "api_error", env={"STATUS": status, "SAYS": says})

    assert result.outcome is outcome
    assert says.rpartition(": ")[2].removeprefix(f"{status} ") in result.reason


@pytest.mark.parametrize(
    ("way", "says", "outcome"),
    [
        ("subtype", "error_max_budget_usd", Outcome.BUDGET),
        ("subtype", "error_max_turns", Outcome.STALLED),
        ("subtype", "error_max_structured_output_retries", Outcome.INVALID),
        ("subtype", "error_of_a_new_kind", Outcome.INFRA),
        ("stop_reason", "refusal", Outcome.REFUSAL),
        ("stop_reason", "max_tokens", Outcome.TRUNCATED),
        ("stopped", "brand_new", Outcome.INVALID),
        ("stopped", "tool_use", Outcome.OK),
        ("lies", "", Outcome.OK),
    ],
)
async def test_words_of_the_transcript_are_no_evidence(
    tmp_path: Path, way: str, says: str, outcome: Outcome
) -> None:
    """Only the fields of the result decide; an answer that talks about errors is an answer."""
    result = await outcome_of(tmp_path, way, env={"SAYS": says})

    assert result.outcome is outcome


async def test_cancelled_while_it_works(tmp_path: Path) -> None:
    """Cancellation is passed on once nothing is alive, with what was spent (A-06: one task owns the session)."""
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "children_hang").run(at.run, "Do it"))
        while len(alive(tmp_path)) < 4:
            await asyncio.sleep(0.05)
        working.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await working

        assert alive(tmp_path) == []
        assert caught.value.tally.calls == 0  # type: ignore[attr-defined]


async def test_cancelled_twice_all_are_killed_at_once(tmp_path: Path) -> None:
    """A second cancellation waits for nobody: a program deaf to everything is dead in a moment."""
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "hang_deaf").run(at.run, "Do it"))
        while not alive(tmp_path):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        working.cancel()
        await asyncio.sleep(0.1)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(working, 5)

        assert none_alive(tmp_path, within_s=2)


async def test_a_stopped_run_ends_its_workers(tmp_path: Path) -> None:
    """Ctrl-C stops the run; a worker that is under way is interrupted and ends as cancelled."""
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "children_hang").run(at.run, "Do it"))
        while len(alive(tmp_path)) < 4:
            await asyncio.sleep(0.05)
        at.run.stop("the user has had enough")
        result = await working

    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "the user has had enough")
    assert alive(tmp_path) == []


async def test_what_a_stopped_start_fails_with_is_not_printed(tmp_path: Path) -> None:
    """Ctrl-C while the program starts: its session fails of that, which nobody asks for, and nothing is said of it."""
    unasked: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unasked.append(said))
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "never_starts").run(at.run, "Do it"))
        while not any("fake-claude" in " ".join(one.cmdline()) for one in alive(tmp_path)):
            await asyncio.sleep(0.05)
        at.run.stop("interrupted")
        result = await working
    gc.collect()

    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "interrupted")
    assert unasked == []


async def test_a_killed_supervisor_takes_its_program_along(tmp_path: Path) -> None:
    """Even if somebody kills the supervisor, all that came of the worker is ended."""
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "children_hang").run(at.run, "Do it"))
        while len(alive(tmp_path)) < 5:
            await asyncio.sleep(0.05)
        for process in alive(tmp_path):
            with contextlib.suppress(psutil.Error):
                if any("supervisor.py" in word for word in process.cmdline()):
                    process.kill()
        result = await working

    assert result.outcome in {Outcome.INFRA, Outcome.SPAWN_FAILURE}
    assert none_alive(tmp_path)


async def test_no_secret_of_ours_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what it needs to run, what was declared, and the key of its lease: no key or token of ours."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_hush")
    monkeypatch.setenv("DEPLOY_TOKEN", "declared")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-real")

    result = await outcome_of(tmp_path, "env", pass_env=["DEPLOY_TOKEN"])

    env = json.loads(result.text)
    assert env["DEPLOY_TOKEN"] == "declared"
    assert env["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "ghp_hush" not in result.text
    assert "sk-ant" not in result.text
    assert "PATH" in env


async def test_its_supervisor_has_no_secret_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes between us and the program can be looked into by it; they have only what it has."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_hush")
    async with stage(folder=tmp_path / "ledger") as at:
        working = asyncio.create_task(worker(tmp_path, "hang").run(at.run, "Do it"))
        while len(found := alive(tmp_path)) < 2:
            await asyncio.sleep(0.05)
        environments = [one.environ() for one in found]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    assert all("GITHUB_TOKEN" not in env for env in environments)


@pytest.mark.parametrize(("fence", "least"), [(None, 0.05), ("3", 3.0)])
async def test_the_programs_own_budget_stands_above_the_cap(
    tmp_path: Path, fence: object, least: float
) -> None:
    """Our price book decides; what the program counts by its own prices is a second fence behind it (C-23)."""
    told = await outcome_of(tmp_path, "arguments", cap="0.05", fence=fence)
    words = json.loads(told.text)
    limit = float(words[words.index("--max-budget-usd") + 1])
    assert limit == least if fence else limit > least


async def test_long_prompts_go_by_stdin_and_by_file(tmp_path: Path) -> None:
    """No prompt is an argument of a program, so that none is too long for one (F-10)."""
    long = "Read this. " * 40_000

    result = await outcome_of(tmp_path, "prompt", prompt=long, system="Be brief. " * 40_000)

    assert (result.outcome, result.text) == (Outcome.OK, long)


async def test_blocks_as_a_prompt(tmp_path: Path) -> None:
    """A task may be content blocks."""
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    result = await outcome_of(tmp_path, "prompt", prompt=blocks)

    assert json.loads(result.text) == blocks


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cwd": "/nowhere/at/all"}, "does not exist"),
        ({"permission_mode": "yolo"}, "permission_mode"),
        ({"max_turns": 0}, "max_turns"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"env": {"ANTHROPIC_BASE_URL": "http://elsewhere"}}, "ANTHROPIC_BASE_URL"),
        ({"pass_env": ["ANTHROPIC_API_KEY"]}, "ANTHROPIC_API_KEY"),
        ({"options": {"cli_path": "/bin/true"}}, "cli_path"),
        ({"tools": ["Read", "Read"]}, "given twice"),
    ],
)
def test_mistakes_are_said_at_once(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    """What can't be used is said when the worker is made, in one sentence."""
    with pytest.raises(ConfigError, match=told):
        worker(tmp_path, "good", **fields)


async def test_a_missing_program_is_said(tmp_path: Path) -> None:
    """A program that is not there is a failure with its reason, not a wait."""
    async with stage() as at:
        result = await worker(tmp_path, "good", cli_path=tmp_path / "none").run(at.run, "Do it")

    assert result.outcome is Outcome.BAD_REQUEST
    assert "there is no Claude Code at" in result.reason


async def test_an_unknown_option_is_said(tmp_path: Path) -> None:
    """A field that the SDK does not have is the caller's mistake, in one sentence."""
    result = await outcome_of(tmp_path, "good", options={"nonsense": 1})

    assert result.outcome is Outcome.BAD_REQUEST
    assert "nonsense" in result.reason


async def test_a_run_must_be_entered_first(tmp_path: Path) -> None:
    """A gateway needs a run that will be left: one that was never entered is a mistake that is said."""
    with Ledger() as ledger:
        run = Run("work", ledger=ledger, kill_switch=False, client={"api_key": "k"})
        result = await worker(tmp_path, "good").run(run, "Do it")
        run.close()

    assert result.outcome is Outcome.BAD_REQUEST
    assert "async with Run(...) as run" in result.reason


async def test_no_ports_stay_open(tmp_path: Path) -> None:
    """The gateway of a run is gone with it."""
    before = {c.laddr.port for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    async with stage(folder=tmp_path / "ledger") as at:
        await worker(tmp_path, "good").run(at.run, "Do it")
        during = {c.laddr.port for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    after = {c.laddr.port for c in psutil.Process().net_connections() if c.status == "LISTEN"}

    assert len(during - before) == 2  # the simulator and the gateway
    assert after == before
