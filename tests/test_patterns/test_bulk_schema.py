"""Schemas of answers: what is sent, what is checked, and the columns that they make."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from orchestrator.errors import ConfigError
from patterns.bulk.schema import Schema


class Party(BaseModel):
    name: str
    tags: list[str] = []


class Invoice(BaseModel):
    number: str = Field(max_length=5)
    party: Party | None
    total: float | None = None

    @field_validator("number")
    @classmethod
    def _upper(cls, value: str) -> str:
        if not value.isupper():
            raise ValueError("must be upper case")
        return value


NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "array"}}},
        "d": {"type": ["integer", "null"], "minimum": 1},
        "e": {"$ref": "#/definitions/x"},
    },
    "required": ["d"],
    "definitions": {"x": {"properties": {"f": {"enum": ["g", None]}}}},
}


def test_nested_fields_are_columns() -> None:
    """Lists are JSON in a cell; what is missing is left out."""
    schema = Schema(NESTED)
    assert schema.columns == ("a.b", "a.c", "d", "e.f")
    value = {"a": {"b": "x", "c": [1, {"y": "é"}]}, "d": None}
    assert schema.cells(value) == {"a.b": "x", "a.c": '[1, {"y": "é"}]'}
    assert schema.cells({"a": 5, "d": 2}) == {"d": 2}


def test_what_is_sent_is_what_the_api_takes() -> None:
    """No lists of types, no limits that it does not know, no further properties, no old names."""
    wire = Schema(NESTED).wire
    assert wire["additionalProperties"] is False
    assert wire["required"] == ["d"]
    nullable = wire["properties"]["d"]
    assert [one["type"] for one in nullable["anyOf"]] == ["integer", "null"]
    assert "minimum" in nullable["anyOf"][0]["description"]
    assert wire["properties"]["e"] == {"$ref": "#/$defs/x"}
    assert wire["$defs"]["x"]["type"] == "object"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"d": 1}, None),
        ({"d": 0}, "d: 0 is less than the minimum of 1"),
        ({}, "'d' is a required property"),
        ({"d": 1, "a": {"b": 1}}, "a.b: 1 is not of type 'string'"),
    ],
)
def test_limits_that_are_not_sent_are_checked(value: Any, problem: str | None) -> None:
    """An answer is held to the schema as it was given."""
    assert Schema(NESTED).problem(value) == problem


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"number": "A1", "party": None}, None),
        ({"number": "a1", "party": None}, "number: Value error, must be upper case"),
        ({"number": "A1", "party": {}}, "party.name: Field required"),
    ],
)
def test_a_model_checks_by_its_validators(value: Any, problem: str | None) -> None:
    """And an optional part of it is columns, too."""
    schema = Schema(Invoice)
    assert schema.columns == ("number", "party.name", "party.tags", "total")
    assert schema.problem(value) == problem


def test_names_with_dots_are_told_apart() -> None:
    """``a.b`` and the ``b`` in ``a`` are two columns."""
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    schema = Schema({"type": "object", "properties": {"a.b": {"type": "string"}, "a": inner}})
    assert schema.columns == ("a.b", "a/b")
    assert schema.cells({"a.b": "1", "a": {"b": "2"}}) == {"a.b": "1", "a/b": "2"}


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


_LOOP = {"$defs": {"x": {"properties": {"y": {"items": {"$ref": "#/$defs/x"}}}}}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "string"}, "an object with properties"),
        ({"type": "object"}, "an object with properties"),
        ({"type": "nonsense", "properties": {"a": {}}}, "not a JSON schema"),
        ({"properties": {"a": {"$ref": "https://example.com/x"}}}, "references into itself"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "is not in it"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, **_LOOP}, "refers to itself"),
        ({"properties": {"a": {"$ref": "#"}}}, "refers to itself"),
        ({"properties": {"a": {"description": "no type"}}}, "the API does not take it"),
        ({"properties": {str(n): {"type": "string"} for n in range(2_001)}}, "more than 2,000"),
        (_deep(900), "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_asked_for_is_refused(given: dict[str, Any], says: str) -> None:
    """J-07: before the first call, in one sentence."""
    with pytest.raises(ConfigError) as raised:
        Schema(given)
    assert str(raised.value).startswith("schema: ")
    assert str(raised.value).count("schema: ") == 1
    assert says in str(raised.value)
