"""The task: the request that every document gets, and the identity of its answer."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from budgets.prices import default_book
from orchestrator.documents import Document
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.wire import Allowances, read_request
from patterns.bulk import Classify
from patterns.bulk.classify import ANSWER_TOKENS, check_labels
from patterns.bulk.task import THINKING_TOKENS

LABELS = ("bug", "feature")


def document(text: str = "The app crashes", path: str = "a.txt") -> Document:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Document(path=path, text=text, bytes=len(text), encoding="utf-8", sha256=digest)


def test_the_labels_are_an_enum_and_in_the_prompt() -> None:
    """J-06: the model is told, and the answer is held to it."""
    task = Classify(labels=LABELS, rubric="Be strict.")
    assert task.schema["properties"]["label"]["enum"] == ["bug", "feature"]
    assert "- bug\n- feature" in task.system_text
    assert "Be strict." in task.system_text
    body = task.body(document())
    assert body["output_config"]["format"]["schema"] == task.schema
    assert "The app crashes" in str(body["messages"])


@pytest.mark.parametrize("content", [None, "text", {"type": "text"}, ["text"], [None]])
def test_an_answer_without_blocks_is_in_doubt(content: Any) -> None:
    """One sentence says so; it is no row with a blank answer, and no exception."""
    outcome, reason, value = Classify(labels=LABELS).read(
        {"content": content, "stop_reason": "end_turn"}
    )
    assert (outcome, value) == (Outcome.IN_DOUBT, None)
    assert "can't be read" in reason


@pytest.mark.parametrize(
    "other",
    [
        {"labels": ("bug", "other")},
        {"rubric": "Be kind."},
        {"model": "claude-sonnet-5-5"},
    ],
    ids=str,
)
def test_identity_is_content_prompt_model_and_schema(other: dict[str, Any]) -> None:
    """Z-01: the same document under another task is another answer; its name does not matter."""
    task = Classify(labels=LABELS, rubric="Be strict.")
    identity = task.identity(document())
    assert identity == Classify(labels=LABELS, rubric="Be strict.").identity(document(path="b.txt"))
    assert identity == replace(task, cached=True).identity(document())
    assert identity != task.identity(document("Another text"))
    fields: dict[str, Any] = {"labels": LABELS, "rubric": "Be strict.", **other}
    assert identity != Classify(**fields).identity(document())


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-opus-5-5", "claude-sonnet-5-5"])
def test_every_request_has_a_bound(model: str) -> None:
    """What is sent can be priced without a word of the caller's."""
    task = Classify(labels=LABELS, model=model, cached=True)
    reading = read_request(
        task.body(document()),
        allow=Allowances(),
        context_window=default_book().context_window(model),
    )
    assert reading.max_tokens == task.max_tokens
    assert not reading.shape.word


@pytest.mark.parametrize(
    ("model", "thinks"), [("claude-haiku-5-5", False), ("claude-opus-5-5", True)]
)
def test_the_output_limit_is_sized_for_thinking(model: str, thinks: bool) -> None:
    """J-04: where a model always thinks, there is room for it and for the answer."""
    task = Classify(labels=LABELS, model=model)
    assert task.max_tokens == ANSWER_TOKENS + (THINKING_TOKENS if thinks else 0)
    assert ("thinking" in task.settings) is not thinks


def test_the_prefix_is_marked_only_from_the_minimum_on() -> None:
    """P-04: below the model's minimum a marker does nothing but promise."""
    prices = default_book()
    task = Classify(labels=LABELS)
    least = prices.cache_minimum(task.model)
    assert "cache_control" not in task.with_cache(least - 1, prices).system[0]
    assert task.with_cache(least, prices).system[0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ((), "at least two"),
        (("a",), "at least two"),
        (tuple(map(str, range(201))), "at most 200"),
        (("a", ""), "can't be used"),
        (("a", "b\n"), "can't be used"),
        (("a", "x" * 101), "can't be used"),
        (("a", "b", "A"), "given twice"),
        (("straße", "STRASSE"), "given twice"),
    ],
    ids=lambda value: None if isinstance(value, tuple) else value,
)
def test_labels_that_can_not_be_told_apart_are_refused(
    labels: tuple[str, ...], problem: str
) -> None:
    """At once, in one sentence."""
    with pytest.raises(ConfigError, match=problem):
        check_labels(labels)
    with pytest.raises(ConfigError, match=problem):
        Classify(labels=labels)
