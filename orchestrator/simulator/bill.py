"""The simulator's own bill: one row for each request that it served, exact to the nano-dollar."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from .catalog import MODELS, Counts

RowKind = Literal["message", "stream", "batch"]

_KINDS: tuple[RowKind, ...] = ("message", "stream", "batch")
_MODEL_IDS = tuple(MODELS)
_MODEL_INDEX = {model: index for index, model in enumerate(_MODEL_IDS)}
#: number, nanos, input, write_5m, write_1h, read, output, searches, model, kind + 4 * complete
_WIDTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BillRow:
    """One served request.

    Attributes:
        number: counts requests up from 1; part of the request's and the message's id.
        request_id: the ``request-id`` header (for a batch item, an id of its own).
        message_id: the message's ``id``.
        model: the model that served.
        kind: ``message``, ``stream`` or ``batch``.
        nanos: nano-dollars charged; 0 for a refusal before any output.
        counts: tokens of all inferences together.
        web_searches: searches charged.
        complete: False if the answer was cut or never read to its end.
    """

    number: int
    request_id: str
    message_id: str
    model: str
    kind: RowKind
    nanos: int
    counts: Counts
    web_searches: int
    complete: bool


class Bill:
    """Totals since the start or the last reset, and the latest rows.

    Totals cover every request; rows are kept in a ring of integers, so that memory stays flat.

    Attributes:
        nanos: nano-dollars charged in all.
        requests: served requests, those that cost nothing included.
        web_searches: searches charged.
    """

    def __init__(self, tag: str, *, keep_rows: int = 50_000) -> None:
        self._tag = tag
        self._keep = max(1, keep_rows)
        self.reset()

    def reset(self) -> None:
        """Forget everything charged so far."""
        self._cells = array("q")
        self._next = 0
        self.nanos = 0
        self.requests = 0
        self.web_searches = 0
        self._tokens = [0, 0, 0, 0, 0]
        self._by_model: dict[str, list[int]] = {}

    def add(
        self,
        *,
        number: int,
        model: str,
        kind: RowKind,
        nanos: int,
        counts: Counts,
        web_searches: int,
        complete: bool,
    ) -> None:
        """Charge one request."""
        self.nanos += nanos
        self.requests += 1
        self.web_searches += web_searches
        classes = (counts.input, counts.write_5m, counts.write_1h, counts.read, counts.output)
        for index, tokens in enumerate(classes):
            self._tokens[index] += tokens
        of_model = self._by_model.setdefault(model, [0, 0])
        of_model[0] += 1
        of_model[1] += nanos
        flags = _KINDS.index(kind) + (4 if complete else 0)
        row = array("q", (number, nanos, *classes, web_searches, _MODEL_INDEX[model], flags))
        if len(self._cells) < self._keep * _WIDTH:
            self._cells.extend(row)
        else:
            start = self._next * _WIDTH
            self._cells[start : start + _WIDTH] = row
            self._next = (self._next + 1) % self._keep

    @property
    def counts(self) -> Counts:
        """Tokens of all requests together."""
        read = self._tokens
        return Counts(
            input=read[0], write_5m=read[1], write_1h=read[2], read=read[3], output=read[4]
        )

    @property
    def by_model(self) -> dict[str, tuple[int, int]]:
        """Served requests and nano-dollars for each model."""
        return {model: (pair[0], pair[1]) for model, pair in self._by_model.items()}

    @property
    def rows(self) -> list[BillRow]:
        """The rows still kept, in the order in which they were charged."""
        size = len(self._cells) // _WIDTH
        return [self._row((self._next + offset) % size) for offset in range(size)]

    def row(self, of: str) -> BillRow | None:
        """The row of a ``request-id`` or message id; None if it isn't on the bill (any more)."""
        _, tag, number = of.rsplit("_", 2) if of.count("_") >= 2 else ("", "", "")
        if tag != self._tag or not number.isdigit():
            return None
        wanted = int(number)
        for start in range(0, len(self._cells), _WIDTH):
            if self._cells[start] == wanted:
                return self._row(start // _WIDTH)
        return None

    def _row(self, index: int) -> BillRow:
        cells = self._cells[index * _WIDTH : (index + 1) * _WIDTH]
        number, nanos, fresh, write_5m, write_1h, read, output, searches, model, flags = cells
        return BillRow(
            number=number,
            request_id=request_id(self._tag, number),
            message_id=message_id(self._tag, number),
            model=_MODEL_IDS[model],
            kind=_KINDS[flags & 3],
            nanos=nanos,
            counts=Counts(
                input=fresh, write_5m=write_5m, write_1h=write_1h, read=read, output=output
            ),
            web_searches=searches,
            complete=bool(flags & 4),
        )

    def to_json(self, *, rows: int = 100) -> dict[str, object]:
        """The bill for ``GET /sim/bill``: totals and the latest rows. Amounts are nano-dollars."""
        return {
            "simulated": True,
            "nanos": self.nanos,
            "usd": f"{Decimal(self.nanos).scaleb(-9):f}",
            "requests": self.requests,
            "web_searches": self.web_searches,
            "tokens": _counts_json(self.counts),
            "by_model": {
                model: {"requests": requests, "nanos": nanos}
                for model, (requests, nanos) in self.by_model.items()
            },
            "rows": [_row_json(row) for row in (self.rows[-rows:] if rows > 0 else [])],
        }


def request_id(tag: str, number: int) -> str:
    """The ``request-id`` of a request."""
    return f"req_sim_{tag}_{number:08d}"


def message_id(tag: str, number: int) -> str:
    """The id of the message that answers a request."""
    return f"msg_sim_{tag}_{number:08d}"


def _counts_json(counts: Counts) -> dict[str, int]:
    return {
        "input": counts.input,
        "write_5m": counts.write_5m,
        "write_1h": counts.write_1h,
        "read": counts.read,
        "output": counts.output,
    }


def _row_json(row: BillRow) -> dict[str, object]:
    return {
        "request_id": row.request_id,
        "message_id": row.message_id,
        "model": row.model,
        "kind": row.kind,
        "nanos": row.nanos,
        "tokens": _counts_json(row.counts),
        "web_searches": row.web_searches,
        "complete": row.complete,
    }
