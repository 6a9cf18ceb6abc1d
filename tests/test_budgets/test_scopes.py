"""Scopes: paths, who lies within whom, and the context that calls are made in."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.caps import Cap
from budgets.errors import InvalidAmount, InvalidCap, InvalidScope
from budgets.scopes import (
    Place,
    ancestors,
    current_path,
    is_within,
    join_scope,
    normal_scope,
    place_of_call,
    scope,
)

segments = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cc", "Cs", "Z"]), min_size=1
)
paths = st.lists(segments.filter(lambda s: s not in {".", ".."}), max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("app/run-1", "app/run-1"),
        ("/app/", "app"),
        (" app ", "app"),
        ("", ""),
        ("/", ""),
        ("ä/日本", "ä/日本"),
    ],
)
def test_slashes_at_the_ends_do_not_matter(written: str, path: str) -> None:
    """A path is taken with or without slashes and blanks around it."""
    assert normal_scope(written) == path


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("a//b", "unusable segment ''"),
        ("a/./b", "unusable segment '.'"),
        ("a/../b", "unusable segment '..'"),
        ("a\nb", "unusable segment"),
        ("a\x00b", "unusable segment"),
        ("\ud800", "unusable segment"),
        ("x" * 201, "1 to 200"),
        ("/".join("x" * 33), "33 segments; 32 is the most"),
        (None, "write it as a string"),
        (["a"], "write it as a string"),
        (7, "write it as a string"),
    ],
)
def test_what_is_not_a_path_is_refused_by_name(wrong: object, told: str) -> None:
    """A path that can't be stored or told apart is refused, and the message says which part of it."""
    with pytest.raises(InvalidScope, match=r"^scope: ") as caught:
        normal_scope(wrong)  # type: ignore[arg-type]
    assert told in str(caught.value)


def test_ancestors_are_all_that_is_around() -> None:
    """A path lies in each of its prefixes and in everything; play money does not."""
    assert ancestors("app/a/b") == ("", "app", "app/a", "app/a/b")
    assert ancestors("") == ("",)
    assert ancestors("simulated/a") == ("simulated", "simulated/a")
    assert ancestors("simulated2") == ("", "simulated2")


@given(paths, paths)
def test_within_and_ancestors_say_the_same(path: str, around: str) -> None:
    """``is_within`` and ``ancestors`` are two views of one relation."""
    assert is_within(path, around) == (around in ancestors(path))


@given(paths, paths)
def test_a_joined_path_lies_within_its_parent(parent: str, child: str) -> None:
    """Whatever is entered inside a scope draws on it (play money's root excepted)."""
    joined = join_scope(parent, child)
    assert parent in ancestors(joined) or not parent


def test_a_call_outside_of_any_block_is_made_at_the_meters_base() -> None:
    """Without a block the meter's own scope is the place, and it counts as a run."""
    assert place_of_call("app", 1) == Place(scopes=("app",), kinds=(("app", "run"),))
    assert place_of_call("", 1) == Place(scopes=("",))


def test_blocks_nest_and_end() -> None:
    """Inside a block calls are made below it, and afterwards as before, also when it ends by an exception."""
    with scope("researcher", cap="0.60"):
        with scope("step", kind="part"):
            place = place_of_call("app", 1)
            assert place.scopes == ("app/researcher/step",)
            assert place.kinds == (
                ("app", "run"),
                ("app/researcher", "agent"),
                ("app/researcher/step", "part"),
            )
            assert [(c.scope, c.nanos) for c in place.caps] == [("app/researcher", 600_000_000)]
        assert current_path() == "researcher"
        with pytest.raises(RuntimeError), scope("broken"):
            raise RuntimeError
        assert current_path() == "researcher"
    assert current_path() == ""
    assert place_of_call("app", 1).scopes == ("app",)


def test_one_block_may_be_entered_again_inside_itself() -> None:
    """The same object used twice nests its name twice, and leaves in order."""
    again = scope("again")
    with again:
        with again:
            assert current_path() == "again/again"
        assert current_path() == "again"
    assert current_path() == ""


def test_a_second_base_inside_a_block_draws_on_both() -> None:
    """The first meter fixes where a block hangs; a meter with another base can't escape it."""
    with scope("worker"):
        assert place_of_call("app", 1).scopes == ("app/worker",)
        second = place_of_call("tools", 1)
        assert second.scopes == ("app/worker", "tools")
        assert set(second.kinds) == {("tools", "run"), ("app", "run"), ("app/worker", "agent")}
        assert place_of_call("app/worker", 1).scopes == ("app/worker",)
        assert place_of_call("tools", 2).scopes == ("tools/worker",), (
            "another ledger has its own anchor"
        )
    with scope("worker"):
        assert place_of_call("tools", 1).scopes == ("tools/worker",), "a new block is anchored anew"


def test_a_base_below_the_block_counts_in_both_once() -> None:
    """A base inside of the block's own path adds its caps; what is around both is not named twice."""
    with scope("a"):
        place_of_call("app", 1)
        assert place_of_call("app/a/b", 1).scopes == ("app/a", "app/a/b")


def test_play_money_inside_a_real_block_counts_in_the_real_one() -> None:
    """A simulated meter can't be used to hide from a real block, nor the other way round."""
    with scope("w"):
        place_of_call("app", 1)
        assert place_of_call("simulated/app", 1).scopes == ("app/w", "simulated/app")
    with scope("w"):
        place_of_call("simulated/app", 1)
        assert place_of_call("", 1).scopes == ("simulated/app/w", "")


async def test_tasks_inherit_and_do_not_leak() -> None:
    """A task started in a block is made inside it, for as long as it runs; siblings don't see each other."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def child(name: str) -> tuple[str, str]:
        before = current_path()
        async with scope(name):
            started.set()
            await go_on.wait()
            return before, current_path()

    with scope("parent"):
        tasks = [asyncio.create_task(child(name)) for name in ("a", "b")]
        await started.wait()
    assert current_path() == ""
    go_on.set()
    assert await asyncio.gather(*tasks) == [("parent", "parent/a"), ("parent", "parent/b")]
    assert await asyncio.to_thread(current_path) == ""
    with scope("parent"):
        assert await asyncio.to_thread(current_path) == "parent"


def test_a_bare_thread_has_no_context_and_a_copied_one_has() -> None:
    """A thread started elsewhere is outside of the block, unless it is given the context."""
    seen: list[str] = []
    with scope("parent"):
        context = contextvars.copy_context()
        for target in (
            lambda: seen.append(current_path()),
            lambda: context.run(lambda: seen.append(current_path())),
        ):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == ["", "parent"]


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"name": ""}, InvalidScope, "the name is empty"),
        ({"name": "a", "cap": 0.5}, InvalidAmount, "'0.5'"),
        ({"name": "a", "cap": "-1"}, InvalidAmount, "cap of 'a'"),
        ({"name": "a", "cap": "1", "per": "hour"}, InvalidCap, "day, week, month, year"),
        ({"name": "a", "cap": "1", "per": "day", "tz": "Berlin"}, InvalidCap, "Europe/Berlin"),
    ],
)
def test_a_wrong_block_is_refused_before_it_is_entered(
    arguments: dict[str, object], error: type[Exception], told: str
) -> None:
    """A mistake in a block's arguments is named when it is written, not when it is first used."""
    with pytest.raises(error, match=told):
        scope(**arguments)  # type: ignore[arg-type]
    assert current_path() == ""


def test_caps_of_a_block_hang_where_the_block_hangs() -> None:
    """A cap given to a block keeps its amount, period and zone at its full path."""
    with scope("a/b", cap="1", per="day", tz="Europe/Berlin"):
        (cap,) = place_of_call("app", 1).caps
    assert cap == Cap("1", per="day", scope="app/a/b", tz="Europe/Berlin")
