"""A story as one JSON document; docs/cli.md says what its fields mean, and fields are only ever added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .output import instant, money

if TYPE_CHECKING:
    from orchestrator.story import CacheUse, Call, CapUse, Node, Share, Story, Sum, Tokens


def document_of(story: Story, ledger_option: str) -> dict[str, Any]:
    """Everything but the calls, which are many (``calls_of``)."""
    return {
        "source": "log" if story.is_log else "run",
        "run": story.run,
        "name": story.name,
        "scope": story.scope,
        "path": story.path,
        "ledger": story.ledger or None,
        "simulated": story.is_simulated,
        "outcome": story.outcome or None,
        "under_way": story.is_under_way,
        "started": instant(story.started),
        "ended": instant(story.ended),
        "seconds": round(story.seconds, 3),
        **_sum(story.sum),
        "notes": list(story.notes),
        "caps": [_cap(cap) for cap in story.caps],
        "by_agent": [_share(share, "agent") for share in story.by_agent],
        "by_model": [_share(share, "model") for share in story.by_model],
        "cache": _cache(story.cache),
        "spend": [
            {
                "seconds": point.seconds,
                "posted_nanos": point.posted_nanos,
                "held_nanos": point.held_nanos,
                "in_doubt_nanos": point.in_doubt_nanos,
            }
            for point in story.spend
        ],
        "moments": [
            {"kind": one.kind, "at": instant(one.at), "who": one.who, "text": one.text}
            for one in story.moments
        ],
        "in_doubt": [
            {
                "hold": call.id,
                "agent": call.agent,
                "model": call.model,
                "scope": call.scope,
                **money("amount", call.sum.in_doubt_nanos),
                "reason": call.reason,
                "resolve": f"earmark ledger resolve {call.id} --cost AMOUNT{ledger_option}",
            }
            for call in story.in_doubt
        ],
        "unpriced": [
            {
                "model": one.model,
                "calls": one.calls,
                **_tokens(one.tokens),
                "why": one.why,
            }
            for one in story.unpriced
        ],
        "tree": _node(story.tree),
    }


def calls_of(story: Story) -> Iterator[dict[str, Any]]:
    """Every call, in the order in which they began."""
    return (_call(call) for call in story.calls)


def _tokens(tokens: Tokens) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "cache_write_tokens": tokens.cache_write,
        "cache_read_tokens": tokens.cache_read,
        "output_tokens": tokens.output,
    }


def _sum(one: Sum) -> dict[str, Any]:
    return {
        "calls_count": one.calls,
        **money("posted", one.posted_nanos),
        **money("held", one.held_nanos),
        **money("in_doubt", one.in_doubt_nanos),
        "unpriced_calls": one.unpriced,
        **_tokens(one.tokens),
    }


def _share(share: Share, name: str) -> dict[str, Any]:
    return {name: share.key, **_sum(share.sum)}


def _cap(cap: CapUse) -> dict[str, Any]:
    return {
        "scope": cap.scope,
        "per": cap.per,
        "owner": cap.owner,
        "window": cap.window or None,
        **money("cap", cap.cap_nanos),
        **money("run", cap.run.counted_nanos),
        **money("others", cap.others_nanos),
    }


def _cache(cache: CacheUse) -> dict[str, Any]:
    return {
        "hit_rate": round(cache.hit_rate, 4),
        **money("saved", cache.saved_nanos),
        **money("surcharge", cache.surcharge_nanos),
        **money("net", cache.net_nanos),
        "estimate": cache.is_estimate,
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "scope": node.scope,
        "name": node.name,
        "kind": node.kind,
        "models": list(node.models),
        "outcome": node.outcome or None,
        "outcomes": dict(node.outcomes),
        "reason": node.reason,
        "begun": node.begun,
        "ended": node.ended,
        "items": node.items,
        **money("cap", node.cap_nanos),
        **_sum(node.sum),
        "seconds": round(node.seconds, 3),
        "tools": dict(node.tools),
        "units": [
            {
                "label": unit.label,
                "outcome": unit.outcome,
                "reason": unit.reason,
                **money("posted", unit.sum.posted_nanos),
                **money("in_doubt", unit.sum.in_doubt_nanos),
                "seconds": unit.seconds,
            }
            for unit in node.units
        ],
        "children": [_node(child) for child in node.children],
    }


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "state": call.state,
        "began": instant(call.began),
        "ended": instant(call.ended),
        "latency_ms": call.latency_ms or None,
        "scope": call.scope,
        "agent": call.agent,
        "parent": call.parent,
        "unit": call.unit,
        "model": call.model,
        **money("bound", call.bound_nanos),
        **money("posted", None if call.state == "not priced" else call.sum.posted_nanos),
        **money("held", call.sum.held_nanos),
        **money("in_doubt", call.sum.in_doubt_nanos),
        **_tokens(call.sum.tokens),
        "stop_reason": call.stop_reason or None,
        "status": call.status or None,
        "request_id": call.request_id or None,
        "reason": call.reason,
    }
