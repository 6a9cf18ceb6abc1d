"""``Extract`` and ``Map`` as tasks: the request, the reading of its answer, the identity, direct and batched alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from budgets.prices import default_book
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns.bulk import Classify, Extract, Map, Task, quote
from patterns.bulk.task import THINKING_TOKENS
from tests.test_orchestrator.running import stage

from .test_bulk_job import work
from .test_bulk_task import document

FIELDS = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 1}, "who": {"type": "string"}},
    "required": ["sum"],
}
TASKS = [
    Classify(labels=("bug", "feature")),
    Extract(fields=FIELDS),
    Map(instructions="Summarise."),
    Map(instructions="Rate it.", fields=FIELDS),
]


def message(text: str, stop_reason: str = "end_turn") -> dict[str, Any]:
    return {"stop_reason": stop_reason, "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
async def test_a_direct_call_sends_what_a_batch_would(task: Task, tmp_path: Path) -> None:
    """One body for both ways."""
    async with stage() as st:
        await work(st, tmp_path, [document()], task)
        (sent,) = st.sim.bill.rows
        body = task.body(document())
        assert body["model"] == task.model == sent.model
        assert body == task.agent.body(body["messages"])
        assert ("output_config" in body and "format" in body["output_config"]) is (
            task.schema is not None
        )


@pytest.mark.parametrize(
    ("task", "answer", "outcome", "value"),
    [
        (TASKS[0], message('{"label": "bug"}'), Outcome.OK, "bug"),
        (TASKS[0], message('{"label": "other"}'), Outcome.INVALID, None),
        (TASKS[1], message('{"sum": 3}'), Outcome.OK, {"sum": 3}),
        (TASKS[1], message('{"sum": 0}'), Outcome.INVALID, None),
        (TASKS[1], message('{"sum": 3'), Outcome.INVALID, None),
        (TASKS[1], message('{"sum": 3', "max_tokens"), Outcome.TRUNCATED, None),
        (TASKS[1], message('{"sum": 3}', "max_tokens"), Outcome.TRUNCATED, None),
        (TASKS[1], message("", "refusal"), Outcome.REFUSAL, None),
        (TASKS[1], message("", "pause_turn"), Outcome.STALLED, None),
        (TASKS[2], message("A summary."), Outcome.OK, "A summary."),
        (TASKS[2], message(" \n"), Outcome.INVALID, None),
        (TASKS[2], {"stop_reason": "end_turn", "content": []}, Outcome.INVALID, None),
        (TASKS[3], message('{"sum": 3, "who": "x"}'), Outcome.OK, {"sum": 3, "who": "x"}),
    ],
)
def test_an_answer_is_read_alike_wherever_it_comes_from(
    task: Task, answer: dict[str, Any], outcome: Outcome, value: Any
) -> None:
    """J-01, J-02: the stop reason first; a cut or refused answer is never success."""
    found, reason, got = task.read(answer)
    assert (found, got) == (outcome, value)
    assert bool(reason) is (outcome is not Outcome.OK)


@pytest.mark.parametrize(
    "other",
    [
        Extract(fields={**FIELDS, "required": []}),
        Extract(fields=FIELDS, instructions="Only totals."),
        Extract(fields=FIELDS, model="claude-sonnet-5-5"),
        Map(instructions="Fill it in.", fields=FIELDS),
    ],
)
def test_another_task_is_another_identity(other: Task) -> None:
    """Z-01: content, prompt, schema and model; not the room that an answer has."""
    task = Extract(fields=FIELDS)
    assert task.identity(document()) != other.identity(document())
    assert task.identity(document()) == replace(task, output_tokens=9).identity(document())
    assert task.identity(document()) == replace(task, cached=True, ttl="1h").identity(document())


@pytest.mark.parametrize(
    ("model", "thinking"), [("claude-haiku-5-5", 0), ("claude-opus-5-5", THINKING_TOKENS)]
)
def test_the_room_of_an_answer_can_be_set(model: str, thinking: int) -> None:
    """J-04: thinking has its own beside it."""
    assert Map(instructions="x", model=model, output_tokens=50).max_tokens == 50 + thinking
    assert Map(instructions="x", model=model).max_tokens == 2048 + thinking
    assert Extract(fields=FIELDS, model=model).max_tokens == 4096 + thinking


def test_a_batch_may_cache_for_an_hour() -> None:
    """The marker says so."""
    task = Map(instructions="x").with_cache(10**6, default_book(), ttl="1h")
    assert task.system[0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert task.body(document())["system"] == task.system


def test_free_text_needs_no_corrective_call() -> None:
    """Its worst case is that of one call."""
    found = quote(Map(instructions="x"), [document()], default_book())
    assert found.worst_nanos == found.first_nanos
    assert quote(TASKS[1], [document()], default_book()).worst_nanos > found.worst_nanos


def test_documents_of_one_content_are_quoted_once() -> None:
    """They are paid once."""
    twins = [document("Same", "a"), document("Same", "b"), document("Other", "c")]
    found = quote(Map(instructions="x"), twins, default_book())
    assert (found.documents, found.same, found.files) == (2, 1, 3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Map(instructions=" \n"), "prompt: it is empty"),
        (lambda: Map(instructions="x", output_tokens=0), "max_tokens is 0"),
        (lambda: Extract(fields={"type": "array"}), "schema: it must describe an object"),
    ],
)
def test_a_task_that_can_not_be_asked_is_refused(make: Any, says: str) -> None:
    """At once."""
    with pytest.raises(ConfigError, match=says):
        make()
