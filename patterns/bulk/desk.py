"""The desk of a job: which documents have their answer already, which are the same, and what each row says.

However answers come (direct calls, batches), they pass here to become rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.answers import ended_by
from orchestrator.context import Tally
from orchestrator.documents import Document, Problem
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from orchestrator.run import Run

from .paid import UNUSABLE, PaidAnswer, Spending, Spent, kept
from .results import Results
from .row import Row, place_of, shown_place
from .task import Task


@dataclass(slots=True)
class Progress:
    """How far a job is; handed to ``on_row`` after every row.

    Attributes:
        done: rows so far; ``sent``: documents that were sent now; ``reused``: answers that were there;
            ``same``: answers taken over from a document of the same content.
        posted_nanos, in_doubt_nanos: of this job's rows.
        fault: why the job stopped early, if its set-up is wrong.
    """

    done: int = 0
    sent: int = 0
    reused: int = 0
    same: int = 0
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    fault: str = ""

    def count(self, row: Row) -> None:
        """Add a row."""
        self.done += 1
        self.reused += row.reused
        self.same += bool(row.same_as)
        self.posted_nanos += row.posted_nanos
        self.in_doubt_nanos += row.in_doubt_nanos


class Desk:
    """What is known of the documents of one job.

    Args:
        run: its ledger knows what was paid before.
        task: what is asked.
        results: rows from before, and where new ones go.
    """

    def __init__(self, run: Run, task: Task, results: Results) -> None:
        self.task = task
        self.results = results
        self._spending = Spending(run, results, task.agent_name)
        self._firsts: dict[bytes, str] = {}

    def note(self, row: Row) -> None:
        """Hear of a row that is written: further documents of its content take its answer over."""
        if row.identity and self.is_final(row):
            self._firsts.setdefault(bytes.fromhex(row.identity), row.place)

    def known(self, document: Document | Problem) -> Row | None:
        """The row of a document that must not be asked about.

        It is unreadable, or was answered and paid before: itself, another one of its content, or (where a crash
        kept the row from being written) by the ledger's word.
        """
        if isinstance(document, Problem):
            return self.row(document, Outcome(document.outcome), document.reason)
        identity = self.task.identity(document)
        row = self.results.get(place_of(document.path, document.row))
        if row is not None and row.identity == identity and self.is_final(row):
            if not self._spending.differs(identity):
                return row.as_reused()
            # Killed before the end of its call was on disk: the ledger's word on the money counts.
            answer = row.label if row.value is None else row.value
            return self.row(document, row.outcome, row.reason, answer=answer).as_reused()
        first = self._firsts.get(bytes.fromhex(identity))
        if first is not None and (row := self.results.get(first)) is not None:
            return self.same(document, row)
        return self._paid_row(document, identity)

    def is_final(self, row: Row) -> bool:
        """Whether a row from before stays. A cut answer does not, once there may be more of it."""
        if row.outcome is Outcome.TRUNCATED:
            return row.tokens.get("output_tokens", 0) >= self.task.max_tokens
        return row.outcome.is_final

    def _paid_row(self, document: Document, identity: str) -> Row | None:
        """The row of an answer that the ledger has, though no row was written."""
        paid = self._spending.answer(identity)
        if paid is None:
            return None
        if paid.stop_reason:
            is_unusable = paid.stop_reason == UNUSABLE
            outcome = Outcome.INVALID if is_unusable else ended_by(paid.stop_reason)[0]
            if self._is_owed(paid, invalid=outcome is Outcome.INVALID):
                return None
            if outcome is Outcome.TRUNCATED and paid.output_tokens < self.task.max_tokens:
                return None
            return self.row(document, outcome, f"as before: {paid.stop_reason}").as_reused()
        outcome, reason, answer = self.task.read_text("end_turn", paid.text)
        if self._is_owed(paid, invalid=outcome is Outcome.INVALID):
            return None
        return self.row(document, outcome, reason, answer=answer).as_reused()

    def _is_owed(self, paid: PaidAnswer, *, invalid: bool) -> bool:
        """Whether the run was killed before the corrective try of an answer that can't be used."""
        return invalid and paid.answers <= self.task.repairs

    def keeper(self, identity: str) -> Callable[[Mapping[str, Any]], str | None]:
        """What the ledger should keep of the answers about a document; see ``paid.kept``."""

        def file(text: str) -> None:
            # A disk that is full must not keep the money from being settled; the row's turn is next.
            with contextlib.suppress(ConfigError):
                self.results.file_answer(identity, text)

        def keep(message: Mapping[str, Any]) -> str | None:
            return kept(message, is_json=self.task.schema is not None, file=file)

        return keep

    def row(
        self,
        document: Document | Problem,
        outcome: Outcome,
        reason: str,
        *,
        answer: Any = None,
        now: Tally | Spent | None = None,
        is_batch: bool = False,
    ) -> Row:
        """A new row for a document; it takes over what earlier tries cost, so that no money gets lost.

        Args:
            document: what it is about.
            outcome, reason, answer: how it ended.
            now: what it cost now, beyond earlier tries.
            is_batch: the engine of the batches accounts for that.
        """
        facts: dict[str, Any] = {}
        identity = ""
        if isinstance(document, Document):
            identity = self.task.identity(document)
            facts = {
                "identity": identity,
                "sha256": document.sha256,
                "encoding": document.encoding,
                "bytes": document.bytes,
                "note": document.note,
                self.task.answer_name: answer,
            }
        place = place_of(document.path, document.row)
        before = self.results.get(place)
        spent = self._spending.take(place, identity)
        batch, earlier = Spent(), Spent()
        if before is not None and identity and before.identity not in {"", identity}:
            earlier.plus(Spent.of_row(before))  # the document was changed
        elif before is not None:
            batch, earlier = Spent.of_counts(before.batch), Spent.of_counts(before.earlier)
        if now is not None:
            for sums in (spent, batch) if is_batch else (spent,):
                sums.add(now.calls, now.posted_nanos, now.in_doubt_nanos, now.tokens)
        return Row(
            path=document.path,
            row=document.row,
            key=document.key,
            outcome=outcome,
            reason=reason,
            posted_nanos=spent.posted_nanos,
            in_doubt_nanos=spent.in_doubt_nanos,
            calls=spent.calls,
            tokens=spent.tokens,
            batch=batch.to_counts(),
            earlier=earlier.to_counts(),
            **facts,
        )

    def same(self, document: Document, first: Row) -> Row:
        """The row of a document of the same content as one that is answered."""
        answer = first.label if first.value is None else first.value
        row = self.row(document, first.outcome, first.reason, answer=answer)
        # Its own earlier tries may have cost something; what the first one cost stays with the first.
        return replace(row, same_as=first.same_as or shown_place(first.path, first.row))
