"""The page: a story filled into the template, everything from the run's data escaped, styles and script inlined."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from earmark.marks import mark_of, tone_of
from earmark.output import dollars
from earmark.report_text import cache_sentence, duration, in_short, money_of, outcome_text

from .drawing import (
    RECTANGLES_MAX,
    SPEND_HEIGHT,
    colours_of,
    lanes_of,
    spend_picture,
    time_ticks,
)

if TYPE_CHECKING:
    from orchestrator.story import Call, Node, Share, Story, Sum

HERE = Path(__file__).parent
CALLS_MAX = 400
UNITS_MAX = 200
MOMENTS_MAX = 300
CHILDREN_MAX = 100


def page_of(story: Story, ledger_option: str) -> str:
    """One HTML document that needs no network.

    Args:
        story: of a run or of a foreign log.
        ledger_option: `` --ledger FILE`` for the commands that it names, or empty.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        dollars=dollars,
        duration=duration,
        mark=mark_of,
        tone=tone_of,
        money=money_of,
        comma=lambda number: f"{number:,}",
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        story=story,
        ledger_option=ledger_option,
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        own_cap=next((cap for cap in story.caps if cap.scope == story.scope), None),
        cache=cache_sentence(story),
        colours=colours_of(story),
        lanes=lanes_of(story),
        is_dense=len(story.calls) > RECTANGLES_MAX,
        ticks=time_ticks(story.seconds),
        spend=spend_picture(story),
        spend_height=SPEND_HEIGHT,
        shares=[("agent", _rows(story.by_agent)), ("model", _rows(story.by_model))],
        token_rows=[
            _token_row("all", story.sum),
            *(_token_row(s.key, s.sum) for s in story.by_model),
        ],
        calls=_calls(story),
        moments=story.moments[:MOMENTS_MAX],
        has_who=any(moment.who for moment in story.moments[:MOMENTS_MAX]),
        short=lambda text: in_short(story, text),
        children=_children,
        unit_counts=_unit_counts,
        units=_units,
        outcome_text=outcome_text,
        percent=_percent,
        since=lambda call: _since(story, call),
    )


def _rows(shares: tuple[Share, ...]) -> list[dict[str, Any]]:
    whole = sum(share.sum.counted_nanos for share in shares)
    most = max((share.sum.counted_nanos for share in shares), default=0)
    return [
        {
            "key": share.key,
            "sum": share.sum,
            "share": _percent(share.sum.counted_nanos, whole),
            "width": _percent(share.sum.counted_nanos, most),
        }
        for share in shares
    ]


def _token_row(name: str, one: Sum) -> dict[str, Any]:
    tokens = one.tokens
    whole = tokens.prompt + tokens.output
    classes = (
        ("input", "input", tokens.input),
        ("write", "cache write", tokens.cache_write),
        ("read", "cache read", tokens.cache_read),
        ("output", "output", tokens.output),
    )
    return {
        "name": name,
        "whole": whole,
        "classes": [
            {"look": look, "name": said, "count": count, "width": _percent(count, whole)}
            for look, said, count in classes
        ],
    }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def _since(story: Story, call: Call) -> float | None:
    """Seconds from the beginning of the run to that of a call."""
    if story.started is None or call.began is None:
        return None
    return round((call.began - story.started).total_seconds(), 3)


def _calls(story: Story) -> list[Call]:
    """All calls, or the dearest where they are many; in order."""
    if len(story.calls) <= CALLS_MAX:
        return list(story.calls)
    dear = sorted(story.calls, key=lambda call: -call.sum.counted_nanos)[:CALLS_MAX]
    kept = {call.id for call in dear}
    return [call for call in story.calls if call.id in kept]


def _children(node: Node) -> list[Node]:
    """The children, or the dearest of many."""
    if len(node.children) <= CHILDREN_MAX:
        return list(node.children)
    dear = sorted(node.children, key=lambda one: -one.sum.counted_nanos)[:CHILDREN_MAX]
    kept = {id(one) for one in dear}
    return [one for one in node.children if id(one) in kept]


def _unit_counts(node: Node) -> str:
    counts = Counter(node.unit_outcomes)
    return ", ".join(f"{mark_of(word)} {count:,} {word}" for word, count in counts.most_common())


def _units(node: Node) -> list[Any]:
    """Units to show: those that failed first."""
    return sorted(node.units, key=lambda unit: unit.outcome == "ok")[:UNITS_MAX]
