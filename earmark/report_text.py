"""What ``earmark report`` shows in a terminal: figures, tables with bars, the tree, and what happened when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import output
from .marks import mark_of
from .output import dollars, right, say

if TYPE_CHECKING:
    from orchestrator.story import Node, Share, Story, Sum

#: Cells of lanes and curves: with a name before them they fit into 100 columns.
CELLS = 60
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LANES_MAX = 20
_CHILDREN_MAX = 12
_UNITS_MAX = 8
_DOUBTS_MAX = 20
_MOMENTS_MAX = 12
_BAR = 16
_NAME = 22


def show(story: Story, ledger_option: str) -> None:
    """Print a story.

    Args:
        story: of a run or of a foreign log.
        ledger_option: `` --ledger FILE`` for the commands that it names, or empty.
    """
    _head(story)
    _caps(story)
    _shares("agent", story.by_agent)
    _shares("model", story.by_model)
    _unpriced(story)
    _tree(story)
    _timeline(story)
    _spend(story)
    _moments(story)
    _doubts(story, ledger_option)


def _title(text: str) -> None:
    say()
    say(text)


# ---- figures ------------------------------------------------------------------------------------------


def _head(story: Story) -> None:
    if story.is_log:
        say(f"log {story.path}")
    else:
        word = "under way" if story.is_under_way else story.outcome
        say(f"run {story.run}: {mark_of(word)} {word}{'  SIMULATED' if story.is_simulated else ''}")
        say(f"  scope     {story.scope}")
    if story.started:
        say(f"  started   {story.started:%Y-%m-%d %H:%M:%S} UTC, took {duration(story.seconds)}")
    total = story.sum
    own = next((cap for cap in story.caps if cap.scope == story.scope), None)
    say(f"  posted    {dollars(total.posted_nanos)}")
    if total.held_nanos:
        say(f"  held      {dollars(total.held_nanos)}")
    if total.in_doubt_nanos:
        say(f"  in doubt  {dollars(total.in_doubt_nanos)}")
    if own is not None:
        say(
            f"  cap       {dollars(own.cap_nanos)} {output.bar(total.counted_nanos, own.cap_nanos)}"
        )
    states = Counter(call.state for call in story.calls)
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    say(f"  calls     {total.calls:,}{f' ({told})' if told else ''}")
    tokens = total.tokens
    say(
        f"  tokens    {tokens.input:,} input, {tokens.cache_write:,} cache write, "
        f"{tokens.cache_read:,} cache read, {tokens.output:,} output"
    )
    say(f"  cache     {cache_sentence(story)}")
    for note in story.notes:
        say(f"  note      {note}")


def cache_sentence(story: Story) -> str:
    """What the prompt cache did, in a sentence."""
    cache = story.cache
    if not (cache.tokens.cache_read or cache.tokens.cache_write):
        return "not used"
    said = f"{100 * cache.hit_rate:.0f} % of the input was read from it"
    net, saved, extra = cache.net_nanos, cache.saved_nanos, cache.surcharge_nanos
    if net is None or saved is None or extra is None:
        return f"{said}; what that saved is not known: a price is missing"
    about = "about " if cache.is_estimate else ""
    verb = "saved" if net >= 0 else "lost"
    return (
        f"{said}; {verb} {about}{dollars(abs(net))} "
        f"({dollars(saved)} by reads, less {dollars(extra)} for writes)"
    )


def _caps(story: Story) -> None:
    if not story.caps:
        return
    _title("Caps")
    output.print_table(
        ("cap", right("amount"), right("this run"), right("others"), "", "window"),
        [
            (
                cap.label
                if cap.scope != story.scope
                else f"{cap.label.partition(' on ')[0]} on this run",
                dollars(cap.cap_nanos),
                dollars(cap.run.counted_nanos),
                dollars(cap.others_nanos),
                output.bar(cap.run.counted_nanos + cap.others_nanos, cap.cap_nanos),
                cap.window,
            )
            for cap in story.caps
        ],
    )


def _shares(name: str, shares: Sequence[Share]) -> None:
    if not shares:
        return
    has_doubt = any(share.sum.in_doubt_nanos for share in shares)
    _title(f"Where the money went, by {name}")
    most = max(share.sum.counted_nanos for share in shares)
    whole = sum(share.sum.counted_nanos for share in shares)
    output.print_table(
        (
            name,
            right("calls"),
            right("posted"),
            *([right("in doubt")] if has_doubt else []),
            right("share"),
            "",
            right("input"),
            right("written"),
            right("read"),
            right("output"),
        ),
        [
            (
                share.key,
                f"{share.sum.calls:,}",
                money_of(share.sum),
                *([dollars(share.sum.in_doubt_nanos)] if has_doubt else []),
                f"{100 * share.sum.counted_nanos / whole:.0f} %" if whole else "",
                "█" * (share.sum.counted_nanos * _BAR // most if most else 0),
                f"{share.sum.tokens.input:,}",
                f"{share.sum.tokens.cache_write:,}",
                f"{share.sum.tokens.cache_read:,}",
                f"{share.sum.tokens.output:,}",
            )
            for share in shares[:_LANES_MAX]
        ],
    )
    if len(shares) > _LANES_MAX:
        say(f"... and {len(shares) - _LANES_MAX:,} more")


def money_of(one: Sum) -> str:
    """What was posted; says it where a part of it, or all, has no price."""
    if not one.unpriced:
        return dollars(one.posted_nanos)
    return "not known" if one.unpriced == one.calls else f"{dollars(one.posted_nanos)} + unpriced"


def _unpriced(story: Story) -> None:
    if not story.unpriced:
        return
    _title("Not priced, and in no sum above")
    for one in story.unpriced:
        say(f"  {one.model}, {one.calls:,} {'call' if one.calls == 1 else 'calls'}: {one.why}")


# ---- the tree -----------------------------------------------------------------------------------------


def _tree(story: Story) -> None:
    _title("Tree")
    rows = [(f"{indent}{label}", *cells) for indent, label, *cells in _rows(story.tree, "", "")]
    output.print_table(
        ("", "outcome", right("calls"), right("posted"), right("in doubt"), right("time")), rows
    )


def _rows(node: Node, indent: str, below: str) -> Iterator[tuple[str, ...]]:
    yield (indent, _label(node), *_cells(node))
    children, folded = _fold(node)
    units, units_folded = _fold_units(node)
    lines: list[Node | tuple[str, ...]] = [*children, *units]
    lines.extend((rest, "", "", "", "", "") for rest in (folded, units_folded) if rest)
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        elbow, stem = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        if isinstance(line, tuple):
            yield (below + elbow, *line)
        else:
            yield from _rows(line, below + elbow, below + stem)


def _label(node: Node) -> str:
    kind = f" ({node.kind})" if node.kind not in {"run", "log", "agent", "scope", node.name} else ""
    times = f" ×{node.begun}" if node.begun > 1 else ""
    cap = f", cap {dollars(node.cap_nanos)}" if node.cap_nanos is not None else ""
    tools = f", {sum(node.tools.values()):,} tool calls" if node.tools else ""
    return f"{node.name or 'everything'}{kind}{times}{cap}{tools}"


def _cells(node: Node) -> tuple[str, ...]:
    return (
        outcome_text(node),
        f"{node.sum.calls:,}",
        money_of(node.sum),
        dollars(node.sum.in_doubt_nanos) if node.sum.in_doubt_nanos else "",
        duration(node.seconds),
    )


def outcome_text(node: Node) -> str:
    """A node's outcome with its mark; counts where those who ended here ended differently."""
    if node.outcome == "mixed":
        counts = sorted(node.outcomes.items(), key=lambda one: (one[0] != "ok", -one[1]))
        return ", ".join(f"{mark_of(word)} {count:,} {word}" for word, count in counts)
    return f"{mark_of(node.outcome)} {node.outcome}" if node.outcome else ""


def _fold(node: Node) -> tuple[list[Node], str]:
    """The dearest children, in their order, and a word about the rest."""
    if len(node.children) <= _CHILDREN_MAX:
        return list(node.children), ""
    dear = sorted(node.children, key=lambda one: -one.sum.counted_nanos)[:_CHILDREN_MAX]
    kept = {id(one) for one in dear}
    rest = [one for one in node.children if id(one) not in kept]
    amount = sum(one.sum.posted_nanos for one in rest)
    return [one for one in node.children if id(one) in kept], (
        f"... {len(rest):,} more, {dollars(amount)}"
    )


def _fold_units(node: Node) -> tuple[list[tuple[str, ...]], str]:
    """Units that did not end well, and a word about the rest."""
    failed = [unit for unit in node.units if unit.outcome != "ok"]
    rows: list[tuple[str, ...]] = [
        (
            f"{unit.label}{f': {unit.reason}' if unit.reason else ''}"[:80],
            f"{mark_of(unit.outcome)} {unit.outcome}",
            "",
            dollars(unit.sum.posted_nanos) if unit.sum.posted_nanos else "",
            dollars(unit.sum.in_doubt_nanos) if unit.sum.in_doubt_nanos else "",
            duration(unit.seconds) if unit.seconds else "",
        )
        for unit in failed[:_UNITS_MAX]
    ]
    rest = len(failed) - len(rows)
    return rows, f"... {rest:,} more that failed" if rest else ""


def duration(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


# ---- over time ----------------------------------------------------------------------------------------


def _timeline(story: Story) -> None:
    start, length = story.started, story.seconds
    if start is None or not length or not story.calls:
        return
    lanes: dict[str, list[float]] = {}
    for call in story.calls:
        if call.began is None:
            continue
        lane = lanes.setdefault(call.agent or "(none)", [0.0] * CELLS)
        first = (call.began - start).total_seconds() / length * CELLS
        last = first + call.seconds / length * CELLS
        for cell in range(max(int(first), 0), min(int(last), CELLS - 1) + 1):
            lane[min(cell, CELLS - 1)] += max(min(last, cell + 1) - max(first, cell), 0.05)
    if not lanes:
        return
    _title(f"Calls under way over {duration(length)} (a full block is the busiest moment)")
    most = max(max(lane) for lane in lanes.values())
    names = list(lanes)[:_LANES_MAX]
    for name in names:
        say(f"  {_cut(name, _NAME)} {_curve(lanes[name], most)}")
    if len(lanes) > len(names):
        say(f"  ... and {len(lanes) - len(names):,} more agents")


def _spend(story: Story) -> None:
    length = story.seconds
    if len(story.spend) < 2 or not length:
        return
    counted, posted = [0.0] * CELLS, [0.0] * CELLS
    for point in story.spend:
        cell = min(int(point.seconds / length * CELLS), CELLS - 1)
        counted[cell] = max(counted[cell], float(point.counted_nanos))
        posted[cell] = max(posted[cell], float(point.posted_nanos))
    for curve in (counted, posted):
        for cell in range(1, CELLS):
            curve[cell] = curve[cell] or curve[cell - 1]  # nothing happened: as it was
    peak = max(counted)
    own = next((cap for cap in story.caps if cap.scope == story.scope), None)
    against = f", {100 * peak / own.cap_nanos:.0f} % of the cap" if own and own.cap_nanos else ""
    _title(f"Spend over time (a full block is {dollars(int(peak))}, the peak{against})")
    say(f"  {_cut('posted', _NAME)} {_curve(posted, peak)}")
    if counted != posted:
        say(f"  {_cut('with held and in doubt', _NAME)} {_curve(counted, peak)}")


def _curve(values: Sequence[float], most: float) -> str:
    top = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[max(round(value / most * top), 1) if value > 0 and most else 0] for value in values
    )


def _cut(name: str, width: int) -> str:
    return (name if len(name) <= width else name[: width - 1] + "…").ljust(width)


# ---- what went wrong ----------------------------------------------------------------------------------


def _moments(story: Story) -> None:
    if not story.moments:
        return
    kinds = Counter(moment.kind for moment in story.moments)
    _title("What happened: " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common()))
    for moment in story.moments[:_MOMENTS_MAX]:
        at = f"{moment.at:%H:%M:%S}" if moment.at else "        "
        who = f"{moment.who}: " if moment.who else ""
        say(f"  {at}  {moment.kind:<11} {in_short(story, who + moment.text)}")
    if len(story.moments) > _MOMENTS_MAX:
        say(f"  ... and {len(story.moments) - _MOMENTS_MAX:,} more (--json has them all)")


def in_short(story: Story, text: str) -> str:
    """A text with the run's own scope left out of the paths in it."""
    return text.replace(f"{story.scope}/", "") if story.scope else text


def _doubts(story: Story, ledger_option: str) -> None:
    doubts = story.in_doubt
    if not doubts:
        return
    _title(
        "In doubt: sent, and nobody knows whether it was billed; it counts in full until resolved"
    )
    output.print_table(
        ("hold", right("amount"), "agent", "model", "reason"),
        [
            (call.id, dollars(call.sum.in_doubt_nanos), call.agent, call.model, call.reason)
            for call in doubts[:_DOUBTS_MAX]
        ],
    )
    if len(doubts) > _DOUBTS_MAX:
        say(f"... and {len(doubts) - _DOUBTS_MAX:,} more")
    say(f"resolve one:   earmark ledger resolve {doubts[0].id} --cost AMOUNT{ledger_option}")
    if len(doubts) > 1:
        say(
            f"or all:        earmark ledger resolve --all --scope {story.scope} --as-held{ledger_option}"
            "   (or --not-billed)"
        )
