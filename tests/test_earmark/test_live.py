"""The live tree: drawn in a terminal, told in lines in a pipe, and never a reason for a run to fail."""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import pytest
from rich.console import Console

from earmark.live import ENDS_A_LOOK, _Lines, _View, folded, tree_of, watch
from orchestrator.story import Watcher
from patterns import fan_out
from tests.test_orchestrator.running import MODEL, helper, stage


class Stream(io.TextIOWrapper):
    """A pipe of some encoding that is kept."""

    def __init__(self, encoding: str) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding=encoding, newline="\n")

    @property
    def said(self) -> str:
        """What was written."""
        self.flush()
        return self.kept.getvalue().decode(self.encoding)


def terminal(height: int = 30) -> Console:
    """A terminal that is kept."""
    return Console(
        file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None,
        legacy_windows=False,
    )  # fmt: skip


def drawn(picture: Any, height: int = 30) -> str:
    console = terminal(height)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


async def work(run: Any, live: AbstractContextManager[None], count: int = 6) -> None:
    """A fan-out of one agent, one item of which fails."""
    agent = helper(name="reader")

    async def one(item: int) -> Any:
        if item == 3:
            raise ValueError("not this one")
        return await agent.run(run, f"Item {item}", unit=f"u{item}")

    with live:
        await fan_out(run, one, range(count), width=2)


# ---- a pipe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii", "cp437"])
async def test_a_pipe_gets_plain_lines(encoding: str) -> None:
    """One for each end and a summary with the cap; no control characters, whatever the encoding can't write."""
    stream = Stream(encoding)
    async with stage() as st:
        await work(st.run, watch(st.run, out=stream))
        await st.run.drain()
        lines = stream.said.splitlines()
        assert sum("reader u" in line and line.endswith(" ok") for line in lines) == 5
        assert all(line.isprintable() for line in lines)
        assert "0 running, 5 done, 5 calls" in lines[-1]
        assert "of $5.00 this run" in lines[-1]


async def test_many_ends_are_a_few_lines_and_a_count() -> None:
    """A pace that a person can follow: what does not fit into one look is summed up."""
    async with stage() as st:
        seen = Watcher(run=st.run.id, name=st.run.name, scope=st.run.scope)
        stream = Stream("utf-8")
        for number in range(200):
            seen.hear({"event": "outcome", "agent": "a", "unit": str(number), "outcome": "ok"})
        lines = _Lines(stream, _View(st.run, seen))
        lines._look(is_last=False)
        said = stream.said.splitlines()
        assert len(said) == ENDS_A_LOOK + 1
        assert said[-1] == f"  and {200 - ENDS_A_LOOK} ok"


async def test_a_reader_that_has_gone_stops_no_run() -> None:
    """Writing fails at every line; the work is done all the same."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    async with stage() as st:
        await work(st.run, watch(st.run, out=Gone()))
        assert st.run.balance.posted_nanos > 0


@pytest.mark.skipif(find_spec("ipywidgets") is not None, reason="notebooks here can draw")
async def test_a_notebook_without_widgets_gets_lines() -> None:
    """Rich can't draw in place there; nothing is lost and nothing warns."""
    stream = Stream("utf-8")
    async with stage() as st:
        await work(st.run, watch(st.run, out=stream, console=Console(force_jupyter=True)))
    assert "0 running, 5 done" in stream.said.splitlines()[-1]


# ---- a terminal ---------------------------------------------------------------------------------------


async def test_a_terminal_shows_the_last_picture() -> None:
    """The tree with its outcomes and money, the cap with its bar, and the counts."""
    console = terminal()
    async with stage() as st:
        await work(st.run, watch(st.run, console=console))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for word in ("fan_out", "✓ reader", "5/5", "of $5.00 this run", "0 running, 5 done"):
        assert word in text


async def test_a_console_that_fails_stops_no_run() -> None:
    """Neither at the start nor at the end of drawing."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left on device")

    async with stage() as st:
        console = Console(file=Broken(), force_terminal=True)
        await work(st.run, watch(st.run, console=console))
        assert st.run.balance.posted_nanos > 0


@pytest.mark.parametrize("height", [8, 12, 24])
async def test_a_tall_tree_is_folded_into_the_screen(height: int) -> None:
    """Siblings that have ended become one line with their counts and money; those that go on stay."""
    async with stage() as st:
        seen = Watcher(run=st.run.id, name=st.run.name, scope=st.run.scope)
        for number in range(500):
            place = {"agent": f"a{number}", "scope": f"{st.run.scope}/a{number}", "model": MODEL}
            seen.hear({"event": "begin", **place})
            seen.hear({"event": "hold", "hold": str(number), "nanos": 2_000_000, **place})
            if number not in {77, 300}:
                seen.hear({"event": "settle", "hold": str(number), "nanos": 1_000_000, **place})
                outcome = "budget" if number % 5 == 0 else "ok"
                seen.hear({"event": "outcome", "outcome": outcome, **place})
        picture = drawn(tree_of(seen.glance(), _View(st.run, seen), height=height), height)
    assert len(picture.splitlines()) <= height
    for text in ("✓ 399 ok", "■ 99 budget", "$0.498", "a77", "a300", "2 running", "498 done"):
        assert text in picture


async def test_names_cannot_write_to_the_terminal() -> None:
    """Control characters in the name of an agent or in a reason are shown as marks."""
    async with stage() as st:
        seen = Watcher(run=st.run.id, name=st.run.name, scope=st.run.scope)
        scope = f"{st.run.scope}/a\x1b[2J"
        seen.hear({"event": "outcome", "scope": scope, "outcome": "ok", "agent": "a[red]"})
        picture = drawn(tree_of(seen.glance(), _View(st.run, seen), height=20))
        assert "\x1b[2J" not in picture
        stream = Stream("utf-8")
        seen.hear(
            {"event": "outcome", "scope": scope, "outcome": "infra", "reason": "x\x1b]0;y\x07"}
        )
        _Lines(stream, _View(st.run, seen))._look(is_last=True)
        assert all(line.isprintable() for line in stream.said.splitlines())


async def test_listening_ends_with_the_block() -> None:
    """Afterwards the journal has no listener left."""
    async with stage() as st:
        with watch(st.run, out=Stream("utf-8")):
            assert len(st.run.journal._listeners) == 1
        assert st.run.journal._listeners == ()


def test_folding_leaves_a_small_tree_as_it_is() -> None:
    """Nothing is summed up where there is room."""
    seen = Watcher(run="r", name="work", scope="s")
    for number in range(5):
        seen.hear({"event": "outcome", "scope": f"s/a{number}", "outcome": "ok"})
    assert len(folded(seen.glance().tree, 6)) == 6
    assert len(folded(seen.glance().tree, 5)) == 2
