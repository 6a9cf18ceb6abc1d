"""Drawing: a story's calls and spend as coordinates for inline SVG; text stays in HTML, where it can be read.

Every picture is 1,000 units wide and is stretched to the page. Nothing here makes markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.output import dollars
from earmark.report_text import duration

if TYPE_CHECKING:
    from orchestrator.story import Call, Story

WIDTH = 1000
#: More rectangles make a page slow; beyond, a lane shows how many calls were under way.
RECTANGLES_MAX = 2500
LANES_MAX = 40
ROWS_MAX = 14
ROW_HEIGHT = 9
_BINS = 250
_DENSE_HEIGHT = 36
SPEND_HEIGHT = 240
#: A cap so many times above the peak would flatten the curve; it is named below the picture instead.
_CAP_IN_SIGHT = 4
_PALETTE = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """A call, or a bin of calls, as a rectangle."""

    x: float
    y: float
    width: float
    height: float
    look: str
    tip: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one agent did over time."""

    name: str
    colour: int
    calls: int
    height: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at a share of an axis, 0 to 100."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class CapLine:
    """A cap in the picture of spend, at a height in percent from the top."""

    at: float
    label: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class SpendPicture:
    """Areas of posted, held and in doubt on top of each other, as SVG paths."""

    posted: str
    in_doubt: str
    held: str
    times: tuple[Tick, ...]
    amounts: tuple[Tick, ...]
    caps: tuple[CapLine, ...]
    out_of_sight: tuple[str, ...]


def colours_of(story: Story) -> dict[str, int]:
    """A colour for each agent, the dearest first."""
    return {share.key: rank % _PALETTE for rank, share in enumerate(story.by_agent)}


def lanes_of(story: Story) -> tuple[Lane, ...]:
    """Calls by agent, in order of appearance; empty where nothing has a time."""
    if story.started is None or story.seconds <= 0:
        return ()
    by_agent: dict[str, list[Call]] = {}
    for call in story.calls:
        if call.began is not None:
            by_agent.setdefault(call.agent or "(none)", []).append(call)
    colours = colours_of(story)
    is_dense = sum(map(len, by_agent.values())) > RECTANGLES_MAX
    lanes = []
    for name, calls in list(by_agent.items())[:LANES_MAX]:
        rows = None if is_dense else _rows(story, calls)
        height, marks = _dense(story, calls) if rows is None else _drawn(story, calls, rows)
        lanes.append(Lane(name, colours.get(name, 0), len(calls), height, marks))
    return tuple(lanes)


def _at(story: Story, call: Call) -> tuple[float, float]:
    """Where a call begins and ends, in units."""
    assert story.started is not None
    assert call.began is not None
    begins = (call.began - story.started).total_seconds() / story.seconds * WIDTH
    seconds = call.seconds
    if call.ended is None and not story.is_log:
        seconds = story.seconds  # it never ended: to the edge
    return max(begins, 0.0), min(begins + seconds / story.seconds * WIDTH, float(WIDTH))


def _rows(story: Story, calls: Sequence[Call]) -> list[int] | None:
    """A row for each call so that none lies on another; None if that takes too many."""
    ends: list[float] = []
    rows = []
    for call in calls:
        begins, end = _at(story, call)
        end = max(end, begins + 2)
        row = next((n for n, until in enumerate(ends) if until <= begins), len(ends))
        if row == ROWS_MAX:
            return None
        ends[row : row + 1] = [end]
        rows.append(row)
    return rows


def _drawn(story: Story, calls: Sequence[Call], rows: list[int]) -> tuple[int, tuple[Mark, ...]]:
    marks = []
    for call, row in zip(calls, rows, strict=True):
        begins, ends = _at(story, call)
        marks.append(
            Mark(
                round(begins, 2),
                row * ROW_HEIGHT + 1,
                round(max(ends - begins, 1.5), 2),
                ROW_HEIGHT - 2,
                _LOOKS.get(call.state, ""),
                tip_of(call),
            )
        )
    return (max(rows, default=0) + 1) * ROW_HEIGHT, tuple(marks)


_LOOKS = {
    "void": "void",
    "in doubt": "doubt",
    "under way": "open",
    "resolved": "doubt",
}


def tip_of(call: Call) -> str:
    """A call in a few words."""
    words = [call.agent or "(none)", call.unit, call.model, call.state]
    if call.state == "settled":
        words.append(dollars(call.sum.posted_nanos))
    if call.sum.in_doubt_nanos:
        words.append(dollars(call.sum.in_doubt_nanos))
    if call.seconds:
        words.append(duration(call.seconds))
    tokens = call.sum.tokens
    if tokens.prompt or tokens.output:
        words.append(f"{tokens.prompt:,} in, {tokens.output:,} out")
    words += [call.stop_reason, call.reason]
    return " · ".join(word for word in words if word)


def _dense(story: Story, calls: Sequence[Call]) -> tuple[int, tuple[Mark, ...]]:
    """How many calls were under way in each of some stretches of time."""
    busy = [0.0] * _BINS
    unit = WIDTH / _BINS
    for call in calls:
        begins, ends = _at(story, call)
        first, last = int(begins / unit), min(int(ends / unit), _BINS - 1)
        for column in range(min(first, _BINS - 1), last + 1):
            left, right = column * unit, (column + 1) * unit
            busy[column] += max(min(ends, right) - max(begins, left), 0.02 * unit) / unit
    most = max(busy) or 1.0
    marks = [
        Mark(
            round(column * unit, 2),
            round(_DENSE_HEIGHT * (1 - value / most), 2),
            round(unit, 2),
            round(_DENSE_HEIGHT * value / most, 2),
            "",
            f"{value:.1f} calls under way at {duration(column * story.seconds / _BINS)}",
        )
        for column, value in enumerate(busy)
        if value
    ]
    return _DENSE_HEIGHT, tuple(marks)


def time_ticks(seconds: float) -> tuple[Tick, ...]:
    """Five moments along the run."""
    return tuple(Tick(25.0 * n, duration(seconds * n / 4)) for n in range(5))


# ---- spend --------------------------------------------------------------------------------------------


def spend_picture(story: Story) -> SpendPicture | None:
    """Spend over time; None where nothing was spent or nothing has a time."""
    points, seconds = story.spend, story.seconds
    peak = max((point.counted_nanos for point in points), default=0)
    if not peak or seconds <= 0:
        return None
    rooms = [
        (cap.cap_nanos - cap.others_nanos, cap.scope == story.scope, cap) for cap in story.caps
    ]
    in_sight = [room for room, _, _ in rooms if 0 < room <= peak * _CAP_IN_SIGHT]
    top = int(max([peak, *in_sight]) * 1.06) or 1
    lines, beyond = [], []
    for room, is_own, cap in rooms:
        label = f"{dollars(cap.cap_nanos)} {cap.label if not is_own else 'cap of the run'}"
        if cap.others_nanos:
            label += f" ({dollars(cap.others_nanos)} of it is others')"
        if 0 < room <= top:
            lines.append(CapLine(100 * (1 - room / top), label, is_own))
        else:
            beyond.append(label)
    posted = [(p.seconds, p.posted_nanos) for p in points]
    doubt = [(p.seconds, p.posted_nanos + p.in_doubt_nanos) for p in points]
    counted = [(p.seconds, p.counted_nanos) for p in points]
    return SpendPicture(
        posted=_area(posted, seconds, top),
        in_doubt=_area(doubt, seconds, top)
        if any(p.in_doubt_nanos and p.seconds < seconds for p in points)
        else "",
        held=_area(counted, seconds, top),
        times=time_ticks(seconds),
        amounts=tuple(
            Tick(100 * (1 - share / 4 / 1.06), dollars_short(int(top / 1.06) * share // 4))
            for share in range(5)
        ),
        caps=tuple(lines),
        out_of_sight=tuple(beyond),
    )


def _area(steps: Iterable[tuple[float, int]], seconds: float, top: int) -> str:
    """A stepped area down to the axis."""
    path, y = [f"M0 {SPEND_HEIGHT}"], float(SPEND_HEIGHT)
    for at, nanos in steps:
        x = round(at / seconds * WIDTH, 2)
        path.append(f"L{x} {y}")
        y = round(SPEND_HEIGHT * (1 - nanos / top), 2)
        path.append(f"L{x} {y}")
    path.append(f"L{WIDTH} {y}L{WIDTH} {SPEND_HEIGHT}Z")
    return "".join(path)


def dollars_short(nanos: int) -> str:
    """An amount beside an axis."""
    value = nanos / 1_000_000_000
    if value >= 100:
        return f"${value:,.0f}"
    if value >= 1 or not nanos:
        return f"${value:.2f}"
    text = f"{value:.4g}"
    return f"${text}0" if len(text) == len("0.9") else f"${text}"
