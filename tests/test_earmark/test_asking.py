"""Asking at the terminal: what a person types becomes an answer, and without a terminal it is no."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from earmark.asking import approve_in_terminal, ask_in_terminal
from orchestrator.approvals import ApprovalRequest
from orchestrator.trips import RaiseCap, TripQuestion, UseModel

pty = pytest.importorskip("pty", reason="no pseudo-terminals here (Windows)")

Type = Callable[[str], None]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Type]:
    """A terminal in place of standard input, and a hand that types lines into it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, encoding="utf-8", errors="replace") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda line: void(os.write(ours, f"{line}\n".encode()))
        os.write(ours, b"\n")  # lets go whoever still reads, or closing it would wait for him
    os.close(ours)


def void(_: object) -> None:
    return None


def question(**fields: Any) -> TripQuestion:
    with Ledger(caps=[Cap("0.5", scope="app")]) as ledger, pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(700_000_000, scope="app"))
    known: dict[str, Any] = {
        "decline": caught.value,
        "run": "run-1",
        "agent": "worker",
        "unit": "doc-7",
        "model": "claude-sonnet-5-5",
        "spent": Decimal("0.4"),
        "can_raise": True,
    }
    return TripQuestion(**{**known, **fields})


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("+2", RaiseCap(by="2")),
        ("10", RaiseCap(to="10")),
        ("$1.50", RaiseCap(to="$1.50")),
        ("claude-haiku-5-5", UseModel("claude-haiku-5-5")),
        ("", None),
        ("n", None),
        ("No", None),
    ],
)
async def test_a_line_is_an_answer(
    line: str, answer: Any, type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    """The question says who asks, for how much, and what is in the way."""
    type_in(line)
    assert await asyncio.wait_for(ask_in_terminal(question()), 5) == answer
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("worker", "doc-7", "$0.7", "claude-sonnet-5-5", "'app'", "+2 raises the cap"):
        assert part in shown.err


async def test_nonsense_is_asked_again_a_few_times(
    type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was wrong; then the answer is no."""
    for line in ("plenty", "+lots", "5"):
        type_in(line)
    assert await asyncio.wait_for(ask_in_terminal(question()), 5) == RaiseCap(to="5")
    assert "'plenty' is not an amount" in capsys.readouterr().err
    for _ in range(3):
        type_in("what?")
    assert await asyncio.wait_for(ask_in_terminal(question()), 5) is None


async def test_a_cap_that_can_not_be_raised_is_not_offered(
    type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what can be done is asked."""
    for line in ("+2", ""):
        type_in(line)
    assert await asyncio.wait_for(ask_in_terminal(question(can_raise=False)), 5) is None
    shown = capsys.readouterr().err
    assert "raises the cap by" not in shown
    assert "can't be raised from here" in shown


async def test_a_question_that_was_given_up_takes_no_line_from_the_next(type_in: Type) -> None:
    """The thread that waits for the first one's line hands it to the second one."""
    first = asyncio.create_task(ask_in_terminal(question()))
    await asyncio.sleep(0)  # it has asked
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(ask_in_terminal(question()))
    await asyncio.sleep(0)
    type_in("+3")
    assert await asyncio.wait_for(second, 5) == RaiseCap(by="3")


@pytest.mark.parametrize(
    ("line", "verdict"), [("y", True), ("Yes", True), ("", False), ("too late", "too late")]
)
async def test_a_tool_is_allowed_by_a_yes(
    line: str, verdict: Any, type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else is a no with its reason."""
    asked = ApprovalRequest(
        agent="worker", tool="delete", arguments={"path": "a"}, scope="s/worker", spent=Decimal(1)
    )
    type_in(line)
    assert await asyncio.wait_for(approve_in_terminal(asked), 5) == verdict
    assert "delete {'path': 'a'}" in capsys.readouterr().err


async def test_one_line_answers_one_question(type_in: Type) -> None:
    """A yes to one call is no yes to the other one that waits beside it."""
    asked = ApprovalRequest(
        agent="worker", tool="delete", arguments={}, scope="s", spent=Decimal(1)
    )
    both = asyncio.gather(approve_in_terminal(asked), approve_in_terminal(asked))
    type_in("y")
    type_in("not this one")
    assert await asyncio.wait_for(both, 5) == [True, "not this one"]


async def test_without_a_terminal_the_answer_is_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job at night does not wait for a person; it says why."""
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert await ask_in_terminal(question()) is None
    assert "standard input is no terminal, so the call is declined" in (
        capsys.readouterr().err.replace("(", "").replace(")", "")
    )
