"""Live: one tree of a run while it goes on, in a terminal, in a pipe and in a notebook.

    with watch(run):
        await fan_out(run, worker, items)

In a terminal the tree is drawn in place, at most eight times a second; siblings that have ended are summed up
in one line when it would grow too tall. In a pipe, and in a notebook without ``ipywidgets``, there are plain lines: one
for each end, and a summary every few seconds. Drawing never stops a run: what goes wrong with it is swallowed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.story import Watcher

from .marks import mark_of, tone_of
from .output import dollars, shown
from .report_text import duration, outcome_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.run import Run
    from orchestrator.story import Glance, Node

FRAMES_PER_S = 8
#: In a pipe: a look this often, a summary this often, and at most so many ends in one look.
LOOK_EVERY_S = 0.5
SUMMARY_EVERY_S = 5.0
ENDS_A_LOOK = 10
#: Caps that others spend from, too, are asked of the ledger this often.
_CAPS_EVERY_S = 1.0
_BAR = 20
_COLOURS = {"good": "green", "money": "yellow", "bad": "red", "open": "cyan", "plain": "dim"}


@dataclass(frozen=True, slots=True)
class CapNow:
    """A cap and what counts against it now."""

    label: str
    cap_nanos: int
    counted_nanos: int


@contextlib.contextmanager
def watch(run: Run, *, out: TextIO | None = None, console: Console | None = None) -> Iterator[None]:
    """Draw a run while the block goes on; the last picture stays.

    Args:
        run: the run, which may be under way already.
        out: where to; standard error by default, so that results can be piped.
        console: draw on this rich console instead, as it is.
    """
    watcher = Watcher(run=run.id, name=run.name, scope=run.scope)
    stop = run.journal.listen(watcher.hear)
    stream = out or sys.stderr
    console = console or _console_of(stream)
    view = _View(run, watcher)
    try:
        with _drawn(console, view) if _can_draw(console) else _Lines(stream, view):
            yield
    finally:
        stop()


def _console_of(stream: TextIO) -> Console:
    from rich.console import Console

    plain: dict[str, Any] = {"highlight": False, "emoji": False, "markup": False}
    # In a notebook rich draws into the cell, not into a stream.
    return Console(**plain) if Console().is_jupyter else Console(file=stream, **plain)


def _can_draw(console: Console) -> bool:
    """Whether a picture can be drawn in place: in a terminal, and in a notebook that has widgets."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


class _View:
    """What is shown of a run: its glance, and its caps."""

    def __init__(self, run: Run, watcher: Watcher) -> None:
        self.run = run
        self.watcher = watcher
        self.begun = time.monotonic()
        self._caps: tuple[CapNow, ...] = ()
        self._caps_at = -_CAPS_EVERY_S

    def caps(self, counted_nanos: int) -> tuple[CapNow, ...]:
        """Every cap that applies; the run's own by what was heard, the others by the ledger's word."""
        now = time.monotonic()
        if now - self._caps_at >= _CAPS_EVERY_S:
            self._caps_at = now
            with contextlib.suppress(Exception):  # closed, or busy: as it was
                self._caps = caps_now(self.run)
        own = f"on {self.run.scope}"
        return tuple(
            CapNow("this run", cap.cap_nanos, counted_nanos) if cap.label.endswith(own) else cap
            for cap in self._caps
        )

    def summary(self, glance: Glance) -> str:
        """The run in one line."""
        total = glance.tree.sum
        parts = [
            f"{glance.working:,} running"
            + (f" ({glance.waiting:,} waiting)" if glance.waiting else ""),
            f"{glance.done:,} done",
            f"{glance.calls_done:,} calls",
            f"{dollars(total.posted_nanos)} posted",
        ]
        if total.held_nanos:
            parts.append(f"{dollars(total.held_nanos)} held")
        if total.in_doubt_nanos:
            parts.append(f"{dollars(total.in_doubt_nanos)} in doubt")
        parts += [f"{count:,} {kind}" for kind, count in glance.counts.items()]
        if self.run.stopped:
            parts.append(f"stopping: {self.run.stopped}")
        return ", ".join(parts)


def caps_now(run: Run) -> tuple[CapNow, ...]:
    """The caps that a run falls under, with what counts against each now (everybody's)."""
    from orchestrator.story import Sum
    from orchestrator.story.caps_of_run import caps_of_run

    balance = run.ledger.balance(run.scope)
    total = Sum(0, balance.posted_nanos, balance.held_nanos, balance.in_doubt_nanos)
    with run.ledger.reader() as reader:
        found = caps_of_run(reader, run.scope, run.started_at, total)
    return tuple(CapNow(cap.label, cap.cap_nanos, cap.counted_nanos) for cap in found)


# ---- a terminal, a notebook -----------------------------------------------------------------------------


@contextlib.contextmanager
def _drawn(console: Console, view: _View) -> Iterator[None]:
    from rich.live import Live

    def picture() -> RenderableType:
        return tree_of(view.watcher.glance(), view, height=max(console.size.height - 2, 8))

    live = Live(
        get_renderable=picture,
        console=console,
        auto_refresh=False,  # rich's own thread would die of the first fault, and say so
        # What is printed meanwhile stands above the tree; what goes into a file or a pipe goes on there.
        redirect_stdout=_is_terminal(sys.stdout),
        redirect_stderr=_is_terminal(sys.stderr),
        vertical_overflow="crop",
    )
    over = threading.Event()

    def refresh() -> None:
        while not over.wait(1 / FRAMES_PER_S):
            with contextlib.suppress(Exception):
                live.refresh()

    thread = threading.Thread(target=refresh, name="earmark-live", daemon=True)
    with contextlib.suppress(Exception):
        live.start()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(Exception):
            live.refresh()
        with contextlib.suppress(Exception):
            live.stop()


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def tree_of(glance: Glance, view: _View, *, height: int) -> RenderableType:
    """The picture: the tree, each cap with its bar, and one line of figures; at most ``height`` lines."""
    from rich.console import Group
    from rich.text import Text

    caps = view.caps(glance.tree.sum.counted_nanos)
    room = max(height - len(caps) - 2, 3)
    lines = [_line(indent, node, view) for indent, node in folded(glance.tree, room)]
    foot = [Text(f"  {cap_text(cap)}", no_wrap=True, overflow="ellipsis") for cap in caps]
    seconds = duration(time.monotonic() - view.begun)
    summary = Text(f"  {view.summary(glance)}, {seconds}", no_wrap=True, overflow="ellipsis")
    return Group(*lines, *foot, summary)


def cap_text(cap: CapNow) -> str:
    """A cap as a bar."""
    share = min(cap.counted_nanos, cap.cap_nanos) * _BAR // cap.cap_nanos if cap.cap_nanos else _BAR
    bar = "█" * share + "░" * (_BAR - share)
    return f"{bar} {dollars(cap.counted_nanos)} of {dollars(cap.cap_nanos)} {cap.label}"


def _line(indent: str, node: Node | str, view: _View) -> Any:
    from rich.text import Text

    text = Text(indent, style="dim", no_wrap=True, overflow="ellipsis")
    if isinstance(node, str):
        return text.append(node)
    tone = tone_of(node.outcome)
    text.append(f"{mark_of(node.outcome)} ", style=_COLOURS[tone])
    text.append(
        shown(node.name or view.run.name), style="bold" if node.kind == "run" else "default"
    )
    return text.append(f"  {shown(figures_of(node))}", style="dim")


def figures_of(node: Node) -> str:
    """What stands behind a node's name."""
    parts = []
    if node.items is not None:
        parts.append(f"{sum(node.unit_outcomes.values()):,}/{node.items:,}")
    elif node.begun > 1:
        parts.append(f"{node.ended:,}/{node.begun:,}")
    if node.outcome not in {"", "ok", "running"}:
        parts.append(outcome_text(node))
    ended = node.outcomes if node.items is None else node.unit_outcomes
    bad = {word: count for word, count in ended.items() if word != "ok"}
    if node.outcome == "running" and bad:
        parts.append(", ".join(f"{mark_of(word)} {count:,} {word}" for word, count in bad.items()))
    total = node.sum
    if total.counted_nanos or total.calls:
        cap = f" of {dollars(node.cap_nanos)}" if node.cap_nanos is not None else ""
        parts.append(f"{dollars(total.posted_nanos)}{cap}")
    if node.open_calls and not node.children:
        parts.append(f"{node.open_calls:,} under way")
    return "  ".join(parts)


def folded(root: Node, room: int) -> list[tuple[str, Node | str]]:
    """The tree as lines, at most ``room``: siblings that have ended become one line where it is too tall."""
    lines = list(_rows(root, "", "", fold=False))
    if len(lines) > room:
        lines = list(_rows(root, "", "", fold=True))
    if len(lines) <= room:
        return lines
    rest = len(lines) - room + 1
    return [*lines[: room - 1], ("   ", f"... {rest:,} more lines")]


def _rows(node: Node, indent: str, below: str, *, fold: bool) -> Iterator[tuple[str, Node | str]]:
    yield indent, node
    rows: list[Node | str] = list(node.children)
    if fold:
        over = [child for child in node.children if not _is_going_on(child)]
        if len(over) > 1:
            words = Counter(child.outcome or "done" for child in over)
            told = ", ".join(f"{mark_of(word)} {count:,} {word}" for word, count in words.items())
            amount = dollars(sum(child.sum.posted_nanos for child in over))
            rows = [f"{told}  {amount}", *(c for c in node.children if _is_going_on(c))]
    for number, row in enumerate(rows, start=1):
        elbow, stem = ("└─ ", "   ") if number == len(rows) else ("├─ ", "│  ")
        if isinstance(row, str):
            yield below + elbow, row
        else:
            yield from _rows(row, below + elbow, below + stem, fold=fold)


def _is_going_on(node: Node) -> bool:
    return node.outcome == "running" or node.open_calls > 0 or any(map(_is_going_on, node.children))


# ---- a pipe -------------------------------------------------------------------------------------------


class _Lines:
    """Plain lines at a steady pace, from a thread of its own."""

    def __init__(self, stream: TextIO, view: _View) -> None:
        self._stream = stream
        self._view = view
        self._over = threading.Event()
        self._said = ""
        self._said_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="earmark-live", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=2 * LOOK_EVERY_S)
        self._look(is_last=True)

    def _work(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._look(is_last=False)

    def _look(self, *, is_last: bool) -> None:
        with contextlib.suppress(Exception):  # a reader that has gone, a full disk: the run goes on
            glance = self._view.watcher.glance()
            self._say_ends(glance)
            text = self._view.summary(glance)
            due = time.monotonic() - self._said_at >= SUMMARY_EVERY_S
            if is_last or (due and text != self._said):
                self._say_summary(glance, text, is_last=is_last)
            self._stream.flush()

    def _say_ends(self, glance: Glance) -> None:
        for label, outcome, reason in glance.finished[:ENDS_A_LOOK]:
            why = f": {reason}" if reason else ""
            self._write(f"{mark_of(outcome)} {label} {outcome}{why}")
        rest = Counter(outcome for _, outcome, _ in glance.finished[ENDS_A_LOOK:])
        if rest:
            self._write("  and " + ", ".join(f"{n:,} {word}" for word, n in rest.items()))

    def _say_summary(self, glance: Glance, text: str, *, is_last: bool) -> None:
        self._said, self._said_at = text, time.monotonic()
        caps = self._view.caps(glance.tree.sum.counted_nanos)
        told = "".join(
            f"; {dollars(cap.counted_nanos)} of {dollars(cap.cap_nanos)} {cap.label}"
            for cap in (caps if is_last else caps[:1])
        )
        self._write(f"{self._view.run.name}: {text}{told}")

    def _write(self, text: str) -> None:
        line = shown(text.replace("\n", " ").replace(f"{self._view.run.scope}/", ""))
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
