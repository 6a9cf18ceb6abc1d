"""Faults on demand: a script, seeded rates, or both.

=======================  ==========================================================================
``rate_limited``         429 with ``retry-after``
``enforced_spend_limit`` 429 ``enforced_spend_limit_reached``, without ``retry-after``
``own_spend_limit``      400 "You have reached your specified API usage limits ..."
``billing``              402 ``billing_error``
``unauthorized``         401
``forbidden``            403
``overloaded``           529
``server_error``         500
``unavailable``          503
``gateway_timeout``      504
``error``                any other: ``status``, ``message`` and ``code`` say which
``html``                 200 with an HTML page instead of JSON
``invalid_json``         200 with half a JSON document (a stream: half an event)
``reset``                connection reset before the reply; ``billed``: was the work done?
``hang``                 no reply for ``seconds``, or until released; then the reply
``hang_stream``          silence after ``after_events`` events, for ``seconds`` or until released
``sse_error``            an ``overloaded_error`` event after ``after_events`` events of a 200 stream
``cut``                  connection lost after ``after_events`` events
``no_stop``              the stream ends cleanly before ``message_delta`` and ``message_stop``
``no_usage``             no usage at all
``no_split``             no split of cache writes by lifetime
``other_model``          ``model`` served, and billed, instead of the one asked for
``gzip``                 the stream is compressed
=======================  ==========================================================================

On ``batches``, ``reset`` loses the answer (``billed``: after it took effect), ``invalid_json`` halves it, and
``cut`` breaks the results off after ``after_events`` lines; ``match`` looks at the path where there is no body.

The kinds from ``sse_error`` to ``no_stop`` need a stream and pass over other requests; what was
generated until then is billed. The error kinds at the top are never billed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .api_errors import ApiError

_OWN_LIMIT = (
    "You have reached your specified API usage limits. "
    "You will regain access on 2026-12-01 at 00:00 UTC."
)
#: status, message, error code, retry-after in seconds
_ERRORS: dict[str, tuple[int, str, str | None, float | None]] = {
    "rate_limited": (429, "This request would exceed your organization's rate limit.", None, 1),
    "enforced_spend_limit": (
        429,
        "Your organization has reached its monthly spend limit.",
        "enforced_spend_limit_reached",
        None,
    ),
    "own_spend_limit": (400, _OWN_LIMIT, None, None),
    "billing": (402, "There is a problem with your billing.", None, None),
    "unauthorized": (401, "invalid x-api-key", None, None),
    "forbidden": (403, "Your API key lacks permission for this resource.", None, None),
    "overloaded": (529, "Overloaded", None, None),
    "server_error": (500, "Internal server error", None, None),
    "unavailable": (503, "Service unavailable", None, None),
    "gateway_timeout": (504, "The request timed out.", None, None),
    "error": (500, "Simulated error", None, None),
}
STREAM_KINDS = frozenset({"sse_error", "cut", "no_stop", "hang_stream", "gzip"})
_SHAPES = frozenset(
    {"html", "invalid_json", "reset", "hang", "no_usage", "no_split", "other_model"}
)
KINDS = frozenset(_ERRORS) | STREAM_KINDS | _SHAPES
_TARGETS = ("messages", "count_tokens", "batches", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of the module's table.
        times: how many requests suffer it; 0 means every one.
        on: ``messages``, ``count_tokens``, ``batches`` or ``any``.
        match: only requests whose body contains this text.
        retry_after: seconds, for error kinds; None means the kind's own (usually no header).
        should_retry: sends ``x-should-retry`` if not None.
        status, message, code: of kind ``error``; ``message`` and ``code`` of other error kinds too.
        after_events: events sent before a stream goes wrong.
        seconds: how long a hang lasts.
        billed: whether a ``reset``, an ``html`` page or an abandoned ``hang`` did (and charges) the
            work all the same.
        model: what ``other_model`` serves.
    """

    kind: str
    times: int = 1
    on: str = "messages"
    match: str = ""
    retry_after: float | None = None
    should_retry: bool | None = None
    status: int = 500
    message: str = ""
    code: str | None = None
    after_events: int = 3
    seconds: float = 3600.0
    billed: bool = False
    model: str = "claude-haiku-5-5"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            msg = f"there is no fault {self.kind!r}; the faults are {known}"
            raise ValueError(msg)
        if self.on not in _TARGETS:
            msg = f"on={self.on!r}: a fault is on one of {', '.join(_TARGETS)}"
            raise ValueError(msg)

    def error(self) -> ApiError | None:
        """The error reply, for the kinds that are one."""
        known = _ERRORS.get(self.kind)
        if known is None:
            return None
        status, message, code, retry_after = known
        headers = {}
        wait_s = self.retry_after if self.retry_after is not None else retry_after
        if wait_s is not None:
            headers["retry-after"] = f"{wait_s:g}"
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return ApiError(
            self.status if self.kind == "error" else status,
            self.message or message,
            code=self.code or code,
            headers=headers,
        )


class Faults:
    """The plan of faults: scripted ones first come first served, then random ones by rate.

    Args:
        script: faults in order; a bare kind is a fault of that kind once, and None is a message
            that goes well.
        rates: chance for each kind, 0 to 1, together at most 1.
        seed: the same seed gives the same faults to the same sequence of requests.
    """

    def __init__(
        self,
        script: Sequence[Fault | str | None] = (),
        *,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self._script: list[Fault | None] = []
        self._rates: list[tuple[Fault, float]] = []
        self._random = random.Random(seed)
        self.extend(script)
        self.set_rates(rates or {}, seed=seed)

    def extend(self, script: Sequence[Fault | str | None]) -> None:
        """Add faults at the end of the script."""
        self._script += [Fault(kind=each) if isinstance(each, str) else each for each in script]

    def set_rates(self, rates: Mapping[str, float], *, seed: int = 0) -> None:
        """Replace the random faults."""
        if sum(rates.values()) > 1 or any(rate < 0 for rate in rates.values()):
            msg = "rates of faults are chances from 0 to 1, together at most 1"
            raise ValueError(msg)
        self._rates = [(Fault(kind=kind), rate) for kind, rate in rates.items()]
        self._random = random.Random(seed)

    def clear(self) -> None:
        """No more faults."""
        self._script = []
        self._rates = []

    @property
    def pending(self) -> int:
        """Entries of the script that no request has used up."""
        return len(self._script)

    def draw(self, on: str, body: bytes, *, stream: bool) -> Fault | None:
        """The fault that this request suffers, if any."""
        for index, fault in enumerate(self._script):
            if fault is None and on == "messages":
                del self._script[index]
                return None
            if fault is None or not _applies(fault, on, body, stream):
                continue
            if fault.times == 1:
                del self._script[index]
            elif fault.times > 1:
                self._script[index] = replace(fault, times=fault.times - 1)
            return fault
        return self._random_fault(on, body, stream) if self._rates else None

    def _random_fault(self, on: str, body: bytes, stream: bool) -> Fault | None:
        drawn = self._random.random()
        for fault, rate in self._rates:
            if drawn < rate:
                return fault if _applies(fault, on, body, stream) else None
            drawn -= rate
        return None

    def load_json(self, plan: dict[str, Any]) -> None:
        """Take a plan from ``POST /sim/faults``.

        Args:
            plan: ``script`` (list of kinds, objects with the fields of ``Fault``, or null), which
                is added; ``rates`` and ``seed``, which replace; ``clear: true`` drops all first.

        Raises:
            ValueError: unknown field, kind or rate.
        """
        unknown = plan.keys() - {"script", "rates", "seed", "clear"}
        if unknown:
            msg = f"unknown field {min(unknown)!r}; use script, rates, seed, clear"
            raise ValueError(msg)
        script = [_fault_from(each) for each in plan.get("script") or []]
        if plan.get("clear"):
            self.clear()
        self.extend(script)
        if "rates" in plan:
            self.set_rates(plan["rates"] or {}, seed=int(plan.get("seed", 0)))


def _applies(fault: Fault, on: str, body: bytes, stream: bool) -> bool:
    if fault.on not in {on, "any"}:
        return False
    if fault.kind in STREAM_KINDS and not stream:
        return False
    return not fault.match or fault.match.encode() in body


_FIELDS = frozenset(field.name for field in fields(Fault))


def _fault_from(entry: object) -> Fault | None:
    if entry is None:
        return None
    if isinstance(entry, str):
        return Fault(kind=entry)
    if not isinstance(entry, dict) or not entry.keys() <= _FIELDS:
        msg = f"{entry!r} is not a fault; its fields are {', '.join(sorted(_FIELDS))}"
        raise ValueError(msg)
    return Fault(**entry)
