"""The story of a run: structure from its journal, money from its ledger, and a word wherever the two differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import parse_usd
from budgets.prices import default_book
from budgets.pricing import cost
from budgets.usage import Usage
from orchestrator.agent import Agent
from orchestrator.run_folder import is_under_way
from orchestrator.simulator import Faults
from orchestrator.story import Node, Story, tell_run
from orchestrator.story.chronicle import MOMENTS, Chronicle
from orchestrator.story.reconciling import thin_out
from patterns import fan_out

from .running import MODEL, helper, say, stage

SCOPE = "app/run-1"
AT = datetime(2026, 11, 29, 10, tzinfo=UTC)


def written(folder: Path, events: Sequence[dict[str, Any]]) -> Path:
    """A journal of these events, one second apart."""
    path = folder / "journal.jsonl"
    lines = [
        json.dumps({"at": (AT + timedelta(seconds=n)).isoformat(), "run": "run-1", **event})
        for n, event in enumerate(events)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def begun() -> dict[str, Any]:
    return {"event": "run", "name": "work", "scope": SCOPE}


def held(
    hold: str, agent: str, nanos: int = 500, *, below: str = "", **more: Any
) -> dict[str, Any]:
    scope = f"{SCOPE}/{below or agent}"
    return {
        "event": "hold",
        "hold": hold,
        "agent": agent,
        "model": MODEL,
        "nanos": nanos,
        "scope": scope,
        **more,
    }


def ended(hold: str, kind: str = "settle", nanos: int = 200, **more: Any) -> dict[str, Any]:
    return {"event": kind, "hold": hold, "nanos": nanos, "model": MODEL, **more}


def nodes(story: Story) -> dict[str, Node]:
    return {node.name: node for _, node in story.tree.walk()}


def proven(story: Story, ledger: Ledger) -> None:
    """All figures of the story are those of the ledger, however they are added up."""
    balance = ledger.balance(story.scope)
    sums = (story.sum.posted_nanos, story.sum.held_nanos, story.sum.in_doubt_nanos)
    assert sums == (balance.posted_nanos, balance.held_nanos, balance.in_doubt_nanos)
    for parts in (story.by_agent, story.by_model, story.calls):
        assert sum(part.sum.posted_nanos for part in parts) == balance.posted_nanos
        assert sum(part.sum.in_doubt_nanos for part in parts) == balance.in_doubt_nanos
    assert story.tree.sum == story.sum
    assert sum((node.own.posted_nanos for _, node in story.tree.walk())) == balance.posted_nanos
    last = story.spend[-1]
    assert (last.posted_nanos, last.in_doubt_nanos) == sums[::2]


# ---- real runs ----------------------------------------------------------------------------------------


async def test_the_story_of_a_real_run_is_its_ledger_to_the_nano_dollar(tmp_path: Path) -> None:
    """With nested agents, retries, calls in doubt and units that fail, however the sums are taken."""
    faults = Faults(["overloaded", None, "reset"])
    async with stage(sim={"faults": faults}, folder=tmp_path, cap="1") as st_:
        inner = helper(name="inner")

        async def ask(topic: str) -> str:
            """Ask the other agent."""
            return (await inner.run(st_.run, f"About {topic}")).text or "nothing"

        outer = helper(name="outer", tools=[ask])

        async def one(item: int) -> Any:
            if item == 2:
                raise ValueError("no such item")
            prompt = f'Item {item} [[sim:tool=ask {{"topic":"t{item}"}}]]'
            return await outer.run(st_.run, prompt, unit=f"item {item}")

        await fan_out(st_.run, one, range(4), width=1)
        await say(st_.run)
        await st_.run.drain()
        assert st_.run.folder.journal is not None
        story = tell_run(
            st_.run.folder.journal, ledger=st_.run.ledger, book=default_book(), is_under_way=True
        )
        proven(story, st_.run.ledger)
        found = nodes(story)
        assert found["inner"].scope.endswith("outer/inner")
        assert found["outer"].tools == {"ask": 3}
        assert story.in_doubt
        assert story.moments_of("retry")
        assert story.caps[0].cap_nanos == parse_usd("1")
        assert story.caps[0].run.counted_nanos == story.sum.counted_nanos
        failed = [unit for _, node in story.tree.walk() for unit in node.units if unit.reason]
        assert any("no such item" in unit.reason for unit in failed)
        assert max(point.counted_nanos for point in story.spend) <= parse_usd("1")
        assert is_under_way(st_.run.folder.journal.parent)
    assert not is_under_way(tmp_path / "runs" / st_.run.id)


async def test_prompts_answers_and_keys_are_in_no_story(tmp_path: Path) -> None:
    """Whatever is shown of a run can be shown to anyone who may know what it cost."""
    async with stage(folder=tmp_path) as st_:
        await Agent(name="a", model=MODEL, system="SECRET-SYSTEM").run(
            st_.run, "SECRET-PROMPT [[sim:text=SECRET-ANSWER]]"
        )
        await st_.run.drain()
        assert st_.run.folder.journal is not None
        story = tell_run(st_.run.folder.journal, ledger=st_.run.ledger)
    assert story.sum.calls == 1
    assert "SECRET" not in repr(story)
    assert "sk-ant" not in repr(story)


# ---- structure ----------------------------------------------------------------------------------------


def test_an_end_is_joined_to_its_hold(tmp_path: Path) -> None:
    """Scope, agent and beginning come from the hold; amount, tokens and stop reason from its end."""
    story = tell_run(
        written(
            tmp_path,
            [
                begun(),
                held("h1", "reader", unit="u"),
                ended(
                    "h1",
                    input_tokens=7,
                    cache_read_tokens=90,
                    output_tokens=3,
                    stop_reason="end_turn",
                ),
            ],
        )
    )
    (call,) = story.calls
    assert (call.scope, call.agent, call.unit) == (f"{SCOPE}/reader", "reader", "u")
    assert (call.state, call.sum.posted_nanos, call.seconds) == ("settled", 200, 1.0)
    assert (call.sum.tokens.cache_read, call.sum.tokens.output) == (90, 3)
    assert story.cache.hit_rate == 90 / 97


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ([{"event": "outcome", "outcome": "ok"}], "ok"),
        ([{"event": "outcome", "outcome": "budget", "reason": "why"}], "budget"),
        (
            [{"event": "outcome", "outcome": "ok"}, {"event": "outcome", "outcome": "infra"}],
            "mixed",
        ),
        ([{"event": "begin"}], "not ended"),
        (
            [{"event": "begin"}, {"event": "begin"}, {"event": "outcome", "outcome": "ok"}],
            "not ended",
        ),
    ],
)
def test_a_node_has_the_word_that_fits_all_who_worked_there(
    tmp_path: Path, events: list[dict[str, Any]], word: str
) -> None:
    """One outcome if all ended alike, ``mixed`` with counts if not, and never ``ok`` for what has no end."""
    place = {"agent": "worker", "scope": f"{SCOPE}/worker"}
    story = tell_run(written(tmp_path, [begun(), *({**place, **event} for event in events)]))
    assert nodes(story)["worker"].outcome == word


def test_patterns_agents_and_units_find_their_places(tmp_path: Path) -> None:
    """A pattern's node has its cap, its items and its parts; its agents hang below."""
    at = f"{SCOPE}/review"
    story = tell_run(
        written(
            tmp_path,
            [
                begun(),
                {
                    "event": "node",
                    "pattern": "fan_out",
                    "scope": at,
                    "cap_usd": "$0.50",
                    "items": 2,
                },
                {"event": "begin", "agent": "reader", "scope": f"{at}/reader", "model": MODEL},
                held("h1", "reader", below="review/reader"),
                ended("h1"),
                {"event": "outcome", "agent": "reader", "scope": f"{at}/reader", "outcome": "ok"},
                {
                    "event": "part",
                    "scope": at,
                    "index": 0,
                    "agent": "reader",
                    "outcome": "ok",
                    "posted_nanos": 200,
                },
                {"event": "part", "scope": at, "index": 1, "outcome": "infra", "reason": "no"},
                {"event": "node_end", "scope": at, "outcome": "infra", "reason": "1 of 2 failed"},
                {"event": "control", "from": "a", "to": "b"},
                {"event": "end", "outcome": "ok"},
            ],
        )
    )
    node = nodes(story)["review"]
    assert (node.kind, node.cap_nanos, node.items, node.outcome) == (
        *("fan_out", parse_usd("0.50"), 2, "infra"),
    )
    assert [(unit.label, unit.outcome) for unit in node.units] == [
        ("0 reader", "ok"),
        ("1", "infra"),
    ]
    assert node.children[0].name == "reader"
    assert node.sum.posted_nanos == 200
    assert story.moments_of("control")[0].text == "from a, to b"
    assert story.outcome == "ok"


def test_a_batch_is_told_as_one_call(tmp_path: Path, ledger: Ledger) -> None:
    """It has one hold, whose model and tokens the ledger knows; it is not taken for a call that was torn off."""
    hold = spent(ledger, scope=SCOPE)
    facts = {"batch": 1, "id": "msgbatch_1", "items": 38, "hold": hold}
    journal = written(
        tmp_path,
        [begun(), {"event": "batch", "nanos": 500, **facts}, {"event": "batch_settled", **facts}],
    )
    (call,) = (story := tell_run(journal, ledger=ledger)).calls
    proven(story, ledger)
    assert (call.agent, call.unit, call.model) == ("batch", "batch 1, 38 items", MODEL)
    assert call.seconds == 1.0
    assert not any("not in the journal" in note for note in story.notes)


def test_a_run_that_was_gone_on_with_ends_as_its_last_session(tmp_path: Path) -> None:
    """An earlier end is no end; a note says how often it was begun."""
    story = tell_run(
        written(
            tmp_path,
            [
                begun(),
                {"event": "end", "outcome": "cancelled"},
                begun(),
                {"event": "end", "outcome": "ok"},
            ],
        )
    )
    assert (story.outcome, story.tree.outcome) == ("ok", "ok")
    assert any("2 times" in note for note in story.notes)


_FIELDS = st.dictionaries(
    st.sampled_from(
        [
            *(
                "at",
                "hold",
                "agent",
                "scope",
                "unit",
                "model",
                "nanos",
                "outcome",
                "items",
                "cap_usd",
            ),
            *(
                "index",
                "seconds",
                "posted_nanos",
                "input_tokens",
                "tool",
                "pattern",
                "cap",
                "reason",
            ),
        ]
    ),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-10, 10**20),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["a/b", "2026-11-29T10:00:00Z", "0001-01-01T00:00:00Z", "$1", "-1"]),
        st.lists(st.integers(), max_size=2),
    ),
)
_KINDS = [*Chronicle()._hearers, "batch", "batch_settled", *MOMENTS, "news of tomorrow", ""]


@settings(max_examples=60, deadline=None)
@given(events=st.lists(st.tuples(st.sampled_from(_KINDS), _FIELDS), max_size=25))
@pytest.mark.parametrize("keeps_calls", [True, False])
def test_whatever_a_journal_holds_makes_a_tree(
    keeps_calls: bool, events: list[tuple[str, dict[str, Any]]]
) -> None:
    """Unknown events, missing fields and fields of another kind are no reason to fail."""
    chronicle = Chronicle(run="r", scope="s", keeps_calls=keeps_calls)
    for kind, fields in events:
        chronicle.hear({"event": kind, **fields})
    tree = chronicle.root.freeze(is_over=True)
    assert sum(chronicle.kinds.values()) == len(events)
    assert tree.open_calls == sum(call.state == "under way" for call in chronicle.calls.values())


# ---- the ledger decides -------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger in memory with one cap above the run and one on it."""
    caps = [Cap("3", scope=SCOPE, owner="the run"), Cap("10", per="day", scope="app")]
    with Ledger(None, caps=caps) as opened:
        yield opened


def spent(ledger: Ledger, amount: str = "0.20", scope: str = f"{SCOPE}/reader") -> str:
    hold = ledger.hold(
        ledger.request(parse_usd("0.50"), scope=scope, model=MODEL, note={"agent": "reader"})
    )
    ledger.settle(hold, parse_usd(amount), usage={"input_tokens": 5, "output_tokens": 2})
    return hold.id


def test_a_call_that_only_the_ledger_knows_is_told_and_counted(
    tmp_path: Path, ledger: Ledger
) -> None:
    """A journal that was cut hides no money: the call is in the sums and at its agent, and a note says why."""
    hold = spent(ledger)
    path = written(tmp_path, [begun()])
    with path.open("a") as file:
        file.write('{"at":"2026-11-29T10:00:01Z","event":"ho')
    story = tell_run(path, ledger=ledger)
    proven(story, ledger)
    assert [(call.id, call.agent) for call in story.calls] == [(hold, "reader")]
    assert story.calls[0].sum.tokens.output == 2
    assert any("in the ledger but not in the journal, $0.20 posted" in note for note in story.notes)
    assert any("can't be read (line 2)" in note for note in story.notes)


def test_where_amounts_differ_the_ledgers_is_used_and_said(tmp_path: Path, ledger: Ledger) -> None:
    """The journal has never the last word about money."""
    hold = spent(ledger)
    journal = written(tmp_path, [begun(), held(hold, "reader"), ended(hold, nanos=1)])
    story = tell_run(journal, ledger=ledger)
    proven(story, ledger)
    assert any("settled at another amount" in note and hold in note for note in story.notes)


def test_a_journal_beside_the_wrong_ledger_keeps_its_own_figures(
    tmp_path: Path, ledger: Ledger
) -> None:
    """And says that the ledger does not know these calls."""
    story = tell_run(written(tmp_path, [begun(), held("h", "a"), ended("h")]), ledger=ledger)
    assert story.sum.posted_nanos == 200
    assert any("not in this ledger" in note for note in story.notes)


def test_a_call_of_a_killed_process_is_in_doubt_until_somebody_resolves_it(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Later words in the ledger count, though the journal can't have them."""
    hold = ledger.hold(ledger.request(parse_usd("0.50"), scope=f"{SCOPE}/reader", model=MODEL))
    journal = written(tmp_path, [begun(), held(hold.id, "reader", parse_usd("0.50"))])
    ledger.doubt(hold, reason="owner died")
    story = tell_run(journal, ledger=ledger)
    proven(story, ledger)
    assert [(call.state, call.reason) for call in story.calls] == [("in doubt", "owner died")]
    ledger.resolve(hold, parse_usd("0.30"))
    story = tell_run(journal, ledger=ledger)
    proven(story, ledger)
    assert [(call.state, call.sum.posted_nanos) for call in story.calls] == [
        ("resolved", parse_usd("0.30"))
    ]
    assert story.outcome == "not ended"


def test_a_reserve_is_held_money_but_no_call(tmp_path: Path, ledger: Ledger) -> None:
    """Nothing is sent on it, so it stands in no list of calls; it still counts against the cap."""
    ledger.reserve(parse_usd("0.40"), scope=SCOPE)
    story = tell_run(written(tmp_path, [begun()]), ledger=ledger)
    assert story.calls == ()
    assert story.sum.held_nanos == parse_usd("0.40")
    assert story.notes == ()


def test_caps_say_what_is_this_runs_and_what_is_others(tmp_path: Path, ledger: Ledger) -> None:
    """The run's own first; a calendar cap is counted in the window in which the run began."""
    spent(ledger)
    spent(ledger, "0.10", "app/run-2")
    journal = tmp_path / "journal.jsonl"
    now = datetime.now(UTC).isoformat()
    journal.write_text(json.dumps({"at": now, "run": "run-1", **begun()}) + "\n")
    own, day = tell_run(journal, ledger=ledger).caps
    assert (own.cap_nanos, own.run.posted_nanos, own.others_nanos) == (
        *(parse_usd("3"), parse_usd("0.20"), 0),
    )
    assert (day.per, day.scope, day.run.posted_nanos, day.others_nanos) == (
        *("day", "app", parse_usd("0.20"), parse_usd("0.10")),
    )


# ---- over time ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(
        st.tuples(*[st.integers(0, 10**6) for _ in range(4)]), min_size=1, max_size=300
    ).map(sorted),
    most=st.integers(2, 50),
)
def test_thinning_out_keeps_the_peak_and_the_end(
    points: list[tuple[int, int, int, int]], most: int
) -> None:
    """However many lines a run has, what came nearest to the cap stays in the picture."""
    thin = thin_out(points, 0, 10**6, most)
    assert len(thin) <= most + 3
    assert max(p.counted_nanos for p in thin) == max(sum(p[1:]) for p in points)
    assert tuple(thin[-1])[1:] == points[-1][1:]
    assert [p.seconds for p in thin] == sorted(p.seconds for p in thin)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(model=MODEL, input_tokens=100, cache_read=50_000, output_tokens=10, geo="global"),
        Usage(model=MODEL, input_tokens=100, cache_write_1h=50_000, output_tokens=10, geo="us"),
        Usage(
            model="claude-opus-5-5", cache_write_5m=7_777, cache_read=30_001, tier="batch", geo="us"
        ),
    ],
)
def test_what_caching_saved_is_the_price_without_it_less_the_price(
    tmp_path: Path, ledger: Ledger, usage: Usage
) -> None:
    """By the same book and formula that the bill is made with, to the nano-dollar of rounding."""
    from orchestrator.attempt import usage_record

    book = default_book()
    plain = Usage(
        model=usage.model,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        tier=usage.tier,
        geo=usage.geo,
    )
    now = datetime.now(UTC)
    hold = ledger.hold(ledger.request(parse_usd("1"), scope=SCOPE, model=usage.model))
    ledger.settle(hold, cost(usage, book, now), usage=usage_record(usage))
    story = tell_run(written(tmp_path, [begun()]), ledger=ledger, book=book)
    net = story.cache.net_nanos
    assert net is not None
    assert abs(net - (cost(plain, book, now) - cost(usage, book, now))) <= 2
    assert not story.cache.is_estimate
