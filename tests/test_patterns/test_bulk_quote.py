"""The quote: nothing costs more than its worst, and the likely cost is near the real one."""

from __future__ import annotations

import pytest

from budgets.prices import default_book
from orchestrator.documents import Document, Problem
from patterns.bulk import Classify, quote

from .test_bulk_task import document

LABELS = ("bug", "feature")


def documents(count: int) -> list[Document | Problem]:
    return [document(f"Document {n}: " + "words " * 200, f"{n}.txt") for n in range(count)]


def test_worst_is_twice_the_first_calls() -> None:
    """A corrective try for every document is in it."""
    found = quote(Classify(labels=LABELS), documents(10), default_book())
    assert found.documents == found.files == 10
    assert found.worst_nanos == 2 * found.first_nanos
    assert found.largest_nanos * 10 >= found.first_nanos > found.likely_nanos > 0


def test_problems_and_answers_that_are_there_cost_nothing() -> None:
    """They are counted apart."""
    mixed = [*documents(4), Problem(path="p", outcome="binary", reason="PNG")]
    found = quote(
        Classify(labels=LABELS), mixed, default_book(), is_done=lambda one: one.path < "2.txt"
    )
    assert (found.documents, found.reused, dict(found.problems)) == (2, 2, {"binary": 1})
    assert found.files == 5
    nothing = quote(Classify(labels=LABELS), [], default_book())
    assert (nothing.worst_nanos, nothing.likely_nanos, nothing.files) == (0, 0, 0)


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5"])
def test_a_cached_prefix_is_likely_cheaper(model: str) -> None:
    """It is written once and read for every other document; the worst case does not count on it."""
    rubric = "rubric words " * 3_000
    plain = quote(
        Classify(labels=LABELS, rubric=rubric, model=model), documents(50), default_book()
    )
    cached = quote(
        Classify(labels=LABELS, rubric=rubric, model=model, cached=True),
        documents(50),
        default_book(),
    )
    assert cached.likely_nanos < plain.likely_nanos
    assert cached.worst_nanos >= plain.worst_nanos
