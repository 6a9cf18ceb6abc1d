"""Tools: a schema from a signature, arguments checked, results as text."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError
from orchestrator.tools import Tool, tool


def weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "days": days, "unit": unit}


async def slow(city: str) -> str:
    """The same, slowly."""
    return f"{city}: rain"


def awkward(copy: str, schema: int, json: bool, _hidden: str = "x", class_: str = "y") -> str:
    """Names that a model of pydantic has taken."""
    return f"{copy} {schema} {json} {_hidden} {class_}"


def test_a_function_describes_itself() -> None:
    """Name, docstring and annotations are all that Claude sees."""
    made = tool(weather)
    assert made.definition["name"] == "weather"
    assert made.definition["description"] == "The weather of a city."
    schema = made.definition["input_schema"]
    assert schema["required"] == ["city"]
    assert schema["properties"]["city"] == {"type": "string"}
    assert schema["properties"]["days"] == {"type": "integer", "default": 3}
    assert schema["properties"]["unit"]["enum"] == ["C", "F"]
    assert schema["additionalProperties"] is False
    assert tool(made) is made


async def test_results_are_text() -> None:
    """Strings as they are, everything else as JSON."""
    assert json.loads(await tool(weather).call({"city": "Oslo"})) == {
        "city": "Oslo",
        "days": 3,
        "unit": "C",
    }
    assert await tool(slow).call({"city": "Oslo"}) == "Oslo: rain"


class _Model(BaseModel):
    when: date


@dataclass
class _Record:
    when: date


@pytest.mark.parametrize("made", [_Model(when=date(2026, 1, 2)), _Record(date(2026, 1, 2))])
async def test_records_are_json_too(made: object) -> None:
    """Models and dataclasses come as their fields."""

    def record() -> Any:
        """A record."""
        return made

    assert json.loads(await tool(record).call({})) == {"when": "2026-01-02"}


async def test_any_name_of_a_parameter_will_do() -> None:
    """Also those that pydantic's own models use."""
    made = tool(awkward)
    assert set(made.schema["properties"]) == {"copy", "schema", "json", "_hidden", "class_"}
    assert await made.call({"copy": "a", "schema": 1, "json": True}) == "a 1 True x y"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "city: Field required"),
        ({"city": "Oslo", "days": "many"}, "days: Input should be a valid integer"),
        ({"city": "Oslo", "unit": "K"}, "unit: Input should be 'C' or 'F'"),
        ({"city": "Oslo", "wind": 1}, "wind: Extra inputs are not permitted"),
        ("Oslo", "don't fit"),
    ],
    ids=str,
)
async def test_bad_arguments_are_one_sentence(given: object, problem: str) -> None:
    """It names what does not fit, so that the model can mend its call."""
    with pytest.raises(ValueError, match="arguments of weather don't fit") as caught:
        await tool(weather).call(given)
    assert problem in str(caught.value)


async def test_sync_functions_do_not_block_the_loop() -> None:
    """They run in a thread of their own."""

    def where() -> str:
        """Where it runs."""
        return threading.current_thread().name

    assert await tool(where).call({}) != threading.current_thread().name


async def test_a_callable_that_returns_a_coroutine_is_awaited() -> None:
    """``functools.wraps`` around an async function, say."""

    @functools.wraps(slow)
    def wrapped(**given: Any) -> Any:
        return slow(**given)

    assert await tool(wrapped).call({"city": "Oslo"}) == "Oslo: rain"


def _starred(*things: str) -> None:
    """Has no names."""


def _untyped(thing) -> None:  # type: ignore[no-untyped-def]
    """Has no type."""


def _silent(thing: str) -> None: ...


def _unknown(thing: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has a type that is nowhere."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_starred, "can't be passed by name"),
        (_untyped, "has no type"),
        (_silent, "no docstring"),
        (_unknown, "can't be read"),
        (lambda: None, "not a usable name"),
    ],
)
def test_a_function_that_can_not_be_a_tool_is_said_at_once(
    function: Callable[..., Any], problem: str
) -> None:
    """With the reason, before any call."""
    with pytest.raises(ConfigError, match=problem):
        tool(function)


async def test_a_record_may_be_made_by_hand() -> None:
    """For schemas that no signature can say."""

    class Anything(BaseModel):
        city: str

    made = Tool(name="t", description="d", schema={}, function=slow, arguments=Anything)
    assert made.definition == {"name": "t", "description": "d", "input_schema": {}}
    assert await made.call({"city": "Oslo"}) == "Oslo: rain"
