"""A watcher hears a run's journal while it goes on: from any thread, quickly, and with flat memory."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal import Journal
from orchestrator.story import Watcher
from patterns import fan_out

from .running import MODEL, helper, stage


def watcher() -> Watcher:
    return Watcher(run="r", name="work", scope="s")


def test_listeners_hear_events_where_no_file_is_written() -> None:
    """Until they stop; what they hear is what would stand in the file."""
    heard: list[Any] = []
    journal = Journal(None, "r")
    stop = journal.listen(heard.append)
    journal.write("tool", tool="t", reason="", failed=None)
    stop()
    journal.write("tool", tool="t")
    assert [{k: v for k, v in event.items() if k != "at"} for event in heard] == [
        {"run": "r", "event": "tool", "tool": "t"}
    ]


def test_a_listener_that_fails_costs_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the file and the other listeners get the event all the same."""
    heard: list[Any] = []
    journal = Journal(tmp_path / "journal.jsonl", "r")

    def fails(event: object) -> None:
        raise RuntimeError("drawing failed")

    journal.listen(fails)
    journal.listen(heard.append)
    with caplog.at_level(logging.ERROR, "earmark"):
        journal.write("tool", tool="t")
    journal.close()
    assert len(heard) == 1
    assert json.loads((tmp_path / "journal.jsonl").read_text())["tool"] == "t"
    assert "drawing failed" in caplog.text


async def test_glances_follow_a_real_run_to_the_nano_dollar() -> None:
    """At the end nothing is running or held, and the posted sum is the ledger's."""
    async with stage() as st:
        seen = Watcher(run=st.run.id, name=st.run.name, scope=st.run.scope)
        st.run.journal.listen(seen.hear)
        agent = helper()
        during: list[int] = []

        async def one(item: int) -> Any:
            result = await agent.run(st.run, f"Item {item}", unit=f"u{item}")
            during.append(seen.glance().tree.begun)
            return result

        await fan_out(st.run, one, range(20), width=5)
        await st.run.drain()
        glance = seen.glance()
        assert glance.tree.sum.posted_nanos == st.run.balance.posted_nanos > 0
        assert glance.tree.sum.held_nanos == 0
        assert (glance.working, glance.calls_open, glance.done, glance.calls_done) == (0, 0, 20, 20)
        assert len(during) == 20


def test_what_has_finished_is_handed_out_once() -> None:
    """With its outcome and reason, so that a line can be printed for each."""
    seen = watcher()
    seen.hear({"event": "outcome", "agent": "a", "scope": "s/a", "unit": "u", "outcome": "ok"})
    seen.hear({"event": "node_end", "scope": "s/n", "outcome": "budget", "reason": "why"})
    assert seen.glance().finished == (("a u", "ok", ""), ("n", "budget", "why"))
    assert seen.glance().finished == ()


def test_many_threads_may_tell_at_once() -> None:
    """Nothing is counted twice or lost, whoever looks meanwhile."""
    seen = watcher()

    def work(number: int) -> None:
        for n in range(100):
            hold = f"{number}-{n}"
            place = {"agent": f"a{number}", "scope": f"s/a{number}", "model": MODEL}
            seen.hear({"event": "hold", "hold": hold, "nanos": 5, **place})
            seen.hear({"event": "settle", "hold": hold, "nanos": 3, **place})
            if n % 10 == 0:
                seen.glance()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tree = seen.glance().tree
    assert (tree.sum.calls, tree.sum.posted_nanos, tree.sum.held_nanos) == (800, 2400, 0)
    assert len(tree.children) == 8


def test_five_hundred_agents_are_cheap_to_hear_and_to_draw() -> None:
    """An event and a frame cost far less than a call: 0.2 ms and 60 ms at most, also on a slow machine."""
    seen = watcher()
    begun = time.process_time()
    for round_ in range(4):
        for number in range(500):
            place = {"agent": f"a{number}", "scope": f"s/team/a{number}", "model": MODEL}
            hold = f"{round_}-{number}"
            seen.hear(
                {"event": "hold", "hold": hold, "nanos": 5, "at": "2026-11-29T10:00:00Z", **place}
            )
            seen.hear(
                {"event": "settle", "hold": hold, "nanos": 3, "at": "2026-11-29T10:00:01Z", **place}
            )
    hearing = (time.process_time() - begun) / 4000
    begun = time.process_time()
    for _ in range(10):
        seen.glance()
    drawing = (time.process_time() - begun) / 10
    assert hearing < 0.0002
    assert drawing < 0.060
    assert seen._chronicle.calls == {}
