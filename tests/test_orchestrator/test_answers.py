"""Answers: what fits a schema is a value, anything else one sentence that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from orchestrator.answers import Answers
from orchestrator.errors import ConfigError

LABELS = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["a", "b"]}},
    "required": ["label"],
    "additionalProperties": False,
}


class Ticket(BaseModel):
    """A pydantic output."""

    label: str
    urgency: int

    @field_validator("urgency")
    @classmethod
    def _small(cls, value: int) -> int:
        if value > 5:
            raise ValueError("at most 5")
        return value


def test_without_an_output_any_text_will_do() -> None:
    """Free text is its own value, and no format is asked for."""
    answers = Answers(None, None)
    assert answers.format is None
    assert answers.read("anything") == ("anything", "")


@pytest.mark.parametrize("output", [LABELS, Ticket], ids=["schema", "pydantic"])
def test_the_format_is_a_json_schema(output: Any) -> None:
    """Both kinds of output become ``output_config.format``."""
    form = Answers(output, None).format
    assert form is not None
    assert form["type"] == "json_schema"
    assert "label" in form["schema"]["properties"]


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (LABELS, '{"label": "a"}', {"label": "a"}),
        (Ticket, '{"label": "x", "urgency": 2}', Ticket(label="x", urgency=2)),
    ],
)
def test_what_fits_is_a_value(output: Any, text: str, value: Any) -> None:
    """A schema gives plain JSON, a model an instance."""
    assert Answers(output, None).read(text) == (value, "")


@pytest.mark.parametrize(
    ("output", "text", "problem"),
    [
        (LABELS, '{"label": "z"}', "'z' is not one of"),
        (LABELS, "{}", "'label' is a required property"),
        (LABELS, '{"label": "a", "more": 1}', "Additional properties"),
        (LABELS, '["a"]', "is not of type 'object'"),
        (LABELS, "Sure! The label is a.", "not JSON"),
        (LABELS, "", "not JSON"),
        (LABELS, '{"label": "a"', "not JSON"),
        (LABELS, "[" * 100_000, "not JSON"),
        (Ticket, "nonsense", "not JSON"),
        (Ticket, '{"label": "x"}', "urgency: Field required"),
        (Ticket, '{"label": "x", "urgency": 9}', "at most 5"),
    ],
)
def test_what_does_not_fit_is_a_short_sentence(output: Any, text: str, problem: str) -> None:
    """No value, and a reason that a model can act on."""
    value, said = Answers(output, None).read(text)
    assert value is None
    assert problem in said
    assert len(said) < 300


def test_a_check_has_the_last_word() -> None:
    """It sees the parsed value; what it returns is what is wrong."""
    answers = Answers(LABELS, lambda value: "not a" if value["label"] == "a" else None)
    assert answers.read('{"label": "a"}')[1] == "not a"
    assert answers.read('{"label": "b"}') == ({"label": "b"}, "")


def test_what_is_no_schema_is_said_at_once() -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigError, match="not a JSON schema"):
        Answers({"type": "nonsense"}, None)
