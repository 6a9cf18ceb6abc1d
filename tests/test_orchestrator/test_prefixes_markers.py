"""Where markers go: pure functions over bodies, for any body."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.prices import default_book
from orchestrator.errors import ConfigError
from orchestrator.prefixes.plan import Plan, plan_of
from orchestrator.prefixes.sharing import (
    ALONE,
    Lead,
    Sharing,
    current_sharing,
    sharing,
    split_shared,
)
from orchestrator.wire.markers import (
    LOOK_BACK,
    MARKERS_MAX,
    has_markers,
    is_surely_shorter,
    marked,
    prefixes_of,
)

MODEL = "claude-sonnet-5-5"  # caches from 1,024 tokens on
LONG = "long words here " * 400  # 6,400 bytes, about 1,600 tokens
MARKER = {"type": "ephemeral"}
BOOK = default_book()


def body(**fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "Go"}],
        **fields,
    }


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def sent(request: dict[str, Any], plan: Plan | None) -> dict[str, Any]:
    """The request as it leaves."""
    return (
        request
        if plan is None
        else {**request, **marked(request, plan.marks.marked, plan.marks.ttl)}
    )


def markers(request: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Where markers are."""
    found = []
    for section in ("tools", "system"):
        blocks = request.get(section, [])
        found += [
            (section, 0, at)
            for at, one in enumerate(blocks)
            if not isinstance(one, str) and "cache_control" in one
        ]
    for number, message in enumerate(request["messages"]):
        if not isinstance(message["content"], str):
            found += [
                ("messages", number, at)
                for at, one in enumerate(message["content"])
                if "cache_control" in one
            ]
    return found


def plain(value: Any) -> Any:
    """The meaning of a request: no markers, text as blocks."""
    if isinstance(value, dict):
        bare = {name: plain(inner) for name, inner in value.items() if name != "cache_control"}
        for name in ("system", "content"):
            if isinstance(bare.get(name), str):
                bare[name] = [{"type": "text", "text": bare[name]}]
        return bare
    return [plain(inner) for inner in value] if isinstance(value, list) else value


TOOL = {"name": "look", "description": LONG, "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("request_body", "expected", "places"),
    [
        pytest.param(body(system=LONG), Sharing(uses=2), [("system", 0, 0)], id="a system prompt"),
        pytest.param(body(tools=[TOOL]), Sharing(uses=None), [("tools", 0, 0)], id="tools alone"),
        pytest.param(
            body(tools=[TOOL], system="Be brief"), Sharing(uses=2), [("system", 0, 0)], id="both"
        ),
        pytest.param(
            body(system=[{"type": "text", "text": LONG}, {"type": "text", "text": " "}]),
            Sharing(uses=2),
            [("system", 0, 0)],
            id="an empty block takes no marker",
        ),
        pytest.param(body(system=LONG), Sharing(uses=1), [], id="used once"),
        pytest.param(body(system=LONG), ALONE, [], id="nobody said anything"),
        pytest.param(body(system="Be brief"), Sharing(uses=50), [], id="P-04: below the minimum"),
        pytest.param(body(system=LONG, thread={"type": "create"}), Sharing(uses=2), [], id="a thread"),
        pytest.param(body(system=LONG, model="gpt-9"), Sharing(uses=2), [], id="an unknown model"),
        pytest.param(body(system=LONG), Sharing(uses=2, every_s=600), [], id="too far apart to pay"),
        pytest.param(
            body(messages=[{"role": "user", "content": [block(LONG), block("Q")]}]),
            Sharing(uses=2, leads=(Lead(blocks=(block(LONG),), uses=2),)),
            [("messages", 0, 0)],
            id="a shared beginning of the prompt",
        ),
        pytest.param(
            body(messages=[{"role": "user", "content": "Q"}]),
            Sharing(uses=2, leads=(Lead(blocks=(block(LONG),), uses=2),)),
            [],
            id="a prompt that begins otherwise",
        ),
        pytest.param(
            body(messages=[{"role": "user", "content": LONG}]),
            Sharing(uses=5, leads=(Lead(blocks=(block(LONG),), uses=5),)),
            [("messages", 0, 0)],
            id="the whole prompt, asked again and again",
        ),
        pytest.param(
            body(system=LONG, tools=[TOOL]),
            Sharing(turns=3),
            [("system", 0, 0), ("messages", 0, 0)],
            id="a conversation that may go on",
        ),
        pytest.param(body(system=LONG, tools=[TOOL]), Sharing(turns=0), [], id="one that can't"),
    ],
)  # fmt: skip
def test_a_marker_stands_at_the_end_of_what_is_shared(
    request_body: dict[str, Any], expected: Sharing, places: list[tuple[str, int, int]]
) -> None:
    """The longest prefix that is used again and long enough is marked, and nothing else (P-04, P-05)."""
    plan = plan_of(request_body, expected, BOOK)

    assert markers(sent(request_body, plan)) == places


@pytest.mark.parametrize(
    "own",
    [
        {"cache_control": MARKER},
        {"system": [{"type": "text", "text": LONG, "cache_control": MARKER}]},
        {"tools": [{**TOOL, "cache_control": MARKER}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Go", "cache_control": MARKER}]}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t",
                            "content": [{"type": "text", "text": "x", "cache_control": MARKER}],
                        }
                    ],
                }
            ]
        },
    ],
    ids=["top level", "system", "tools", "a message", "inside a tool result"],
)  # fmt: skip
def test_markers_of_the_caller_are_left_alone(own: dict[str, Any]) -> None:
    """A request with any marker of the caller's own is not touched."""
    request = {**body(system=LONG), **own}

    assert has_markers(request)
    assert plan_of(request, Sharing(uses=50, turns=5), BOOK) is None


def test_words_about_markers_are_no_markers() -> None:
    """A schema or an input that names cache_control says nothing about caching."""
    tool = {**TOOL, "input_schema": {"type": "object", "properties": {"cache_control": {}}}}

    assert not has_markers(body(tools=[tool]))


def test_an_hour_is_asked_for_where_it_pays() -> None:
    """Uses ten minutes apart are marked for an hour, uses at once for five minutes."""
    request = body(system=LONG)
    slow, quick = (plan_of(request, Sharing(uses=9, every_s=s), BOOK) for s in (600, 0))

    assert sent(request, slow)["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert sent(request, quick)["system"][0]["cache_control"] == MARKER


def test_the_end_of_the_last_turn_is_marked_again() -> None:
    """However many blocks a turn adds, the next turn has a marker where the last one ended."""
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "x"} for n in range(70)]
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "look", "input": {}} for n in range(70)]
    first = body(system=LONG, tools=[TOOL])
    second = body(
        system=LONG,
        tools=[TOOL],
        messages=[
            *first["messages"],
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, *uses]},
            {"role": "user", "content": results},
        ],
    )
    one, two = (plan_of(request, Sharing(turns=3), BOOK) for request in (first, second))
    assert one is not None
    assert two is not None

    assert one.marks.marked[-1].key in {prefix.key for prefix in two.marks.marked}
    assert ("messages", 2, 69) in markers(sent(second, two))
    assert ("messages", 0, 0) in markers(sent(second, two))
    last = plan_of(second, Sharing(turns=0), BOOK)
    assert ("messages", 2, 69) not in markers(sent(second, last))
    assert ("messages", 0, 0) in markers(sent(second, last))


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"max_tokens": 99}, True),
        ({"system": [{"type": "text", "text": LONG}]}, True),
        ({"model": "claude-opus-5-5"}, False),
        ({"speed": "fast"}, False),
        ({"tools": [TOOL]}, False),
        ({"system": LONG + "."}, False),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, False),
    ],
)
def test_a_key_names_what_can_be_read_by_each_other(change: dict[str, Any], is_same: bool) -> None:
    """Requests have the same key where one reads what the other wrote, a string being a block of text."""
    one, other = (
        prefixes_of(request, messages=0)[-1].key
        for request in (body(system=LONG), body(**{"system": LONG, **change}))
    )

    assert (one == other) is is_same


# ---- any request ---------------------------------------------------------------------------------

texts = st.sampled_from(["", " ", "short", LONG])
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, texts)
other_blocks = st.sampled_from(
    [
        {"type": "thinking", "thinking": LONG, "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9_000},
        },
        {"type": "tool_use", "id": "t", "name": "look", "input": {"q": LONG}},
        {"type": "tool_result", "tool_use_id": "t", "content": LONG},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    ]
)
contents = texts | st.lists(text_blocks | other_blocks, max_size=40)
requests = st.fixed_dictionaries(
    {
        "model": st.sampled_from([MODEL, "claude-haiku-4-5", "claude-fable-5-2"]),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant"]), "content": contents}
            ),
            min_size=1,
            max_size=6,
        ),
    },
    optional={
        "system": texts | st.lists(text_blocks, max_size=3),
        "tools": st.lists(st.sampled_from([TOOL, {**TOOL, "defer_loading": True}]), max_size=3),
    },
)
sharings = st.builds(
    Sharing,
    uses=st.sampled_from([1, 2, 50, None]),
    turns=st.sampled_from([None, 0, 1, 9]),
    every_s=st.sampled_from([0, 600, 9_999]),
    leads=st.sampled_from([(), (Lead(blocks=(block(LONG),), uses=3),)]),
)


@given(request=requests, expected=sharings)
def test_markers_are_few_lawful_and_without_meaning(
    request: dict[str, Any], expected: Sharing
) -> None:
    """At most four, only at blocks that take one, never below the minimum, and all else as it was."""
    before = copy.deepcopy(request)
    plan = plan_of(request, expected, BOOK)
    after = sent(request, plan)

    assert request == before
    assert plain(after) == plain(before)
    places = markers(after)
    assert len(places) <= MARKERS_MAX
    assert (len(places) > 0) is (plan is not None)
    for section, number, at in places:
        block = (
            after["messages"][number]["content"][at]
            if section == "messages"
            else after[section][at]
        )
        assert not block.get("defer_loading")
        assert block.get("type") not in {"thinking", "redacted_thinking"}
        assert block.get("type") != "text" or block["text"].strip()
    if plan is not None:
        minimum = BOOK.cache_minimum(request["model"])
        assert all(prefix.tokens >= minimum for prefix in plan.marks.marked)
        assert {one.key for one in plan.marks.marked} <= {one.key for one in plan.marks.prefixes}
        assert set(plan.shared) <= {one.key for one in plan.marks.marked}


@given(request=requests, minimum=st.sampled_from([512, 1_024, 4_096]))
def test_the_quick_look_never_misses_a_prefix(request: dict[str, Any], minimum: int) -> None:
    """What it calls too short has no prefix that reaches the minimum."""
    longest = max((one.tokens for one in prefixes_of(request, messages=99)), default=0)

    assert longest < minimum or not is_surely_shorter(request, minimum)


# ---- what is said --------------------------------------------------------------------------------


def test_nested_words_multiply() -> None:
    """Five voters on each of 50 items use tools and system 250 times, each prompt five times."""
    with (
        sharing(uses=50, shared="doc", every_s=9.6),
        sharing(uses=5, shared="doc\nq"),
        sharing(turns=3),
    ):
        said = current_sharing()

    assert (said.uses, said.turns, said.every_s) == (250, 3, 9)
    assert [(lead.blocks[0]["text"], lead.uses) for lead in said.leads] == [
        ("doc", 250),
        ("doc\nq", 5),
    ]
    assert current_sharing() is ALONE
    with sharing(uses=None), sharing(uses=5):
        assert current_sharing().uses is None


@pytest.mark.parametrize("wrong", [{"uses": 0}, {"turns": -1}, {"every_s": -1}])
def test_words_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Less than one use, or a negative number, is said to be a mistake."""
    with pytest.raises(ConfigError, match="sharing"), sharing(**wrong):
        pass


DOCUMENT = "A first paragraph.\n\n" + "word by word it goes on, " * 200


@pytest.mark.parametrize(
    ("items", "shared"),
    [
        (["a", "b"], ""),
        ([DOCUMENT + "\n\nOne?"], ""),
        (["short, one", "short, two"], ""),
        ([DOCUMENT + "\n\nOne?", DOCUMENT + "\n\nTwo?"], DOCUMENT + "\n\n"),
        ([DOCUMENT + "\nWhat?", DOCUMENT + "\nWho?"], DOCUMENT + "\n"),
        ([DOCUMENT + "half", DOCUMENT + "hall"], DOCUMENT),
        ([DOCUMENT, DOCUMENT + "more"], DOCUMENT.rpartition("on,")[0]),
    ],
    ids=["nothing", "one item", "too short", "paragraph", "line", "word", "one is the beginning of the other"],
)  # fmt: skip
def test_a_common_beginning_is_cut_at_a_border(items: list[str], shared: str) -> None:
    """Items that begin alike are cut at the end of a paragraph, a line or a word; each keeps something."""
    length = split_shared(items)

    assert items[0][:length] == shared
    assert all(item[length:].strip() for item in items)


@given(st.lists(st.text(alphabet="ab \n", max_size=30), min_size=2, max_size=5), st.booleans())
def test_the_cut_never_loses_anything(tails: list[str], is_long: bool) -> None:
    """Whatever the items are, the shared part is a beginning of each, and no rest is empty."""
    head = "x y " * 800 if is_long else "x"
    items = [head + tail for tail in tails]
    length = split_shared(items)

    assert len({item[:length] for item in items}) == 1
    assert length == 0 or all(item[length:].strip() for item in items)


def test_the_look_back_is_the_one_of_the_documentation() -> None:
    """Twenty blocks, four markers: what the placement relies on."""
    assert (LOOK_BACK, MARKERS_MAX) == (20, 4)
