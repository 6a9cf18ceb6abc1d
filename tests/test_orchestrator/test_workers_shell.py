"""Any other program as a worker: its task by stdin, its verifier, its log, and its spend through the gateway."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run_listener import RunListener
from orchestrator.workers import ShellWorker
from orchestrator.workers.leases import leased

from .running import MODEL, stage
from .working import TAG, alive, none_alive

#: Calls the API as its environment says, the way a program that knows nothing of Earmark does.
CALLS = f"""
import json, os, sys, urllib.error, urllib.request
body = {{"model": "{MODEL}", "max_tokens": 50, "messages": [{{"role": "user", "content": sys.stdin.read()}}]}}
asked = urllib.request.Request(
    os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
    {{"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01",
      "content-type": "application/json"}})
try:
    print(json.load(urllib.request.urlopen(asked))["content"][0]["text"])
except urllib.error.HTTPError as error:
    sys.exit(json.load(error)["error"]["message"])
"""


def shell(folder: Path, code: str, **fields: Any) -> ShellWorker:
    """A worker that runs this Python."""
    env = {TAG: str(folder), **fields.pop("env", {})}
    given = {"name": "tool", "command": [sys.executable, "-c", code], "cwd": folder, **fields}
    return ShellWorker(env=env, **given)


async def outcome_of(folder: Path, code: str, prompt: str = "the task", **fields: Any) -> Any:
    """Run it under a run of its own; nothing of it may be alive afterwards."""
    async with stage(folder=folder / "ledger") as at:
        result = await shell(folder, code, **fields).run(at.run, prompt, unit="item-7")
        assert alive(folder) == []
        at.prove_exact()
    return result


async def test_what_it_gets_and_what_it_leaves(tmp_path: Path) -> None:
    """The task comes by stdin, the place by variables, and all of its output is in a log beside the journal."""
    code = (
        "import os, sys; print(sys.stdin.read(), os.environ['EARMARK_UNIT'], os.environ['EARMARK_WORKER']);"
        "print('a remark', file=sys.stderr)"
    )

    result = await outcome_of(tmp_path, code)

    assert (result.outcome, result.text) == (Outcome.OK, "the task item-7 tool\n")
    assert result.report.errors == "a remark\n"
    assert result.report.exit_code == 0
    assert "workers" in result.report.log.parts
    assert set(result.report.log.read_text().splitlines()) == {"the task item-7 tool", "a remark"}


async def test_its_calls_are_metered(tmp_path: Path) -> None:
    """A program that knows nothing of Earmark spends under the caps of the run, to the nano-dollar."""
    result = await outcome_of(tmp_path, CALLS, "Hello [[sim:output=30]]")

    assert result.outcome is Outcome.OK
    assert result.tally.posted_nanos > 0
    assert result.report.posted_nanos == result.tally.posted_nanos
    assert result.tally.calls == 1


async def test_out_of_money_is_budget(tmp_path: Path) -> None:
    """A program that was declined for its cap ends as budget, with the cap in the reason; nothing was spent."""
    result = await outcome_of(tmp_path, CALLS, cap="0.000001")

    assert result.outcome is Outcome.BUDGET
    assert "the cap of $0.000001" in result.reason
    assert result.report.declined == 1
    assert result.tally.posted_nanos == 0


@pytest.mark.parametrize(
    ("code", "fields", "outcome", "reason"),
    [
        ("import sys; sys.exit('no disk')", {}, Outcome.INFRA, "exit code 1: no disk"),
        ("import os; os.abort()", {}, Outcome.INFRA, "exit code 134"),
        ("import time; time.sleep(60)", {"timeout_s": 0.6}, Outcome.TIMEOUT, "0.6 s (timeout_s)"),
        ("import time; time.sleep(60)", {"stall_s": 0.6}, Outcome.STALLED, "no output"),
        (
            "x = bytearray(300_000_000)\nx[::4096] = b'x' * len(x[::4096])\nimport time; time.sleep(60)",
            {"memory_mb": 150},
            Outcome.INFRA,
            "150 is the most (memory_mb)",
        ),
        ("print('12')", {"check": lambda said: "too few"}, Outcome.INVALID, "too few"),
        ("", {"command": ["no-such-program"]}, Outcome.BAD_REQUEST, "no program 'no-such-program'"),
    ],
)
async def test_it_ends_in_one_outcome_with_its_reason(
    tmp_path: Path, code: str, fields: dict[str, Any], outcome: Outcome, reason: str
) -> None:
    """The reason is the program's own last word, or the bound that it passed."""
    result = await outcome_of(tmp_path, code, **fields)

    assert result.outcome is outcome
    assert reason in result.reason


async def test_a_program_that_can_not_run_is_a_spawn_failure(tmp_path: Path) -> None:
    """A file that is no program says so."""
    broken = tmp_path / "broken"
    broken.write_text("this is no program")
    broken.chmod(0o755)

    result = await outcome_of(tmp_path, "", command=[str(broken)])

    assert result.outcome is Outcome.SPAWN_FAILURE
    assert "can't be started: Exec format error" in result.reason


@pytest.mark.parametrize(
    ("left", "outcome"), [("good", Outcome.OK), ("bad", Outcome.INVALID)], ids=["good", "bad"]
)
async def test_the_verifier_decides(tmp_path: Path, left: str, outcome: Outcome) -> None:
    """A good result beats the exit code, and a bad one is not saved by it."""
    code = f"open('result.txt', 'w').write('{left}'); raise SystemExit({int(left == 'good')})"
    looks = "import sys; sys.exit(open('result.txt').read() != 'good' and 'it is bad')"

    result = await outcome_of(tmp_path, code, verifier=[sys.executable, "-c", looks])

    assert result.outcome is outcome
    assert ("exit code 1: it is bad" in result.reason) is (left == "bad")


async def test_what_it_starts_ends_with_it(tmp_path: Path) -> None:
    """Servers and daemons that a program leaves behind are gone once it has ended."""
    code = (
        "import subprocess, sys\n"
        "deaf = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', deaf], start_new_session=True, stdout=-3, stderr=-3)\n"
        "print('started')"
    )

    result = await outcome_of(tmp_path, code)

    assert (result.outcome, result.text) == (Outcome.OK, "started\n")


async def test_a_flood_of_output_is_kept_within_bounds(tmp_path: Path) -> None:
    """Of much output the end is the answer; the whole is in the log."""
    code = (
        "print('x' * 1000 + '\\n', end='') or [print('y' * 999) for _ in range(3000)]; print('end')"
    )

    result = await outcome_of(tmp_path, code, text_chars=10_000)

    assert result.text.endswith("end\n")
    assert len(result.text) == 10_000
    assert result.report.log.stat().st_size == 1001 + 3_000_000 + 4


async def test_a_program_that_does_not_read_its_task(tmp_path: Path) -> None:
    """A long task that nobody reads holds nothing up."""
    result = await outcome_of(tmp_path, "print('not interested')", "word " * 200_000)

    assert result.outcome is Outcome.OK


async def test_cancelled_while_it_works(tmp_path: Path) -> None:
    """Cancellation is passed on once nothing is alive."""
    async with stage(folder=tmp_path / "ledger") as at:
        work = shell(tmp_path, "import time; time.sleep(600)").run(at.run, "x")
        working = asyncio.create_task(work)
        while not alive(tmp_path):
            await asyncio.sleep(0.02)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert none_alive(tmp_path, within_s=0)


@pytest.mark.parametrize(
    ("agent", "status"), [({}, 403), ({"x-claude-code-agent-id": "a1"}, 429)], ids=["main", "sub"]
)
async def test_a_stopped_run_lends_no_more(
    tmp_path: Path, agent: dict[str, str], status: int
) -> None:
    """A request of a run that was stopped is refused for good, by a reply that no client tries again."""
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    async with stage(folder=tmp_path / "ledger") as at:
        async with (
            leased(at.run, None, RunListener(at.run)) as lease,
            httpx2.AsyncClient() as client,
        ):
            at.run.stop("enough")
            reply = await client.post(
                f"{lease.base_url}/v1/messages",
                json=body,
                headers={"x-api-key": lease.key, **agent},
            )
        at.prove_exact()

    assert reply.status_code == status
    assert reply.headers["x-should-retry"] == "false"
    assert "enough; nothing was sent" in reply.json()["error"]["message"]


def test_a_command_is_a_list(tmp_path: Path) -> None:
    """A command line as one string is refused: no shell reads it."""
    with pytest.raises(ConfigError, match="list of words"):
        ShellWorker(name="tool", command="rm -rf /", cwd=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's tree is Linux's")
async def test_who_kills_its_supervisor_leaves_nobody_behind(tmp_path: Path) -> None:
    """What has left the tree and holds no pipe is found by its mark when the supervisor itself was killed."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session=True,"
        " stdin=-3, stdout=-3, stderr=-3)\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )

    result = await outcome_of(tmp_path, code, timeout_s=30)

    assert (result.outcome, result.reason) == (Outcome.INFRA, "its supervisor was killed")
