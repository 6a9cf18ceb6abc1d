"""The row: what became of one document, as it is written and read again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from budgets.money import format_usd
from orchestrator.context import TOKENS
from orchestrator.outcomes import Outcome

_ROW_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one document.

    Attributes:
        path: relative to the folder; of a row of a table, the table's name.
        row: of a row of a table, its number; the first below the header is 1.
        key: of a row of a table, what its key column says.
        outcome: one word of the closed set; ``label`` and ``value`` are set only for ``ok``.
        label: what ``classify`` says; ``value``: what ``extract`` and ``map`` say.
        reason: one sentence, empty for ``ok``.
        posted_nanos, in_doubt_nanos: what it cost over all its calls, and what is in doubt.
        calls: HTTP attempts; of batches, those that it was in.
        tokens: the four disjoint classes.
        batch: of these, what the engine of the batches accounts for; see ``Spent.to_counts``.
        earlier: of these, what other contents of this document cost before it was changed.
        identity: hash of content, prompt, schema and model; empty where there was nothing to send.
        sha256, encoding, bytes, note: of the document, as it was read.
        reused: the answer was there from an earlier, interrupted try; nothing was paid again.
        same_as: the document of the same content whose answer this is; nothing was paid for this one.
    """

    path: str
    outcome: Outcome
    row: int | None = None
    key: str = ""
    label: str | None = None
    value: Any = None
    reason: str = ""
    posted_nanos: int = 0
    in_doubt_nanos: int = 0
    calls: int = 0
    tokens: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    earlier: Mapping[str, int] = field(default_factory=dict)
    identity: str = ""
    sha256: str = ""
    encoding: str = ""
    bytes: int = 0
    note: str = ""
    reused: bool = False
    same_as: str = ""

    @property
    def place(self) -> str:
        """Path and row as one string, no two of a job alike; they sort as documents come."""
        return place_of(self.path, self.row)

    def to_json(self) -> dict[str, Any]:
        """The row as it is written: amounts as exact strings of dollars, nano-dollars beside them."""
        record = {name: getattr(self, name) for name in _WRITTEN}
        record["outcome"] = self.outcome.value
        record["cost_usd"] = format_usd(self.posted_nanos).removeprefix("$")
        record["in_doubt_usd"] = format_usd(self.in_doubt_nanos).removeprefix("$")
        record.update({name: int(self.tokens.get(name, 0)) for name in TOKENS})
        return record

    def as_reused(self) -> Row:
        """The same, as an answer that was there before."""
        return replace(self, reused=True)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Row:
        """A written row.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: not a row.
        """
        path = record["path"]
        number = record.get("row")
        return cls(
            path=path,
            outcome=Outcome(record["outcome"]),
            row=None if number is None else int(number),
            key=record.get("key", ""),
            label=record.get("label"),
            value=record.get("value"),
            reason=record.get("reason", ""),
            posted_nanos=int(record.get("posted_nanos", 0)),
            in_doubt_nanos=int(record.get("in_doubt_nanos", 0)),
            calls=int(record.get("calls", 0)),
            tokens={name: int(record.get(name, 0)) for name in TOKENS},
            batch={name: int(count) for name, count in record.get("batch", {}).items()},
            earlier={name: int(count) for name, count in record.get("earlier", {}).items()},
            identity=record.get("identity", ""),
            sha256=record.get("sha256", ""),
            encoding=sys.intern(record.get("encoding", "")),
            bytes=int(record.get("bytes", 0)),
            note=record.get("note", ""),
            reused=bool(record.get("reused", False)),
            same_as=record.get("same_as", ""),
        )


#: Fields that are written as they are (``asdict`` would copy all that is in them, which takes a while).
_WRITTEN = tuple(one.name for one in fields(Row) if one.name != "tokens")


def place_of(path: str, row: int | None) -> str:
    """Path and row as one string, no two of a job alike; they sort as documents come."""
    return path if row is None else f"{path}#{row:0{_ROW_DIGITS}}"


def shown_place(path: str, row: int | None) -> str:
    """Path and row for people: ``tickets.csv#12``."""
    return path if row is None else f"{path}#{row}"
