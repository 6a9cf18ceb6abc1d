"""The journal: whole lines whatever happens, and never in the way of the work."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path

import pytest

from orchestrator.journal import Journal, read_journal


def test_one_line_per_event(tmp_path: Path) -> None:
    """Events come back in order with their run; what is None or empty is left out."""
    journal = Journal(tmp_path / "deep" / "journal.jsonl", "run-1")
    journal.write("call", agent="a", model=None, reason="", nanos=0)
    journal.write("end", name="Zürich \u2028 \n")
    journal.close()
    first, last = read_journal(tmp_path / "deep" / "journal.jsonl")
    assert first.keys() == {"at", "run", "event", "agent", "nanos"}
    assert (first["run"], first["nanos"], last["name"]) == ("run-1", 0, "Zürich \u2028 \n")


def test_no_path_writes_nowhere(tmp_path: Path) -> None:
    """A run in memory has a journal that does nothing."""
    journal = Journal(None, "run-1")
    journal.write("call")
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    """Names of files may hold lone surrogates, records may hold objects."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "run-1")
    journal.write("call", path="caf\udce9", thing=Path("x"))
    journal.close()
    (event,) = read_journal(path)
    assert (event["path"], event["thing"]) == ("caf\udce9", "x")


def test_a_line_torn_by_a_crash_costs_no_other(tmp_path: Path) -> None:
    """Reading passes over it, and a resumed run does not write its first event onto it."""
    path = tmp_path / "journal.jsonl"
    first = Journal(path, "run-1")
    first.write("one")
    first.close()
    with path.open("a") as file:
        file.write('{"event": "tor')
    assert [event["event"] for event in read_journal(path)] == ["one"]
    journal = Journal(path, "run-1")
    journal.write("two")
    journal.close()
    assert [event["event"] for event in read_journal(path)] == ["one", "two"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    """Every line is whole though many write at once."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "run-1")
    threads = [
        threading.Thread(target=lambda: [journal.write("x", text="y" * 500) for _ in range(100)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 800
    assert all(json.loads(line)["event"] == "x" for line in lines)


@pytest.mark.parametrize("place", ["/dev/full", "folder", "below a file"])
def test_a_place_that_can_not_be_written_complains_once(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk or a wrong path is one sentence, not one per event, and nothing is raised."""
    path = tmp_path / "journal.jsonl"
    if place == "/dev/full":
        path.symlink_to(place)
    elif place == "folder":
        path.mkdir()
    else:
        path.write_text("")
        path = path / "journal.jsonl"
    with caplog.at_level(logging.ERROR, "earmark"):
        journal = Journal(path, "run-1")
        for _ in range(3):
            journal.write("call")
        journal.close()
        journal.close()
        journal.write("late")
    assert len(caplog.records) == 1
    assert "the run goes on without it" in caplog.text


async def test_events_of_one_turn_of_the_loop_are_written_at_its_end(tmp_path: Path) -> None:
    """Nobody waits for more than that; closing writes what is left, and so does a loop that ends early."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "run-1")
    for number in range(3):
        journal.write("one", number=number)
    await asyncio.sleep(0)
    assert [event["number"] for event in read_journal(path)] == [0, 1, 2]
    journal.write("two")
    journal.close()
    assert [event["event"] for event in read_journal(path)] == ["one"] * 3 + ["two"]


def test_a_loop_that_ended_before_its_turn_did_loses_no_event(tmp_path: Path) -> None:
    """The next loop, or the next event outside of one, writes what it left."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "run-1")
    loop = asyncio.new_event_loop()
    loop.call_soon(journal.write, "left")
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    async def again() -> None:
        journal.write("again")
        await asyncio.sleep(0)

    asyncio.run(again())
    assert [event["event"] for event in read_journal(path)] == ["left", "again"]
    journal.close()
