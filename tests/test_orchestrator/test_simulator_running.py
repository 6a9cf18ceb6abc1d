"""Starting and stopping the simulator: in a task, in a thread, in a process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

from orchestrator.simulator import Faults, Settings, Simulator, SimulatorThread, running_simulator

ASKED: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "Hello"}],
}


async def test_stop_resets_what_hangs() -> None:
    """Stopping doesn't wait for requests that hang: their clients see a lost connection."""
    sim = Simulator(faults=Faults(["hang"]))
    await sim.start()
    async with AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client:
        task = asyncio.create_task(client.messages.create(**ASKED))
        await sim.arrived(1)
        await sim.stop()
        with pytest.raises(anthropic.APIConnectionError):
            await task

    assert sim.bill.requests == 0


async def test_stop_leaves_no_task_and_no_port() -> None:
    """After stopping, nothing runs and nothing listens."""
    before = asyncio.all_tasks()
    params: Any = ASKED
    async with (
        Simulator(batch_seconds=None) as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        await client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
    port = int(sim.url.rpartition(":")[2])

    assert asyncio.all_tasks() == before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_thread() -> None:
    """A simulator in a thread serves sync code, can be steered from there, and ends with it."""
    with (
        running_simulator(faults=Faults(["overloaded"])) as sim,
        Anthropic(base_url=sim.url, api_key="key", max_retries=1) as client,
    ):
        client.messages.create(**ASKED)
        assert (sim.bill.requests, sim.call(lambda each: each.stats.arrived)) == (1, 2)
        sim.arrived(2)
        sim.reset()
        assert sim.bill.requests == 0

    assert "earmark-simulator" not in {thread.name for thread in threading.enumerate()}


def test_thread_says_why_it_failed() -> None:
    """A port that is taken raises where the thread is started."""
    with running_simulator() as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address already in use"):
            SimulatorThread(port=port).start()


def test_not_started() -> None:
    """Using a thread that wasn't started says so."""
    thread = SimulatorThread()
    thread.stop()

    with pytest.raises(RuntimeError, match="not started"):
        thread.release()


def test_settings_or_fields() -> None:
    """Settings and single fields can't be mixed, nor unknown fields given."""
    with pytest.raises(TypeError, match="not both"):
        Simulator(settings=Settings(), latency_s=1)
    with pytest.raises(TypeError, match="nonsense"):
        Simulator(nonsense=1)


async def test_many_at_once() -> None:
    """Several hundred requests at once are all served and all on the bill."""
    async with (
        Simulator() as sim,
        AsyncAnthropic(base_url=sim.url, api_key="key", max_retries=0) as client,
    ):
        replies = await asyncio.gather(*(client.messages.create(**ASKED) for _ in range(300)))

    assert len({reply.id for reply in replies}) == 300
    rows = [sim.bill.row(reply.id) for reply in replies]
    assert all(row is not None for row in rows)
    assert sim.bill.nanos == sum(row.nanos for row in rows if row is not None)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_until_signal(number: signal.Signals) -> None:
    """``serve`` says where it listens and that it is simulated, and ends cleanly on a signal."""
    program = "from orchestrator.simulator import serve; serve(port=0)"
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" at ")[1].split()[0]
        with Anthropic(base_url=url, api_key="key") as client:
            client.messages.create(**ASKED)
        bill = httpx2.get(f"{url}/sim/bill").json()
        process.send_signal(number)
        rest = process.stdout.read()
        code = process.wait(timeout=60)

    assert line.startswith("Simulated Anthropic API at http://127.0.0.1:")
    assert (code, bill["requests"]) == (0, 1)
    assert "Simulated: 1 requests" in rest
