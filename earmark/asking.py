"""Asking the person at the terminal, for ``--ask``: what to do about a cap that is in the way, or about a tool.

Without a terminal nobody is asked, and the answer is no.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from concurrent.futures import Future

from budgets.errors import InvalidAmount
from orchestrator.approvals import ApprovalRequest, Verdict
from orchestrator.trips import Answer, RaiseCap, TripQuestion, UseModel

from .output import remark

#: Lines that make no sense before the answer is no.
_TRIES = 3


async def ask_in_terminal(question: TripQuestion) -> Answer:
    """Ask what to do about a cap in the way; for ``trips.Ask``.

    Returns:
        What the person said: ``+2`` raises the cap by $2, ``10`` to $10, the name of a model goes on with
        that one, an empty line or the end of input is a no.
    """
    if not _is_there("a cap is in the way", "the call is declined"):
        return None
    async with _turn():
        return await _asked(question)


async def _asked(question: TripQuestion) -> Answer:
    remark(question.text)
    ways = "+2 raises the cap by $2, 10 to $10; " if question.can_raise else ""
    for _ in range(_TRIES):
        remark(f"What now? {ways}the name of a model goes on with that one, Enter declines.")
        answer, problem = _read(await _line(), can_raise=question.can_raise)
        if not problem:
            return answer
        remark(problem)
    return None


async def approve_in_terminal(request: ApprovalRequest) -> Verdict:
    """Ask whether a tool may be called; for ``Run(approve=...)`` and ``Agent(approve=...)``.

    Returns:
        True for ``y`` or ``yes``; anything else is a no, with what was typed as its reason.
    """
    if not _is_there(f"the tool {request.tool} needs approval", "it is not called"):
        return "nobody is there to be asked"
    what = f" for {request.unit}" if request.unit else ""
    async with _turn():
        remark(
            f"Agent {request.agent} ({request.scope}){what} has spent ${request.spent:,f} and wants to call"
        )
        remark(f"  {request.tool} {dict(request.arguments)}")
        remark(
            "May it? y allows it; anything else is a no, and is told to the model as the reason."
        )
        said = await _line()
    return True if said.lower() in {"y", "yes"} else said or False


def _read(said: str, *, can_raise: bool) -> tuple[Answer, str]:
    """A line as an answer, and what is wrong with it."""
    if said.lower() in {"", "n", "no"}:
        return None, ""
    if said.startswith("claude"):
        return UseModel(said), ""
    if not can_raise:
        return None, "This cap can't be raised from here."
    try:
        return (RaiseCap(by=said[1:]) if said.startswith("+") else RaiseCap(to=said)), ""
    except InvalidAmount as error:
        return None, str(error)


def _is_there(what: str, otherwise: str) -> bool:
    if sys.stdin is not None and sys.stdin.isatty():
        return True
    remark(f"{what}, and nobody can be asked (standard input is no terminal), so {otherwise}")
    return False


#: One question at a time in each loop: a line must not answer two.
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
    weakref.WeakKeyDictionary()
)


def _turn() -> asyncio.Lock:
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


class _Reader:
    """Reads lines in a thread that does not keep the process from ending, one at a time.

    A question that was given up leaves its thread waiting; the next question gets its line.
    """

    def __init__(self) -> None:
        self._waiting: Future[str] | None = None

    def line(self) -> Future[str]:
        if self._waiting is None or self._waiting.done():
            self._waiting = Future()
            threading.Thread(
                target=self._read, args=(self._waiting,), name="earmark-ask", daemon=True
            ).start()
        return self._waiting

    def _read(self, future: Future[str]) -> None:
        try:
            future.set_result(sys.stdin.readline().strip())
        except (OSError, ValueError):
            future.set_result("")  # closed: nobody is there any more


_reader = _Reader()


async def _line() -> str:
    # Shielded: the thread can't be cancelled, and what it reads is still wanted.
    return await asyncio.shield(asyncio.wrap_future(_reader.line()))
