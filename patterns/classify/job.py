"""The job: every document of a folder classified, each ending in exactly one row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from budgets.records import Line
from orchestrator.context import Tally
from orchestrator.documents import Document, Problem
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from patterns.fan_out import Part, stream_out

from .results import Results, Row
from .task import Task

#: So many equal failures in a row, before anything succeeded, are a mistake in the set-up: the rest would
#: only repeat it.
_SAME_FAILURES = 5
_SETUP_FAILURES = frozenset({Outcome.AUTH, Outcome.BAD_REQUEST})
_KEPT_MAX = 500


@dataclass(slots=True)
class Progress:
    """How far a job is; handed to ``on_row`` after every row.

    Attributes:
        done: rows so far; ``sent``: documents that were sent now; ``reused``: answers that were there.
        posted_nanos, in_doubt_nanos: of this job's rows.
        fault: why the job stopped early, if its set-up is wrong.
    """

    done: int = 0
    sent: int = 0
    reused: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    input_tokens: int = 0
    fault: str = ""


async def classify(
    run: Run,
    task: Task,
    documents: Iterable[Document | Problem],
    results: Results,
    *,
    width: int | None = None,
    on_row: Callable[[Row, Progress], None] | None = None,
) -> Progress:
    """Classify documents and write a row for each.

    The first document that is sent goes alone where the prefix is cached: it warms the cache for the rest.
    A document whose answer is there already, in the results or (after a crash) in the ledger, is not paid
    again.

    Args:
        run: whose caps and client are used.
        task: what is asked.
        documents: drawn as needed, in a thread, one at a time.
        results: where rows go; rows that are there and final are kept.
        width: documents under way at once; by default the gate's width.
        on_row: hears of every row.

    Returns:
        Totals. Every document drawn has a row, whatever happened.
    """
    job = _Job(run, task, results, width or run.gate.statistics().width)
    async for part in stream_out(run, job.work, job.draw(documents), width=job.width):
        row = _row_of(part)
        if not (row.reused and part.calls == 0 and results.get(row.path) == row):
            results.add(row)
        job.count(row)
        if on_row is not None:
            on_row(row, job.progress)
    return job.progress


class _Job:
    """One job's state, shared by its workers."""

    def __init__(self, run: Run, task: Task, results: Results, width: int) -> None:
        self.run = run
        self.task = task
        self.results = results
        self.width = width
        self.progress = Progress()
        self.agent = task.agent
        self.paid = paid_answers(run) if len(results) or run.balance.posted_nanos else {}
        self._warm = asyncio.Event()
        self._is_warming = False
        self._failures: list[tuple[Outcome, str]] = []
        self._set_up_right = False
        if not task.cached:
            self._warm.set()

    async def draw(
        self, documents: Iterable[Document | Problem]
    ) -> AsyncIterator[Document | Problem]:
        """Read ahead in a thread; after the first document that will be sent, wait until the cache is warm."""
        iterator: Iterator[Document | Problem] = iter(documents)
        while (document := await asyncio.to_thread(next, iterator, None)) is not None:
            yield document
            if self._is_warming:
                await self._warm.wait()

    async def work(self, document: Document | Problem) -> Row:
        if isinstance(document, Problem):
            return Row(
                path=document.path, outcome=Outcome(document.outcome), reason=document.reason
            )
        identity = self.task.identity(document)
        known = self._known(document, identity)
        if known is not None:
            return known
        self.run.check()
        self._is_warming = not self._warm.is_set()
        try:
            result = await self.agent.run(
                self.run, self.task.prompt(document), unit=identity, keep=_kept
            )
        finally:
            self._warm.set()
        self.progress.sent += 1
        outcome, reason = result.outcome, result.reason
        if outcome is Outcome.BAD_REQUEST and _is_too_long(reason):
            outcome = Outcome.TOO_LARGE
        self._watch(outcome, reason)
        label = result.value["label"] if outcome is Outcome.OK else None
        return self._row(document, identity, outcome, reason, label, result.tally)

    def _known(self, document: Document, identity: str) -> Row | None:
        """The row of an answer that was paid before."""
        row = self.results.get(document.path)
        if row is not None and row.identity == identity and row.outcome.is_final:
            return Row.from_json({**row.to_json(), "reused": True})
        paid = self.paid.get(identity)
        if paid is None:
            return None
        value, problem = self._read(paid.kept)
        outcome = Outcome.INVALID if problem else Outcome.OK
        tally = Tally(
            calls=paid.calls, posted_nanos=paid.posted_nanos, in_doubt_nanos=paid.in_doubt_nanos
        )
        label = None if problem else value["label"]
        row = self._row(document, identity, outcome, problem, label, tally)
        return Row.from_json({**row.to_json(), "reused": True})

    def _read(self, kept: str) -> tuple[Any, str]:
        from orchestrator.answers import Answers  # only after a crash

        return Answers(self.task.schema, None).read(kept)

    def _row(
        self,
        document: Document,
        identity: str,
        outcome: Outcome,
        reason: str,
        label: str | None,
        tally: Tally,
    ) -> Row:
        return Row(
            path=document.path,
            outcome=outcome,
            label=label,
            reason=reason,
            posted_nanos=tally.posted_nanos,
            in_doubt_nanos=tally.in_doubt_nanos,
            calls=tally.calls,
            tokens=dict(tally.tokens),
            identity=identity,
            sha256=document.sha256,
            encoding=document.encoding,
            bytes=document.bytes,
            note=document.note,
        )

    def _watch(self, outcome: Outcome, reason: str) -> None:
        """Stop a job whose set-up is wrong before it has repeated its mistake for every document."""
        if outcome not in _SETUP_FAILURES:
            self._set_up_right = True
        if self._set_up_right:
            return
        self._failures.append((outcome, reason))
        if len(self._failures) >= _SAME_FAILURES and len(set(self._failures)) == 1:
            self.progress.fault = f"{outcome.value}: {reason}"
            self.run.stop(
                f"the first {_SAME_FAILURES} documents failed alike ({self.progress.fault})"
            )

    def count(self, row: Row) -> None:
        progress = self.progress
        progress.done += 1
        progress.reused += row.reused
        progress.posted_nanos += row.posted_nanos
        progress.in_doubt_nanos += row.in_doubt_nanos
        progress.cache_read_tokens += row.tokens.get("cache_read_tokens", 0)
        progress.cache_write_tokens += row.tokens.get("cache_write_tokens", 0)
        progress.input_tokens += row.tokens.get("input_tokens", 0)


@dataclass(slots=True)
class _Paid:
    """An answer that the ledger kept."""

    kept: str = ""
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    calls: int = 0


def paid_answers(run: Run) -> dict[str, _Paid]:
    """Answers of this run that were paid, by identity: they outlive a crash before their row was written."""
    found: dict[str, _Paid] = {}
    for line in run.ledger.lines(run.scope):
        unit = line.note.get("unit")
        if not unit or line.kind == "hold":
            continue
        paid = found.setdefault(str(unit), _Paid())
        _add_line(paid, line)
    return {unit: paid for unit, paid in found.items() if paid.kept}


def _add_line(paid: _Paid, line: Line) -> None:
    paid.posted_nanos += line.posted
    paid.in_doubt_nanos += line.in_doubt
    paid.calls += line.kind in {"settle", "void", "doubt"}
    paid.kept = str(line.note.get("kept") or "") or paid.kept


def _kept(message: Mapping[str, Any]) -> str | None:
    """What of an answer goes into the line that pays for it: its short JSON text."""
    if message.get("stop_reason") != "end_turn":
        return None
    blocks = message.get("content") or []
    text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
    return text if len(text) <= _KEPT_MAX and _is_json(text) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_too_long(reason: str) -> bool:
    return "too long" in reason or "request_too_large" in reason


def _row_of(part: Part[Document | Problem]) -> Row:
    """The row of a part; a worker that could not even start has one, too."""
    if isinstance(part.value, Row):
        return part.value
    document = part.item
    return Row(
        path=document.path,
        outcome=part.outcome,
        reason=part.reason,
        posted_nanos=part.posted_nanos,
        in_doubt_nanos=part.in_doubt_nanos,
        calls=part.calls,
        sha256=getattr(document, "sha256", ""),
        encoding=getattr(document, "encoding", ""),
        bytes=getattr(document, "bytes", 0),
    )
